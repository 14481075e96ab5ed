"""Sums of products of a few places' vectors, in registers: the innermost loops of attention.

Compilers turn a dot product's loop into one vector of partial sums, and adding its lanes up takes longer than the
products did. :func:`dot_products` has :data:`PLACES` of them side by side and adds the lanes of all in one tree of
shuffles. :func:`weighted_sum` keeps up to 64 numbers in registers while it goes over the places.

Places hold 16-bit floats, half of what would be read otherwise: a few sentences' keys and values are more than caches
take. All sums are in 32 bits. Widths are whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from llvmlite import ir
from numba import types

from headway.kernels.compiling import compiled
from headway.kernels.emitting import FLOAT, INT32, INT64, emitted, everywhere, function, load, store, times, variable

__all__ = ["LANES", "PLACES", "as_halves", "dot_products", "weighted_sum"]

LANES = 8  # of 32 bits: AVX2's vectors
PLACES = 8  # whose products are added at a time

_VECTOR = ir.VectorType(FLOAT, LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)
_ZEROS = ir.Constant(_VECTOR, [0.0] * LANES)
_MANY, _SOME = 8, 4  # vectors of a sum that are kept in registers


def _dot_products() -> Any:
    def typing(context: Any, vector: Any, vectors: Any, rows: Any, width: Any, chosen: Any, out: Any) -> Any:
        address, count = types.uintp, types.intp
        return types.void(address, count, address, count, address, address), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        vector, vectors, rows, width, chosen, out = arguments
        starts = [
            builder.add(rows, builder.mul(load(builder, chosen, INT64, INT64(place)), width)) for place in range(PLACES)
        ]
        sums = _no_sums(builder, PLACES)
        with times(builder, vectors) as loop:
            factor = load(builder, vector, _VECTOR, loop.index)
            for total, start in zip(sums, starts, strict=True):
                _add_product(builder, total, factor, start, loop.index)
        store(builder, _lanes_added(builder, [builder.load(total) for total in sums]), out, INT64(0))
        return context.get_dummy_value()

    return emitted(typing)


def _no_sums(builder: ir.IRBuilder, count: int) -> list[ir.Value]:
    """Variables, vectors of zeros at first."""
    sums = [variable(builder, _VECTOR) for _ in range(count)]
    for total in sums:
        builder.store(_ZEROS, total)
    return sums


def _add_product(builder: ir.IRBuilder, total: ir.Value, factor: ir.Value, row: ir.Value, index: ir.Value) -> None:
    """Add ``factor`` times a vector of the row at an address, in one instruction."""
    multiply_add = function(builder, "llvm.fma.v8f32", _VECTOR, _VECTOR, _VECTOR, _VECTOR)
    widened = builder.fpext(load(builder, row, _HALVES, index), _VECTOR)
    builder.store(builder.call(multiply_add, [factor, widened, builder.load(total)]), total)


def _lanes_added(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """One vector of the sums of each vector's lanes, of as many vectors as lanes.

    Each round adds neighbouring lanes of two vectors into one; the last one adds the halves.
    """

    def added(a: ir.Value, b: ir.Value, even: Sequence[int], odd: Sequence[int]) -> ir.Value:
        kind = ir.VectorType(INT32, LANES)
        picked = (builder.shuffle_vector(a, b, ir.Constant(kind, list(lanes))) for lanes in (even, odd))
        return builder.fadd(*picked)

    # Within the halves of a register, as `vhaddps` does.
    even, odd = (0, 2, 8, 10, 4, 6, 12, 14), (1, 3, 9, 11, 5, 7, 13, 15)
    while len(vectors) > 2:
        vectors = [added(a, b, even, odd) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    a, b = vectors
    return added(a, b, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))


def _weighted_sum(vectors: int) -> Any:
    """For so many vectors of the rows."""

    def typing(context: Any, weights: Any, rows: Any, width: Any, chosen: Any, count: Any, out: Any) -> Any:
        address, number = types.uintp, types.intp
        return types.void(address, address, number, address, number, address), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        weights, rows, width, chosen, count, out = arguments
        sums = _no_sums(builder, vectors)
        with times(builder, count) as loop:
            factor = everywhere(builder, load(builder, weights, FLOAT, loop.index), LANES)
            row = builder.add(rows, builder.mul(load(builder, chosen, INT64, loop.index), width))
            for place, total in enumerate(sums):
                _add_product(builder, total, factor, row, INT64(place))
        for place, total in enumerate(sums):
            store(builder, builder.load(total), out, INT64(place))
        return context.get_dummy_value()

    return emitted(typing)


def _as_halves() -> Any:
    def typing(context: Any, vectors: Any, numbers: Any, out: Any) -> Any:
        return types.void(types.intp, types.uintp, types.uintp), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        vectors, numbers, out = arguments
        with times(builder, vectors) as loop:
            half = builder.fptrunc(load(builder, numbers, _VECTOR, loop.index), _HALVES)
            store(builder, half, out, loop.index)
        return context.get_dummy_value()

    return emitted(typing)


as_halves = cast(Callable[[int, int, int], None], _as_halves())
"""``(vectors, numbers, out)``: write so many vectors of float32 numbers, at an address, to another in 16 bits each."""

dot_products = cast(Callable[[int, int, int, int, int, int], None], _dot_products())
"""``(vector, vectors, rows, width, chosen, out)``: the products of a vector with PLACES chosen rows.

``vector`` is the address of ``vectors`` times LANES numbers, ``rows`` that of row 0, ``width`` the bytes from a row to
the next, ``chosen`` the address of the rows' indices, and ``out`` that of the products. Rows are of 16-bit floats, all
other numbers float32; indices are int64.
"""

_many, _some, _one = _weighted_sum(_MANY), _weighted_sum(_SOME), _weighted_sum(1)


@compiled
def weighted_sum(weights: int, vectors: int, rows: int, width: int, chosen: int, count: int, out: int) -> None:
    """The sum of ``count`` chosen rows, each times its weight: the first ``vectors`` times LANES numbers of it.

    Addresses, ``width``, ``rows`` and ``chosen`` as in :data:`dot_products`.
    """
    done = 0
    while done < vectors:
        these, result = rows + 2 * LANES * done, out + 4 * LANES * done
        if vectors - done >= _MANY:
            _many(weights, these, width, chosen, count, result)
            done += _MANY
        elif vectors - done >= _SOME:
            _some(weights, these, width, chosen, count, result)
            done += _SOME
        else:
            _one(weights, these, width, chosen, count, result)
            done += 1
