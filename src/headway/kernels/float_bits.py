"""Floating-point numbers as integers of the same bits, and bfloat16 as the upper half of a float32's.

Compilers do not make vectors of a search for the largest float, for they would have to say which of two NaN it finds.
Of integers they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types

from headway.kernels.llvm import FLOAT, INT32, constant, intrinsic

__all__ = [
    "ABS_MASK",
    "MIN_INT32",
    "bits_to_float",
    "cast_like",
    "emit_ordered_int",
    "float_to_bits",
    "ordered_int",
    "to_float32",
]

ABS_MASK = np.int32(0x7FFFFFFF)  # all bits but the sign's: ordered as magnitudes are, NaN above all
MIN_INT32 = np.int32(-(2**31))  # where a search for the highest integer begins
_SIGN = 31
_HALF = 16  # bits
_BELOW_MIDDLE = 0x7FFF  # of what is rounded away


def _as_float(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


def _as_int(context: Any, number: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        return builder.bitcast(arguments[0], INT32)

    return types.int32(types.float32), generate


bits_to_float = cast(Callable[[np.int32], np.float32], intrinsic(_as_float))
float_to_bits = cast(Callable[[np.float32], np.int32], intrinsic(_as_int))


def emit_ordered_int(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """:data:`ordered_int` of the bits of a float, or of a vector of floats."""
    negative = builder.ashr(bits, constant(bits.type, _SIGN))
    return builder.xor(bits, builder.and_(negative, constant(bits.type, int(ABS_MASK))))


def _in_order(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        return emit_ordered_int(builder, arguments[0])

    return types.int32(types.int32), generate


ordered_int = cast(Callable[[np.int32], np.int32], intrinsic(_in_order))
"""An integer for a float's bits, ordered as floats are, NaN at the ends; and for such an integer the bits."""


def _widened(context: Any, number: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        if number == types.float32:
            return arguments[0]
        return builder.bitcast(builder.shl(builder.zext(arguments[0], INT32), constant(INT32, _HALF)), FLOAT)

    return types.float32(number), generate


def _narrowed(context: Any, number: Any, like: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        if like == types.float32:
            return arguments[0]
        bits = builder.bitcast(arguments[0], INT32)
        odd = builder.and_(builder.lshr(bits, constant(INT32, _HALF)), constant(INT32, 1))
        rounded = builder.add(builder.add(bits, constant(INT32, _BELOW_MIDDLE)), odd)
        return builder.trunc(builder.lshr(rounded, constant(INT32, _HALF)), ir.IntType(16))

    return like(types.float32, like), generate


to_float32 = cast(Callable[[Any], np.float32], intrinsic(_widened))
"""The float32 of a float32, or of a bfloat16's bits (uint16)."""

cast_like = cast(Callable[[np.float32, Any], Any], intrinsic(_narrowed))
"""``(number, like)``: the number as what ``like`` is, itself or the bits of the nearest bfloat16, of two the even one;
NaN of a processor's own making stays NaN."""
