"""Attention of a few queries over places that a mask opens: the beams of a sentence over its prefixes, or its source.

Scores are dot products of queries that are scaled already. Places that are shut are not looked at, so a row's sums are
the same numbers whatever lies between its own places.

Rows hold what one product made of them side by side: queries, and perhaps keys and values, all heads of each, in
float32. Places, one for each key and its value, keep these as 16-bit floats, by sentence and head, and zeros to whole
vectors (:func:`room`).

Dimensions: B sentences, R = B * W rows (W queries of each sentence, neighbours), H heads, C places, K width of a key, U
width of a value; K2 and U2 with their zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headway.kernels.exp import exp_and_sum
from headway.kernels.fp16_dot import KEYS_PER_DOT, dot_products, to_float16, weighted_sum
from headway.kernels.jit import jit
from headway.kernels.llvm import LANES

__all__ = ["attend", "padded_width", "write_kv"]

Array = npt.NDArray[Any]


def padded_width(width: int) -> int:
    """How many numbers a place has for a key or value of ``width``."""
    return width + -width % LANES


@jit
def write_kv(rows: Array, column: int, width: int, heads: int, places: Array, homes: Array, start: int) -> None:
    """Copy each head's ``width`` numbers, from ``column`` of ``rows`` on, to ``places`` from ``start`` on.

    ``places`` (homes * H, C, K2), contiguous, are the bits of 16-bit floats; what these do not hold becomes infinite.
    ``homes`` (B,) are the sentences' places among them.
    """
    size = places.shape[2]
    beams = len(rows) // max(1, len(homes))
    numbers = np.empty(size, dtype=np.float32)
    for k in range(width, size):
        numbers[k] = 0
    for r in range(len(rows)):
        sentence, beam = r // beams, r % beams
        for h in range(heads):
            first = column + h * width
            start_of_head = rows.ctypes.data + 4 * (r * rows.shape[1] + first)
            if width < size:  # the zeros that a place has more are not in the row
                for k in range(width):
                    numbers[k] = rows[r, first + k]
                start_of_head = numbers.ctypes.data
            at = ((homes[sentence] * heads + h) * places.shape[1] + start + beam) * size
            to_float16(size // LANES, start_of_head, places.ctypes.data + 2 * at)


@jit
def attend(
    rows: Array,
    heads: int,
    key_width: int,
    keys: Array,
    values: Array,
    homes: Array,
    count: int,
    mask: Array,
    out: Array,
) -> None:
    """softmax(Q K^T) V over the first ``count`` places, into ``out`` (R, H * U); queries are the first columns of rows.

    ``keys`` (homes * H, >= C, K2) and ``values`` (homes * H, >= C, U2) are contiguous, as :func:`place` made them with
    these ``homes``. ``mask`` (B, W or 1, >= C), of booleans, is True where a query may attend; an empty one opens all
    places.
    """
    value_width = out.shape[1] // heads
    sentences = len(homes)
    beams = len(rows) // max(1, sentences)
    places = np.empty((beams, count + KEYS_PER_DOT), dtype=np.int64)
    opened = np.empty(beams, dtype=np.int64)
    query, result = np.empty(keys.shape[2], dtype=np.float32), np.empty(values.shape[2], dtype=np.float32)
    for k in range(key_width, len(query)):
        query[k] = 0
    weights = np.empty((beams, count + LANES), dtype=np.float32)
    totals = np.empty(beams, dtype=np.float32)
    key_bytes, value_bytes = 2 * len(query), 2 * len(result)  # of a place
    next_keys, next_values = keys.shape[1] * key_bytes, values.shape[1] * value_bytes
    for sentence in range(sentences):
        for beam in range(beams):
            opened[beam] = _open(mask, sentence, min(beam, mask.shape[1] - 1), count, places[beam])
        for head in range(heads):
            of_head = homes[sentence] * heads + head
            keys_of_head = keys.ctypes.data + of_head * next_keys
            values_of_head = values.ctypes.data + of_head * next_values
            for beam in range(beams):
                chosen = places.ctypes.data + 8 * beam * places.shape[1]
                to = weights.ctypes.data + 4 * beam * weights.shape[1]
                for k in range(key_width):
                    query[k] = rows[sentence * beams + beam, head * key_width + k]
                for first in range(0, opened[beam], KEYS_PER_DOT):
                    dot_products(
                        *(query.ctypes.data, len(query) // LANES, keys_of_head, key_bytes, chosen + 8 * first),
                        *(next_keys, to + 4 * first),
                    )
            for beam in range(beams):
                totals[beam] = exp_and_sum(weights.ctypes.data + 4 * beam * weights.shape[1], opened[beam])
            for beam in range(beams):
                chosen = places.ctypes.data + 8 * beam * places.shape[1]
                weighted_sum(
                    *(weights.ctypes.data + 4 * beam * weights.shape[1], len(result) // LANES),
                    *(values_of_head, value_bytes, chosen, opened[beam], next_values, result.ctypes.data),
                )
                scale = np.float32(1) / totals[beam] if opened[beam] else np.float32(0)
                for u in range(value_width):
                    out[sentence * beams + beam, head * value_width + u] = result[u] * scale


@jit
def _open(mask: Array, sentence: int, beam: int, count: int, places: Array) -> int:
    """Write down which of the first places are open, and KEYS_PER_DOT - 1 times the last of them; how many are open."""
    opened = 0
    for c in range(count):
        if not len(mask) or mask[sentence, beam, c]:
            places[opened] = c
            opened += 1
    last = places[opened - 1] if opened else 0
    places[opened : opened + KEYS_PER_DOT - 1] = last
    return opened
