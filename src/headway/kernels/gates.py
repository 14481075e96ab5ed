"""The gates of gated feed-forward layers (Shazeer 2020), activation(g) * x, and their gradients, each in one pass.

    glu          sigmoid(g)
    reglu        max(0, g)
    geglu        g Phi(g)            Phi is the normal distribution function, computed from equation 7.1.26 of
                                     Abramowitz and Stegun 1964 (error at most 1e-7)
    geglu_tanh   g / 2 (1 + tanh(u)) u = sqrt(2 / pi) (g + 0.044715 g^3), as in T5; equal to g sigmoid(2 u)
    swiglu       g sigmoid(g)

Arrays are contiguous, have shape (N,), and are all float32 or all uint16 (the bits of bfloat16). Results are computed
in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types

from headway.kernels.exp import LOG2_E, emit_exp2
from headway.kernels.float_bits import emit_cast, emit_read_float32
from headway.kernels.jit import Array, jit_serial_and_parallel
from headway.kernels.llvm import Builder, constant, intrinsic

KINDS = ("glu", "reglu", "geglu", "geglu_tanh", "swiglu")
_CHUNK = 8192  # number of elements that a thread processes at a time
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR
_ERF_SCALE = 0.3275911
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)

ValueAndDerivative = tuple[ir.Value, ir.Value]  # the value of an activation and its derivative


def apply_gate(kind: str, gate: Array, x: Array, out: Array) -> None:
    """Apply the activation ``kind`` to ``gate``, multiply it by x, and write the result to ``out``."""
    _apply(KINDS.index(kind), gate, x, out)


def apply_gate_backward(
    kind: str, gradient: Array, gate: Array, x: Array, gate_gradient: Array, x_gradient: Array
) -> None:
    """Write the gradients with respect to ``gate`` and x, given the output's ``gradient``."""
    _apply_backward(KINDS.index(kind), gradient, gate, x, gate_gradient, x_gradient)


def _emit_exp_negative(builder: Builder, x: ir.Value) -> ir.Value:
    """Emit exp(-x) for x >= 0."""
    return emit_exp2(builder, builder.fmul(x, constant(x.type, -float(LOG2_E))))


def emit_sigmoid(builder: Builder, g: ir.Value) -> ir.Value:
    """Emit 1 / (1 + exp(-g))."""
    kind, one = g.type, constant(g.type, 1.0)
    power = _emit_exp_negative(builder, builder.call_float("fabs", g))
    is_negative = builder.fcmp_ordered("<", g, constant(kind, 0.0))
    return builder.fdiv(builder.select(is_negative, power, one), builder.fadd(one, power))


def _emit_glu(builder: Builder, g: ir.Value) -> ValueAndDerivative:
    sigmoid = emit_sigmoid(builder, g)
    return sigmoid, builder.fmul(sigmoid, builder.fsub(constant(g.type, 1.0), sigmoid))


def _emit_reglu(builder: Builder, g: ir.Value) -> ValueAndDerivative:
    zero, one = constant(g.type, 0.0), constant(g.type, 1.0)
    is_closed = builder.fcmp_ordered("<=", g, zero)  # NaN is kept
    return builder.select(is_closed, zero, g), builder.select(is_closed, zero, one)


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


def _functions(emit_gate: Callable[[Builder, ir.Value], ValueAndDerivative]) -> tuple[Any, Any]:
    """Return two functions of addresses: one computes ``count`` elements, the other their gradients."""

    @intrinsic(lambda like, *_: types.void(like, *(types.uintp,) * 3, types.intp))
    def forward(builder: Builder, like: ir.Value, gate: ir.Value, x: ir.Value, out: ir.Value, count: ir.Value) -> None:
        def emit(kind: ir.Type, i: ir.Value) -> None:
            g, x_value = (emit_read_float32(builder, address, like.type, i, kind) for address in (gate, x))
            builder.write(emit_cast(builder, builder.fmul(emit_gate(builder, g)[0], x_value), like.type), out, i)

        builder.for_elements(count, emit)

    @intrinsic(lambda like, *_: types.void(like, *(types.uintp,) * 5, types.intp))
    def backward(
        builder: Builder,
        like: ir.Value,
        gradient: ir.Value,
        gate: ir.Value,
        x: ir.Value,
        gate_gradient: ir.Value,
        x_gradient: ir.Value,
        count: ir.Value,
    ) -> None:
        def emit(kind: ir.Type, i: ir.Value) -> None:
            error, g, x_value = (emit_read_float32(builder, a, like.type, i, kind) for a in (gradient, gate, x))
            value, slope = emit_gate(builder, g)
            through_gate = builder.fmul(builder.fmul(error, x_value), slope)
            builder.write(emit_cast(builder, through_gate, like.type), gate_gradient, i)
            builder.write(emit_cast(builder, builder.fmul(error, value), like.type), x_gradient, i)

        builder.for_elements(count, emit)

    return forward, backward


_glu, _glu_backward = _functions(_emit_glu)
_reglu, _reglu_backward = _functions(_emit_reglu)
_geglu, _geglu_backward = _functions(emit_gelu)
_geglu_tanh, _geglu_tanh_backward = _functions(emit_gelu_tanh)
_swiglu, _swiglu_backward = _functions(emit_silu)


@jit_serial_and_parallel
def _apply(kind: int, gate: Array, x: Array, out: Array) -> None:
    for chunk in numba.prange(-(-len(x) // _CHUNK)):
        first = chunk * _CHUNK
        count, like = min(_CHUNK, len(x) - first), x[0]
        addresses = gate[first:].ctypes.data, x[first:].ctypes.data, out[first:].ctypes.data
        if kind == 0:
            _glu(like, *addresses, count)
        elif kind == 1:
            _reglu(like, *addresses, count)
        elif kind == 2:
            _geglu(like, *addresses, count)
        elif kind == 3:
            _geglu_tanh(like, *addresses, count)
        else:
            _swiglu(like, *addresses, count)


@jit_serial_and_parallel
def _apply_backward(kind: int, gradient: Array, gate: Array, x: Array, gate_gradient: Array, x_gradient: Array) -> None:
    for chunk in numba.prange(-(-len(x) // _CHUNK)):
        first = chunk * _CHUNK
        count, like = min(_CHUNK, len(x) - first), x[0]
        inputs = gradient[first:].ctypes.data, gate[first:].ctypes.data, x[first:].ctypes.data
        outputs = gate_gradient[first:].ctypes.data, x_gradient[first:].ctypes.data
        if kind == 0:
            _glu_backward(like, *inputs, *outputs, count)
        elif kind == 1:
            _reglu_backward(like, *inputs, *outputs, count)
        elif kind == 2:
            _geglu_backward(like, *inputs, *outputs, count)
        elif kind == 3:
            _geglu_tanh_backward(like, *inputs, *outputs, count)
        else:
            _swiglu_backward(like, *inputs, *outputs, count)
