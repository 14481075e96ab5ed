"""The innermost loops of decoding attention: dot products with float16 keys and weighted sums of float16 values.

A compiler turns the loop of a dot product into one vector of partial sums, and adding its lanes takes longer than the
products. :func:`dot_products` computes the scores of :data:`KEYS_PER_DOT` keys at once and adds the lanes of all of
them in one tree of shuffles. :func:`weighted_sum` keeps up to eight vectors in registers while it visits all values.

Keys and values are float16, which halves the memory that is read: the keys and values of a few sentences exceed the
caches. A beam's cache entries are scattered, so each loop prefetches what is needed next: the same entries of the next
head. All sums are float32. Widths are multiples of the vector length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from llvmlite import ir
from numba import types

from headway.kernels.llvm import (
    CACHE_LINE,
    FLOAT,
    FLOAT_VECTOR,
    INT32,
    INT64,
    LANES,
    alloca,
    broadcast,
    constant,
    for_range,
    intrinsic,
    llvm_function,
    load,
    prefetch,
    store,
)

__all__ = ["KEYS_PER_DOT", "dot_products", "to_float16", "weighted_sum"]

KEYS_PER_DOT = 8  # whose products are added at a time

_HALVES = ir.VectorType(ir.HalfType(), LANES)
_ZEROS = constant(FLOAT_VECTOR, 0.0)
_TOGETHER = (8, 4, 1)  # vectors of a sum that are kept in registers


def _dot_products() -> Any:
    def typing(
        context: Any, vector: Any, vectors: Any, rows: Any, width: Any, chosen: Any, ahead: Any, out: Any
    ) -> Any:
        address, count = types.uintp, types.intp
        return types.void(address, count, address, count, address, count, address), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        vector, vectors, rows, width, chosen, ahead, out = arguments
        starts = [
            builder.add(rows, builder.mul(load(builder, chosen, INT64, INT64(place)), width))
            for place in range(KEYS_PER_DOT)
        ]
        sums = _no_sums(builder, KEYS_PER_DOT)
        with for_range(builder, builder.sdiv(builder.add(width, INT64(CACHE_LINE - 1)), INT64(CACHE_LINE))) as loop:
            for start in starts:
                prefetch(builder, builder.add(builder.add(start, ahead), builder.mul(loop.index, INT64(CACHE_LINE))))
        with for_range(builder, vectors) as loop:
            factor = load(builder, vector, FLOAT_VECTOR, loop.index)
            for total, start in zip(sums, starts, strict=True):
                _add_product(builder, total, factor, load(builder, start, _HALVES, loop.index))
        store(builder, _lanes_added(builder, [builder.load(total) for total in sums]), out, INT64(0))
        return context.get_dummy_value()

    return intrinsic(typing)


def _no_sums(builder: ir.IRBuilder, count: int) -> list[ir.Value]:
    """Variables, vectors of zeros at first."""
    sums = [alloca(builder, FLOAT_VECTOR) for _ in range(count)]
    for total in sums:
        builder.store(_ZEROS, total)
    return sums


def _add_product(builder: ir.IRBuilder, total: ir.Value, factor: ir.Value, row: ir.Value) -> None:
    """Add ``factor`` times a part of a row, in one instruction."""
    multiply_add = llvm_function(
        builder, f"llvm.fma.v{LANES}f32", FLOAT_VECTOR, FLOAT_VECTOR, FLOAT_VECTOR, FLOAT_VECTOR
    )
    builder.store(builder.call(multiply_add, [factor, builder.fpext(row, FLOAT_VECTOR), builder.load(total)]), total)


def _lanes_added(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """One vector of the sums of each vector's lanes, of eight vectors.

    Each round adds neighbouring lanes of two vectors into one; the last one adds the halves.
    """

    def added(a: ir.Value, b: ir.Value, even: Sequence[int], odd: Sequence[int]) -> ir.Value:
        kind = ir.VectorType(INT32, len(even))
        picked = (builder.shuffle_vector(a, b, ir.Constant(kind, list(lanes))) for lanes in (even, odd))
        return builder.fadd(*picked)

    if LANES > KEYS_PER_DOT:
        vectors = [added(vector, vector, range(KEYS_PER_DOT), range(KEYS_PER_DOT, LANES)) for vector in vectors]
    # Within the halves of a register, as `vhaddps` does.
    even, odd = (0, 2, 8, 10, 4, 6, 12, 14), (1, 3, 9, 11, 5, 7, 13, 15)
    while len(vectors) > 2:
        vectors = [added(a, b, even, odd) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    a, b = vectors
    return added(a, b, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))


def _weighted_sum() -> Any:
    def typing(
        context: Any,
        weights: Any,
        vectors: Any,
        rows: Any,
        width: Any,
        chosen: Any,
        count: Any,
        ahead: Any,
        out: Any,
    ) -> Any:
        address, number = types.uintp, types.intp
        return types.void(address, number, address, number, address, number, number, address), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        weights, vectors, rows, width, chosen, count, ahead, out = arguments
        done = alloca(builder, INT64)
        builder.store(INT64(0), done)
        for size in _TOGETHER:
            with for_range(builder, builder.sdiv(builder.sub(vectors, builder.load(done)), INT64(size))):
                first = builder.load(done)
                sums = _no_sums(builder, size)
                with for_range(builder, count) as loop:
                    factor = broadcast(builder, load(builder, weights, FLOAT, loop.index), LANES)
                    row = builder.add(rows, builder.mul(load(builder, chosen, INT64, loop.index), width))
                    for place in range(0, size, CACHE_LINE // (2 * LANES)):
                        offset = builder.mul(builder.add(first, INT64(place)), INT64(2 * LANES))
                        prefetch(builder, builder.add(builder.add(row, ahead), offset))
                    for place, total in enumerate(sums):
                        _add_product(
                            builder, total, factor, load(builder, row, _HALVES, builder.add(first, INT64(place)))
                        )
                for place, total in enumerate(sums):
                    store(builder, builder.load(total), out, builder.add(first, INT64(place)))
                builder.store(builder.add(first, INT64(size)), done)
        return context.get_dummy_value()

    return intrinsic(typing)


def _as_halves() -> Any:
    def typing(context: Any, vectors: Any, numbers: Any, out: Any) -> Any:
        return types.void(types.intp, types.uintp, types.uintp), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        vectors, numbers, out = arguments
        with for_range(builder, vectors) as loop:
            half = builder.fptrunc(load(builder, numbers, FLOAT_VECTOR, loop.index), _HALVES)
            store(builder, half, out, loop.index)
        return context.get_dummy_value()

    return intrinsic(typing)


to_float16 = cast(Callable[[int, int, int], None], _as_halves())
"""``(vectors, numbers, out)``: write so many vectors of float32 numbers, at an address, to another in 16 bits each."""

dot_products = cast(Callable[[int, int, int, int, int, int, int], None], _dot_products())
"""``(vector, vectors, rows, width, chosen, ahead, out)``: the products of a vector with KEYS_PER_DOT chosen rows.

``vector`` is the address of ``vectors`` times LANES numbers, ``rows`` that of row 0, ``width`` the bytes from a row to
the next, ``chosen`` the address of the rows' indices, and ``out`` that of the products. Rows are of 16-bit floats, all
other numbers float32; indices are int64. What is so many bytes ``ahead`` of these rows is fetched for the next call.
"""

weighted_sum = cast(Callable[[int, int, int, int, int, int, int, int], None], _weighted_sum())
"""``(weights, vectors, rows, width, chosen, count, ahead, out)``: ``count`` chosen rows, each times its weight, in sum.

The first ``vectors`` times LANES numbers of it; all else as in :data:`dot_products`.
"""
