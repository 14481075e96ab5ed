"""Sums over the numbers of rows, in an order that is written down.

A compiler that may reorder sums makes vectors of a loop, but how many, and with what else, it decides anew wherever the
loop is compiled: with threads and without, in a process that compiles and in one that finds compiled code. Here sums
are of vectors, each lane its own, which a tree of shuffles adds up; numbers that fill no vector are added after it.

Numbers lie from an address on; ``like`` is one of them: float32, or uint16, the bits of bfloat16. Sums are of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types

from headway.kernels.llvm import (
    FLOAT,
    FLOAT_VECTOR,
    INT32,
    INT64,
    INT_VECTOR,
    LANES,
    alloca,
    broadcast,
    constant,
    for_range,
    intrinsic,
    load,
    sum_lanes,
)

__all__ = ["dot_product", "emit_load_float32", "row_sum", "sum_squared_deviations", "weighted_deviation_dot"]

_HALF = 16  # bits
_Load = Callable[[ir.Value, Any], ir.Value]


def _emit_sum(builder: ir.IRBuilder, count: ir.Value, term: Callable[[_Load, Callable[..., Any]], ir.Value]) -> Any:
    """The sum of ``count`` terms; ``term`` makes one, or a vector of them, of what it loads and of what it spreads."""
    total, rest = alloca(builder, FLOAT_VECTOR), alloca(builder, FLOAT)
    builder.store(constant(FLOAT_VECTOR, 0.0), total)
    builder.store(constant(FLOAT, 0.0), rest)
    vectors = builder.udiv(count, INT64(LANES))
    with for_range(builder, vectors) as loop:
        terms = term(
            lambda address, like: emit_load_float32(builder, address, like, loop.index, FLOAT_VECTOR),
            lambda number: broadcast(builder, number, LANES),
        )
        builder.store(builder.fadd(builder.load(total), terms), total)
    first = builder.mul(vectors, INT64(LANES))
    with for_range(builder, builder.sub(count, first)) as loop:
        index = builder.add(first, loop.index)
        terms = term(
            lambda address, like: emit_load_float32(builder, address, like, index, FLOAT), lambda number: number
        )
        builder.store(builder.fadd(builder.load(rest), terms), rest)
    return builder.fadd(sum_lanes(builder, builder.load(total)), builder.load(rest))


def emit_load_float32(builder: ir.IRBuilder, address: ir.Value, like: Any, index: ir.Value, kind: ir.Type) -> ir.Value:
    """The number at ``index`` of those that are like a type, or the vector of them, in float32."""
    if like == types.float32:
        return load(builder, address, kind, index)
    narrow, wide = (ir.IntType(16), INT32) if kind == FLOAT else (ir.VectorType(ir.IntType(16), LANES), INT_VECTOR)
    bits = builder.zext(load(builder, address, narrow, index), wide)
    return builder.bitcast(builder.shl(bits, constant(wide, _HALF)), kind)


def _sum_of(context: Any, numbers: Any, like: Any, count: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        return _emit_sum(builder, arguments[2], lambda number, _: number(arguments[0], like))

    return types.float32(types.uintp, like, types.intp), generate


def _sum_of_squares(context: Any, numbers: Any, like: Any, count: Any, mean: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        def square(number: _Load, spread: Callable[..., Any]) -> ir.Value:
            deviation = builder.fsub(number(arguments[0], like), spread(arguments[3]))
            return builder.fmul(deviation, deviation)

        return _emit_sum(builder, arguments[2], square)

    return types.float32(types.uintp, like, types.intp, types.float32), generate


def _sum_of_products(context: Any, numbers: Any, like: Any, others: Any, like_others: Any, count: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        def product(number: _Load, _: object) -> ir.Value:
            return builder.fmul(number(arguments[0], like), number(arguments[2], like_others))

        return _emit_sum(builder, arguments[4], product)

    return types.float32(types.uintp, like, types.uintp, like_others, types.intp), generate


def _products_with_deviations(
    context: Any, numbers: Any, like: Any, weights: Any, deviating: Any, count: Any, mean: Any
) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        def product(number: _Load, spread: Callable[..., Any]) -> ir.Value:
            weighted = builder.fmul(number(arguments[0], like), number(arguments[2], types.float32))
            return builder.fmul(weighted, builder.fsub(number(arguments[3], like), spread(arguments[5])))

        return _emit_sum(builder, arguments[4], product)

    address = types.uintp
    return types.float32(address, like, address, address, types.intp, types.float32), generate


row_sum = cast(Callable[[int, Any, int], np.float32], intrinsic(_sum_of))
"""``(numbers, like, count)``."""

sum_squared_deviations = cast(Callable[[int, Any, int, np.float32], np.float32], intrinsic(_sum_of_squares))
"""``(numbers, like, count, mean)``: of what they are more than the mean."""

dot_product = cast(Callable[[int, Any, int, Any, int], np.float32], intrinsic(_sum_of_products))
"""``(numbers, like, others, like_others, count)``."""

weighted_deviation_dot = cast(
    Callable[[int, Any, int, int, int, np.float32], np.float32], intrinsic(_products_with_deviations)
)
"""``(numbers, like, weights, deviating, count, mean)``: the sum of numbers times weights, of float32, times what others
are more than the mean."""
