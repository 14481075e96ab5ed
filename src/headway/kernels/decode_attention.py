"""Attention of a few queries over cached keys and values: a sentence's beams attend to their prefixes or the source.

Scores are dot products, so the queries must already be scaled. Only the listed cache entries are read, so the result of
a row does not depend on other entries.

Rows are float32 and contain the output of one matrix product: the concatenated queries of all heads, in some cases
followed by keys and values. The rows of a sentence are adjacent: ``spans`` (B, 2) contains the first row of each
sentence and the row after its last row. The cache contains keys and values as 16-bit floats by slot and head, padded
with zeros to whole vectors (:func:`padded_width`). ``slots`` (B,) contains the slot of each sentence.

Dimensions: B sentences, R rows, T positions, P slots, H heads, C entries per slot, K width of a key, U width of a
value. K2 and U2 include the padding.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from headway.kernels.exp import exp_and_sum
from headway.kernels.fp16_dot import KEYS_PER_DOT, dot_products, to_float16, weighted_sum
from headway.kernels.jit import Array, jit, jit_serial_and_parallel
from headway.kernels.llvm import LANES


def padded_width(width: int) -> int:
    """Return ``width`` rounded up to whole vectors."""
    return width + -width % LANES


@jit
def write_kv(
    rows: Array, source_column: int, width: int, heads: int, cache: Array, slots: Array, spans: Array, entries: Array
) -> None:
    """Copy ``width`` columns per head of each row, starting at ``source_column``, to the row's entry (R,) in ``cache``.

    ``cache`` (P * H, C, K2) is contiguous and contains the bits of 16-bit floats. Numbers out of range become NaN.
    """
    size = cache.shape[2]
    for sentence in range(len(slots)):
        for r in range(spans[sentence, 0], spans[sentence, 1]):
            for h in range(heads):
                source = rows.ctypes.data + 4 * (r * rows.shape[1] + source_column + h * width)
                offset = ((slots[sentence] * heads + h) * cache.shape[1] + entries[r]) * size
                to_float16(width, source, cache.ctypes.data + 2 * offset)


@jit
def write_keys_and_values(
    rows: Array, widths: Any, heads: int, keys: Array, values: Array, slots: Array, spans: Array, entries: Array
) -> None:
    """Write the keys and values in ``rows`` to the cache (:func:`write_kv`).

    ``widths`` contains the widths of queries, keys and values, each for all heads together.
    """
    queries, all_keys, all_values = widths
    write_kv(rows, queries, all_keys // heads, heads, keys, slots, spans, entries)
    write_kv(rows, queries + all_keys, all_values // heads, heads, values, slots, spans, entries)


@jit_serial_and_parallel
def attend(
    rows: Array,
    heads: int,
    kv_heads: int,
    key_width: int,
    keys: Array,
    values: Array,
    slots: Array,
    spans: Array,
    entries: Array,
    positions: Array,
    out: Array,
) -> None:
    """Write softmax(Q K^T) V to the rows of ``out`` (R, H * U) that are in ``spans``. ``rows`` begin with Q.

    ``keys`` (P * G, C, K2) and ``values`` (P * G, C, U2) are contiguous and were written to ``slots`` by
    :func:`write_kv`. H / G neighboring query heads share each of their G = ``kv_heads`` heads. Queries attend to a
    range of positions in their sentence: ``positions`` (B, 2) contains the first and the last + 1. ``entries`` (R or 1,
    T) maps each position to its entry, for each row or for all rows. KEYS_PER_DOT - 1 additional columns must contain
    valid but arbitrary entry indices.
    """
    value_width = out.shape[1] // heads
    key_bytes, value_bytes = 2 * keys.shape[2], 2 * values.shape[2]  # sizes of an entry
    next_keys, next_values = keys.shape[1] * key_bytes, values.shape[1] * value_bytes
    for sentence in numba.prange(len(slots)):
        first_row, first_position = spans[sentence, 0], positions[sentence, 0]
        queries, count = spans[sentence, 1] - first_row, positions[sentence, 1] - first_position
        space = count + KEYS_PER_DOT + LANES  # space for a query's weights, which are read in whole vectors
        weights, totals = np.empty(queries * space, dtype=np.float32), np.empty(queries, dtype=np.float32)
        own_entries = np.empty(queries, dtype=np.intp)  # addresses
        for q in range(queries):
            row = min(first_row + q, len(entries) - 1)
            own_entries[q] = entries.ctypes.data + 8 * (row * entries.shape[1] + first_position)
        for head in range(heads):
            place = slots[sentence] * kv_heads + head // (heads // kv_heads)
            own_keys, own_values = keys.ctypes.data + place * next_keys, values.ctypes.data + place * next_values
            for q in range(queries):
                query = rows.ctypes.data + 4 * ((first_row + q) * rows.shape[1] + head * key_width)
                for first in range(0, count, KEYS_PER_DOT):
                    dot_products(
                        *(query, key_width, own_keys, key_bytes, own_entries[q] + 8 * first, next_keys),
                        weights.ctypes.data + 4 * (q * space + first),
                    )
            for q in range(queries):
                totals[q] = exp_and_sum(weights.ctypes.data + 4 * q * space, count)
            for q in range(queries):
                scale = np.float32(1) / totals[q] if count else np.float32(0)
                weighted_sum(
                    *(weights.ctypes.data + 4 * q * space, value_width, own_values, value_bytes, own_entries[q]),
                    *(count, next_values, scale),
                    out.ctypes.data + 4 * ((first_row + q) * out.shape[1] + head * value_width),
                )
