"""The innermost loops of decoding attention: dot products with float16 keys and weighted sums of float16 values.

A compiler turns the loop of a dot product into one vector of partial sums, and adding this vector's lanes takes longer
than the products. :func:`dot_products` computes the scores of :data:`KEYS_PER_DOT` keys at once and adds the lanes of
all partial sums in one tree of shuffles. :func:`weighted_sum` keeps up to eight vectors in registers while it reads all
values.

Keys and values are float16, which halves the memory traffic. Even the keys and values of a few sentences exceed the
caches. A beam's cache entries are scattered in memory, so each loop prefetches the data that is needed next, which are
the same entries of the next head. All sums are float32. Rows are padded to multiples of the vector length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir
from numba import types

from headway.kernels.llvm import CACHE_LINE, FLOAT, FLOAT_VECTOR, INT64, LANES, Builder, constant, intrinsic

KEYS_PER_DOT = 8  # number of keys whose scores are computed at once
_MAX_SUMS = 8  # number of vectors of a weighted sum that stay in registers

_HALVES = ir.VectorType(ir.HalfType(), LANES)
_ZEROS, _NAN, _TOO_LARGE = (constant(FLOAT_VECTOR, number) for number in (0.0, math.nan, 65520.0))
_ADDRESS, _COUNT = types.uintp, types.intp


@intrinsic(types.void(_COUNT, _ADDRESS, _ADDRESS))
def to_float16(builder: Builder, count: ir.Value, x: ir.Value, out: ir.Value) -> None:
    """Convert ``count`` float32 numbers at ``x`` to float16 at ``out``, padded with zeros to a whole vector.

    Numbers that are too large become NaN. If they became infinite, a score could be -inf, and the overflow would go
    unnoticed.
    """
    with builder.loop(_vectors(builder, count)) as i:
        number = builder.read_masked(x, i, count)
        fits = builder.fcmp_ordered("<", builder.call_float("fabs", number), _TOO_LARGE)
        builder.write(builder.fptrunc(builder.select(fits, number, _NAN), _HALVES), out, i)


@intrinsic(types.void(_ADDRESS, _COUNT, _ADDRESS, _COUNT, _ADDRESS, _COUNT, _ADDRESS))
def dot_products(
    builder: Builder,
    query: ir.Value,
    width: ir.Value,
    rows: ir.Value,
    stride: ir.Value,
    indices: ir.Value,
    prefetch_offset: ir.Value,
    out: ir.Value,
) -> None:
    """Store the dot products of a query and KEYS_PER_DOT chosen rows.

    ``query`` is the address of ``width`` float32 numbers, ``rows`` the address of the first row of float16 numbers,
    ``stride`` the number of bytes from one row to the next, ``indices`` the address of the row indices (int64), and
    ``out`` the address of the products (float32). The data ``prefetch_offset`` bytes after the chosen rows is
    prefetched for the next call.
    """
    starts = [builder.offset(rows, builder.read(indices, INT64, key), stride) for key in range(KEYS_PER_DOT)]
    sums = [builder.local_variable(_ZEROS) for _ in starts]
    with builder.loop(builder.sdiv(builder.add(stride, INT64(CACHE_LINE - 1)), INT64(CACHE_LINE))) as line:
        for start in starts:
            builder.prefetch(builder.offset(builder.add(start, prefetch_offset), line, CACHE_LINE))
    with builder.loop(_vectors(builder, width)) as i:
        factor = builder.read_masked(query, i, width)
        for total, start in zip(sums, starts, strict=True):
            _add_product(builder, total, factor, builder.read(start, _HALVES, i))
    builder.write(_sum_lanes_of_eight(builder, [builder.load(total) for total in sums]), out)


@intrinsic(types.void(_ADDRESS, _COUNT, _ADDRESS, _COUNT, _ADDRESS, _COUNT, _COUNT, types.float32, _ADDRESS))
def weighted_sum(
    builder: Builder,
    weights: ir.Value,
    width: ir.Value,
    rows: ir.Value,
    stride: ir.Value,
    indices: ir.Value,
    num_rows: ir.Value,
    prefetch_offset: ir.Value,
    scale: ir.Value,
    out: ir.Value,
) -> None:
    """Store ``scale`` times the sum of ``num_rows`` chosen rows, each multiplied by its weight.

    The first ``width`` elements of the sum are stored at address ``out``. See :func:`dot_products` for the other
    arguments.
    """
    done, vectors, factors = builder.local_variable(INT64(0)), _vectors(builder, width), builder.broadcast(scale)
    for size in (_MAX_SUMS, _MAX_SUMS // 2, 1):
        with builder.loop(builder.sdiv(builder.sub(vectors, builder.load(done)), INT64(size))):
            first = builder.load(done)
            places = [builder.add(first, INT64(vector)) for vector in range(size)]
            sums = [builder.local_variable(_ZEROS) for _ in places]
            with builder.loop(num_rows) as i:
                factor = builder.broadcast(builder.read(weights, FLOAT, i))
                row = builder.offset(rows, builder.read(indices, INT64, i), stride)
                for place in places[:: CACHE_LINE // (2 * LANES)]:
                    builder.prefetch(builder.offset(builder.add(row, prefetch_offset), place, 2 * LANES))
                for place, total in zip(places, sums, strict=True):
                    _add_product(builder, total, factor, builder.read(row, _HALVES, place))
            for place, total in zip(places, sums, strict=True):
                builder.write_masked(builder.fmul(builder.load(total), factors), out, place, width)
            builder.store(builder.add(first, INT64(size)), done)


def _vectors(builder: Builder, count: ir.Value) -> ir.Value:
    """Return the number of vectors that are needed for ``count`` elements."""
    return builder.sdiv(builder.add(count, INT64(LANES - 1)), INT64(LANES))


def _add_product(builder: Builder, total: ir.Value, factor: ir.Value, row: ir.Value) -> None:
    """Add ``factor`` times a vector of a row to a variable, in one fused instruction."""
    row = builder.fpext(row, FLOAT_VECTOR)
    total_and_product = builder.call_llvm(f"llvm.fma.v{LANES}f32", FLOAT_VECTOR, factor, row, builder.load(total))
    builder.store(total_and_product, total)


def _sum_lanes_of_eight(builder: Builder, vectors: list[ir.Value]) -> ir.Value:
    """Return the sums of the lanes of eight vectors as one vector.

    Each round adds neighboring lanes of two vectors; the last round adds the two halves.
    """

    def add_lanes(a: ir.Value, b: ir.Value, even: Sequence[int], odd: Sequence[int]) -> ir.Value:
        return builder.fadd(*(builder.shuffle(a, b, list(lanes)) for lanes in (even, odd)))

    if LANES > KEYS_PER_DOT:
        vectors = [add_lanes(vector, vector, range(KEYS_PER_DOT), range(KEYS_PER_DOT, LANES)) for vector in vectors]
    # Add lanes within the halves of a register, like `vhaddps`.
    even, odd = (0, 2, 8, 10, 4, 6, 12, 14), (1, 3, 9, 11, 5, 7, 13, 15)
    while len(vectors) > 2:
        vectors = [add_lanes(a, b, even, odd) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return add_lanes(vectors[0], vectors[1], (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
