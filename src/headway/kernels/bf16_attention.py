"""Attention of training in bfloat16, head by head of each sentence (Vaswani et al. 2017, equation 1), and its way back.

A sentence's head is little work: 14 queries, 14 keys, 64 numbers each. As products of a whole batch its parts are laid
out one after the other, multiplied, stored and read again; here queries, keys and values are read where the projections
left them, and what comes between stays in a first-level cache. Scores and errors are float32 until they are weights and
gradients.

Queries lie in ``queries`` (B, T, .), from column ``at[0]`` on those of the first head; keys and values in ``memory``
(B, S, .), from ``at[1]`` and ``at[2]`` on. Both may be one array. A head is K numbers wide, K a multiple of BLOCK. All
are uint16, the bits of bfloat16. Weights (B, H, T, P) have P places, a multiple of LANES; those from S on are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
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
from headway.kernels.jit import jit_inline, jit_serial_and_parallel
from headway.kernels.llvm import (
    BYTE,
    FLOAT_VECTOR,
    INT64,
    LANES,
    alloca,
    broadcast,
    constant,
    for_range,
    intrinsic,
    load,
    store,
    sum_lanes,
)
from headway.kernels.reductions import emit_load_float32
from headway.kernels.threads import run_threaded

__all__ = ["attention_backward", "attention_forward"]

Array = npt.NDArray[Any]

_WIDE = 4  # bytes of a float32


def _emit_softmax(context: Any, scores: Any, opened: Any, count: Any, factor: Any, out: Any) -> Any:
    """Addresses; ``count`` scores, of which a byte each tells whether they are open."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        scores, opened, count, factor, out = arguments
        vectors, zeros, ones = (
            builder.udiv(count, INT64(LANES)),
            constant(FLOAT_VECTOR, 0.0),
            constant(FLOAT_VECTOR, 1.0),
        )

        def is_open(index: ir.Value) -> ir.Value:
            flags = load(builder, opened, ir.VectorType(BYTE, LANES), index)
            return builder.icmp_unsigned("!=", flags, constant(flags.type, 0))

        with for_range(builder, vectors) as loop:
            scaled = builder.fmul(load(builder, scores, FLOAT_VECTOR, loop.index), broadcast(builder, factor, LANES))
            store(builder, scaled, scores, loop.index)
        whole = broadcast(builder, emit_exp_and_sum(builder, scores, vectors, is_open), LANES)
        # Where none is open, the sum is zero, and so are they; NaN stays.
        scale = builder.fdiv(ones, builder.select(builder.fcmp_ordered("==", whole, zeros), ones, whole))
        with for_range(builder, vectors) as loop:
            weight = builder.fmul(load(builder, scores, FLOAT_VECTOR, loop.index), scale)
            store(builder, emit_to_bfloat16(builder, weight), out, loop.index)
        return context.get_dummy_value()

    address = types.uintp
    return types.void(address, address, types.intp, types.float32, address), generate


def _emit_softmax_back(context: Any, errors: Any, weights: Any, count: Any, scale: Any, out: Any) -> Any:
    """Addresses; ``out`` = (errors - their mean by weights) times weights times ``scale``."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        errors, weights, count, scale, out = arguments
        vectors, total = builder.udiv(count, INT64(LANES)), alloca(builder, FLOAT_VECTOR)
        builder.store(constant(FLOAT_VECTOR, 0.0), total)

        def weight(index: ir.Value) -> ir.Value:
            return emit_load_float32(builder, weights, types.uint16, index, FLOAT_VECTOR)

        with for_range(builder, vectors) as loop:
            product = builder.fmul(load(builder, errors, FLOAT_VECTOR, loop.index), weight(loop.index))
            builder.store(builder.fadd(builder.load(total), product), total)
        mean = broadcast(builder, sum_lanes(builder, builder.load(total)), LANES)
        with for_range(builder, vectors) as loop:
            error = builder.fsub(load(builder, errors, FLOAT_VECTOR, loop.index), mean)
            error = builder.fmul(builder.fmul(error, weight(loop.index)), broadcast(builder, scale, LANES))
            store(builder, emit_to_bfloat16(builder, error), out, loop.index)
        return context.get_dummy_value()

    address = types.uintp
    return types.void(address, address, types.intp, types.float32, address), generate


_softmax = cast(Callable[[int, int, int, np.float32, int], None], intrinsic(_emit_softmax))
_softmax_back = cast(Callable[[int, int, int, np.float32, int], None], intrinsic(_emit_softmax_back))


def attention_forward(
    queries: Array, memory: Array, at: tuple[int, int, int], mask: Array, scale: float, weights: Array, out: Array
) -> None:
    """``weights`` = softmax(``scale`` q k^T) where ``mask`` (B or 1, T or 1, P) is True, else 0; ``out`` (B, T, H K) =
    their sums of values, heads side by side."""
    run_threaded(_attend, queries, memory, at, mask, np.float32(scale), weights, out)


def attention_backward(
    gradient: Array,
    queries: Array,
    memory: Array,
    at: tuple[int, int, int],
    scale: float,
    weights: Array,
    of_queries: Array,
    of_memory: Array,
) -> None:
    """From ``gradient`` (B, T, H K), with respect to the output, those with respect to queries, keys and values, which
    lie in ``of_queries`` and ``of_memory`` as these do in ``queries`` and ``memory``."""
    arguments = (gradient, queries, memory, at, np.float32(scale), weights, of_queries, of_memory)
    run_threaded(_attend_back, *arguments)


@jit_serial_and_parallel
def _attend(queries: Array, memory: Array, at: Any, mask: Array, factor: Any, weights: Array, out: Array) -> None:
    sentences, heads, length, padded = weights.shape
    places, size = memory.shape[1], out.shape[2] // heads
    for sentence in numba.prange(sentences):
        of_memory, of_mask = memory[sentence], mask[0]
        if len(mask) > 1:
            of_mask = mask[sentence]
        keys = np.zeros((padded // LANES, size // 2, LANES), dtype=np.uint32)
        values = np.empty((size // BLOCK, (places + 1) // 2, BLOCK), dtype=np.uint32)
        scores = np.empty((length, padded), dtype=np.float32)
        none = np.zeros(BLOCK, dtype=np.float32)
        for head in range(heads):
            column, of_head = head * size, weights[sentence, head]
            _by_columns(of_memory, at[1] + column, keys)
            place = queries[sentence].ctypes.data + 2 * (at[0] + column)
            _multiply_wide(keys, place, 2 * queries.shape[2], scores)
            for query in range(length):
                opened = of_mask[min(query, len(of_mask) - 1)]
                _softmax(scores[query].ctypes.data, opened.ctypes.data, padded, factor, of_head[query].ctypes.data)
            _by_rows(of_memory, at[2] + column, none, values)
            place = out[sentence].ctypes.data + 2 * column
            _multiply(values, of_head.ctypes.data, 2 * padded, PAIR_BYTES, none, place, 2 * out.shape[2], length)


@jit_serial_and_parallel
def _attend_back(
    gradient: Array,
    queries: Array,
    memory: Array,
    at: Any,
    scale: Any,
    weights: Array,
    of_queries: Array,
    of_memory: Array,
) -> None:
    sentences, heads, length, padded = weights.shape
    places, size = memory.shape[1], gradient.shape[2] // heads
    rows, step = (length + 1) // 2, 2 * of_memory.shape[2]
    for sentence in numba.prange(sentences):
        values = np.zeros((padded // LANES, size // 2, LANES), dtype=np.uint32)
        errors = np.empty((length, padded), dtype=np.float32)
        narrow = np.zeros((2 * rows, padded), dtype=np.uint16)  # an odd row is paired with zeros
        pairs = np.empty((rows, padded), dtype=np.uint32)
        keys = np.empty((size // BLOCK, (places + 1) // 2, BLOCK), dtype=np.uint32)
        panels = np.empty((size // BLOCK, rows, BLOCK), dtype=np.uint32)
        none = np.zeros(BLOCK, dtype=np.float32)
        for head in range(heads):
            column, of_head = head * size, weights[sentence, head]
            _by_columns(memory[sentence], at[2] + column, values)
            place = gradient[sentence].ctypes.data + 2 * column
            _multiply_wide(values, place, 2 * gradient.shape[2], errors)
            for query in range(length):
                error, weight, put = errors[query], of_head[query], narrow[query]
                _softmax_back(error.ctypes.data, weight.ctypes.data, padded, scale, put.ctypes.data)
            _by_rows(memory[sentence], at[1] + column, none, keys)
            place = of_queries[sentence].ctypes.data + 2 * (at[0] + column)
            _multiply(keys, narrow.ctypes.data, 2 * padded, PAIR_BYTES, none, place, 2 * of_queries.shape[2], length)
            _pair_up(narrow, pairs)
            _by_rows(queries[sentence], at[0] + column, none, panels)
            place = of_memory[sentence].ctypes.data + 2 * (at[1] + column)
            _multiply(panels, pairs.ctypes.data, PAIR_BYTES, PAIR_BYTES * padded, none, place, step, places)
            for query in range(length):
                for key in range(padded):
                    narrow[query, key] = of_head[query, key]
            _pair_up(narrow, pairs)
            _by_rows(gradient[sentence], column, none, panels)
            place = of_memory[sentence].ctypes.data + 2 * (at[2] + column)
            _multiply(panels, pairs.ctypes.data, PAIR_BYTES, PAIR_BYTES * padded, none, place, step, places)


@jit_inline
def _by_columns(x: Array, first: int, panels: Array) -> None:
    """Panels whose columns are the rows of x (R, .), from a column on; beyond them they stay as they are."""
    pairs, row_pairs = x.view(np.uint32), first // 2
    for row in range(len(x)):
        panel, lane = panels[row // LANES], row % LANES
        for pair in range(panels.shape[1]):
            panel[pair, lane] = pairs[row, row_pairs + pair]


@jit_inline
def _by_rows(x: Array, first: int, zeros: Array, panels: Array) -> None:
    """Panels of pairs of rows of x (R, .), from a column on; an odd row is paired with ``zeros``."""
    rows, step = len(x), 2 * x.shape[1]
    for block in range(len(panels)):
        place = x.ctypes.data + 2 * (first + block * BLOCK)
        for pair in range(rows // 2):
            even = place + 2 * pair * step
            interleave(even, even + step, panels[block, pair].ctypes.data)
        if rows % 2:
            interleave(place + (rows - 1) * step, zeros.ctypes.data, panels[block, rows // 2].ctypes.data)


@jit_inline
def _pair_up(x: Array, pairs: Array) -> None:
    """The numbers of each two rows side by side."""
    for pair in range(len(pairs)):
        even, odd, put = x[2 * pair].ctypes.data, x[2 * pair + 1].ctypes.data, pairs[pair].ctypes.data
        for first in range(0, pairs.shape[1], LANES):
            interleave_lanes(even + 2 * first, odd + 2 * first, put + PAIR_BYTES * first)


@jit_inline
def _multiply_wide(panels: Array, x: int, x_stride: int, out: Array) -> None:
    for block in range(len(panels)):
        place = out.ctypes.data + _WIDE * LANES * block
        multiply_rows_float32(
            panels[block].ctypes.data, panels.shape[1], x, x_stride, place, _WIDE * out.shape[1], len(out)
        )


@jit_inline
def _multiply(
    panels: Array, x: int, row_stride: int, pair_stride: int, bias: Array, out: int, out_stride: int, rows: int
) -> None:
    for block in range(len(panels)):
        panel, place = panels[block].ctypes.data, out + 2 * BLOCK * block
        multiply_rows(panel, panels.shape[1], x, row_stride, pair_stride, bias.ctypes.data, place, out_stride, rows)
