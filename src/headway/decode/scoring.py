"""Probabilities of targets that are given: forced scores, and what else could have come next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.decode.protocol import SearchModel, StateT, best_of, device_of
from headway.errors import BundleError, ConfigError

__all__ = ["Alternative", "ScoringModel", "alternatives", "score_targets"]

_PAD = 0


@runtime_checkable
class ScoringModel(Protocol):
    """A model that predicts every position of a target at once."""

    def __call__(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """The logits of the token that follows each target position."""


@torch.inference_mode()
def score_targets(
    model: ScoringModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    begin: int,
    end: int,
    max_tokens: int = 2048,
) -> list[tuple[float, ...]]:
    """The log-probability, in nats, of each token of each target and of its end symbol, given what is before.

    Targets are read by one teacher-forced pass for each batch of at most ``max_tokens`` positions (rows x the longer
    side, padding included). They agree with a search's ``token_log_probabilities`` to rounding.

    Args:
        model: Called with sources and targets; on this model's device.
        sources: As the model reads them, the end symbol included.
        targets: Without begin and end symbol; one for each source.
        begin: What targets start from.
        end: What they end in.
        max_tokens: Size of a batch.
    """
    if len(sources) != len(targets):
        raise ConfigError(f"{len(sources)} sources but {len(targets)} targets: expected one target for each source")
    device = device_of(model)
    scores: list[tuple[float, ...]] = [()] * len(sources)
    for batch in _batches([max(len(s), len(t) + 1) for s, t in zip(sources, targets, strict=True)], max_tokens):
        source = _padded([sources[at] for at in batch], device)
        target = _padded([[begin, *targets[at], end] for at in batch], device)
        log_probs = model(source, target[:, :-1]).float().log_softmax(-1)
        found = log_probs.gather(2, target[:, 1:].unsqueeze(2)).squeeze(2).tolist()
        for at, row in zip(batch, found, strict=True):
            scores[at] = tuple(row[: len(targets[at]) + 1])
            _check(scores[at])
    return scores


@dataclass(frozen=True)
class Alternative:
    """A token that could come next, and its log-probability in nats."""

    token: int
    log_probability: float


@torch.inference_mode()
def alternatives(
    model: SearchModel[StateT],
    source: Sequence[int],
    prefix: Sequence[int],
    count: int,
    *,
    begin: int,
    end: int,
) -> list[Alternative]:
    """The ``count`` most probable tokens after ``prefix`` (all, where there are fewer), best first.

    ``source`` ends in the end symbol; ``prefix`` is without the begin symbol. The end symbol is among what may come.
    """
    if count < 1:
        raise ConfigError(f"count = {count} alternatives: expected at least 1")
    device = device_of(model)
    state = model.start(torch.tensor([list(source)], device=device))
    for token in (begin, *prefix):
        logits = model.advance(state, torch.tensor([token], device=device))
    best = best_of(logits, count, (), end)
    _check(best.log_probs[0].tolist())
    return [
        Alternative(token, log_probability)
        for token, log_probability in zip(best.tokens[0].tolist(), best.log_probs[0].tolist(), strict=True)
    ]


def _check(log_probs: Sequence[float]) -> None:
    """Refuse what is not a number."""
    if any(math.isnan(value) for value in log_probs):
        raise BundleError("the model gives no finite probabilities: its weights are damaged")


def _batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Positions in batches of like length, each at least one."""
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lambda at: lengths[at]):
        if batch and (len(batch) + 1) * lengths[at] > max_tokens:
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Int[Tensor, "B T"]:
    width = max(map(len, rows))
    return torch.tensor([[*row] + [_PAD] * (width - len(row)) for row in rows], device=device)
