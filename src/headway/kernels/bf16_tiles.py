"""Products of pairs of bfloat16, in tiles that fit the processor's registers: what training's products are made of.

One instruction, ``vdpbf16ps`` (AVX-512 BF16), adds to each of 16 sums in float32 the products of two pairs. All
products are loops of it over pairs: a pair of a row, in all lanes, meets the pairs of 16 or 32 columns, which lie
together in a panel; up to eight rows by two vectors of sums stay in registers (Zen 5: 490 GFLOP/s a thread of 510).

Functions take addresses, counts and bytes, so that pairs may lie anywhere: those of neighbours in a row, or those that
:data:`interleave` makes of two rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import llvmlite.binding
from llvmlite import ir
from numba import types

from headway.kernels.jit import jit
from headway.kernels.llvm import (
    FEATURES,
    FLOAT_VECTOR,
    INT32,
    INT64,
    INT_VECTOR,
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

__all__ = [
    "BLOCK",
    "PAIR_BYTES",
    "TILE_ROWS",
    "emit_to_bfloat16",
    "has_bf16_dot",
    "interleave",
    "interleave_lanes",
    "multiply_accumulate",
    "multiply_rows",
    "multiply_rows_float32",
]

_VECTORS = 2  # of sums, beside each other
BLOCK = _VECTORS * LANES  # columns
PAIR_BYTES = 4  # bytes
TILE_ROWS = 8  # rows
_SUM = 4  # bytes
_BFLOAT_SINCE = 18  # of LLVM


class _BFloat(ir.Type):  # type: ignore[misc]  # which has no types of its own
    """LLVM's bfloat, which llvmlite has not."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_HALVES, _NARROW = ir.VectorType(_BFloat(), 2 * LANES), ir.VectorType(_BFloat(), LANES)
_WORDS = ir.VectorType(ir.IntType(16), LANES)
_VDPBF16PS = "llvm.x86.avx512bf16.dpbf16ps.512"

_Tile = Callable[[int, int, int, int, int, int, int, int], None]


def has_bf16_dot() -> bool:
    """Whether the processor has the instruction, and none that is faster (AMX), and the compiler knows bfloat16."""
    compiles = llvmlite.binding.llvm_version_info[0] >= _BFLOAT_SINCE
    return compiles and LANES == 16 and "avx512bf16" in FEATURES and "amx-bf16" not in FEATURES


def emit_to_bfloat16(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The bits of the nearest numbers of bfloat16."""
    return builder.bitcast(builder.fptrunc(vector, _NARROW), _WORDS)


def _tile(rows: int, vectors: int, end: Literal["narrow", "wide", "add"]) -> _Tile:
    """So many rows times one panel of so many vectors.

    Sums begin at the bias and end as bfloat16; or begin at zero and are stored, or added to what is there. Of the
    arguments those named ``stride`` are bytes to the next row, or from a row's pair to its next; the others are
    addresses.
    """

    def typing(
        context: Any,
        panel: Any,
        pairs: Any,
        x: Any,
        row_stride: Any,
        pair_stride: Any,
        bias: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        address, count = types.uintp, types.intp
        return types.void(address, count, address, count, count, address, address, count), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        panel, pairs, x, row_stride, pair_stride, bias, out, out_stride = arguments
        starts = [builder.add(x, builder.mul(row_stride, INT64(row))) for row in range(rows)]
        ends = [builder.add(out, builder.mul(out_stride, INT64(row))) for row in range(rows)]
        places = [(row, vector) for row in range(rows) for vector in range(vectors)]
        sums = {place: alloca(builder, FLOAT_VECTOR) for place in places}
        for (row, vector), total in sums.items():
            if end == "add":
                prefetch(builder, builder.add(ends[row], INT64(vector * LANES * _SUM)))
            first = load(builder, bias, FLOAT_VECTOR, INT64(vector)) if end == "narrow" else constant(FLOAT_VECTOR, 0.0)
            builder.store(first, total)
        add_pairs = llvm_function(builder, _VDPBF16PS, FLOAT_VECTOR, FLOAT_VECTOR, _HALVES, _HALVES)
        with for_range(builder, pairs) as loop:
            line = builder.mul(loop.index, INT64(vectors))
            w = [
                builder.bitcast(load(builder, panel, INT_VECTOR, builder.add(line, INT64(vector))), _HALVES)
                for vector in range(vectors)
            ]
            place = builder.mul(loop.index, pair_stride)
            for row in range(rows):
                pair = load(builder, builder.add(starts[row], place), INT32, INT64(0))
                halves = builder.bitcast(broadcast(builder, pair, LANES), _HALVES)
                for vector in range(vectors):
                    total = sums[row, vector]
                    builder.store(builder.call(add_pairs, [builder.load(total), halves, w[vector]]), total)
        for row, vector in places:
            total = builder.load(sums[row, vector])
            if end == "narrow":
                total = emit_to_bfloat16(builder, total)
            elif end == "add":
                total = builder.fadd(total, load(builder, ends[row], FLOAT_VECTOR, INT64(vector)))
            store(builder, total, ends[row], INT64(vector))
        return context.get_dummy_value()

    return intrinsic(typing)


def _interleave(columns: int) -> Callable[[int, int, int], None]:
    def typing(context: Any, even: Any, odd: Any, out: Any) -> Any:
        return types.void(types.uintp, types.uintp, types.uintp), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        numbers = ir.VectorType(ir.IntType(16), columns)
        even, odd = (load(builder, address, numbers, INT64(0)) for address in arguments[:2])
        for vector in range(columns // LANES):
            order = [place for pair in range(vector * LANES, (vector + 1) * LANES) for place in (pair, columns + pair)]
            mixed = builder.shuffle_vector(even, odd, ir.Constant(ir.VectorType(INT32, 2 * LANES), order))
            store(builder, mixed, arguments[2], INT64(vector))
        return context.get_dummy_value()

    return intrinsic(typing)


interleave, interleave_lanes = _interleave(BLOCK), _interleave(LANES)
"""``(even, odd, out)``: the numbers of BLOCK, or LANES, columns of two rows as pairs."""

_many, _four, _two, _one = (_tile(rows, _VECTORS, "narrow") for rows in (TILE_ROWS, 4, 2, 1))
_wide_many, _wide_four, _wide_two, _wide_one = (_tile(rows, 1, "wide") for rows in (TILE_ROWS, 4, 2, 1))

multiply_accumulate = _tile(TILE_ROWS, _VECTORS, "add")
"""Eight rows times one panel, added to sums in float32; the bias is not read."""


@jit
def multiply_rows(
    panel: int,
    pairs: int,
    x: int,
    row_stride: int,
    pair_stride: int,
    bias: int,
    out: int,
    out_stride: int,
    rows: int,
) -> None:
    """Rows times one panel of BLOCK columns, and their bias, as bfloat16.

    ``pairs`` and ``rows`` are counts, strides bytes, to the next row or from a row's pair to its next, and all others
    addresses.
    """
    row = 0
    while rows - row >= TILE_ROWS:
        begin, place = x + row * row_stride, out + row * out_stride
        _many(panel, pairs, begin, row_stride, pair_stride, bias, place, out_stride)
        row += TILE_ROWS
    if rows - row >= 4:
        begin, place = x + row * row_stride, out + row * out_stride
        _four(panel, pairs, begin, row_stride, pair_stride, bias, place, out_stride)
        row += 4
    if rows - row >= 2:
        begin, place = x + row * row_stride, out + row * out_stride
        _two(panel, pairs, begin, row_stride, pair_stride, bias, place, out_stride)
        row += 2
    if row < rows:
        begin, place = x + row * row_stride, out + row * out_stride
        _one(panel, pairs, begin, row_stride, pair_stride, bias, place, out_stride)


@jit
def multiply_rows_float32(
    panel: int, pairs: int, x: int, row_stride: int, out: int, out_stride: int, rows: int
) -> None:
    """Rows, whose pairs are neighbours, times one panel of LANES columns, as float32."""
    row = 0
    while rows - row >= TILE_ROWS:
        begin, place = x + row * row_stride, out + row * out_stride
        _wide_many(panel, pairs, begin, row_stride, PAIR_BYTES, panel, place, out_stride)
        row += TILE_ROWS
    if rows - row >= 4:
        begin, place = x + row * row_stride, out + row * out_stride
        _wide_four(panel, pairs, begin, row_stride, PAIR_BYTES, panel, place, out_stride)
        row += 4
    if rows - row >= 2:
        begin, place = x + row * row_stride, out + row * out_stride
        _wide_two(panel, pairs, begin, row_stride, PAIR_BYTES, panel, place, out_stride)
        row += 2
    if row < rows:
        begin, place = x + row * row_stride, out + row * out_stride
        _wide_one(panel, pairs, begin, row_stride, PAIR_BYTES, panel, place, out_stride)
