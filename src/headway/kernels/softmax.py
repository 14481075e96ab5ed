"""The softmax of attention over the positions that a mask allows, and its gradient.

Arrays are float32 or uint16 (the bits of bfloat16).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from headway.kernels.exp import exp_and_sum
from headway.kernels.float_bits import cast_like, to_float32
from headway.kernels.jit import Array, jit_serial_and_parallel, run_threaded
from headway.kernels.llvm import LANES
from headway.kernels.reductions import dot_product

_MINUS_INFINITY = np.float32(-np.inf)
_CHUNK = 64  # rows at a time


def masked_softmax_(scores: Array, mask: Array, scale: float = 1.0) -> None:
    """Replace contiguous scores (B, H, T, S) by softmax(``scale`` * scores) over S.

    Weights are 0 where ``mask`` (B or 1, T or 1, S) is False, also in rows that are False throughout.
    """
    run_threaded(_softmax, scores, mask, np.float32(scale))


def softmax_backward_(gradient: Array, weights: Array, scale: float) -> None:
    """Replace the gradient (N, S) with respect to the weights by the gradient with respect to the scores."""
    run_threaded(_softmax_backward, gradient, weights, np.float32(scale))


@jit_serial_and_parallel
def _softmax(scores: Array, mask: Array, factor: Any) -> None:
    sentences, heads, queries, length = scores.shape
    for row in numba.prange(sentences * heads):
        own_head, own_sentence = scores[row // heads, row % heads], mask[min(row // heads, len(mask) - 1)]
        powers = np.empty(length + LANES, dtype=np.float32)
        for query in range(queries):
            is_open, own_query = own_sentence[min(query, len(own_sentence) - 1)], own_head[query]
            for key in range(length):
                powers[key] = to_float32(own_query[key]) * factor if is_open[key] else _MINUS_INFINITY
            total = exp_and_sum(powers.ctypes.data, length)
            scale = np.float32(1) / total if is_open.any() else np.float32(0)
            for key in range(length):
                weight = powers[key] * scale if is_open[key] else np.float32(0)
                own_query[key] = cast_like(weight, own_query[key])


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
