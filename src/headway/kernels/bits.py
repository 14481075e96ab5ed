"""Floating-point numbers as integers of the same bits.

Compilers do not make vectors of a search for the largest float, for they would have to say which of two NaN it finds.
Of integers they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types

from headway.kernels.emitting import FLOAT, constant, emitted

__all__ = ["LOWEST", "MAGNITUDE", "as_float", "emit_in_order", "in_order"]

MAGNITUDE = np.int32(0x7FFFFFFF)  # all bits but the sign's: ordered as magnitudes are, NaN above all
LOWEST = np.int32(-(2**31))  # where a search for the highest integer begins
_SIGN = 31


def _as_float(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


as_float = cast(Callable[[np.int32], np.float32], emitted(_as_float))


def emit_in_order(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """:data:`in_order` of the bits of a float, or of a vector of floats."""
    negative = builder.ashr(bits, constant(bits.type, _SIGN))
    return builder.xor(bits, builder.and_(negative, constant(bits.type, int(MAGNITUDE))))


def _in_order(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        return emit_in_order(builder, arguments[0])

    return types.int32(types.int32), generate


in_order = cast(Callable[[np.int32], np.int32], emitted(_in_order))
"""An integer for a float's bits, ordered as floats are, NaN at the ends; and for such an integer the bits."""
