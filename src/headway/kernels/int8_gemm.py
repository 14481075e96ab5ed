"""Products of 8-bit weights and 8-bit inputs, in tiles that fit the processor's registers.

These are the innermost loops of an integer matrix product, written as LLVM vector operations because compilers do not
generate them from plain loops. For a few rows r and one block of outputs n, they compute

    out[r, n] = sum over k of q[r, k] * w[n, k]

The processor multiplies unsigned bytes by signed bytes, so rows are stored as u = q + 128 (:data:`INPUT_OFFSET`), and
sums start at -128 * sum over k of w[n, k], which is computed in advance.

Weights are packed so that the data of one instruction is adjacent (:func:`pack_weight`): for each block of
:data:`BLOCK` outputs and each group of four neighboring k, the weights of all outputs. A vector of weights is
multiplied by four inputs of a row, which are broadcast to all lanes. ``vpdpbusd`` adds the four products of each output
to the output's 32-bit sum. On processors without ``vpdpbusd``, ``pmaddubsw`` adds two products in 16 bits, another
instruction adds two of these sums, and only then ``pmaddwd`` widens the result to 32 bits. 16-bit inputs would take
twice the work, because ``pmaddwd`` multiplies only two of them at a time.

With arbitrary weights, 16-bit sums would overflow. :func:`quantize_weight` chooses the scale of each output so that the
four products that are added in 16 bits cannot overflow for any input: 255 times the sum of their positive weights, and
255 times the sum of their negative weights, is at most 2^15 - 1 in magnitude. For weights distributed as in a trained
layer, this costs less than one of the eight bits on average. ``vpdpbusd`` does not need this restriction, but it makes
all processors compute the same integers.

Sums stay in registers until all inputs of a row are processed. Then they are converted to floating point, scaled and
shifted before they are stored. Three rows by two vectors of outputs fill the 16 registers of AVX2 and keep the two
multiplication units 90 % busy (Zen 3: 39 of 43 products per cycle). Vectors have 256 bits, or 512 bits with AVX-512.
Eight rows by two vectors reach the same utilization with AVX-512 (Zen 5: 880 GFLOP/s per thread).

While a block is multiplied, the weights of the next block are prefetched, because the weights of a whole model exceed
the caches. Each tile prefetches one cache line per group, so that the lines arrive as fast as they are needed.
Prefetching all lines at the start of a block would exceed the processor's queue: with 32 rows, products would take a
third longer. If there are fewer tiles than cache lines per group, products wait for memory, so the first tile
prefetches all lines. With four rows, the products of a model then take 67 to 75 % of the time with one line per group.

On processors with AMX, one instruction, ``tdpbusd``, multiplies 16 rows of 64 inputs by the weights of 16 outputs,
which are packed in the same way. AMX has eight registers, called tiles, of 16 rows of 64 bytes. Four hold the sums of
32 rows and a block of 32 outputs, two hold inputs and two hold weights. Sums of integers are exact, so all processors
compute the same outputs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
from jaxtyping import Float32, Int8, Int32, Int64
from llvmlite import ir
from numba import types

from headway.kernels.jit import Array, jit, jit_internal
from headway.kernels.llvm import (
    BYTE,
    CACHE_LINE,
    CPU_FEATURES,
    FLOAT,
    FLOAT_VECTOR,
    INT16,
    INT32,
    INT64,
    INT_VECTOR,
    LANES,
    TILE_BYTES,
    TILE_ROWS,
    Builder,
    constant,
    intrinsic,
)

_HAS_VPDPBUSD = ("avx512vnni" if LANES == 16 else "avxvnni") in CPU_FEATURES
HAS_AMX = LANES == 16 and "amx-int8" in CPU_FEATURES
_VECTORS = 2  # number of adjacent vectors of sums
BLOCK = _VECTORS * LANES  # number of outputs per block

INPUT_OFFSET = np.int32(128)
MAX_LEVEL = 127  # the largest magnitude of a quantized weight or input
TINY_SCALE = np.float32(1e-30)  # keeps the scale of a row of zeros positive
_FOUR = 4  # number of inputs per 32-bit lane
_FOURS = 2  # number of 32-bit lanes per group; a 16-bit sum adds two products from each lane
_GROUP = _FOURS * _FOUR  # number of inputs per group
_MAX_SUM = (2**15 - 1) // 255  # the largest allowed sum of weights with the same sign in a 16-bit sum

_BYTES, _WORDS = ir.VectorType(BYTE, 4 * LANES), ir.VectorType(INT16, 2 * LANES)
_PMADDUBSW = {8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}[LANES]
_PMADDWD = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}[LANES]
_VPDPBUSD = {8: "llvm.x86.avx512.vpdpbusd.256", 16: "llvm.x86.avx512.vpdpbusd.512"}[LANES]


def quantize_weight(weight: Float32[Array, "N K"]) -> tuple[Int8[Array, "N K"], Float32[Array, " N"]]:
    """Quantize weights to integers with one scale per output, chosen so that no 16-bit sum overflows.

    If rounding would make a sum too large, its weights are rounded towards zero instead. If a weight is NaN or
    infinite, the scale of its output is not finite, and the integers are undefined.
    """
    padded = np.pad(weight, ((0, 0), (0, -weight.shape[1] % _GROUP)))
    groups = np.ascontiguousarray(padded.reshape(len(weight), -1, _FOURS, 2, 2).transpose(2, 3, 4, 0, 1))
    with np.errstate(invalid="ignore", over="ignore"):
        by_level = np.maximum(weight.max(axis=1), -weight.min(axis=1)) / MAX_LEVEL
        by_sum = _largest_sums(groups).max(axis=(0, 2)) / _MAX_SUM
        scale = np.maximum(np.maximum(by_level, by_sum), TINY_SCALE).astype(np.float32)
        groups /= scale[:, None]
        levels = np.rint(groups).astype(np.int8)
        pair, row, group = np.nonzero(_largest_sums(levels.astype(np.int16)) > _MAX_SUM)
        levels[:, pair, :, row, group] = np.trunc(groups[:, pair, :, row, group]).astype(np.int8)
    levels = levels.transpose(3, 4, 0, 1, 2).reshape(padded.shape)
    return np.ascontiguousarray(levels[:, : weight.shape[1]]), scale


def _largest_sums(groups: Array) -> Array:
    """Return the largest sums (2, N, groups), over both signs, of weights with the same sign that are added in 16 bits.

    ``groups`` (2, 2, 2, N, groups) contains weights, indexed by lane, pair, position in the pair, output and group. A
    16-bit sum adds one pair from each lane.
    """

    def add_pairs(x: Array) -> Array:
        pairs: Array = x[:, :, 0] + x[:, :, 1]
        total: Array = pairs[0] + pairs[1]
        return total

    return np.maximum(add_pairs(np.maximum(groups, 0)), -add_pairs(np.minimum(groups, 0)))


def empty_aligned(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """Return an uninitialized array that is aligned to a cache line.

    NumPy aligns arrays to only 16 bytes, so an access to 64 bytes may need two cache lines. With unaligned inputs, AMX
    is half as fast; with unaligned outputs, products take up to 15 % longer.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + CACHE_LINE - 1, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def pack_weight(weight: Int8[Array, "N K"]) -> tuple[Int8[Array, "blocks fours block 4"], Int32[Array, " outputs"]]:
    """Pack weights for :func:`multiply_block`. Return packed weights and initial accumulators, padded with zeros."""
    outputs, inputs = weight.shape
    filled = np.pad(weight, ((0, -outputs % BLOCK), (0, -inputs % _GROUP)))
    blocks = filled.reshape(len(filled) // BLOCK, BLOCK, -1, _FOUR)
    packed = empty_aligned((blocks.shape[0], blocks.shape[2], BLOCK, _FOUR), np.int8)
    packed[:] = blocks.transpose(0, 2, 1, 3)
    return packed, accumulator_init(filled)


def accumulator_init(weight: Int8[Array, "N K"]) -> Int32[Array, " N"]:
    """Return the initial accumulator of each output."""
    return cast(Array, -INPUT_OFFSET * weight.sum(axis=1, dtype=np.int32))


def pack_weight_rows(
    weight: Int8[Array, "N K"], output_rows: Int64[Array, "B blocks block"]
) -> Int8[Array, "B blocks fours block 4"]:
    """Pack B selections of output rows, each like the weight in :func:`pack_weight`."""
    filled = np.pad(weight, ((0, 0), (0, -weight.shape[1] % _GROUP)))
    packed = empty_aligned((*output_rows.shape[:2], filled.shape[1] // _FOUR, BLOCK, _FOUR), np.int8)
    _pack_rows(filled.view(np.int32), output_rows, packed.view(np.int32))
    return packed


@jit
def _pack_rows(fours: Array, outputs: Array, packed: Array) -> None:
    for choice in range(outputs.shape[0]):
        for block in range(outputs.shape[1]):
            for lane in range(BLOCK):
                output = outputs[choice, block, lane]
                for four in range(fours.shape[1]):
                    packed[choice, block, four, lane, 0] = fours[output, four]


_Tile = Callable[[int, int, int, int, int, int, int, int, int, np.float32, int, int], None]
_ADDRESS, _COUNT = types.uintp, types.intp


def _tile(rows: int, lines: int) -> _Tile:
    """Return the loop over all inputs for ``rows`` rows and one block. It prefetches ``lines`` cache lines per group.

    The cache lines start at address ``ahead``. See :func:`multiply_block` for the other arguments.
    """

    @intrinsic(types.void(*(_ADDRESS,) * 3, _COUNT, _COUNT, *(_ADDRESS,) * 4, types.float32, _ADDRESS, _COUNT))
    def tile(
        builder: Builder,
        weights: ir.Value,
        ahead: ir.Value,
        inputs: ir.Value,
        inputs_stride: ir.Value,
        groups: ir.Value,
        accumulator_init: ir.Value,
        input_scales: ir.Value,
        scales: ir.Value,
        bias: ir.Value,
        minimum: ir.Value,
        out: ir.Value,
        out_stride: ir.Value,
    ) -> None:
        starts = [builder.offset(inputs, row, inputs_stride) for row in range(rows)]
        places = [(row, vector) for row in range(rows) for vector in range(_VECTORS)]
        sums = {place: builder.local_variable(builder.read(accumulator_init, INT_VECTOR, place[1])) for place in places}
        with builder.loop(groups) as group:
            fours = [builder.offset(INT64(four), group, _FOURS) for four in range(_FOURS)]
            for line in range(lines):
                builder.prefetch(builder.offset(ahead, builder.offset(INT64(line), group, lines), CACHE_LINE))
            w = [
                [builder.read(weights, _BYTES, builder.offset(INT64(vector), four, _VECTORS)) for four in fours]
                for vector in range(_VECTORS)
            ]
            for row in range(rows):
                x = [builder.broadcast(builder.read(starts[row], INT32, four)) for four in fours]
                for vector in range(_VECTORS):
                    total = sums[row, vector]
                    builder.store(_add_products(builder, builder.load(total), x, w[vector]), total)
        lowest = builder.broadcast(minimum)
        for row, vector in places:
            input_scale = builder.broadcast(builder.read(input_scales, FLOAT, row))
            scale, shift = (builder.read(address, FLOAT_VECTOR, vector) for address in (scales, bias))
            y = _emit_output(builder, builder.load(sums[row, vector]), scale, input_scale, shift, lowest)
            builder.write(y, builder.offset(out, row, out_stride), vector)

    return tile


def _add_products(builder: Builder, total: ir.Value, x: Sequence[ir.Value], w: Sequence[ir.Value]) -> ir.Value:
    """Return ``total`` plus the products of a group of inputs ``x``, broadcast to all lanes, and the weights ``w``."""
    if _HAS_VPDPBUSD:
        for inputs, weights in zip(x, w, strict=True):
            total = builder.call_llvm(_VPDPBUSD, INT_VECTOR, total, inputs, builder.bitcast(weights, INT_VECTOR))
        return total
    words = [builder.call_llvm(_PMADDUBSW, _WORDS, builder.bitcast(a, _BYTES), b) for a, b in zip(x, w, strict=True)]
    pairs = functools.reduce(builder.add, words)
    return builder.add(total, builder.call_llvm(_PMADDWD, INT_VECTOR, pairs, constant(_WORDS, 1)))


def _emit_output(
    builder: Builder, total: ir.Value, scale: ir.Value, input_scale: ir.Value, bias: ir.Value, minimum: ir.Value
) -> ir.Value:
    """Scale a vector of integer sums, add the bias, and clamp the result to at least ``minimum``."""
    scaled = builder.fmul(builder.sitofp(total, FLOAT_VECTOR), scale)
    y = builder.call_float("fma", scaled, input_scale, bias)
    return builder.select(builder.fcmp_ordered("<", y, minimum), minimum, y)  # keeps NaN


_AMX_TILE_ARGUMENTS = _ADDRESS, _ADDRESS, _COUNT, _ADDRESS, *(_COUNT,) * 3, *(_ADDRESS,) * 4
_AmxTile = Callable[[int, int, int, int, int, int, int, int, int, int, int, np.float32, int, int], None]


def _amx_tile(row_tiles: int) -> _AmxTile:
    """Return the loop over all inputs for one or two AMX tiles of rows (``row_tiles``) and one block.

    Inputs are multiplied in ``steps`` steps of TILE_BYTES bytes, and each step prefetches ``lines`` cache lines. The
    second tile starts ``second`` rows after the first, and may overlap it. See :func:`_tile` for the other arguments.
    """

    @intrinsic(types.void(*_AMX_TILE_ARGUMENTS, types.float32, _ADDRESS, _COUNT))
    def tile(
        builder: Builder,
        weights: ir.Value,
        ahead: ir.Value,
        lines: ir.Value,
        inputs: ir.Value,
        inputs_stride: ir.Value,
        steps: ir.Value,
        second: ir.Value,
        accumulator_init: ir.Value,
        input_scales: ir.Value,
        scales: ir.Value,
        bias: ir.Value,
        minimum: ir.Value,
        out: ir.Value,
        out_stride: ir.Value,
    ) -> None:
        first_rows = [INT64(0), second][:row_tiles]
        starts = [builder.offset(inputs, row, inputs_stride) for row in first_rows]
        places = [(rows, vector) for rows in range(row_tiles) for vector in range(_VECTORS)]
        sums = {place: number for number, place in enumerate(places)}
        x_tiles, w_tiles = range(4, 4 + row_tiles), range(6, 6 + _VECTORS)
        builder.configure_tiles()
        for (_, vector), number in sums.items():
            builder.load_tile(number, builder.add(accumulator_init, INT64(vector * TILE_BYTES)), INT64(0))
        weights_stride = _VECTORS * TILE_BYTES
        with builder.loop(steps) as step:
            panel = builder.offset(weights, step, TILE_ROWS * weights_stride)
            for vector, number in enumerate(w_tiles):
                builder.load_tile(number, builder.add(panel, INT64(vector * TILE_BYTES)), INT64(weights_stride))
            for start, number in zip(starts, x_tiles, strict=True):
                builder.load_tile(number, builder.offset(start, step, TILE_BYTES), inputs_stride)
            for (rows, vector), number in sums.items():
                builder.multiply_tiles(number, x_tiles[rows], w_tiles[vector])
            builder.prefetch_lines(builder.offset(ahead, builder.mul(step, lines), CACHE_LINE), lines)
        stored = {place: builder.allocate(TILE_ROWS * TILE_BYTES) for place in places}
        for place, number in sums.items():
            builder.store_tile(number, stored[place], INT64(TILE_BYTES))
        builder.release_tiles()
        lowest = builder.broadcast(minimum)
        vectors = [
            [builder.read(address, FLOAT_VECTOR, vector) for address in (scales, bias)] for vector in range(_VECTORS)
        ]
        for rows, first in enumerate(first_rows):
            with builder.loop(INT64(TILE_ROWS)) as index:
                row = builder.add(first, index)
                input_scale = builder.broadcast(builder.read(input_scales, FLOAT, row))
                for vector, (scale, shift) in enumerate(vectors):
                    total = builder.read(stored[rows, vector], INT_VECTOR, index)
                    y = _emit_output(builder, total, scale, input_scale, shift, lowest)
                    builder.write(y, builder.offset(out, row, out_stride), vector)

    return tile


# AVX-512 has 32 registers, and vpdpbusd needs no registers for 16-bit sums.
_MANY, _SOME = (8, 4) if _HAS_VPDPBUSD and LANES == 16 else (3, 2)  # number of rows per tile
_LINES = _GROUP * BLOCK // CACHE_LINE  # number of cache lines that contain a group's weights
_many, _first = _tile(_MANY, 1), _tile(_MANY, _LINES)
_some, _one = _tile(_SOME, _LINES), _tile(1, _LINES)
_two = _some if _SOME == 2 else _tile(2, _LINES)
_amx_two, _amx_one = _amx_tile(2), _amx_tile(1)


@jit_internal
def multiply_block(
    weights: int,
    accumulator_init: int,
    scales: int,
    bias: int,
    block: int,
    inputs: int,
    width: int,
    input_scales: int,
    num_rows: int,
    minimum: np.float32,
    out: int,
    out_stride: int,
) -> None:
    """Compute one block of a layer's outputs for the first ``num_rows`` rows.

    out = max(minimum, (inputs - INPUT_OFFSET) @ weights[block]^T * scales * input_scales + bias)

    Arrays are passed as addresses: packed ``weights`` and ``accumulator_init``, ``scales`` and ``bias``
    (blocks * BLOCK,) in float32, ``inputs`` (R, ``width``) in bytes, ``input_scales`` (R,) in float32, and ``out`` with
    ``out_stride`` bytes from one row to the next. ``width`` is the number of inputs including padding. The weights of
    the padding are zero, so the padding may contain any values.
    """
    groups = width // _GROUP
    panel, place = weights + block * BLOCK * width, 4 * BLOCK * block
    start, scale, shift = accumulator_init + place, scales + place, bias + place
    row, following = 0, panel + BLOCK * width
    if HAS_AMX and num_rows >= TILE_ROWS and width % TILE_BYTES == 0:
        together = 2 * TILE_ROWS
        steps, passes = width // TILE_BYTES, -(-num_rows // together)
        lines = -(-_VECTORS * TILE_ROWS // passes)
        for index in range(passes):
            ahead = following + index * steps * lines * CACHE_LINE
            # The last tile may overlap the previous one and recompute some of its outputs.
            row = min(index * together, num_rows - TILE_ROWS)
            second = min(TILE_ROWS, num_rows - TILE_ROWS - row)
            x, s, y = inputs + row * width, input_scales + 4 * row, out + row * out_stride
            multiply = (panel, ahead, lines, x, width, steps, second, start, s, scale, shift, minimum, y, out_stride)
            if second > 0:
                _amx_two(*multiply)
            else:
                _amx_one(*multiply)
        return
    while row < num_rows:
        x, s, y = inputs + row * width, input_scales + 4 * row, out + row * out_stride
        if num_rows - row >= _MANY:
            if row == 0 and num_rows < _LINES * _MANY:
                _first(panel, following, x, width, groups, start, s, scale, shift, minimum, y, out_stride)
            else:
                ahead = following + row // _MANY % _LINES * groups * CACHE_LINE
                _many(panel, ahead, x, width, groups, start, s, scale, shift, minimum, y, out_stride)
            row += _MANY
        elif num_rows - row >= _SOME:
            _some(panel, following, x, width, groups, start, s, scale, shift, minimum, y, out_stride)
            row += _SOME
        elif num_rows - row >= 2:
            _two(panel, following, x, width, groups, start, s, scale, shift, minimum, y, out_stride)
            row += 2
        else:
            _one(panel, following, x, width, groups, start, s, scale, shift, minimum, y, out_stride)
            row += 1
