"""Score sequences with a language model's forward pass: the log-probability of each token given the tokens before it.

A sequence that is longer than the context is processed in windows. Each window begins ``stride`` tokens after the
previous one, and only the tokens that no earlier window has predicted are scored. So each token is scored once and,
except in the first window, has at least context - stride tokens before it. A stride as long as the context is fastest.
With a short stride, each token has more context.

Windows of similar length share a forward pass. They are padded on the right, so no token attends to the padding. Logits
are computed only for the scored tokens, and only for a few rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from headway.decode import give_way, length_batches
from headway.decode.scoring import score_by_steps
from headway.engine import SearchDecoderOnly
from headway.engine.loss import projected_log_probs
from headway.errors import BundleError
from headway.models.base import ContinuationModel
from headway.models.recurrent_lm import RecurrentLM
from headway.nn.embedding import pad_sequences
from headway.text.base import BOS, EOS, PAD

_MAX_BATCH_TOKENS = 4096  # enough for full speed on a CPU


class _Window(NamedTuple):
    sequence: int
    begin: int
    end: int
    first: int  # index of the first token that is scored


@torch.inference_mode()
def score_sequences(
    model: ContinuationModel, sequences: Sequence[Sequence[int]], *, context: int, stride: int
) -> list[Float[Tensor, " _"]]:
    """Return the log-probability, in nats, of each token in each sequence, and of EOS after the sequence.

    Args:
        model: The language model that scores the sequences.
        sequences: Token ids without BOS and EOS. BOS is added before each window, as in training.
        context: Maximum length of a window, in tokens.
        stride: Tokens between the beginnings of two windows, from 1 to ``context``.

    Raises:
        BundleError: The model's probabilities are NaN.
    """
    targets = list(map(_with_eos, sequences))
    scores = [torch.empty(len(target)) for target in targets]
    windows = [window for index, ids in enumerate(targets) for window in _windows(index, len(ids), context, stride)]
    lengths = [range(window.begin, window.end) for window in windows]
    for batch in length_batches(lengths, _MAX_BATCH_TOKENS, len(windows)):
        chosen = [windows[index] for index in batch]
        parts = [targets[window.sequence][window.begin : window.end] for window in chosen]
        inputs = pad_sequences([[BOS, *part[:-1].tolist()] for part in parts], PAD, model.device)
        hidden = model.hidden(inputs)
        rows = torch.cat(
            [hidden[row, window.first - window.begin : window.end - window.begin] for row, window in enumerate(chosen)]
        )
        counted = torch.cat([targets[window.sequence][window.first : window.end] for window in chosen])
        log_probs = _log_probs(model, rows, counted)
        counts = [window.end - window.first for window in chosen]
        for window, values in zip(chosen, torch.split(log_probs, counts), strict=True):
            scores[window.sequence][window.first : window.end] = values
    return scores


@torch.inference_mode()
def score_sequences_by_steps(
    model: SearchDecoderOnly, sequences: Sequence[Sequence[int]], *, context: int, stride: int
) -> list[Float[Tensor, " _"]]:
    """Score like :func:`score_sequences`, but one token at a time and in the model's precision, as in generation.

    The tokens of a window that are not scored form its prompt.

    Raises:
        BundleError: The model's probabilities are NaN.
        ConfigError: The probabilities are NaN because of the precision.
    """
    targets = [[*ids, EOS] for ids in sequences]
    windows = [window for index, ids in enumerate(targets) for window in _windows(index, len(ids), context, stride)]
    prompts = [[BOS, *targets[window.sequence][window.begin : window.first]] for window in windows]
    counted = [targets[window.sequence][window.first : window.end] for window in windows]
    parts = score_by_steps(model, [prompt[:-1] for prompt in prompts], [prompt[-1] for prompt in prompts], counted)
    scores: list[list[float]] = [[] for _ in sequences]
    for window, values in zip(windows, parts, strict=True):
        scores[window.sequence] += values
    return [torch.tensor(values) for values in scores]


@torch.inference_mode()
def score_sequences_with_state(
    model: RecurrentLM, sequences: Sequence[Sequence[int]], *, block_length: int
) -> list[Float[Tensor, " _"]]:
    """Return the log-probability, in nats, of each token in each sequence, and of EOS after the sequence.

    Each sequence is processed in blocks of ``block_length`` tokens. A block starts from the state after the previous
    block, so the context of each token is the whole sequence before it. The first block begins with BOS.

    Raises:
        BundleError: The model's probabilities are NaN.
    """
    targets = list(map(_with_eos, sequences))
    parts: list[list[Tensor]] = [[] for _ in sequences]
    logit_chunk_sizes = max(_MAX_BATCH_TOKENS // block_length, 1)
    for batch in length_batches(sequences, sum(map(len, sequences)) + 1, logit_chunk_sizes):
        rows = [F.pad(targets[index][:-1], (1, 0), value=BOS) for index in batch]
        inputs = pad_sequence(rows, batch_first=True, padding_value=PAD).to(model.device)
        state = model.initial_state(len(batch))
        for begin in range(0, inputs.size(1), block_length):
            give_way()
            hidden, state = model.continue_from(state, inputs[:, begin : begin + block_length])
            blocks = [targets[index][begin : begin + block_length] for index in batch]
            states = torch.cat([hidden[row, : len(block)] for row, block in enumerate(blocks)])
            log_probs = _log_probs(model, states, torch.cat(blocks))
            for index, values in zip(batch, torch.split(log_probs, list(map(len, blocks))), strict=True):
                parts[index].append(values)
    return [torch.cat(blocks) for blocks in parts]


def _with_eos(ids: Sequence[int]) -> Int[Tensor, " _"]:
    """Return the ids and EOS without creating a Python object for each id, because a text may have millions of ids."""
    return F.pad(torch.from_numpy(np.asarray(ids, np.int64)), (0, 1), value=EOS)


def _log_probs(
    model: ContinuationModel, hidden: Float[Tensor, "N D"], targets: Int[Tensor, " N"]
) -> Float[Tensor, " N"]:
    log_probs = projected_log_probs(hidden, model.projection, targets.to(model.device)).cpu()
    if math.isnan(float(log_probs.sum())):
        raise BundleError("the model's probabilities are NaN: its weights are damaged")
    return log_probs


def _windows(sequence: int, length: int, context: int, stride: int) -> Iterator[_Window]:
    begin = done = 0
    while done < length:
        end = min(begin + context, length)
        yield _Window(sequence, begin, end, done)
        begin, done = begin + stride, end
