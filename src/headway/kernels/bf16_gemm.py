"""Matrix products in bfloat16 for training, on processors with AVX-512 BF16.

PyTorch's library for these products (oneDNN) reorders its operands before each product, twice for a product of two
transposed matrices. It also computes weight gradients in bfloat16, which are then converted to float32. Here, weights
are packed directly from float32, and weight gradients are summed directly in float32.

Products multiply rows of pairs by panels of pairs (:mod:`headway.kernels.bf16_tiles`) of BLOCK columns each:

    y = x W^T + b      pairs of neighboring inputs; panels of the rows of W            :func:`pack_rows`
    dx = dy W          pairs of neighboring outputs; panels of the columns of W        :func:`pack_columns`
    dW += dy^T x       pairs of neighboring rows of both, packed just before use       :func:`add_outer_product`
    db = sum of dy                                                                     :func:`sum_rows`

Matrices are contiguous. bfloat16 matrices are arrays of uint16 with the same bits. Terms are summed in the order of the
pairs (in ``add_outer_product``, 256 rows at a time), regardless of the number of threads.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from headway.kernels.bf16_tiles import (
    BLOCK,
    PAIR_BYTES,
    TILE_ROWS,
    interleave,
    multiply_accumulate,
    multiply_rows,
    uses_bf16_dot,
)
from headway.kernels.float_bits import cast_like, to_float32
from headway.kernels.jit import Array, jit, jit_inline, jit_serial_and_parallel
from headway.kernels.threads import host_threads

_CHUNK = 64  # number of rows that are multiplied by all panels at a time; they fit the second-level cache
_SUMMED = 256  # number of rows (terms) to sum at a time, so that their pairs fit a cache
_PANEL_PAIRS = _SUMMED // 2 + 1  # distance between panels in pairs; with a power of two, panels would share cache sets
# Number of blocks of sums that fit a cache, and the minimum number of adjacent blocks.
_SUM_BLOCKS, _MIN_SUM_BLOCKS = 128, 4
_LINE_BYTES = BLOCK * PAIR_BYTES  # size of BLOCK pairs in a panel, or of BLOCK float32 sums
_NAN = np.uint16(0x7FC0)  # the bits that each NaN has after conversion to bfloat16


def supports_width(width: int) -> bool:
    """Return whether these kernels run on this processor and support rows of this width."""
    return width % BLOCK == 0 and uses_bf16_dot()


def matmul(x: Array, panels: Array, bias: Array | None, out: Array) -> None:
    """Multiply x (R, K) by the packed ``panels``, add ``bias`` (N,) in float32, and write to ``out`` (R, N).

    K must be even.
    """
    padded = np.zeros(len(panels) * BLOCK, dtype=np.float32)
    if bias is not None:
        padded[: len(bias)] = bias
    _matmul(x, panels, padded, out)


def pack_rows(weight: Array) -> Array:
    """Pack a float32 weight (N, K) for products with rows of length K. K must be even."""
    rows, width = weight.shape
    panels = np.empty((-(-rows // BLOCK), width // 2, BLOCK), dtype=np.uint32)
    _pack_rows(weight, panels)
    return panels


def pack_columns(weight: Array) -> Array:
    """Pack a float32 weight (N, K) for products with rows of length N. N must be even, and K a multiple of BLOCK."""
    rows, width = weight.shape
    panels = np.empty((width // BLOCK, rows // 2, BLOCK), dtype=np.uint32)
    _pack_columns(weight, panels)
    return panels


def add_outer_product(y: Array, x: Array, out: Array) -> None:
    """Add y^T x to ``out``, for y (R, N) and x (R, K).

    ``out`` (M, K) is float32. M must be at least N and a multiple of TILE_ROWS, and K a multiple of BLOCK.
    """
    strips = host_threads.get()  # each strip reads the whole of the narrower matrix
    by_rows = y.shape[1] >= x.shape[1]
    _add_outer(y, x, out, strips if by_rows else 1, 1 if by_rows else strips)


def sum_rows(y: Array) -> Array:
    """Return the sum of the rows of ``y`` (R, N) in float32, which is the bias gradient if y is an output gradient."""
    sums = np.zeros((-(-len(y) // _SUMMED), y.shape[1]), dtype=np.float32)
    _sum_rows(y, sums)
    total: Array = sums.sum(0)
    return total


@jit_serial_and_parallel
def _matmul(x: Array, panels: Array, bias: Array, out: Array) -> None:
    rows, outputs = out.shape
    pairs, stride = panels.shape[1], 2 * x.shape[1]
    for chunk in numba.prange(-(-rows // _CHUNK)):
        first = chunk * _CHUNK
        count = min(_CHUNK, rows - first)
        begin = x.ctypes.data + first * stride
        for block in range(outputs // BLOCK):
            panel, shift = panels.ctypes.data + block * pairs * _LINE_BYTES, bias.ctypes.data + block * _LINE_BYTES
            place = out.ctypes.data + 2 * (first * outputs + block * BLOCK)
            multiply_rows(panel, pairs, begin, stride, PAIR_BYTES, shift, place, 2 * outputs, count)
        if outputs % BLOCK:
            block = outputs // BLOCK
            last = np.empty((count, BLOCK), dtype=np.uint16)
            panel, shift = panels.ctypes.data + block * pairs * _LINE_BYTES, bias.ctypes.data + block * _LINE_BYTES
            multiply_rows(panel, pairs, begin, stride, PAIR_BYTES, shift, last.ctypes.data, 2 * BLOCK, count)
            for row in range(count):
                for column in range(outputs - block * BLOCK):
                    out[first + row, block * BLOCK + column] = last[row, column]


@jit_inline
def _pair(first: Any, second: Any) -> Any:
    """Round two numbers to bfloat16 and return them in 32 bits."""
    half = np.uint16(0)
    low = cast_like(first, half) if first == first else _NAN
    high = cast_like(second, half) if second == second else _NAN
    return np.uint32(low) | np.uint32(high) << np.uint32(16)


@jit_serial_and_parallel
def _pack_rows(weight: Array, panels: Array) -> None:
    for block in numba.prange(len(panels)):
        panel, rows = panels[block], min(BLOCK, len(weight) - block * BLOCK)
        for row in range(rows):
            numbers = weight[block * BLOCK + row]
            for pair in range(len(panel)):
                panel[pair, row] = _pair(numbers[2 * pair], numbers[2 * pair + 1])
        panel[:, rows:] = 0


@jit_serial_and_parallel
def _pack_columns(weight: Array, panels: Array) -> None:
    for pair in numba.prange(panels.shape[1]):
        even, odd = weight[2 * pair], weight[2 * pair + 1]
        for block in range(len(panels)):
            packed, first = panels[block, pair], block * BLOCK
            for column in range(BLOCK):
                packed[column] = _pair(even[first + column], odd[first + column])


@jit_serial_and_parallel
def _add_outer(y: Array, x: Array, out: Array, row_strips: int, column_strips: int) -> None:
    rows, outputs, inputs = len(x), y.shape[1], x.shape[1]
    y_blocks, x_blocks = -(-outputs // BLOCK), inputs // BLOCK
    for strip in numba.prange(row_strips * column_strips):
        row, column = strip // column_strips, strip % column_strips
        first_y, last_y = y_blocks * row // row_strips, y_blocks * (row + 1) // row_strips
        first_x, last_x = x_blocks * column // column_strips, x_blocks * (column + 1) // column_strips
        together = max(_MIN_SUM_BLOCKS, _SUM_BLOCKS // max(last_x - first_x, 1))
        y_pairs = np.empty((min(together, last_y - first_y), _PANEL_PAIRS, BLOCK), dtype=np.uint32)
        x_pairs = np.empty((last_x - first_x, _PANEL_PAIRS, BLOCK), dtype=np.uint32)
        for group in range(first_y, last_y, together):
            blocks = min(together, last_y - group)
            place = out.ctypes.data + _LINE_BYTES * (group * inputs + first_x)
            tiles = -(-min(blocks * BLOCK, outputs - group * BLOCK) // TILE_ROWS)
            for first in range(0, rows, _SUMMED):
                count = min(_SUMMED, rows - first)
                _pack_row_pairs(y[first : first + count], group * BLOCK, y_pairs[:blocks])
                _pack_row_pairs(x[first : first + count], first_x * BLOCK, x_pairs)
                _add_blocks(y_pairs, x_pairs, (count + 1) // 2, place, 4 * inputs, tiles)


@jit_inline
def _pack_row_pairs(x: Array, start: int, pairs: Array) -> None:
    """Pack pairs of rows in blocks of columns, starting at column ``start``. Missing columns and rows become zeros."""
    rows, width = x.shape
    whole = min(len(pairs), (width - start) // BLOCK)
    for pair in range(rows // 2):
        even = x.ctypes.data + 2 * (2 * pair * width + start)
        for block in range(whole):
            place = even + block * 2 * BLOCK
            interleave(place, place + 2 * width, pairs[block, pair].ctypes.data)
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


@jit
def _add_blocks(y_pairs: Array, x_pairs: Array, pairs: int, out: int, out_stride: int, tiles: int) -> None:
    """Add the products of packed pairs to the ``tiles`` * TILE_ROWS rows at address ``out``."""
    panel = y_pairs.shape[1] * _LINE_BYTES
    for block in range(len(x_pairs)):
        w = x_pairs.ctypes.data + block * panel
        for tile in range(tiles):
            first_row = tile * TILE_ROWS
            x = y_pairs.ctypes.data + first_row // BLOCK * panel + first_row % BLOCK * PAIR_BYTES
            place = out + first_row * out_stride + block * _LINE_BYTES
            multiply_accumulate(w, pairs, x, PAIR_BYTES, _LINE_BYTES, place, out_stride)


@jit_serial_and_parallel
def _sum_rows(y: Array, sums: Array) -> None:
    rows, width = y.shape
    for chunk in numba.prange(len(sums)):
        total = sums[chunk]
        for row in range(chunk * _SUMMED, min((chunk + 1) * _SUMMED, rows)):
            values = y[row]
            for i in range(width):
                total[i] += to_float32(values[i])
