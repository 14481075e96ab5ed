"""Attention and its gradient for training in bfloat16, computed for one head of one sentence at a time.

The forward pass is equation 1 of Vaswani et al. 2017. A typical head of a sentence is small: 14 queries and 14 keys of
64 elements. If products are computed for a whole batch, all intermediate results must be rearranged, multiplied, stored
and read again. Here, queries, keys and values are read directly from the projections' outputs, and intermediate results
stay in the first-level cache. Scores and weight gradients are float32. Only the results of the softmax and of its
backward pass are rounded to bfloat16.

``queries`` (B, T, .) contains the queries of all heads, starting at column ``columns[0]``. ``memory`` (B, S, .)
contains the keys, starting at column ``columns[1]``, and the values, starting at column ``columns[2]``. Both may be the
same array. A head has K columns, a multiple of BLOCK. All these arrays are uint16 with the bits of bfloat16. Weights
(B, H, T, P) are padded with zeros from length S to length P, which is a multiple of LANES.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types

from headway.kernels.bf16_tiles import (
    BLOCK,
    PAIR_BYTES,
    emit_to_bfloat16,
    interleave,
    interleave_lanes,
    multiply_rows,
    multiply_rows_float32,
)
from headway.kernels.exp import emit_exp_and_sum
from headway.kernels.float_bits import emit_read_float32
from headway.kernels.jit import Array, jit_inline, jit_serial_and_parallel
from headway.kernels.llvm import BYTE, FLOAT_VECTOR, INT16, INT64, LANES, Builder, constant, intrinsic
from headway.kernels.softmax import allowed_keys

_ADDRESS = types.uintp
_SOFTMAX = types.void(_ADDRESS, _ADDRESS, types.intp, types.float32, _ADDRESS)


@intrinsic(_SOFTMAX)
def _softmax(
    builder: Builder, scores: ir.Value, mask: ir.Value, count: ir.Value, scale: ir.Value, out: ir.Value
) -> None:
    """Store the softmax of ``count`` scores times ``scale`` as bfloat16. Scores with a 0 in ``mask`` are excluded."""
    vectors, zeros, ones = builder.udiv(count, INT64(LANES)), constant(FLOAT_VECTOR, 0.0), constant(FLOAT_VECTOR, 1.0)

    def is_open(i: ir.Value) -> ir.Value:
        flags = builder.read(mask, ir.VectorType(BYTE, LANES), i)
        return builder.icmp_unsigned("!=", flags, constant(flags.type, 0))

    with builder.loop(vectors) as i:
        scaled = builder.fmul(builder.read(scores, FLOAT_VECTOR, i), builder.broadcast(scale))
        builder.write(scaled, scores, i)
    total = builder.broadcast(emit_exp_and_sum(builder, scores, vectors, is_open))
    # If all scores are masked, the sum and all weights are zero. NaN is kept.
    inverse = builder.fdiv(ones, builder.select(builder.fcmp_ordered("==", total, zeros), ones, total))
    with builder.loop(vectors) as i:
        weight = builder.fmul(builder.read(scores, FLOAT_VECTOR, i), inverse)
        builder.write(emit_to_bfloat16(builder, weight), out, i)


@intrinsic(_SOFTMAX)
def _softmax_backward(
    builder: Builder, gradient: ir.Value, weights: ir.Value, count: ir.Value, scale: ir.Value, out: ir.Value
) -> None:
    """Store (gradient - mean) * weights * ``scale`` as bfloat16. The mean gradient is weighted by ``weights``."""
    vectors, total = builder.udiv(count, INT64(LANES)), builder.local_variable(constant(FLOAT_VECTOR, 0.0))

    def weight(i: ir.Value) -> ir.Value:
        return emit_read_float32(builder, weights, INT16, i, FLOAT_VECTOR)

    with builder.loop(vectors) as i:
        builder.add_to(total, builder.fmul(builder.read(gradient, FLOAT_VECTOR, i), weight(i)))
    mean = builder.broadcast(builder.sum_lanes(builder.load(total)))
    with builder.loop(vectors) as i:
        error = builder.fsub(builder.read(gradient, FLOAT_VECTOR, i), mean)
        error = builder.fmul(builder.fmul(error, weight(i)), builder.broadcast(scale))
        builder.write(emit_to_bfloat16(builder, error), out, i)


def attention_forward(
    queries: Array, memory: Array, columns: tuple[int, int, int], mask: Array, scale: float, weights: Array, out: Array
) -> None:
    """Write the weights softmax(``scale`` q k^T), and each head's weighted sums of values to ``out`` (B, T, H K).

    Weights are 0 where ``mask`` is False. The mask has shape (B or 1, T or 1, P), or contains the first key of each
    query (B, T), as in :mod:`headway.kernels.softmax`.
    """
    _attend(queries, memory, columns, mask, np.float32(scale), weights, out)


def attention_backward(
    gradient: Array,
    queries: Array,
    memory: Array,
    columns: tuple[int, int, int],
    scale: float,
    weights: Array,
    queries_gradient: Array,
    memory_gradient: Array,
) -> None:
    """Write the gradients with respect to queries, keys and values, given the output's ``gradient`` (B, T, H K).

    ``queries_gradient`` and ``memory_gradient`` have the same layouts as ``queries`` and ``memory``.
    """
    arguments = (gradient, queries, memory, columns, np.float32(scale), weights, queries_gradient, memory_gradient)
    _attend_backward(*arguments)


@jit_serial_and_parallel
def _attend(queries: Array, memory: Array, columns: Any, mask: Array, scale: Any, weights: Array, out: Array) -> None:
    sentences, heads, length, padded = weights.shape
    source_length, width = memory.shape[1], out.shape[2] // heads
    for sentence in numba.prange(sentences):
        own_memory = memory[sentence]
        flags = np.empty(padded, dtype=np.bool_)
        keys = np.zeros((padded // LANES, width // 2, LANES), dtype=np.uint32)
        values = np.empty((width // BLOCK, (source_length + 1) // 2, BLOCK), dtype=np.uint32)
        scores = np.empty((length, padded), dtype=np.float32)
        zeros = np.zeros(BLOCK, dtype=np.float32)
        for head in range(heads):
            first, own_weights = head * width, weights[sentence, head]
            _pack_as_columns(own_memory, columns[1] + first, keys)
            place = queries[sentence].ctypes.data + 2 * (columns[0] + first)
            _multiply_float32(keys, place, 2 * queries.shape[2], scores)
            for query in range(length):
                is_open, to = allowed_keys(mask, sentence, query, flags), own_weights[query]
                _softmax(scores[query].ctypes.data, is_open.ctypes.data, padded, scale, to.ctypes.data)
            _pack_as_rows(own_memory, columns[2] + first, zeros, values)
            place = out[sentence].ctypes.data + 2 * first
            _multiply(values, own_weights.ctypes.data, 2 * padded, PAIR_BYTES, zeros, place, 2 * out.shape[2], length)


@jit_serial_and_parallel
def _attend_backward(
    gradient: Array,
    queries: Array,
    memory: Array,
    columns: Any,
    scale: Any,
    weights: Array,
    queries_gradient: Array,
    memory_gradient: Array,
) -> None:
    sentences, heads, length, padded = weights.shape
    source_length, width = memory.shape[1], gradient.shape[2] // heads
    row_pairs, row_bytes = (length + 1) // 2, 2 * memory_gradient.shape[2]
    for sentence in numba.prange(sentences):
        values = np.zeros((padded // LANES, width // 2, LANES), dtype=np.uint32)
        errors = np.empty((length, padded), dtype=np.float32)
        narrow = np.zeros((2 * row_pairs, padded), dtype=np.uint16)  # an odd last row is paired with zeros
        pairs = np.empty((row_pairs, padded), dtype=np.uint32)
        keys = np.empty((width // BLOCK, (source_length + 1) // 2, BLOCK), dtype=np.uint32)
        panels = np.empty((width // BLOCK, row_pairs, BLOCK), dtype=np.uint32)
        zeros = np.zeros(BLOCK, dtype=np.float32)
        for head in range(heads):
            first, own_weights = head * width, weights[sentence, head]
            _pack_as_columns(memory[sentence], columns[2] + first, values)
            place = gradient[sentence].ctypes.data + 2 * first
            _multiply_float32(values, place, 2 * gradient.shape[2], errors)
            for query in range(length):
                error, weight, to = errors[query], own_weights[query], narrow[query]
                _softmax_backward(error.ctypes.data, weight.ctypes.data, padded, scale, to.ctypes.data)
            _pack_as_rows(memory[sentence], columns[1] + first, zeros, keys)
            place = queries_gradient[sentence].ctypes.data + 2 * (columns[0] + first)
            stride = 2 * queries_gradient.shape[2]
            _multiply(keys, narrow.ctypes.data, 2 * padded, PAIR_BYTES, zeros, place, stride, length)
            _pair_rows(narrow, pairs)
            _pack_as_rows(queries[sentence], columns[0] + first, zeros, panels)
            place = memory_gradient[sentence].ctypes.data + 2 * (columns[1] + first)
            stride = PAIR_BYTES * padded
            _multiply(panels, pairs.ctypes.data, PAIR_BYTES, stride, zeros, place, row_bytes, source_length)
            for query in range(length):
                for key in range(padded):
                    narrow[query, key] = own_weights[query, key]
            _pair_rows(narrow, pairs)
            _pack_as_rows(gradient[sentence], first, zeros, panels)
            place = memory_gradient[sentence].ctypes.data + 2 * (columns[2] + first)
            _multiply(panels, pairs.ctypes.data, PAIR_BYTES, stride, zeros, place, row_bytes, source_length)


@jit_inline
def _pack_as_columns(x: Array, first: int, panels: Array) -> None:
    """Pack the rows of x (R, .), starting at column ``first``, as columns of panels. Other columns do not change."""
    pairs, first_pair = x.view(np.uint32), first // 2
    for row in range(len(x)):
        panel, lane = panels[row // LANES], row % LANES
        for pair in range(panels.shape[1]):
            panel[pair, lane] = pairs[row, first_pair + pair]


@jit_inline
def _pack_as_rows(x: Array, first: int, zeros: Array, panels: Array) -> None:
    """Pack pairs of rows of x (R, .), starting at column ``first``. An odd last row is paired with ``zeros``."""
    rows, row_bytes = len(x), 2 * x.shape[1]
    for block in range(len(panels)):
        place = x.ctypes.data + 2 * (first + block * BLOCK)
        for pair in range(rows // 2):
            even = place + 2 * pair * row_bytes
            interleave(even, even + row_bytes, panels[block, pair].ctypes.data)
        if rows % 2:
            interleave(place + (rows - 1) * row_bytes, zeros.ctypes.data, panels[block, rows // 2].ctypes.data)


@jit_inline
def _pair_rows(x: Array, pairs: Array) -> None:
    """Interleave the elements of each pair of consecutive rows."""
    for pair in range(len(pairs)):
        even, odd, to = x[2 * pair].ctypes.data, x[2 * pair + 1].ctypes.data, pairs[pair].ctypes.data
        for first in range(0, pairs.shape[1], LANES):
            interleave_lanes(even + 2 * first, odd + 2 * first, to + PAIR_BYTES * first)


@jit_inline
def _multiply_float32(panels: Array, x: int, x_stride: int, out: Array) -> None:
    for block in range(len(panels)):
        panel, place = panels[block].ctypes.data, out.ctypes.data + 4 * LANES * block
        multiply_rows_float32(panel, panels.shape[1], x, x_stride, place, 4 * out.shape[1], len(out))


@jit_inline
def _multiply(
    panels: Array, x: int, row_stride: int, pair_stride: int, bias: Array, out: int, out_stride: int, rows: int
) -> None:
    for block in range(len(panels)):
        panel, place = panels[block].ctypes.data, out + 2 * BLOCK * block
        multiply_rows(panel, panels.shape[1], x, row_stride, pair_stride, bias.ctypes.data, place, out_stride, rows)
