"""Floating-point numbers as integers with the same bits, and bfloat16 as the upper half of a float32.

Compilers do not vectorize a search for the largest float, because its result would be ambiguous with two different
NaNs. They do vectorize a search for the largest integer.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types

from headway.kernels.llvm import FLOAT, INT16, INT32, INT_VECTOR, LANES, Builder, constant, intrinsic

ABS_MASK = np.int32(0x7FFFFFFF)  # all bits except the sign; as integers, they sort by magnitude, with NaN largest
MIN_INT32 = np.int32(-(2**31))  # the initial value of a search for the largest integer
INT16_VECTOR = ir.VectorType(INT16, LANES)  # the bits of a vector of bfloat16
_SIGN = 31  # the position of the sign bit
_HALF = 16  # the number of bits of a bfloat16
_ROUNDING = 0x7FFF  # just less than half a unit in the last place of a bfloat16


@intrinsic(types.float32(types.int32))
def bits_to_float(builder: Builder, bits: ir.Value) -> ir.Value:
    """Return the float32 that has these bits."""
    return builder.bitcast(bits, FLOAT)


@intrinsic(types.int32(types.float32))
def float_to_bits(builder: Builder, x: ir.Value) -> ir.Value:
    """Return the bits of a float32."""
    return builder.bitcast(x, INT32)


def emit_ordered_int(builder: Builder, bits: ir.Value) -> ir.Value:
    """Emit :func:`ordered_int` of the bits of a float, or of each lane of a vector."""
    negative = builder.ashr(bits, constant(bits.type, _SIGN))
    return builder.xor(bits, builder.and_(negative, constant(bits.type, int(ABS_MASK))))


ordered_int = intrinsic(types.int32(types.int32))(emit_ordered_int)
"""Map the bits of floats to integers in the same order, with NaN at both ends. The function is its own inverse."""


def emit_read_float32(builder: Builder, address: ir.Value, stored: ir.Type, index: ir.Value, kind: ir.Type) -> ir.Value:
    """Emit a read of element ``index`` of an array at ``address`` as ``kind``: one float32 or a vector.

    ``stored`` is the type of one element: float32, or a 16-bit integer with the bits of a bfloat16.
    """
    if stored == FLOAT:
        return builder.read(address, kind, index)
    narrow, wide = (INT16, INT32) if kind == FLOAT else (INT16_VECTOR, INT_VECTOR)
    bits = builder.zext(builder.read(address, narrow, index), wide)
    return builder.bitcast(builder.shl(bits, constant(wide, _HALF)), kind)


@intrinsic(lambda x: types.float32(x))
def to_float32(builder: Builder, x: ir.Value) -> ir.Value:
    """Convert a float32, or the bits of a bfloat16 (uint16), to float32."""
    if x.type == FLOAT:
        return x
    return builder.bitcast(builder.shl(builder.zext(x, INT32), constant(INT32, _HALF)), FLOAT)


@intrinsic(lambda _, like: like(types.float32, like))
def cast_like(builder: Builder, x: ir.Value, like: ir.Value) -> ir.Value:
    """Convert ``x`` to the type of ``like``: float32, or the bits of the nearest bfloat16 (ties to even).

    NaN stays NaN if it has the bits that processors produce.
    """
    return emit_cast(builder, x, like.type)


def emit_cast(builder: Builder, x: ir.Value, stored: ir.Type) -> ir.Value:
    """Emit :func:`cast_like` for a float32, or for each lane of a vector. ``stored`` is the type of one element."""
    if stored == FLOAT:
        return x
    narrow, wide = (INT16, INT32) if x.type == FLOAT else (INT16_VECTOR, INT_VECTOR)
    bits = builder.bitcast(x, wide)
    odd = builder.and_(builder.lshr(bits, constant(wide, _HALF)), constant(wide, 1))
    rounded = builder.add(builder.add(bits, constant(wide, _ROUNDING)), odd)
    return builder.trunc(builder.lshr(rounded, constant(wide, _HALF)), narrow)
