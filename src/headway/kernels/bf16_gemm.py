"""Matrix products of bfloat16 for training, where the processor multiplies pairs of them (AVX-512 BF16).

PyTorch's library for them (oneDNN) brings its operands into another order before each product, twice for a product of
two transposed ones, and writes gradients of weights in bfloat16, from which they are made float32 again. Here weights
are packed straight from float32, and gradients summed straight in it.

They are made of rows of pairs and panels of such pairs (:mod:`headway.kernels.bf16_tiles`), BLOCK columns in each:

    y = x W^T + b     pairs of neighbouring inputs; panels of W's rows                     :func:`pack_rows`
    x = y W           pairs of neighbouring outputs; panels of W's columns                 :func:`pack_columns`
    W = y^T x         pairs of neighbouring rows of both, which are packed as they come    :func:`add_outer_product`

Matrices are contiguous; bfloat16 is uint16, its bits. Sums are taken in the order of the pairs (rows of
``add_outer_product`` 256 at a time), whatever the number of threads.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import torch

from headway.kernels.bf16_tiles import BLOCK, PAIR_BYTES, TILE_ROWS, interleave, multiply_accumulate, multiply_rows
from headway.kernels.float_bits import cast_like
from headway.kernels.jit import jit, jit_inline, jit_serial_and_parallel
from headway.kernels.threads import run_threaded

__all__ = ["add_outer_product", "matmul", "pack_columns", "pack_rows"]

Array = npt.NDArray[Any]

_PART = 64  # rows that meet all panels before the next ones do: a second-level cache holds them
_SUMMED = 256  # rows whose pairs a cache holds
_APART = _SUMMED // 2 + 1  # pairs from a panel to the next; a power of two would have them compete for places there
_KEPT, _FEWEST = 128, 4  # blocks of sums that a cache holds, and of them beside each other
_LINE = BLOCK * PAIR_BYTES  # bytes of a panel's pair
_SUM = 4  # bytes
_NAN = np.uint16(0x7FC0)  # whatever its other bits were


def matmul(x: Array, panels: Array, bias: Array | None, out: Array) -> None:
    """``out`` (R, N) = x (R, K) times what is packed in ``panels``, and ``bias`` (N,) of float32; K is even."""
    padded = np.zeros(len(panels) * BLOCK, dtype=np.float32)
    if bias is not None:
        padded[: len(bias)] = bias
    run_threaded(_multiply, x, panels, padded, out)


def pack_rows(weight: Array) -> Array:
    """Panels of a weight (N, K) of float32 for products with rows of K; K is even."""
    rows, width = weight.shape
    panels = np.empty((-(-rows // BLOCK), width // 2, BLOCK), dtype=np.uint32)
    run_threaded(_pack_rows, weight, panels)
    return panels


def pack_columns(weight: Array) -> Array:
    """Panels of a weight (N, K) of float32 for products with rows of N; N is even, K a multiple of BLOCK."""
    rows, width = weight.shape
    panels = np.empty((width // BLOCK, rows // 2, BLOCK), dtype=np.uint32)
    run_threaded(_pack_columns, weight, panels)
    return panels


def add_outer_product(y: Array, x: Array, out: Array) -> None:
    """``out`` += y^T x: y (R, N), x (R, K), ``out`` (at least N rows, a multiple of eight; K) of float32.

    K is a multiple of BLOCK.
    """
    strips = torch.get_num_threads()  # which all read the narrower matrix
    by_rows = y.shape[1] >= x.shape[1]
    run_threaded(_add_outer, y, x, out, strips if by_rows else 1, 1 if by_rows else strips)


@jit_serial_and_parallel
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
            multiply_rows(panel, pairs, begin, stride, PAIR_BYTES, shift, place, 2 * outputs, count)
        if outputs % BLOCK:
            block = outputs // BLOCK
            last = np.empty((count, BLOCK), dtype=np.uint16)
            panel, shift = panels.ctypes.data + block * pairs * _LINE, bias.ctypes.data + block * BLOCK * _SUM
            multiply_rows(panel, pairs, begin, stride, PAIR_BYTES, shift, last.ctypes.data, 2 * BLOCK, count)
            for row in range(count):
                for column in range(outputs - block * BLOCK):
                    out[first + row, block * BLOCK + column] = last[row, column]


@jit_inline
def _paired(first: Any, second: Any) -> Any:
    """Two numbers as bfloat16 in 32 bits."""
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
                panel[pair, row] = _paired(numbers[2 * pair], numbers[2 * pair + 1])
        panel[:, rows:] = 0


@jit_serial_and_parallel
def _pack_columns(weight: Array, panels: Array) -> None:
    for pair in numba.prange(panels.shape[1]):
        even, odd = weight[2 * pair], weight[2 * pair + 1]
        for block in range(len(panels)):
            place, first = panels[block, pair], block * BLOCK
            for column in range(BLOCK):
                place[column] = _paired(even[first + column], odd[first + column])


@jit_serial_and_parallel
def _add_outer(y: Array, x: Array, out: Array, row_strips: int, column_strips: int) -> None:
    rows, outputs, inputs = len(x), y.shape[1], x.shape[1]
    of_y, of_x = -(-outputs // BLOCK), inputs // BLOCK  # blocks
    for strip in numba.prange(row_strips * column_strips):
        row, column = strip // column_strips, strip % column_strips
        first_y, last_y = of_y * row // row_strips, of_y * (row + 1) // row_strips
        first_x, last_x = of_x * column // column_strips, of_x * (column + 1) // column_strips
        together = max(_FEWEST, _KEPT // max(last_x - first_x, 1))
        y_pairs = np.empty((min(together, last_y - first_y), _APART, BLOCK), dtype=np.uint32)
        x_pairs = np.empty((last_x - first_x, _APART, BLOCK), dtype=np.uint32)
        for group in range(first_y, last_y, together):
            blocks = min(together, last_y - group)
            place = out.ctypes.data + _SUM * BLOCK * (group * inputs + first_x)
            tiles = -(-min(blocks * BLOCK, outputs - group * BLOCK) // TILE_ROWS)
            for first in range(0, rows, _SUMMED):
                count = min(_SUMMED, rows - first)
                _pair_up(y[first : first + count], group * BLOCK, y_pairs[:blocks])
                _pair_up(x[first : first + count], first_x * BLOCK, x_pairs)
                _add_blocks(y_pairs, x_pairs, (count + 1) // 2, place, _SUM * inputs, tiles)


@jit_inline
def _pair_up(x: Array, start: int, pairs: Array) -> None:
    """Blocks of columns from ``start`` on, of each two rows; zeros stand for columns and a row that are not there."""
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
    """Add the products of packed pairs to ``tiles`` times eight rows."""
    panel = y_pairs.shape[1] * _LINE
    for block in range(len(x_pairs)):
        w = x_pairs.ctypes.data + block * panel
        for tile in range(tiles):
            first_row = tile * TILE_ROWS
            x = y_pairs.ctypes.data + first_row // BLOCK * panel + first_row % BLOCK * PAIR_BYTES
            place = out + first_row * out_stride + block * _LINE
            multiply_accumulate(w, pairs, x, PAIR_BYTES, _LINE, w, place, out_stride)
