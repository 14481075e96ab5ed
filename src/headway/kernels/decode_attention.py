"""Attention of a few queries over cached keys and values: the beams of a sentence over its prefixes or its source.

Scores are dot products; the queries are scaled already. Masked cache entries are not read, so a row's sums contain the
same numbers whatever is stored between its own entries.

Rows are float32 and contain, side by side, what one product computed: queries, and possibly keys and values, all heads
of each. The cache contains keys and values as 16-bit floats by slot and head, padded with zeros to whole vectors
(:func:`padded_width`). Each sentence has a slot.

Dimensions: B sentences, R = B * W rows (the W queries of a sentence are adjacent), P slots, H heads, C entries of a
slot, K width of a key, U width of a value; K2 and U2 include the padding.
"""

from __future__ import annotations

import numpy as np

from headway.kernels.exp import exp_and_sum
from headway.kernels.fp16_dot import KEYS_PER_DOT, dot_products, to_float16, weighted_sum
from headway.kernels.jit import Array, jit
from headway.kernels.llvm import LANES

__all__ = ["attend", "padded_width", "write_kv"]


def padded_width(width: int) -> int:
    """Return ``width`` rounded up to whole vectors."""
    return width + -width % LANES


@jit
def write_kv(rows: Array, column: int, width: int, heads: int, cache: Array, slots: Array, start: int) -> None:
    """Write ``width`` columns per head, from ``column`` of ``rows`` on, to entries of ``cache`` from ``start`` on.

    ``cache`` (P * H, C, K2) is contiguous and contains the bits of 16-bit floats; larger values become infinite.
    ``slots`` (B,) are the slots of the sentences.
    """
    size = cache.shape[2]
    beams = len(rows) // max(1, len(slots))
    padded = np.empty(size, dtype=np.float32)
    for k in range(width, size):
        padded[k] = 0
    for r in range(len(rows)):
        sentence, beam = r // beams, r % beams
        for h in range(heads):
            first = column + h * width
            source = rows.ctypes.data + 4 * (r * rows.shape[1] + first)
            if width < size:  # the row does not contain the padding
                for k in range(width):
                    padded[k] = rows[r, first + k]
                source = padded.ctypes.data
            at = ((slots[sentence] * heads + h) * cache.shape[1] + start + beam) * size
            to_float16(size // LANES, source, cache.ctypes.data + 2 * at)


@jit
def attend(
    rows: Array,
    heads: int,
    key_width: int,
    keys: Array,
    values: Array,
    slots: Array,
    count: int,
    mask: Array,
    out: Array,
) -> None:
    """Write softmax(Q K^T) V over the first ``count`` entries to ``out`` (R, H * U); rows start with the queries.

    ``keys`` (P * H, >= count, K2) and ``values`` (P * H, >= count, U2) are contiguous and were written by
    :func:`write_kv` to these ``slots``. The boolean ``mask`` (B, W or 1, >= count) is True where a query may attend; an
    empty mask allows all entries.
    """
    value_width = out.shape[1] // heads
    sentences = len(slots)
    beams = len(rows) // max(1, sentences)
    entries = np.empty((beams, count + KEYS_PER_DOT), dtype=np.int64)
    num_open = np.empty(beams, dtype=np.int64)
    query, result = np.empty(keys.shape[2], dtype=np.float32), np.empty(values.shape[2], dtype=np.float32)
    for k in range(key_width, len(query)):
        query[k] = 0
    weights = np.empty((beams, count + LANES), dtype=np.float32)
    totals = np.empty(beams, dtype=np.float32)
    key_bytes, value_bytes = 2 * len(query), 2 * len(result)  # of an entry
    next_keys, next_values = keys.shape[1] * key_bytes, values.shape[1] * value_bytes
    for sentence in range(sentences):
        for beam in range(beams):
            num_open[beam] = _list_open(mask, sentence, min(beam, mask.shape[1] - 1), count, entries[beam])
        for head in range(heads):
            row = slots[sentence] * heads + head
            own_keys = keys.ctypes.data + row * next_keys
            own_values = values.ctypes.data + row * next_values
            for beam in range(beams):
                chosen = entries.ctypes.data + 8 * beam * entries.shape[1]
                to = weights.ctypes.data + 4 * beam * weights.shape[1]
                for k in range(key_width):
                    query[k] = rows[sentence * beams + beam, head * key_width + k]
                for first in range(0, num_open[beam], KEYS_PER_DOT):
                    dot_products(
                        *(query.ctypes.data, len(query) // LANES, own_keys, key_bytes, chosen + 8 * first),
                        *(next_keys, to + 4 * first),
                    )
            for beam in range(beams):
                totals[beam] = exp_and_sum(weights.ctypes.data + 4 * beam * weights.shape[1], num_open[beam])
            for beam in range(beams):
                chosen = entries.ctypes.data + 8 * beam * entries.shape[1]
                weighted_sum(
                    *(weights.ctypes.data + 4 * beam * weights.shape[1], len(result) // LANES),
                    *(own_values, value_bytes, chosen, num_open[beam], next_values, result.ctypes.data),
                )
                scale = np.float32(1) / totals[beam] if num_open[beam] else np.float32(0)
                for u in range(value_width):
                    out[sentence * beams + beam, head * value_width + u] = result[u] * scale


@jit
def _list_open(mask: Array, sentence: int, beam: int, count: int, entries: Array) -> int:
    """Write the unmasked entries, followed by KEYS_PER_DOT - 1 copies of the last, and return their number."""
    num_open = 0
    for c in range(count):
        if not len(mask) or mask[sentence, beam, c]:
            entries[num_open] = c
            num_open += 1
    last = entries[num_open - 1] if num_open else 0
    entries[num_open : num_open + KEYS_PER_DOT - 1] = last
    return num_open
