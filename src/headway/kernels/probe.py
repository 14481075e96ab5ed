"""A small kernel that tests whether the Numba and llvmlite features that kernels need work."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types

from headway.kernels.jit import Array, jit, jit_exact, jit_inline, jit_internal
from headway.kernels.llvm import LANES, Builder, intrinsic
from headway.kernels.reductions import row_sum


def run() -> None:
    """Run the kernel. Raises an exception if it fails or returns a wrong result."""
    x = np.arange(1, 2 * LANES, dtype=np.float32)
    actual, expected = _scaled_sum(x, 0.5), float(x.sum()) / 2
    if actual != expected:
        raise ArithmeticError(f"a kernel computed {actual} instead of {expected}")


@intrinsic(types.void(types.uintp, types.float32))
def _multiply(builder: Builder, address: ir.Value, factor: ir.Value) -> None:
    builder.write(builder.fmul(builder.read(address, factor.type), factor), address)


@jit_inline
def _scale(x: Array, i: int, factor: float) -> None:
    _multiply(x[i:].ctypes.data, np.float32(factor))


@jit_internal
def _scale_all(x: Array, factor: float) -> None:
    for i in range(len(x)):
        _scale(x, i, factor)


@jit_exact
def _sum(x: Array) -> np.float32:
    total: np.float32 = row_sum(x.ctypes.data, x[0], len(x))
    return total


@jit
def _scaled_sum(x: Array, factor: float) -> np.float32:
    scaled = x.copy()
    _scale_all(scaled, factor)
    return _sum(scaled)
