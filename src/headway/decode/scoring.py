"""Compute the probabilities of given targets, and of possible next tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.decode.caller import give_way
from headway.decode.protocol import SearchModel, StateT, nan_error
from headway.decode.request import NextToken, SearchVocabulary
from headway.decode.search import length_batches
from headway.errors import ConfigError

_PAD = 0


@runtime_checkable
class ScoringModel(Protocol):
    """A model that predicts all positions of a target in one call."""

    @property
    def device(self) -> torch.device:
        """The device of the model's inputs and outputs."""

    def __call__(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the logits of the next token after each target position."""


@torch.inference_mode()
def score_targets(
    model: ScoringModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    vocabulary: SearchVocabulary,
    *,
    max_batch_tokens: int = 2048,
) -> list[tuple[float, ...]]:
    """Return the log-probabilities, in nats, of each target's tokens and of its EOS, given the source.

    Each batch is one teacher-forced pass. The result equals a search's ``token_log_probabilities`` up to rounding.

    Args:
        model: Called once for each batch of sources and targets.
        sources: Token ids of the sources, including EOS.
        targets: Token ids of one target for each source, without BOS and EOS.
        vocabulary: The tokens that begin and end a target. Banned tokens are scored like all others.
        max_batch_tokens: Maximum batch size: the number of pairs times the length of the longest source or target.

    Raises:
        ConfigError: The numbers of sources and targets differ.
        BundleError: The model's probabilities are NaN.
    """
    if len(sources) != len(targets):
        raise ConfigError(f"{len(sources)} sources but {len(targets)} targets: expected one target for each source")
    scores: list[tuple[float, ...]] = [()] * len(sources)
    eos = vocabulary.eos
    longer = [max(source, [*target, eos], key=len) for source, target in zip(sources, targets, strict=True)]
    for batch in length_batches(longer, max_batch_tokens, len(sources)):
        source = _padded([sources[index] for index in batch], model.device)
        target = _padded([[vocabulary.bos, *targets[index], eos] for index in batch], model.device)
        log_probs = model(source, target[:, :-1]).float().log_softmax(-1)
        target_log_probs = log_probs.gather(2, target[:, 1:].unsqueeze(2)).squeeze(2).tolist()
        for index, row in zip(batch, target_log_probs, strict=True):
            scores[index] = tuple(row[: len(targets[index]) + 1])
            if any(map(math.isnan, scores[index])):
                raise nan_error(model, None)
    return scores


@torch.inference_mode()
def score_by_steps(
    model: SearchModel[StateT],
    sources: Sequence[Sequence[int]],
    firsts: Sequence[int],
    targets: Sequence[Sequence[int]],
    *,
    max_sequences: int = 64,
) -> list[tuple[float, ...]]:
    """Return the log-probabilities, in nats, of each target's tokens, computed one step at a time as in a search.

    This is slower than one pass over a whole target, but measures the model exactly as a search runs it.

    Args:
        model: The model to score with.
        sources: Token ids of the sources, as the model's input.
        firsts: Input token of each target's first step.
        targets: Token ids of one target for each source, usually with EOS.
        max_sequences: Maximum number of targets in a batch.

    Raises:
        BundleError: The model's probabilities are NaN.
        ConfigError: The probabilities are NaN because of the precision.
    """
    scores: list[list[float]] = [[] for _ in targets]
    for batch in length_batches(targets, sum(map(len, targets)) + 1, max_sequences):
        left = [index for index in batch if len(targets[index])]
        state = model.start([sources[index] for index in left])
        newest = [firsts[index] for index in left]
        for position in range(len(targets[batch[-1]])):
            give_way()
            if any(len(targets[index]) <= position for index in left):
                kept = torch.tensor([row for row, index in enumerate(left) if len(targets[index]) > position])
                model.reorder_rows(state, kept.to(model.device), kept.to(model.device))
                left, newest = [left[row] for row in kept], [newest[row] for row in kept]
            logits = model.step(state, torch.tensor(newest, device=model.device)).logits()
            newest = [targets[index][position] for index in left]
            predicted = torch.tensor(newest, device=logits.device).unsqueeze(1)
            log_probs = logits.float().log_softmax(-1).gather(1, predicted).squeeze(1).tolist()
            if any(map(math.isnan, log_probs)):
                raise nan_error(model, state)
            for index, log_prob in zip(left, log_probs, strict=True):
                scores[index].append(log_prob)
    return [tuple(values) for values in scores]


@torch.inference_mode()
def top_next_tokens(
    model: SearchModel[Any], source: Sequence[int], prefix: Sequence[int], count: int, vocabulary: SearchVocabulary
) -> list[NextToken]:
    """Return the ``count`` most probable next tokens after ``prefix``, best first, or all tokens if there are fewer.

    ``source`` must end with EOS; ``prefix`` must not begin with BOS. EOS and banned tokens may be among the results.
    """
    if count < 1:
        raise ConfigError(f"count = {count}: expected at least 1")
    state = model.start([source])
    for token in (vocabulary.bos, *prefix):
        give_way()
        step = model.step(state, torch.tensor([token], device=model.device))
    top = step.top_k(count, (), vocabulary.eos)
    log_probs = top.log_probs[0].tolist()
    if any(map(math.isnan, log_probs)):
        raise nan_error(model, state)
    return [NextToken(*pair) for pair in zip(top.tokens[0].tolist(), log_probs, strict=True)]


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "B T"]:
    width = max(map(len, rows))
    return torch.tensor([[*row] + [_PAD] * (width - len(row)) for row in rows], device=device)
