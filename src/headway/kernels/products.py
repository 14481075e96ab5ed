"""Matrix products of bfloat16 for training, where the processor multiplies pairs of them (AVX-512 BF16).

PyTorch's library for them (oneDNN) brings its operands into another order before each product, twice for a product of
two transposed ones, and writes gradients of weights in bfloat16, from which they are made float32 again. Here weights
are packed straight from float32, and gradients summed straight in it.

One instruction, ``vdpbf16ps``, adds to each of 16 sums in float32 the products of two pairs. All products are loops of
it over pairs that stand in a row: eight rows by two vectors of 16 sums stay in registers, one pair of a row meets the
pairs of 32 columns (:data:`BLOCK`), which lie together in a panel (Zen 5: 490 GFLOP/s a thread of 510):

    y = x W^T + b     pairs of neighbouring inputs; panels of W's rows                     :func:`pack_rows`
    x = y W           pairs of neighbouring outputs; panels of W's columns                 :func:`pack_columns`
    W = y^T x         pairs of neighbouring rows of both, which are packed as they come    :func:`add_outer`

Matrices are contiguous; bfloat16 is uint16, its bits. Sums are taken in the order of the pairs (rows of ``add_outer``
256 at a time), whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba import types

from headway.kernels.bits import narrowed
from headway.kernels.compiling import compiled, compiled_twice, within
from headway.kernels.emitting import (
    FEATURES,
    FLOATS,
    INT32,
    INT64,
    INTS,
    LANES,
    constant,
    emitted,
    everywhere,
    fetch,
    function,
    load,
    store,
    times,
    variable,
)
from headway.kernels.threads import share

__all__ = ["BLOCK", "add_outer", "available", "multiply", "pack_columns", "pack_rows"]

Array = npt.NDArray[Any]

_VECTORS = 2  # of sums, beside each other
BLOCK = _VECTORS * LANES  # columns
_MANY = 8  # rows
_PART = 64  # rows that meet all panels before the next ones do: a second-level cache holds them
_SUMMED = 256  # rows whose pairs a cache holds
_KEPT, _FEWEST = 128, 4  # blocks of sums that a cache holds, and of them beside each other
_PAIR = 4  # bytes
_LINE = BLOCK * _PAIR  # bytes of a panel's pair
_SUM = 4  # bytes


class _BFloat(ir.Type):  # type: ignore[misc]  # which has no types of its own
    """LLVM's bfloat, which llvmlite has not."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_HALVES, _NARROW = ir.VectorType(_BFloat(), 2 * LANES), ir.VectorType(_BFloat(), LANES)
_WORDS, _BITS = ir.VectorType(ir.IntType(16), LANES), ir.VectorType(ir.IntType(16), BLOCK)
_VDPBF16PS = "llvm.x86.avx512bf16.dpbf16ps.512"

_Tile = Callable[[int, int, int, int, int, int, int, int], None]


def available() -> bool:
    """Whether the processor has the instruction."""
    return LANES == 16 and bool(FEATURES.get("avx512bf16"))


def multiply(x: Array, panels: Array, bias: Array, out: Array) -> None:
    """``out`` (R, N) = x (R, K) times what is packed in ``panels``, plus ``bias`` (N,) of float32; K is even."""
    padded = np.zeros(len(panels) * BLOCK, dtype=np.float32)
    padded[: len(bias)] = bias
    share(_multiply_shared, _multiply, x, panels, padded, out)


def pack_rows(weight: Array) -> Array:
    """Panels of a weight (N, K) of float32 for products with rows of K; K is even."""
    rows, width = weight.shape
    panels = np.empty((-(-rows // BLOCK), width // 2, BLOCK), dtype=np.uint32)
    share(_pack_rows_shared, _pack_rows, weight, panels)
    return panels


def pack_columns(weight: Array) -> Array:
    """Panels of a weight (N, K) of float32 for products with rows of N; N is even, K a multiple of BLOCK."""
    rows, width = weight.shape
    panels = np.empty((width // BLOCK, rows // 2, BLOCK), dtype=np.uint32)
    share(_pack_columns_shared, _pack_columns, weight, panels)
    return panels


def add_outer(y: Array, x: Array, out: Array) -> None:
    """``out`` += y^T x: y (R, N), x (R, K), ``out`` (at least N rows, a multiple of eight; K) of float32.

    K is a multiple of BLOCK.
    """
    strips = torch.get_num_threads()  # which all read the narrower matrix
    by_rows = y.shape[1] >= x.shape[1]
    share(_add_outer_shared, _add_outer, y, x, out, strips if by_rows else 1, 1 if by_rows else strips)


def _tile(rows: int, *, adds: bool) -> _Tile:
    """So many rows times one panel: sums begin at the bias and are stored as bfloat16, or are added to what is there.

    Of the arguments those named ``stride`` are bytes to the next row, or from a row's pair to its next; the others are
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
        places = [(row, vector) for row in range(rows) for vector in range(_VECTORS)]
        sums = {place: variable(builder, FLOATS) for place in places}
        for (row, vector), total in sums.items():
            if adds:
                fetch(builder, builder.add(ends[row], INT64(vector * LANES * _SUM)))
            first = constant(FLOATS, 0.0) if adds else load(builder, bias, FLOATS, INT64(vector))
            builder.store(first, total)
        add_pairs = function(builder, _VDPBF16PS, FLOATS, FLOATS, _HALVES, _HALVES)
        with times(builder, pairs) as loop:
            line = builder.mul(loop.index, INT64(_VECTORS))
            w = [
                builder.bitcast(load(builder, panel, INTS, builder.add(line, INT64(vector))), _HALVES)
                for vector in range(_VECTORS)
            ]
            place = builder.mul(loop.index, pair_stride)
            for row in range(rows):
                pair = load(builder, builder.add(starts[row], place), INT32, INT64(0))
                halves = builder.bitcast(everywhere(builder, pair, LANES), _HALVES)
                for vector in range(_VECTORS):
                    total = sums[row, vector]
                    builder.store(builder.call(add_pairs, [builder.load(total), halves, w[vector]]), total)
        for row, vector in places:
            total = builder.load(sums[row, vector])
            if adds:
                store(
                    builder,
                    builder.fadd(total, load(builder, ends[row], FLOATS, INT64(vector))),
                    ends[row],
                    INT64(vector),
                )
            else:
                store(builder, builder.bitcast(builder.fptrunc(total, _NARROW), _WORDS), ends[row], INT64(vector))
        return context.get_dummy_value()

    return emitted(typing)


def _interleave(context: Any, even: Any, odd: Any, out: Any) -> Any:
    """BLOCK numbers of bfloat16 of two rows as pairs; all are addresses."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        even, odd = (load(builder, address, _BITS, INT64(0)) for address in arguments[:2])
        for vector in range(_VECTORS):
            order = [place for pair in range(vector * LANES, (vector + 1) * LANES) for place in (pair, BLOCK + pair)]
            mixed = builder.shuffle_vector(even, odd, ir.Constant(ir.VectorType(INT32, BLOCK), order))
            store(builder, mixed, arguments[2], INT64(vector))
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp), generate


_interleaved = cast(Callable[[int, int, int], None], emitted(_interleave))

_many, _four, _two, _one = (_tile(rows, adds=False) for rows in (_MANY, 4, 2, 1))
_many_added = _tile(_MANY, adds=True)


@compiled
def _multiply_rows(
    panel: int, pairs: int, x: int, x_stride: int, bias: int, out: int, out_stride: int, rows: int
) -> None:
    """Rows times one panel; all but ``pairs`` and ``rows`` are addresses and bytes."""
    row = 0
    while rows - row >= _MANY:
        _many(panel, pairs, x + row * x_stride, x_stride, _PAIR, bias, out + row * out_stride, out_stride)
        row += _MANY
    if rows - row >= 4:
        _four(panel, pairs, x + row * x_stride, x_stride, _PAIR, bias, out + row * out_stride, out_stride)
        row += 4
    if rows - row >= 2:
        _two(panel, pairs, x + row * x_stride, x_stride, _PAIR, bias, out + row * out_stride, out_stride)
        row += 2
    if row < rows:
        _one(panel, pairs, x + row * x_stride, x_stride, _PAIR, bias, out + row * out_stride, out_stride)


def _multiply(x: Array, panels: Array, bias: Array, out: Array) -> None:
    rows, outputs = out.shape
    pairs, stride = panels.shape[1], 2 * x.shape[1]
    for part in numba.prange(-(-rows // _PART)):
        first = part * _PART
        count = min(_PART, rows - first)
        begin = x.ctypes.data + first * stride
        for block in range(outputs // BLOCK):
            panel, shift = panels.ctypes.data + block * pairs * _LINE, bias.ctypes.data + block * BLOCK * _SUM
            place = out.ctypes.data + 2 * (first * outputs + block * BLOCK)
            _multiply_rows(panel, pairs, begin, stride, shift, place, 2 * outputs, count)
        if outputs % BLOCK:
            block = outputs // BLOCK
            last = np.empty((count, BLOCK), dtype=np.uint16)
            panel, shift = panels.ctypes.data + block * pairs * _LINE, bias.ctypes.data + block * BLOCK * _SUM
            _multiply_rows(panel, pairs, begin, stride, shift, last.ctypes.data, 2 * BLOCK, count)
            out[first : first + count, block * BLOCK :] = last[:, : outputs - block * BLOCK]


_multiply_shared, _multiply = compiled_twice(_multiply)


@within
def _paired(first: Any, second: Any) -> Any:
    """Two numbers as bfloat16 in 32 bits."""
    half = np.uint16(0)
    return np.uint32(narrowed(first, half)) | np.uint32(narrowed(second, half)) << np.uint32(16)


def _pack_rows(weight: Array, panels: Array) -> None:
    for block in numba.prange(len(panels)):
        panel, rows = panels[block], min(BLOCK, len(weight) - block * BLOCK)
        for row in range(rows):
            numbers = weight[block * BLOCK + row]
            for pair in range(len(panel)):
                panel[pair, row] = _paired(numbers[2 * pair], numbers[2 * pair + 1])
        panel[:, rows:] = 0


_pack_rows_shared, _pack_rows = compiled_twice(_pack_rows)


def _pack_columns(weight: Array, panels: Array) -> None:
    for pair in numba.prange(panels.shape[1]):
        even, odd = weight[2 * pair], weight[2 * pair + 1]
        for block in range(len(panels)):
            place, first = panels[block, pair], block * BLOCK
            for column in range(BLOCK):
                place[column] = _paired(even[first + column], odd[first + column])


_pack_columns_shared, _pack_columns = compiled_twice(_pack_columns)


def _add_outer(y: Array, x: Array, out: Array, row_strips: int, column_strips: int) -> None:
    rows, outputs, inputs = len(x), y.shape[1], x.shape[1]
    of_y, of_x = -(-outputs // BLOCK), inputs // BLOCK  # blocks
    for strip in numba.prange(row_strips * column_strips):
        row, column = strip // column_strips, strip % column_strips
        first_y, last_y = of_y * row // row_strips, of_y * (row + 1) // row_strips
        first_x, last_x = of_x * column // column_strips, of_x * (column + 1) // column_strips
        together = max(_FEWEST, _KEPT // max(last_x - first_x, 1))
        y_pairs = np.empty((min(together, last_y - first_y), _SUMMED // 2 + 1, BLOCK), dtype=np.uint32)
        x_pairs = np.empty((last_x - first_x, _SUMMED // 2 + 1, BLOCK), dtype=np.uint32)
        for group in range(first_y, last_y, together):
            blocks = min(together, last_y - group)
            place = out.ctypes.data + _SUM * BLOCK * (group * inputs + first_x)
            tiles = -(-min(blocks * BLOCK, outputs - group * BLOCK) // _MANY)
            for first in range(0, rows, _SUMMED):
                count = min(_SUMMED, rows - first)
                _pair_up(y[first : first + count], group * BLOCK, y_pairs[:blocks])
                _pair_up(x[first : first + count], first_x * BLOCK, x_pairs)
                _add_blocks(y_pairs, x_pairs, (count + 1) // 2, place, _SUM * inputs, tiles)


_add_outer_shared, _add_outer = compiled_twice(_add_outer)


@within
def _pair_up(x: Array, start: int, pairs: Array) -> None:
    """Blocks of columns from ``start`` on, of each two rows; zeros stand for columns and a row that are not there."""
    rows, width = x.shape
    whole = min(len(pairs), (width - start) // BLOCK)
    for pair in range(rows // 2):
        even = x.ctypes.data + 2 * (2 * pair * width + start)
        for block in range(whole):
            place = even + block * 2 * BLOCK
            _interleaved(place, place + 2 * width, pairs[block, pair].ctypes.data)
        for block in range(whole, len(pairs)):
            last = pairs[block, pair]
            last[:] = 0
            for column in range(width - start - block * BLOCK):
                k = start + block * BLOCK + column
                last[column] = np.uint32(x[2 * pair, k]) | np.uint32(x[2 * pair + 1, k]) << np.uint32(16)
    if rows % 2:
        for block in range(len(pairs)):
            last, first = pairs[block, rows // 2], start + block * BLOCK
            last[:] = 0
            for column in range(min(BLOCK, width - first)):
                last[column] = x[rows - 1, first + column]


@compiled
def _add_blocks(y_pairs: Array, x_pairs: Array, pairs: int, out: int, out_stride: int, tiles: int) -> None:
    """Add the products of packed pairs to ``tiles`` times eight rows."""
    panel = y_pairs.shape[1] * _LINE
    for block in range(len(x_pairs)):
        w = x_pairs.ctypes.data + block * panel
        for tile in range(tiles):
            x = y_pairs.ctypes.data + tile // (BLOCK // _MANY) * panel + tile % (BLOCK // _MANY) * _MANY * _PAIR
            _many_added(w, pairs, x, _PAIR, _LINE, w, out + tile * _MANY * out_stride + block * _LINE, out_stride)
