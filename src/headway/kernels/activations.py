"""Activations of feed-forward layers. In plain layers, they are fused with the bias, and so are their gradients.

    gelu         x Phi(x)             Phi is the normal distribution function (Hendrycks and Gimpel 2016, section 2),
                                      computed from equation 7.1.26 of Abramowitz and Stegun 1964 (error at most 1e-7)
    gelu_tanh    x / 2 (1 + tanh(u))  u = sqrt(2 / pi) (x + 0.044715 x^3) (ibid.; GPT-2); equal to x sigmoid(2 u)
    silu         x sigmoid(x)

ReLU is in :mod:`headway.kernels.dropout`, because it is fused with the dropout that follows it.

Arrays are contiguous, and either float32 or uint16 (the bits of bfloat16). Results are computed in float32 and rounded
once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from jaxtyping import Float32
from llvmlite import ir
from numba import types

from headway.kernels.exp import LOG2_E, emit_exp2
from headway.kernels.float_bits import emit_cast, emit_read_float32
from headway.kernels.jit import Array, jit_serial_and_parallel
from headway.kernels.llvm import Builder, constant, intrinsic

KINDS = ("gelu", "gelu_tanh", "silu")
CHUNK = 8192  # number of elements that a thread processes at a time
_ROWS = 64  # bias gradients are summed over this many rows at a time, before the partial sums are added
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR
_ERF_SCALE = 0.3275911
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)

ValueAndDerivative = tuple[ir.Value, ir.Value]  # the value of an activation and its derivative


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


def _emit_exp_negative(builder: Builder, x: ir.Value) -> ir.Value:
    """Emit exp(-x) for x >= 0."""
    return emit_exp2(builder, builder.fmul(x, constant(x.type, -float(LOG2_E))))


def emit_sigmoid(builder: Builder, g: ir.Value) -> ir.Value:
    """Emit 1 / (1 + exp(-g))."""
    kind, one = g.type, constant(g.type, 1.0)
    power = _emit_exp_negative(builder, builder.call_float("fabs", g))
    is_negative = builder.fcmp_ordered("<", g, constant(kind, 0.0))
    return builder.fdiv(builder.select(is_negative, power, one), builder.fadd(one, power))


def emit_gelu(builder: Builder, g: ir.Value) -> ValueAndDerivative:
    """Emit GELU, g Phi(g), and its derivative."""
    kind, one = g.type, constant(g.type, 1.0)
    magnitude = builder.fmul(builder.call_float("fabs", g), constant(kind, 0.5**0.5))
    power = _emit_exp_negative(builder, builder.fmul(magnitude, magnitude))
    t = builder.fdiv(one, builder.fadd(one, builder.fmul(magnitude, constant(kind, _ERF_SCALE))))
    series = constant(kind, _ERF[0])
    for coefficient in _ERF[1:]:
        series = builder.fadd(builder.fmul(series, t), constant(kind, coefficient))
    tail = builder.fmul(builder.fmul(builder.fmul(series, t), power), constant(kind, 0.5))
    is_negative = builder.fcmp_ordered("<", g, constant(kind, 0.0))
    below = builder.select(is_negative, tail, builder.fsub(one, tail))
    density = builder.fmul(power, constant(kind, (2 * math.pi) ** -0.5))
    return builder.fmul(g, below), builder.fadd(below, builder.fmul(g, density))


def emit_gelu_tanh(builder: Builder, g: ir.Value) -> ValueAndDerivative:
    """Emit the tanh approximation of GELU and its derivative.

    The approximation is g sigmoid(2 u) with u = sqrt(2 / pi) (g + 0.044715 g^3).
    """
    kind, square = g.type, builder.fmul(g, g)
    slope = builder.fadd(builder.fmul(square, constant(kind, _CUBIC)), constant(kind, _LINEAR))
    inner_slope = builder.fadd(builder.fmul(square, constant(kind, 3 * _CUBIC)), constant(kind, _LINEAR))
    sigmoid = emit_sigmoid(builder, builder.fmul(g, slope))
    value = builder.fmul(g, sigmoid)
    rest = builder.fmul(builder.fsub(constant(kind, 1.0), sigmoid), inner_slope)
    return value, builder.fadd(sigmoid, builder.fmul(value, rest))


def emit_silu(builder: Builder, g: ir.Value) -> ValueAndDerivative:
    """Emit SiLU, g sigmoid(g), and its derivative."""
    sigmoid, one = emit_sigmoid(builder, g), constant(g.type, 1.0)
    slope = builder.fadd(one, builder.fmul(g, builder.fsub(one, sigmoid)))
    return builder.fmul(g, sigmoid), builder.fmul(sigmoid, slope)


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
