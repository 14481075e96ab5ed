"""Exponentials for compiled loops. Compilers vectorize them, unlike calls to the C library."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import types

from headway.kernels.float_bits import MIN_INT32, emit_ordered_int
from headway.kernels.llvm import FLOAT, FLOAT_VECTOR, INT32, INT64, INT_VECTOR, LANES, Builder, constant, intrinsic

LOG2_E = np.float32(math.log2(math.e))
_MIN_EXPONENT = -126.0
_TAYLOR = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
_EXPONENT_BIAS, _MANTISSA_BITS = 127, 23


def emit_exp2(builder: Builder, x: ir.Value) -> ir.Value:
    """Emit :func:`exp2` of a float, or of each lane of a vector."""
    kind = x.type
    int_kind = INT32 if kind == FLOAT else INT_VECTOR
    least = constant(kind, _MIN_EXPONENT)
    x = builder.select(builder.fcmp_ordered("<", x, least), least, x)  # keeps NaN
    whole = builder.call_float("rint", x)
    rest = builder.fsub(x, whole)
    power = constant(kind, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        power = builder.call_float("fma", power, rest, constant(kind, coefficient))
    exponent = builder.add(builder.fptosi(whole, int_kind), constant(int_kind, _EXPONENT_BIAS))
    return builder.fmul(power, builder.bitcast(builder.shl(exponent, constant(int_kind, _MANTISSA_BITS)), kind))


exp2 = intrinsic(types.float32(types.float32))(emit_exp2)
"""Return 2^x for x <= 0 with a relative error of at most 2e-7, and 2^-126 for x < -126.

x is split into an integer, which becomes the exponent bits, and a remainder of at most 1/2 in magnitude. Two to the
power of the remainder is computed by the Taylor series of exp(x log 2) up to x^6.
"""


def emit_exp_and_sum(
    builder: Builder, scores: ir.Value, num_vectors: ir.Value, unmasked: Callable[[ir.Value], ir.Value]
) -> ir.Value:
    """Replace scores with exp(score - largest score), or with 0 if they are masked, and return the sum.

    ``unmasked(i)`` returns the lanes of vector i that are not masked. The largest score is taken only over these lanes.
    """
    lowest, zeros = constant(INT_VECTOR, int(MIN_INT32)), constant(FLOAT_VECTOR, 0.0)
    highest, total = builder.local_variable(lowest), builder.local_variable(zeros)
    maximum = f"llvm.smax.v{LANES}i32"
    with builder.loop(num_vectors) as i:
        ordered = builder.select(unmasked(i), emit_ordered_int(builder, builder.read(scores, INT_VECTOR, i)), lowest)
        builder.store(builder.call_llvm(maximum, INT_VECTOR, builder.load(highest), ordered), highest)
    largest = builder.call_llvm(f"llvm.vector.reduce.smax.v{LANES}i32", INT32, builder.load(highest))
    base = builder.broadcast(builder.bitcast(emit_ordered_int(builder, largest), FLOAT))
    scale = constant(FLOAT_VECTOR, float(LOG2_E))
    with builder.loop(num_vectors) as i:
        power = builder.fmul(builder.fsub(builder.read(scores, FLOAT_VECTOR, i), base), scale)
        power = builder.select(unmasked(i), emit_exp2(builder, power), zeros)
        builder.write(power, scores, i)
        builder.add_to(total, power)
    return builder.sum_lanes(builder.load(total))


@intrinsic(types.float32(types.uintp, types.intp))
def exp_and_sum(builder: Builder, scores: ir.Value, count: ir.Value) -> ir.Value:
    """Replace ``count`` scores at an address with exp(score - largest score), and return their sum.

    There must be space for LANES more scores, which are set to zero. If all scores are -inf, the sum is NaN.
    """
    num_vectors = builder.sdiv(builder.add(count, INT64(LANES - 1)), INT64(LANES))
    return emit_exp_and_sum(builder, scores, num_vectors, lambda i: builder.lane_mask(count, i))


@intrinsic(types.float32(types.uintp, types.intp, types.float32))
def sum_of_exponentials(builder: Builder, scores: ir.Value, count: ir.Value, largest: ir.Value) -> ir.Value:
    """Return the sum of exp(score - ``largest``) over ``count`` scores at an address.

    Terms are added in the same order wherever the function is inlined, so equal scores give bitwise equal sums.
    """
    total, base = builder.local_variable(constant(FLOAT_VECTOR, 0.0)), builder.broadcast(largest)
    scale, zeros = constant(FLOAT_VECTOR, float(LOG2_E)), constant(FLOAT_VECTOR, 0.0)
    num_full = builder.sdiv(count, INT64(LANES))
    with builder.loop(num_full) as i:
        power = builder.fmul(builder.fsub(builder.read(scores, FLOAT_VECTOR, i), base), scale)
        builder.add_to(total, emit_exp2(builder, power))
    power = builder.fmul(builder.fsub(builder.read_masked(scores, num_full, count), base), scale)
    power = builder.select(builder.lane_mask(count, num_full), emit_exp2(builder, power), zeros)
    builder.add_to(total, power)
    return builder.sum_lanes(builder.load(total))
