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

from headway.kernels.bits import as_float, in_order
from headway.kernels.compiling import compiled, within
from headway.kernels.exponential import LOG2_E, power_of_two
from headway.kernels.sums import LANES, PLACES, dot_products, weighted_sum

__all__ = ["attend", "place"]

Array = npt.NDArray[Any]

_LEAST = np.float32(-3.4e38)
_LOWEST = np.int32(-(2**31))


@compiled
def place(rows: Array, heads: int, first_key: int, keys: Array, values: Array, start: int) -> None:
    """Copy keys, from column ``first_key`` of ``rows`` on, and values, after them, to the places from ``start`` on."""
    _place(rows, heads, first_key, keys, start)
    _place(rows, heads, first_key + heads * keys.shape[2], values, start)


@compiled
def _place(rows: Array, heads: int, column: int, places: Array, start: int) -> None:
    width = places.shape[2]
    beams = len(rows) * heads // max(1, len(places))
    for r in range(len(rows)):
        sentence, beam = r // beams, r % beams
        for h in range(heads):
            to, first = places[sentence * heads + h, start + beam], column + h * width
            for k in range(width):
                to[k] = rows[r, first + k]


@compiled
def attend(rows: Array, heads: int, keys: Array, values: Array, count: int, mask: Array, out: Array) -> None:
    """softmax(Q K^T) V over the first ``count`` places, into ``out`` (R, H * U); queries are the first columns of rows.

    ``mask`` (B, W or 1, >= C) is 0 where a query may attend, else -inf.
    """
    sentences = len(keys) // heads
    beams = len(rows) // max(1, sentences)
    places = np.empty((beams, count + PLACES), dtype=np.int64)
    opened = np.empty(beams, dtype=np.int64)
    weights = np.empty(count + PLACES, dtype=np.float32)
    for sentence in range(sentences):
        for beam in range(beams):
            opened[beam] = _open(mask[sentence, min(beam, mask.shape[1] - 1)], count, places[beam])
        for head in range(heads):
            for beam in range(beams):
                row, of_head = sentence * beams + beam, sentence * heads + head
                _scores(rows, row, head, keys, of_head, places, beam, opened[beam], weights)
                total = _exponentials(weights, opened[beam])
                _mean(weights, total, values, of_head, places, beam, opened[beam], out, row, head)


# Whole arrays and indices, for each part of an array that a loop makes is counted as a use of it.


@within
def _scores(
    rows: Array,
    row: int,
    head: int,
    keys: Array,
    of_head: int,
    places: Array,
    beam: int,
    count: int,
    scores: Array,
) -> None:
    """Products of a query with its keys; after ``count`` places PLACES - 1 more follow, whose products are not used."""
    width = keys.shape[2]
    vectors = width // LANES
    query = rows.ctypes.data + 4 * (row * rows.shape[1] + head * width)
    keys_of_head = keys.ctypes.data + 4 * of_head * keys.shape[1] * width
    chosen = places.ctypes.data + 8 * beam * places.shape[1]
    for first in range(0, count, PLACES):
        dot_products(query, vectors, keys_of_head, 4 * width, chosen + 8 * first, scores.ctypes.data + 4 * first)
    for k in range(vectors * LANES, width):
        for c in range(count):
            scores[c] += rows[row, head * width + k] * keys[of_head, places[beam, c], k]


@within
def _mean(
    weights: Array,
    total: np.float32,
    values: Array,
    of_head: int,
    places: Array,
    beam: int,
    count: int,
    out: Array,
    row: int,
    head: int,
) -> None:
    """The mean of values with such weights, whose sum is ``total``."""
    width = values.shape[2]
    vectors = width // LANES
    result = out.ctypes.data + 4 * (row * out.shape[1] + head * width)
    values_of_head = values.ctypes.data + 4 * of_head * values.shape[1] * width
    chosen = places.ctypes.data + 8 * beam * places.shape[1]
    for c in range(count):
        weights[c] /= total
    weighted_sum(weights.ctypes.data, vectors, values_of_head, 4 * width, chosen, count, result)
    for u in range(head * width + vectors * LANES, (head + 1) * width):
        out[row, u] = 0
        for c in range(count):
            out[row, u] += weights[c] * values[of_head, places[beam, c], u - head * width]


@within
def _exponentials(scores: Array, count: int) -> np.float32:
    """Each of the first scores less the largest becomes its exponential; their sum.

    Loops go over whole vectors, whose length the compiler knows: of a few dozen scores it would leave most to be done
    one by one. What fills the last vector adds nothing to a sum of at least 1.
    """
    vectors = -(-count // LANES)
    scores[count : vectors * LANES] = _LEAST
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
def _open(mask: Array, count: int, places: Array) -> int:
    """Write down which of the first places are open, and PLACES - 1 times the last of them; how many are open."""
    opened = 0
    for c in range(count):
        if mask[c] == 0:
            places[opened] = c
            opened += 1
    last = places[opened - 1] if opened else 0
    places[opened : opened + PLACES - 1] = last
    return opened
