"""Attention of a few queries over places that a mask opens: the beams of a sentence over its prefixes, or its source.

Scores are dot products of queries that are scaled already. Places that are shut are not looked at, so a row's sums are
the same numbers whatever lies between its own places.

Dimensions: B sentences, R = B * W rows (W queries of each sentence, neighbours), H heads, C places, K width of a key, U
width of a value. Rows hold what one product made of them side by side: queries, and perhaps keys and values, all heads
of each. Keys (B * H, >= C, K) and values (B * H, >= C, U) lie by sentence and head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.kernels.compiling import compiled
from headway.kernels.exponential import LOG2_E, power_of_two

__all__ = ["attend", "place"]

Array = npt.NDArray[Any]

_LEAST = np.float32(-3.4e38)


@compiled
def place(rows: Array, heads: int, first_key: int, keys: Array, values: Array, start: int) -> None:
    """Copy keys, from column ``first_key`` of ``rows`` on, and values, after them, to the places from ``start`` on."""
    key_width, value_width = keys.shape[2], values.shape[2]
    beams = len(rows) * heads // max(1, len(keys))
    first_value = first_key + heads * key_width
    for r in range(len(rows)):
        sentence, beam = r // beams, r % beams
        for h in range(heads):
            key, value = first_key + h * key_width, first_value + h * value_width
            keys[sentence * heads + h, start + beam] = rows[r, key : key + key_width]
            values[sentence * heads + h, start + beam] = rows[r, value : value + value_width]


@compiled
def attend(rows: Array, heads: int, keys: Array, values: Array, count: int, mask: Array, out: Array) -> None:
    """softmax(Q K^T) V over the first ``count`` places, into ``out`` (R, H * U); queries are the first columns of rows.

    ``mask`` (B, W or 1, >= C) is 0 where a query may attend, else -inf.
    """
    key_width, value_width = keys.shape[2], values.shape[2]
    sentences = len(keys) // heads
    beams = len(rows) // max(1, sentences)
    places = np.empty((beams, count), dtype=np.int64)
    opened = np.empty(beams, dtype=np.int64)
    # What inner loops read and write is small arrays of their own: indices into larger ones keep LLVM from vectors.
    query = np.empty(key_width, dtype=np.float32)
    result = np.empty(value_width, dtype=np.float32)
    weights = np.empty(count, dtype=np.float32)
    for sentence in range(sentences):
        for beam in range(beams):
            opened[beam] = _open(mask[sentence, min(beam, mask.shape[1] - 1)], count, places[beam])
        for head in range(heads):
            of_head = sentence * heads + head
            for beam in range(beams):
                row = sentence * beams + beam
                query[:] = rows[row, head * key_width : (head + 1) * key_width]
                largest = _LEAST
                for c in range(opened[beam]):
                    key = keys[of_head, places[beam, c]]
                    score = np.float32(0)
                    for k in range(key_width):
                        score += query[k] * key[k]
                    weights[c] = score
                    largest = max(largest, score)
                total = np.float32(0)
                for c in range(opened[beam]):
                    weights[c] = power_of_two((weights[c] - largest) * LOG2_E)
                    total += weights[c]
                result[:] = 0
                for c in range(opened[beam]):
                    share, value = weights[c] / total, values[of_head, places[beam, c]]
                    for u in range(value_width):
                        result[u] += share * value[u]
                out[row, head * value_width : (head + 1) * value_width] = result


@compiled
def _open(mask: Array, count: int, places: Array) -> int:
    """Write down which of the first places are open; how many."""
    opened = 0
    for c in range(count):
        if mask[c] == 0:
            places[opened] = c
            opened += 1
    return opened
