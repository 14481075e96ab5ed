"""The weights of attention: a softmax over the places that a mask opens. And the way back.

Numbers are float32, or uint16: the bits of bfloat16.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from headway.kernels.exp import exp_and_sum
from headway.kernels.float_bits import cast_like, to_float32
from headway.kernels.jit import jit_serial_and_parallel
from headway.kernels.llvm import LANES
from headway.kernels.reductions import dot_product
from headway.kernels.threads import run_threaded

__all__ = ["masked_softmax_", "softmax_backward_"]

Array = npt.NDArray[Any]

_SHUT = np.float32(-np.inf)
_PART = 64  # rows at a time


def masked_softmax_(scores: Array, mask: Array, scale: float = 1.0) -> None:
    """Scores (B, H, T, S), contiguous, become softmax(``scale`` * scores) over S where the mask is True, else 0.

    ``mask`` (B or 1, T or 1, S). Rows that it shuts are 0.
    """
    run_threaded(_rows, scores, mask, np.float32(scale))


def softmax_backward_(gradient: Array, weights: Array, scale: float) -> None:
    """The gradient with respect to weights becomes that with respect to scores; (N, S), contiguous."""
    run_threaded(_back, gradient, weights, np.float32(scale))


@jit_serial_and_parallel
def _rows(scores: Array, mask: Array, factor: Any) -> None:
    sentences, heads, queries, places = scores.shape
    for row in numba.prange(sentences * heads):
        of_head, of_sentence = scores[row // heads, row % heads], mask[min(row // heads, len(mask) - 1)]
        powers = np.empty(places + LANES, dtype=np.float32)
        for query in range(queries):
            opened, of_query = of_sentence[min(query, len(of_sentence) - 1)], of_head[query]
            for place in range(places):
                powers[place] = to_float32(of_query[place]) * factor if opened[place] else _SHUT
            total = exp_and_sum(powers.ctypes.data, places)
            scale = np.float32(1) / total if opened.any() else np.float32(0)
            for place in range(places):
                weight = powers[place] * scale if opened[place] else np.float32(0)
                of_query[place] = cast_like(weight, of_query[place])


@jit_serial_and_parallel
def _back(gradient: Array, weights: Array, scale: Any) -> None:
    rows, places = gradient.shape
    for part in numba.prange(-(-rows // _PART)):
        for row in range(part * _PART, min((part + 1) * _PART, rows)):
            of_row, weight = gradient[row], weights[row]
            mean = dot_product(of_row.ctypes.data, of_row[0], weight.ctypes.data, weight[0], places)
            for place in range(places):
                error = (to_float32(of_row[place]) - mean) * to_float32(weight[place]) * scale
                of_row[place] = cast_like(error, of_row[place])
