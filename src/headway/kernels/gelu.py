"""The approximation of GELU by tanh (Hendrycks and Gimpel 2016, section 2), which GPT-2 uses, in one pass.

x / 2 (1 + tanh(u)) = x sigmoid(2 u)        u = sqrt(2 / pi) (x + 0.044715 x^3)
"""

from __future__ import annotations

import math

import numba
from jaxtyping import Float32
from llvmlite import ir
from numba import types

from headway.kernels.gates import emit_sigmoid
from headway.kernels.jit import Array, jit_serial_and_parallel
from headway.kernels.llvm import Builder, constant, intrinsic

_CHUNK = 8192  # elements that a thread processes at a time
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def gelu_tanh(x: Float32[Array, "R K"]) -> Float32[Array, "R K"]:
    """Apply the activation in place, and return ``x``, which must be contiguous."""
    _apply(x.reshape(-1))
    return x


@intrinsic(types.void(types.uintp, types.intp))
def _gelu_tanh(builder: Builder, address: ir.Value, count: ir.Value) -> None:
    """Replace ``count`` numbers at ``address``."""

    def emit(kind: ir.Type, i: ir.Value) -> None:
        x = builder.read(address, kind, i)
        slope = builder.fadd(builder.fmul(builder.fmul(x, x), constant(kind, _CUBIC)), constant(kind, _LINEAR))
        builder.write(builder.fmul(x, emit_sigmoid(builder, builder.fmul(x, slope))), address, i)

    builder.for_elements(count, emit)


@jit_serial_and_parallel
def _apply(x: Array) -> None:
    for chunk in numba.prange(-(-len(x) // _CHUNK)):
        first = chunk * _CHUNK
        _gelu_tanh(x[first:].ctypes.data, min(_CHUNK, len(x) - first))
