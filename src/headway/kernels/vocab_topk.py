"""The top k tokens of an output projection, without a softmax over the vocabulary.

Logits are computed for one chunk of the vocabulary at a time, and summed and ranked while they are in the cache. The
normalizer is a running sum of exponentials relative to the largest logit so far. A logit that exceeds the smallest of
the top k so far is inserted among them. Ties are broken by the lower token id.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.kernels.exp import LOG2_E, exp2
from headway.kernels.float_bits import MIN_INT32, bits_to_float, float_to_bits, ordered_int
from headway.kernels.int8_gemm import BLOCK, multiply_block
from headway.kernels.int8_linear import quantize_rows
from headway.kernels.jit import Array, jit, jit_inline

__all__ = ["topk_logits", "topk_projection", "topk_projection_per_sentence"]

Arrays = Any  # a tuple of arrays

_CHUNK = max(1, 128 // BLOCK)  # blocks: 128 tokens, whose logits take 128 KiB for 256 rows
_LEAST = np.float32(-3.4e38)
_MINUS_INFINITY = np.float32(-np.inf)


@jit
def topk_projection(hidden: Array, layer: Arrays, vocabulary: int, banned: Array, eos: int, results: Arrays) -> None:
    """Find the top k tokens of each row of ``hidden`` (R, D) times a weight, and their log-probabilities, best first.

    ``layer`` contains the packed weight, the accumulators' start values, the scales and the bias, as in
    :class:`~headway.kernels.int8_linear.QuantizedLinear`. ``results`` are the arrays to write to: the log-probabilities
    and the tokens (R, k), and the log-probability of ``eos`` (R,). ``banned`` tokens are never chosen but keep their
    share of the probability. If fewer than k tokens are left, the rest have log-probability -inf. If a logit is NaN, so
    are all results of its row.
    """
    weights, accumulator_init, scale, bias = layer
    rows = len(hidden)
    levels = np.empty((rows, 4 * weights.shape[1]), dtype=np.uint8)
    scales = np.empty(rows, dtype=np.float32)
    logits = np.empty((rows, _CHUNK * BLOCK), dtype=np.float32)
    sums = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.float32)
    _clear(sums, results)
    quantize_rows(hidden, levels, scales)
    for first in range(0, len(weights), _CHUNK):
        for block in range(first, min(first + _CHUNK, len(weights))):
            place = logits.ctypes.data + 4 * (block - first) * BLOCK
            w, s, f, b = weights.ctypes.data, accumulator_init.ctypes.data, scale.ctypes.data, bias.ctypes.data
            q, c, stride = levels.ctypes.data, scales.ctypes.data, 4 * logits.shape[1]
            multiply_block(w, s, f, b, block, q, levels.shape[1], c, rows, _MINUS_INFINITY, place, stride)
        width = min(_CHUNK * BLOCK, vocabulary - first * BLOCK)
        _update(logits, 0, width, first * BLOCK, banned, eos, sums, results)
    _normalize(sums, results)


@jit
def topk_projection_per_sentence(
    hidden: Array, layers: Arrays, listed: Array, slots: Array, banned: Array, eos: int, results: Arrays
) -> None:
    """Like :func:`topk_projection`, but each sentence has its own tokens and weights.

    ``listed`` (P, blocks, BLOCK) contains the sorted tokens of P slots, padded with zeros, and the arrays of ``layers``
    (P, blocks, ...) are in the same order. ``slots`` (B,) is the slot of each sentence, whose rows are neighbors.
    """
    weights, accumulator_init, scale, bias = layers
    log_probs, tokens, eos_log_probs = results
    beams = len(hidden) // max(1, len(slots))
    excluded = np.empty(len(banned), dtype=np.int64)
    for sentence in range(len(slots)):
        slot = slots[sentence]
        own = listed[slot].reshape(-1)
        size, num_excluded, eos_place = 0, 0, -1
        while size < len(own) and own[size] > 0:
            if own[size] == eos:
                eos_place = size
            for token in banned:
                if own[size] == token:
                    excluded[num_excluded] = size
                    num_excluded += 1
            size += 1
        rows, used = slice(sentence * beams, (sentence + 1) * beams), -(-size // BLOCK)
        layer = weights[slot, :used], accumulator_init[slot], scale[slot], bias[slot]
        own_results = log_probs[rows], tokens[rows], eos_log_probs[rows]
        topk_projection(hidden[rows], layer, size, excluded[:num_excluded], eos_place, own_results)
        for r in range(sentence * beams, (sentence + 1) * beams):
            for c in range(tokens.shape[1]):
                tokens[r, c] = own[tokens[r, c]]


@jit
def topk_logits(logits: Array, banned: Array, eos: int, results: Arrays) -> None:
    """Like :func:`topk_projection`, for given logits (R, V)."""
    rows, vocabulary = logits.shape
    sums = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.float32)
    _clear(sums, results)
    for start in range(0, vocabulary, _CHUNK * BLOCK):
        width = min(_CHUNK * BLOCK, vocabulary - start)
        _update(logits, start, width, start, banned, eos, sums, results)
    _normalize(sums, results)


@jit
def _clear(sums: Arrays, results: Arrays) -> None:
    """Initialize the running results: the largest logit and the sum of exponentials of each row, and the top k."""
    (largest, totals), (log_probs, tokens, eos_log_probs) = sums, results
    for r in range(len(log_probs)):
        largest[r], totals[r], eos_log_probs[r] = _LEAST, np.float32(0), _MINUS_INFINITY
        for c in range(log_probs.shape[1]):
            log_probs[r, c], tokens[r, c] = _MINUS_INFINITY, 0


@jit
def _update(
    logits: Array, column: int, width: int, start: int, banned: Array, eos: int, sums: Arrays, results: Arrays
) -> None:
    """Update the running results with the logits of ``width`` tokens from ``start`` on, in columns from ``column`` on.

    The log-probabilities of ``results`` are logits until :func:`_normalize` is called.
    """
    (largest, totals), (log_probs, tokens, eos_log_probs) = sums, results
    eos_column = column + eos - start if 0 <= eos - start < width else -1
    last = log_probs.shape[1] - 1
    for r in range(len(logits)):
        if eos_column >= 0:
            eos_log_probs[r] = logits[r, eos_column]
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
        if top > log_probs[r, last]:
            _insert(logits[r, column : column + width], start, banned, log_probs[r], tokens[r])


@jit
def _normalize(sums: Arrays, results: Arrays) -> None:
    (largest, totals), (log_probs, _, eos_log_probs) = sums, results
    for r in range(len(log_probs)):
        normalizer = largest[r] + np.log(totals[r])
        for c in range(log_probs.shape[1]):
            log_probs[r, c] = _log_prob(log_probs[r, c], normalizer)
        eos_log_probs[r] = _log_prob(eos_log_probs[r], normalizer)


@jit_inline
def _log_prob(logit: np.float32, normalizer: np.float32) -> np.float32:
    """Return the log-probability; rounding must not make that of a nearly certain token positive."""
    difference = logit - normalizer
    return np.float32(0) if difference > 0 else difference  # unlike min(), keeps NaN


@jit_inline
def _insert(chunk: Array, start: int, banned: Array, log_probs: Array, tokens: Array) -> None:
    """Insert each token of a row's chunk that is better than the last of the top k."""
    last = len(log_probs) - 1
    for n in range(len(chunk)):
        logit = chunk[n]
        if logit > log_probs[last]:
            excluded = False
            for token in banned:
                excluded |= token == start + n
            if not excluded:
                at = last
                while at > 0 and logit > log_probs[at - 1]:
                    log_probs[at], tokens[at] = log_probs[at - 1], tokens[at - 1]
                    at -= 1
                log_probs[at], tokens[at] = logit, start + n
