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

from headway.kernels.compiling import within
from headway.kernels.emitting import FLOAT, emitted

__all__ = ["LOWEST", "MAGNITUDE", "as_float", "in_order"]

MAGNITUDE = np.int32(0x7FFFFFFF)  # all bits but the sign's: ordered as magnitudes are, NaN above all
LOWEST = np.int32(-(2**31))  # where a search for the highest integer begins
_SIGN = np.int32(31)


def _as_float(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


as_float = cast(Callable[[np.int32], np.float32], emitted(_as_float))


@within
def in_order(bits: np.int32) -> np.int32:
    """An integer for a float's bits, ordered as floats are, NaN at the ends; and for such an integer the bits."""
    return np.int32(bits ^ ((bits >> _SIGN) & MAGNITUDE))
