"""Sums over the elements of a row, in a fixed order.

A compiler that may reorder sums vectorizes a loop, but may choose a different number of vectors each time it compiles
the loop. Results could then depend on whether the code uses threads or comes from the cache. Here, each lane of one
vector has its own sum, a tree of shuffles adds the lanes, and elements that do not fill a vector are added last.

Functions take the address of a row and, to determine its type, one element (``like``): float32, or uint16 with the bits
of a bfloat16. Sums are float32.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba import types

from headway.kernels.float_bits import emit_read_float32
from headway.kernels.llvm import FLOAT, FLOAT_VECTOR, Builder, constant, intrinsic

_Read = Callable[[ir.Value, ir.Type], ir.Value]
_Broadcast = Callable[[ir.Value], ir.Value]


def _emit_sum(builder: Builder, count: ir.Value, term: Callable[[_Read, _Broadcast], ir.Value]) -> ir.Value:
    """Return the sum of ``count`` terms.

    ``term`` returns one term or a vector of terms. Its arguments are two functions. One reads an element or a vector of
    elements. The other returns a number, or a vector with the number in all lanes.
    """
    total, rest = (builder.local_variable(constant(kind, 0.0)) for kind in (FLOAT_VECTOR, FLOAT))

    def emit(kind: ir.Type, index: ir.Value) -> None:
        def read(x: ir.Value, stored: ir.Type) -> ir.Value:
            return emit_read_float32(builder, x, stored, index, kind)

        if kind == FLOAT:
            builder.add_to(rest, term(read, lambda number: number))
        else:
            builder.add_to(total, term(read, builder.broadcast))

    builder.for_elements(count, emit)
    return builder.fadd(builder.sum_lanes(builder.load(total)), builder.load(rest))


@intrinsic(lambda x, like, count: types.float32(types.uintp, like, types.intp))
def row_sum(builder: Builder, x: ir.Value, like: ir.Value, count: ir.Value) -> ir.Value:
    """Return the sum of ``count`` elements."""
    return _emit_sum(builder, count, lambda read, _: read(x, like.type))


@intrinsic(lambda x, like, count, mean: types.float32(types.uintp, like, types.intp, types.float32))
def sum_squared_deviations(builder: Builder, x: ir.Value, like: ir.Value, count: ir.Value, mean: ir.Value) -> ir.Value:
    """Return the sum of (x - mean)^2 over ``count`` elements."""

    def term(read: _Read, broadcast: _Broadcast) -> ir.Value:
        deviation = builder.fsub(read(x, like.type), broadcast(mean))
        return builder.fmul(deviation, deviation)

    return _emit_sum(builder, count, term)


@intrinsic(lambda x, like, y, like_y, count: types.float32(types.uintp, like, types.uintp, like_y, types.intp))
def dot_product(
    builder: Builder, x: ir.Value, like: ir.Value, y: ir.Value, like_y: ir.Value, count: ir.Value
) -> ir.Value:
    """Return the sum of x * y over ``count`` elements."""
    return _emit_sum(builder, count, lambda read, _: builder.fmul(read(x, like.type), read(y, like_y.type)))


@intrinsic(lambda x, like, *_: types.float32(types.uintp, like, *(types.uintp,) * 2, types.intp, types.float32))
def weighted_deviation_dot(
    builder: Builder, x: ir.Value, like: ir.Value, weight: ir.Value, y: ir.Value, count: ir.Value, mean: ir.Value
) -> ir.Value:
    """Return the sum of x * weight * (y - mean) over ``count`` elements.

    ``weight`` is float32, and y has the type of x.
    """

    def term(read: _Read, broadcast: _Broadcast) -> ir.Value:
        weighted = builder.fmul(read(x, like.type), read(weight, FLOAT))
        return builder.fmul(weighted, builder.fsub(read(y, like.type), broadcast(mean)))

    return _emit_sum(builder, count, term)
