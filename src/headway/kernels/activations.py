"""The activations of plain feed-forward layers, fused with the bias, and their gradients, each in one pass.

    gelu         x Phi(x)             Phi is the normal distribution function (Hendrycks and Gimpel 2016, section 2)
    gelu_tanh    x / 2 (1 + tanh(u))  u = sqrt(2 / pi) (x + 0.044715 x^3) (ibid.; GPT-2); equal to x sigmoid(2 u)
    silu         x sigmoid(x)

ReLU is in :mod:`headway.kernels.dropout`, because it is fused with the dropout that follows it.

Arrays are contiguous, and either float32 or uint16 (the bits of bfloat16). Results are computed in float32 and rounded
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from jaxtyping import Float32
from llvmlite import ir
from numba import types

from headway.kernels.float_bits import emit_cast, emit_read_float32
from headway.kernels.gates import ValueAndDerivative, emit_gelu, emit_gelu_tanh, emit_silu
from headway.kernels.jit import Array, jit_serial_and_parallel
from headway.kernels.llvm import Builder, intrinsic

KINDS = ("gelu", "gelu_tanh", "silu")
CHUNK = 8192  # number of elements that a thread processes at a time
_ROWS = 64  # bias gradients are summed over this many rows at a time, before the partial sums are added


def gelu_tanh(x: Float32[Array, "R K"]) -> Float32[Array, "R K"]:
    """Apply GELU with the tanh approximation in place, and return ``x``."""
    flat = x.reshape(-1)
    apply = _apply_gelu_tanh if len(flat) > CHUNK else _apply_gelu_tanh.serial  # waking a thread may take 60 us
    apply(flat)
    return x


def bias_activation(kind: str, x: Array, bias: Float32[Array, " D"], out: Array) -> None:
    """Write the activation ``kind`` of x + bias to ``out``, for x and out (N, D)."""
    _forward(KINDS.index(kind), x, bias, out)


def bias_activation_backward(
    kind: str, gradient: Array, x: Array, bias: Float32[Array, " D"], out: Array
) -> Float32[Array, " D"]:
    """Write the gradient with respect to x (N, D) to ``out``, and return the gradient with respect to the bias."""
    sums = np.zeros((-(-len(x) // _ROWS), x.shape[1]), dtype=np.float32)
    _backward(KINDS.index(kind), gradient, x, bias, out, sums)
    total: Array = sums.sum(0)
    return total


def _functions(emit_activation: Callable[[Builder, ir.Value], ValueAndDerivative]) -> tuple[Any, Any]:
    """Return two functions of addresses: one computes a row of ``count`` elements, the other the row's gradients."""

    def emit_sum(builder: Builder, like: ir.Value, x: ir.Value, bias: ir.Value, i: ir.Value, kind: ir.Type) -> ir.Value:
        return builder.fadd(emit_read_float32(builder, x, like.type, i, kind), builder.read(bias, kind, i))

    @intrinsic(lambda like, *_: types.void(like, *(types.uintp,) * 3, types.intp))
    def forward(builder: Builder, like: ir.Value, x: ir.Value, bias: ir.Value, out: ir.Value, count: ir.Value) -> None:
        def emit(kind: ir.Type, i: ir.Value) -> None:
            value, _ = emit_activation(builder, emit_sum(builder, like, x, bias, i, kind))
            builder.write(emit_cast(builder, value, like.type), out, i)

        builder.for_elements(count, emit)

    @intrinsic(lambda like, *_: types.void(like, *(types.uintp,) * 5, types.intp))
    def backward(
        builder: Builder,
        like: ir.Value,
        gradient: ir.Value,
        x: ir.Value,
        bias: ir.Value,
        out: ir.Value,
        sums: ir.Value,
        count: ir.Value,
    ) -> None:
        def emit(kind: ir.Type, i: ir.Value) -> None:
            _, slope = emit_activation(builder, emit_sum(builder, like, x, bias, i, kind))
            error = builder.fmul(emit_read_float32(builder, gradient, like.type, i, kind), slope)
            builder.write(emit_cast(builder, error, like.type), out, i)
            builder.write(builder.fadd(builder.read(sums, kind, i), error), sums, i)

        builder.for_elements(count, emit)

    return forward, backward


_gelu, _gelu_backward = _functions(emit_gelu)
_gelu_tanh, _gelu_tanh_backward = _functions(emit_gelu_tanh)
_silu, _silu_backward = _functions(emit_silu)


@jit_serial_and_parallel
def _forward(kind: int, x: Array, bias: Array, out: Array) -> None:
    rows, width = x.shape
    for row in numba.prange(rows):
        like, addresses = x[row, 0], (x[row].ctypes.data, bias.ctypes.data, out[row].ctypes.data)
        if kind == 0:
            _gelu(like, *addresses, width)
        elif kind == 1:
            _gelu_tanh(like, *addresses, width)
        else:
            _silu(like, *addresses, width)


@jit_serial_and_parallel
def _backward(kind: int, gradient: Array, x: Array, bias: Array, out: Array, sums: Array) -> None:
    rows, width = x.shape
    for chunk in numba.prange(len(sums)):
        total = sums[chunk].ctypes.data
        for row in range(chunk * _ROWS, min((chunk + 1) * _ROWS, rows)):
            inputs = gradient[row].ctypes.data, x[row].ctypes.data, bias.ctypes.data
            like, output = x[row, 0], out[row].ctypes.data
            if kind == 0:
                _gelu_backward(like, *inputs, output, total, width)
            elif kind == 1:
                _gelu_tanh_backward(like, *inputs, output, total, width)
            else:
                _silu_backward(like, *inputs, output, total, width)


@intrinsic(types.void(types.uintp, types.intp))
def _gelu_tanh_in_place(builder: Builder, address: ir.Value, count: ir.Value) -> None:
    def emit(kind: ir.Type, i: ir.Value) -> None:
        builder.write(emit_gelu_tanh(builder, builder.read(address, kind, i))[0], address, i)

    builder.for_elements(count, emit)


@jit_serial_and_parallel
def _apply_gelu_tanh(x: Array) -> None:
    for chunk in numba.prange(-(-len(x) // CHUNK)):
        first = chunk * CHUNK
        _gelu_tanh_in_place(x[first:].ctypes.data, min(CHUNK, len(x) - first))
