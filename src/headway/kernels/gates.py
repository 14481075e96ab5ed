"""The gates of gated feed-forward layers (Shazeer 2020), activation(g) * x, and their gradients, each in one pass.

    glu          sigmoid(g)
    reglu        max(0, g)
    geglu        gelu(g)         (:mod:`headway.kernels.activations`)
    geglu_tanh   gelu_tanh(g)    as in T5
    swiglu       silu(g)

Arrays are contiguous, have shape (N,), and are all float32 or all uint16 (the bits of bfloat16). Results are computed
in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types

from headway.kernels.activations import ValueAndDerivative, emit_gelu, emit_gelu_tanh, emit_sigmoid, emit_silu
from headway.kernels.float_bits import emit_cast, emit_read_float32
from headway.kernels.jit import Array, jit_serial_and_parallel
from headway.kernels.llvm import Builder, constant, intrinsic

KINDS = ("glu", "reglu", "geglu", "geglu_tanh", "swiglu")
_CHUNK = 8192  # number of elements that a thread processes at a time


def apply_gate(kind: str, gate: Array, x: Array, out: Array) -> None:
    """Apply the activation ``kind`` to ``gate``, multiply it by x, and write the result to ``out``."""
    _apply(KINDS.index(kind), gate, x, out)


def apply_gate_backward(
    kind: str, gradient: Array, gate: Array, x: Array, gate_gradient: Array, x_gradient: Array
) -> None:
    """Write the gradients with respect to ``gate`` and x, given the output's ``gradient``."""
    _apply_backward(KINDS.index(kind), gradient, gate, x, gate_gradient, x_gradient)


def _emit_glu(builder: Builder, g: ir.Value) -> ValueAndDerivative:
    sigmoid = emit_sigmoid(builder, g)
    return sigmoid, builder.fmul(sigmoid, builder.fsub(constant(g.type, 1.0), sigmoid))


def _emit_reglu(builder: Builder, g: ir.Value) -> ValueAndDerivative:
    zero, one = constant(g.type, 0.0), constant(g.type, 1.0)
    is_closed = builder.fcmp_ordered("<=", g, zero)  # NaN is kept
    return builder.select(is_closed, zero, g), builder.select(is_closed, zero, one)


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
