"""Attention of a few queries over cached keys and values: the beams of a sentence over their prefixes or the source.

Scores are dot products, so the queries must already be scaled. Masked cache entries are not read, so the result of a
row does not depend on what is stored between its own entries.

Rows are float32 and contain the output of one matrix product: the queries of all heads side by side, in some cases
followed by their keys and values. The rows of a sentence are adjacent. The cache contains keys and values as 16-bit
floats by slot and head, padded with zeros to whole vectors (:func:`padded_width`). Each sentence has a slot.

Dimensions: B sentences, R rows, W the largest number of rows of a sentence, P slots, H heads, C entries of a slot, K
width of a key, U width of a value; K2 and U2 include the padding.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from headway.kernels.exp import exp_and_sum
from headway.kernels.fp16_dot import KEYS_PER_DOT, dot_products, to_float16, weighted_sum
from headway.kernels.jit import Array, jit, jit_internal, jit_serial_and_parallel
from headway.kernels.llvm import LANES


def padded_width(width: int) -> int:
    """Return ``width`` rounded up to whole vectors."""
    return width + -width % LANES


@jit
def write_kv(
    rows: Array, source_column: int, width: int, heads: int, cache: Array, slots: Array, spans: Array, entry: int
) -> None:
    """Copy ``width`` columns per head of ``rows``, from ``source_column`` on, to ``cache``, from ``entry`` on.

    ``cache`` (P * H, C, K2) is contiguous and contains the bits of 16-bit floats. Numbers that are too large for them
    become infinite. ``slots`` (B,) contains the slot of each sentence, and ``spans`` (B, 2) its first row and the one
    after its last.
    """
    size = cache.shape[2]
    for sentence in range(len(slots)):
        first = spans[sentence, 0]
        for r in range(first, spans[sentence, 1]):
            for h in range(heads):
                source = rows.ctypes.data + 4 * (r * rows.shape[1] + source_column + h * width)
                at = ((slots[sentence] * heads + h) * cache.shape[1] + entry + r - first) * size
                to_float16(width, source, cache.ctypes.data + 2 * at)


@jit
def write_keys_and_values(
    rows: Array, widths: Any, heads: int, keys: Array, values: Array, slots: Array, spans: Array, entry: int
) -> None:
    """Write the keys and values in ``rows`` to the cache (:func:`write_kv`).

    ``widths`` are the widths of queries, keys and values, each for all heads together.
    """
    queries, all_keys, all_values = widths
    write_kv(rows, queries, all_keys // heads, heads, keys, slots, spans, entry)
    write_kv(rows, queries + all_keys, all_values // heads, heads, values, slots, spans, entry)


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
    num_entries: Array,
    mask: Array,
    out: Array,
) -> None:
    """Write softmax(Q K^T) V to the rows of ``out`` (R, H * U) that are in ``spans``. ``rows`` begin with Q.

    ``keys`` (P * G, >= C, K2) and ``values`` (P * G, >= C, U2) are contiguous and were written by :func:`write_kv` to
    these ``slots``. Each of their G = ``kv_heads`` heads serves H / G neighboring heads of queries. A sentence has the
    first ``num_entries`` (B,) entries of its slot. The boolean ``mask`` (B, W or 1, >= C) is True for entries that a
    query may attend to. An empty mask allows all entries.
    """
    value_width = out.shape[1] // heads
    key_bytes, value_bytes = 2 * keys.shape[2], 2 * values.shape[2]  # size of an entry
    next_keys, next_values = keys.shape[1] * key_bytes, values.shape[1] * value_bytes
    for sentence in numba.prange(len(slots)):
        first_row, count = spans[sentence, 0], num_entries[sentence]
        queries = spans[sentence, 1] - first_row
        space = count + KEYS_PER_DOT + LANES  # size of a query's entries and weights, which are read in whole vectors
        entries, num_open = np.empty(queries * space, dtype=np.int64), np.empty(queries, dtype=np.int64)
        weights, totals = np.empty(queries * space, dtype=np.float32), np.empty(queries, dtype=np.float32)
        for at in range(queries):
            num_open[at] = _list_open(mask, sentence, at, count, entries, at * space)
        for head in range(heads):
            row = slots[sentence] * kv_heads + head // (heads // kv_heads)
            own_keys = keys.ctypes.data + row * next_keys
            own_values = values.ctypes.data + row * next_values
            for at in range(queries):
                query = rows.ctypes.data + 4 * ((first_row + at) * rows.shape[1] + head * key_width)
                for first in range(at * space, at * space + num_open[at], KEYS_PER_DOT):
                    dot_products(
                        *(query, key_width, own_keys, key_bytes),
                        *(entries.ctypes.data + 8 * first, next_keys, weights.ctypes.data + 4 * first),
                    )
            for at in range(queries):
                totals[at] = exp_and_sum(weights.ctypes.data + 4 * at * space, num_open[at])
            for at in range(queries):
                chosen, own_weights = entries.ctypes.data + 8 * at * space, weights.ctypes.data + 4 * at * space
                scale = np.float32(1) / totals[at] if num_open[at] else np.float32(0)
                place = out.ctypes.data + 4 * ((first_row + at) * out.shape[1] + head * value_width)
                weighted_sum(
                    *(own_weights, value_width, own_values, value_bytes, chosen, num_open[at]),
                    *(next_values, scale, place),
                )


@jit_internal
def _list_open(mask: Array, sentence: int, beam: int, count: int, entries: Array, first: int) -> int:
    """Write the unmasked entries, followed by KEYS_PER_DOT - 1 copies of the last one. Return the number of entries."""
    num_open, row = 0, beam if beam < mask.shape[1] else 0
    for c in range(count):
        if not len(mask) or mask[sentence, row, c]:
            entries[first + num_open] = c
            num_open += 1
    last = entries[first + num_open - 1] if num_open else 0
    for copy in range(KEYS_PER_DOT - 1):
        entries[first + num_open + copy] = last
    return num_open
