"""The weights of attention: a softmax over the places that a mask opens."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from headway.kernels.bits import narrowed, widened
from headway.kernels.compiling import compiled, compiled_for_threads
from headway.kernels.emitting import LANES
from headway.kernels.exponential import exponentials
from headway.kernels.threads import share

__all__ = ["replace_by_weights"]

Array = npt.NDArray[Any]

_SHUT = np.float32(-np.inf)


def replace_by_weights(scores: Array, mask: Array) -> None:
    """Scores (B, H, T, S), contiguous, become their softmax over the last dimension where the mask is True, else 0.

    They are float32, or uint16: the bits of bfloat16. ``mask`` (B or 1, T or 1, S). Rows that it shuts are 0.
    """
    share(_rows_shared, _rows, scores, mask)


def _rows(scores: Array, mask: Array) -> None:
    sentences, heads, queries, places = scores.shape
    for row in numba.prange(sentences * heads):
        of_head, of_sentence = scores[row // heads, row % heads], mask[min(row // heads, len(mask) - 1)]
        powers = np.empty(places + LANES, dtype=np.float32)
        for query in range(queries):
            opened, of_query = of_sentence[min(query, len(of_sentence) - 1)], of_head[query]
            for place in range(places):
                powers[place] = widened(of_query[place]) if opened[place] else _SHUT
            total = exponentials(powers.ctypes.data, places)
            scale = np.float32(1) / total if opened.any() else np.float32(0)
            for place in range(places):
                weight = powers[place] * scale if opened[place] else np.float32(0)
                of_query[place] = narrowed(weight, of_query[place])


_rows_shared, _rows = compiled_for_threads(_rows), compiled(_rows)
