"""The best tokens of an output projection, without a softmax over the vocabulary.

Logits are computed for a part of the vocabulary at a time, and ranked and summed while that is in the cache: a running
sum of exp_and_sum, over the largest logit so far, gives the normaliser; a logit that is larger than the least of the
best so far takes its place among them. Of equal logits the first token comes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.kernels.exp import LOG2_E, exp2
from headway.kernels.float_bits import MIN_INT32, bits_to_float, float_to_bits, ordered_int
from headway.kernels.int8_gemm import BLOCK, multiply_block
from headway.kernels.int8_linear import quantize_rows
from headway.kernels.jit import jit, jit_inline

__all__ = ["topk_logits", "topk_projection", "topk_projection_per_sentence"]

Array = npt.NDArray[Any]

_PART = max(1, 128 // BLOCK)  # blocks: 128 tokens, which for 256 rows are 128 KiB
_LEAST = np.float32(-3.4e38)
_ANY = np.float32(-np.inf)


@jit
def topk_projection(
    hidden: Array,
    weights: Array,
    starts: Array,
    scale: Array,
    bias: Array,
    vocabulary: int,
    forbidden: Array,
    end: int,
    best: Array,
    tokens: Array,
    ending: Array,
) -> None:
    """Write the log-probabilities of each row's best tokens, best first, into ``best`` and ``tokens`` (R, C).

    The log-probability of ``end`` is written to ``ending`` (R,). The layer that ``hidden`` (R, D) is multiplied by is
    given as in :class:`~headway.kernels.int8_linear.QuantizedLinear`. ``forbidden`` tokens are never chosen but keep
    their share of the probability. If fewer than C tokens are left, the rest have log-probability -inf. If a logit is
    NaN, so are all results of its row.
    """
    rows = len(hidden)
    levels = np.empty((rows, 4 * weights.shape[1]), dtype=np.uint8)
    scales = np.empty(rows, dtype=np.float32)
    logits = np.empty((rows, _PART * BLOCK), dtype=np.float32)
    largest, totals = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.float32)
    _clear(largest, totals, best, tokens, ending)
    quantize_rows(hidden, levels, scales)
    for first in range(0, len(weights), _PART):
        for block in range(first, min(first + _PART, len(weights))):
            place = logits.ctypes.data + 4 * (block - first) * BLOCK
            w, s, f, b = weights.ctypes.data, starts.ctypes.data, scale.ctypes.data, bias.ctypes.data
            q, c, stride = levels.ctypes.data, scales.ctypes.data, 4 * logits.shape[1]
            multiply_block(w, s, f, b, block, q, levels.shape[1], c, rows, _ANY, place, stride)
        width = min(_PART * BLOCK, vocabulary - first * BLOCK)
        _rank_part(logits, 0, width, first * BLOCK, forbidden, end, largest, totals, best, tokens, ending)
    _normalize(largest, totals, best, ending)


@jit
def topk_projection_per_sentence(
    hidden: Array,
    weights: Array,
    starts: Array,
    scale: Array,
    bias: Array,
    tokens: Array,
    homes: Array,
    forbidden: Array,
    end: int,
    best: Array,
    found: Array,
    ending: Array,
) -> None:
    """:func:`rank` where each sentence has its own tokens, and its own layer.

    ``tokens`` (homes, blocks, BLOCK) are in order, and zeros follow; the layers' arrays (homes, blocks, ...) are of the
    same shape. ``homes`` (B,) are the sentences' places among them, whose rows are neighbours in ``hidden``.
    """
    beams = len(hidden) // max(1, len(homes))
    excluded = np.empty(len(forbidden), dtype=np.int64)
    for sentence in range(len(homes)):
        home = homes[sentence]
        listed = tokens[home].reshape(-1)
        size, ruled_out, end_place = 0, 0, -1
        while size < len(listed) and listed[size] > 0:
            if listed[size] == end:
                end_place = size
            for token in forbidden:
                if listed[size] == token:
                    excluded[ruled_out] = size
                    ruled_out += 1
            size += 1
        rows, used = slice(sentence * beams, (sentence + 1) * beams), -(-size // BLOCK)
        topk_projection(
            *(hidden[rows], weights[home, :used], starts[home], scale[home], bias[home], size),
            *(excluded[:ruled_out], end_place, best[rows], found[rows], ending[rows]),
        )
        for r in range(sentence * beams, (sentence + 1) * beams):
            for c in range(found.shape[1]):
                found[r, c] = listed[found[r, c]]


@jit
def topk_logits(logits: Array, forbidden: Array, end: int, best: Array, tokens: Array, ending: Array) -> None:
    """The same of logits (R, V)."""
    rows, vocabulary = logits.shape
    largest, totals = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.float32)
    _clear(largest, totals, best, tokens, ending)
    for start in range(0, vocabulary, _PART * BLOCK):
        width = min(_PART * BLOCK, vocabulary - start)
        _rank_part(logits, start, width, start, forbidden, end, largest, totals, best, tokens, ending)
    _normalize(largest, totals, best, ending)


@jit
def _clear(largest: Array, totals: Array, best: Array, tokens: Array, ending: Array) -> None:
    """Write what is true before any token was seen."""
    for r in range(len(best)):
        largest[r], totals[r], ending[r] = _LEAST, np.float32(0), _ANY
        for c in range(best.shape[1]):
            best[r, c], tokens[r, c] = _ANY, 0


@jit
def _rank_part(
    logits: Array,
    column: int,
    width: int,
    start: int,
    forbidden: Array,
    end: int,
    largest: Array,
    totals: Array,
    best: Array,
    tokens: Array,
    ending: Array,
) -> None:
    """Take in the logits of ``width`` tokens from ``start`` on, which are the columns from ``column`` on."""
    end_column = column + end - start if 0 <= end - start < width else -1
    last = best.shape[1] - 1
    for r in range(len(logits)):
        if end_column >= 0:
            ending[r] = logits[r, end_column]
        highest = MIN_INT32
        for n in range(column, column + width):
            highest = max(highest, ordered_int(float_to_bits(logits[r, n])))
        top = bits_to_float(ordered_int(highest))
        if top > largest[r]:
            totals[r] *= exp2((largest[r] - top) * LOG2_E)
            largest[r] = top
        base, total = largest[r], np.float32(0)
        for n in range(column, column + width):
            total += exp2((logits[r, n] - base) * LOG2_E)
        totals[r] += total
        if top > best[r, last]:
            _insert(logits[r, column : column + width], start, forbidden, best[r], tokens[r])


@jit
def _normalize(largest: Array, totals: Array, best: Array, ending: Array) -> None:
    for r in range(len(best)):
        normalizer = largest[r] + np.log(totals[r])
        for c in range(best.shape[1]):
            best[r, c] = _log_probability(best[r, c], normalizer)
        ending[r] = _log_probability(ending[r], normalizer)


@jit_inline
def _log_probability(logit: np.float32, normalizer: np.float32) -> np.float32:
    """Of a sure token rounding must not make more than 0."""
    difference = logit - normalizer
    return np.float32(0) if difference > 0 else difference  # not min(): NaN stays


@jit_inline
def _insert(part: Array, start: int, forbidden: Array, best: Array, tokens: Array) -> None:
    """Put each token of a row's part that is better than the last of the best into its place among them."""
    last = len(best) - 1
    for n in range(len(part)):
        logit = part[n]
        if logit > best[last]:
            excluded = False
            for token in forbidden:
                excluded |= token == start + n
            if not excluded:
                at = last
                while at > 0 and logit > best[at - 1]:
                    best[at], tokens[at] = best[at - 1], tokens[at - 1]
                    at -= 1
                best[at], tokens[at] = logit, start + n
