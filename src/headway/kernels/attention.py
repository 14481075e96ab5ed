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

from headway.kernels.bits import as_float, in_order
from headway.kernels.compiling import compiled, within
from headway.kernels.exponential import LOG2_E, power_of_two
from headway.kernels.sums import LANES, PLACES, as_halves, dot_products, weighted_sum

__all__ = ["attend", "place", "room"]

Array = npt.NDArray[Any]

_LOWEST = np.int32(-(2**31))


def room(width: int) -> int:
    """How many numbers a place has for a key or value of ``width``."""
    return width + -width % LANES


@compiled
def place(rows: Array, column: int, width: int, heads: int, places: Array, start: int) -> None:
    """Copy each head's ``width`` numbers, from ``column`` of ``rows`` on, to ``places`` from ``start`` on.

    ``places`` (B * H, C, K2), contiguous, are the bits of 16-bit floats; what these do not hold becomes infinite.
    """
    room = places.shape[2]
    beams = len(rows) * heads // max(1, len(places))
    numbers = np.zeros(room, dtype=np.float32)
    for r in range(len(rows)):
        sentence, beam = r // beams, r % beams
        for h in range(heads):
            for k in range(width):
                numbers[k] = rows[r, column + h * width + k]
            at = ((sentence * heads + h) * places.shape[1] + start + beam) * room
            as_halves(room // LANES, numbers.ctypes.data, places.ctypes.data + 2 * at)


@compiled
def attend(
    rows: Array, heads: int, key_width: int, keys: Array, values: Array, count: int, mask: Array, out: Array
) -> None:
    """softmax(Q K^T) V over the first ``count`` places, into ``out`` (R, H * U); queries are the first columns of rows.

    ``keys`` (B * H, >= C, K2) and ``values`` (B * H, >= C, U2) are contiguous, as :func:`place` made them. ``mask``
    (B, W or 1, >= C), integers, is 0 where a query may attend; an empty one opens all places.
    """
    value_width = out.shape[1] // heads
    sentences = len(keys) // heads
    beams = len(rows) // max(1, sentences)
    places = np.empty((beams, count + PLACES), dtype=np.int64)
    opened = np.empty(beams, dtype=np.int64)
    query, result = np.zeros(keys.shape[2], dtype=np.float32), np.empty(values.shape[2], dtype=np.float32)
    weights = np.empty(count + PLACES, dtype=np.float32)
    for sentence in range(sentences):
        for beam in range(beams):
            opened[beam] = _open(mask, sentence, min(beam, mask.shape[1] - 1), count, places[beam])
        for head in range(heads):
            of_head = sentence * heads + head
            for beam in range(beams):
                row = sentence * beams + beam
                for k in range(key_width):
                    query[k] = rows[row, head * key_width + k]
                _scores(query, keys, of_head, places, beam, opened[beam], weights)
                total = _exponentials(weights, opened[beam])
                _sum(weights, values, of_head, places, beam, opened[beam], result)
                for u in range(value_width):
                    out[row, head * value_width + u] = result[u] / total if opened[beam] else np.float32(0)


# Whole arrays and indices, for each part of an array that a loop makes is counted as a use of it.


@within
def _scores(query: Array, keys: Array, of_head: int, places: Array, beam: int, count: int, scores: Array) -> None:
    """Products of a query with its keys; after ``count`` places PLACES - 1 more follow, whose products are not used."""
    width = 2 * keys.shape[2]
    keys_of_head, chosen = (
        keys.ctypes.data + of_head * keys.shape[1] * width,
        places.ctypes.data + 8 * beam * places.shape[1],
    )
    for first in range(0, count, PLACES):
        to = scores.ctypes.data + 4 * first
        dot_products(query.ctypes.data, len(query) // LANES, keys_of_head, width, chosen + 8 * first, to)


@within
def _sum(weights: Array, values: Array, of_head: int, places: Array, beam: int, count: int, result: Array) -> None:
    """The sum of values with such weights."""
    width = 2 * values.shape[2]
    values_of_head = values.ctypes.data + of_head * values.shape[1] * width
    chosen = places.ctypes.data + 8 * beam * places.shape[1]
    weighted_sum(weights.ctypes.data, len(result) // LANES, values_of_head, width, chosen, count, result.ctypes.data)


@within
def _exponentials(scores: Array, count: int) -> np.float32:
    """Each of the first scores less the largest becomes its exponential; their sum.

    Loops go over whole vectors, whose length the compiler knows: of a few dozen scores it would leave most to be done
    one by one. What fills the last vector adds nothing to a sum of at least 1. Where all scores are -inf, it is NaN.
    """
    vectors = -(-count // LANES)
    scores[count : vectors * LANES] = -np.inf
    bits, highest, total = scores.view(np.int32), _LOWEST, np.float32(0)
    for vector in range(vectors):
        for lane in range(LANES):
            highest = max(highest, in_order(bits[vector * LANES + lane]))
    largest = as_float(in_order(highest))
    for vector in range(vectors):
        for lane in range(LANES):
            at = vector * LANES + lane
            scores[at] = power_of_two((scores[at] - largest) * LOG2_E)
    for vector in range(vectors):
        for lane in range(LANES):
            total += scores[vector * LANES + lane]
    return total


@compiled
def _open(mask: Array, sentence: int, beam: int, count: int, places: Array) -> int:
    """Write down which of the first places are open, and PLACES - 1 times the last of them; how many are open."""
    opened = 0
    for c in range(count):
        if not len(mask) or mask[sentence, beam, c] == 0:
            places[opened] = c
            opened += 1
    last = places[opened - 1] if opened else 0
    places[opened : opened + PLACES - 1] = last
    return opened
