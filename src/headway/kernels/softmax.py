"""The masked softmax of attention, the cross-entropy of logits, and their gradients.

Arrays are float32 or uint16 (the bits of bfloat16).

A mask is a boolean array (B or 1, T or 1, S) in which True means "may attend". A causal mask that excludes early keys,
such as those of other documents, can instead be an integer array (B, T) with the first key of each query. The last key
is at the query's own position.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from headway.kernels.exp import exp_and_sum
from headway.kernels.float_bits import MIN_INT32, bits_to_float, cast_like, float_to_bits, ordered_int, to_float32
from headway.kernels.jit import Array, jit_inline, jit_serial_and_parallel
from headway.kernels.llvm import LANES
from headway.kernels.reductions import dot_product

_MINUS_INFINITY = np.float32(-np.inf)
_CHUNK = 64  # number of rows that are processed at a time


def masked_softmax_(scores: Array, mask: Array, scale: float = 1.0) -> None:
    """Replace contiguous scores (B, H, T, S) with softmax(``scale`` * scores) over S.

    Weights are 0 at masked positions, even in rows in which all positions are masked.
    """
    _softmax(scores, mask, np.float32(scale))


def softmax_backward_(gradient: Array, weights: Array, scale: float) -> None:
    """Replace the gradient (N, S) of the weights with the gradient of the scores."""
    _softmax_backward(gradient, weights, np.float32(scale))


@jit_serial_and_parallel
def _softmax(scores: Array, mask: Array, factor: Any) -> None:
    sentences, heads, queries, length = scores.shape
    for row in numba.prange(sentences * heads):
        own_head = scores[row // heads, row % heads]
        powers = np.empty(length + LANES, dtype=np.float32)
        flags = np.empty(length, dtype=np.bool_)
        for query in range(queries):
            is_open, own_query = allowed_keys(mask, row // heads, query, flags), own_head[query]
            for key in range(length):
                powers[key] = to_float32(own_query[key]) * factor if is_open[key] else _MINUS_INFINITY
            total = exp_and_sum(powers.ctypes.data, length)
            scale = np.float32(1) / total if is_open.any() else np.float32(0)
            for key in range(length):
                weight = powers[key] * scale if is_open[key] else np.float32(0)
                own_query[key] = cast_like(weight, own_query[key])


@jit_inline
def allowed_keys(mask: Array, sentence: int, query: int, flags: Array) -> Array:
    """Return a mask of the keys that a query may attend to. It may be stored in ``flags``, which is overwritten."""
    if mask.ndim == 3:
        own_sentence: Array = mask[0]
        if len(mask) > 1:
            own_sentence = mask[sentence]
        row: Array = own_sentence[min(query, len(own_sentence) - 1)]
        return row
    first = mask[sentence, query]
    for key in range(len(flags)):
        flags[key] = first <= key <= query
    return flags


@jit_serial_and_parallel
def _softmax_backward(gradient: Array, weights: Array, scale: Any) -> None:
    rows, length = gradient.shape
    for chunk in numba.prange(-(-rows // _CHUNK)):
        for row in range(chunk * _CHUNK, min((chunk + 1) * _CHUNK, rows)):
            own_row, weight = gradient[row], weights[row]
            mean = dot_product(own_row.ctypes.data, own_row[0], weight.ctypes.data, weight[0], length)
            for key in range(length):
                error = (to_float32(own_row[key]) - mean) * to_float32(weight[key]) * scale
                own_row[key] = cast_like(error, own_row[key])


def cross_entropy_(logits: Array, targets: Array, smoothing: float) -> float:
    """Return the sum of log sum exp z - (1 - smoothing) z_t over rows z with target t, and replace z with its gradient.

    The logits of a batch are the largest tensor of a training step. Here, each row is read once in its own precision,
    converted to float32 probabilities in a cache, and written once. ``logits`` (R, V) is contiguous and either float32
    or uint16 (the bits of bfloat16). ``targets`` has shape (R,).
    """
    losses = np.empty(len(logits), dtype=np.float64)
    _cross_entropy(logits, targets, np.float32(1 - smoothing), losses)
    return float(losses.sum())


@jit_serial_and_parallel
def _cross_entropy(logits: Array, targets: Array, weight: Any, losses: Array) -> None:
    for r in numba.prange(len(logits)):
        row, size = logits[r], logits.shape[1]
        powers = np.empty(size + LANES, dtype=np.float32)
        highest = MIN_INT32
        for v in range(size):
            powers[v] = to_float32(row[v])
            highest = max(highest, ordered_int(float_to_bits(powers[v])))
        target = powers[targets[r]]
        total = exp_and_sum(powers.ctypes.data, size)
        scale = np.float32(1) / total
        for v in range(size):
            powers[v] *= scale
        powers[targets[r]] -= weight
        log_sum = np.log(np.float64(total)) + np.float64(bits_to_float(ordered_int(highest)))
        losses[r] = log_sum - np.float64(weight) * np.float64(target)
        for v in range(size):
            row[v] = cast_like(powers[v], row[v])
