"""Exponentials, inside compiled loops. Compilers make vectors of these, unlike of libm's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types

from headway.kernels.float_bits import MIN_INT32, emit_ordered_int
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
    llvm_function,
    load,
    store,
    sum_lanes,
)

__all__ = ["LOG2_E", "emit_exp2", "emit_exp_and_sum", "exp2", "exp_and_sum"]

LOG2_E = np.float32(math.log2(math.e))
_LEAST = -126.0
_TAYLOR = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
_ONE, _MANTISSA = 127, 23  # the exponent of 1 and where exponents begin, in a float's bits


def emit_exp2(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Of a float or of each float of a vector."""
    kind = x.type
    whole_kind, name = (INT32, "f32") if kind == FLOAT else (INT_VECTOR, f"v{LANES}f32")
    least = constant(kind, _LEAST)
    x = builder.select(builder.fcmp_ordered("<", x, least), least, x)  # NaN stays
    whole = builder.call(llvm_function(builder, f"llvm.rint.{name}", kind, kind), [x])
    rest = builder.fsub(x, whole)
    multiply_add = llvm_function(builder, f"llvm.fma.{name}", kind, kind, kind, kind)
    power = constant(kind, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        power = builder.call(multiply_add, [power, rest, constant(kind, coefficient)])
    exponent = builder.add(builder.fptosi(whole, whole_kind), constant(whole_kind, _ONE))
    return builder.fmul(power, builder.bitcast(builder.shl(exponent, constant(whole_kind, _MANTISSA)), kind))


def _power_of_two(context: Any, x: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        return emit_exp2(builder, arguments[0])

    return types.float32(types.float32), generate


def emit_exp_and_sum(
    builder: ir.IRBuilder, scores: ir.Value, vectors: ir.Value, present: Callable[[ir.Value], ir.Value]
) -> ir.Value:
    """Make so many vectors of scores, those that are ``present``, exp_and_sum of what they are less than the largest
    of these, and all others 0. Returns their sum."""
    highest, total = alloca(builder, INT_VECTOR), alloca(builder, FLOAT_VECTOR)
    lowest, zeros = constant(INT_VECTOR, int(MIN_INT32)), constant(FLOAT_VECTOR, 0.0)
    builder.store(lowest, highest)
    builder.store(zeros, total)
    with for_range(builder, vectors) as loop:
        higher = llvm_function(builder, f"llvm.smax.v{LANES}i32", INT_VECTOR, INT_VECTOR, INT_VECTOR)
        ordered = emit_ordered_int(builder, load(builder, scores, INT_VECTOR, loop.index))
        ordered = builder.select(present(loop.index), ordered, lowest)
        builder.store(builder.call(higher, [builder.load(highest), ordered]), highest)
    reduced = llvm_function(builder, f"llvm.vector.reduce.smax.v{LANES}i32", INT32, INT_VECTOR)
    largest = builder.bitcast(emit_ordered_int(builder, builder.call(reduced, [builder.load(highest)])), FLOAT)
    base, scale = broadcast(builder, largest, LANES), constant(FLOAT_VECTOR, float(LOG2_E))
    with for_range(builder, vectors) as loop:
        power = builder.fmul(builder.fsub(load(builder, scores, FLOAT_VECTOR, loop.index), base), scale)
        power = builder.select(present(loop.index), emit_exp2(builder, power), zeros)
        store(builder, power, scores, loop.index)
        builder.store(builder.fadd(builder.load(total), power), total)
    return sum_lanes(builder, builder.load(total))


def _exponentials(context: Any, scores: Any, count: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        scores, count = arguments
        vectors = builder.sdiv(builder.add(count, INT64(LANES - 1)), INT64(LANES))

        def present(vector: ir.Value) -> ir.Value:
            left = builder.trunc(builder.sub(count, builder.mul(vector, INT64(LANES))), INT32)
            return builder.icmp_signed(
                "<", ir.Constant(INT_VECTOR, list(range(LANES))), broadcast(builder, left, LANES)
            )

        return emit_exp_and_sum(builder, scores, vectors, present)

    return types.float32(types.uintp, types.intp), generate


exp2 = cast(Callable[[np.float32], np.float32], intrinsic(_power_of_two))
"""2^x for x of at most 0, to 2e-7 of it; below 2^-126 it stays there.

x is split into an integer, which becomes the exponent's bits, and a rest of at most a half, whose power is the Taylor
series of exp(x log 2) up to x^6.
"""

exp_and_sum = cast(Callable[[int, int], np.float32], intrinsic(_exponentials))
"""``(scores, count)``: each of the scores at an address less the largest becomes its exponential; their sum.

There must be room for LANES scores more, which become zeros. Where all scores are -inf, the sum is NaN.
"""
