"""Products of 8-bit weights and 8-bit inputs, in tiles that fit the processor's registers.

The innermost loops of a matrix product in integers, given to LLVM as vector operations, for compilers do not find them:

    out[r, n] = sum over k of q[r, k] * w[n, k]

for a few rows r and one block of outputs n. The processor multiplies unsigned bytes with signed ones, so rows hold
u = q + 128 (:data:`INPUT_OFFSET`), and sums begin at -128 * sum over k of w[n, k], which is known ahead.

Weights are packed so that what one instruction reads lies together (:func:`pack`): of each block of :data:`BLOCK`
outputs, for each four neighbouring k, those of all outputs. A vector of weights meets the four inputs of a row, which
stand in all lanes. ``vpdpbusd`` adds the four products of each output to its sum in 32 bits; where the processor has it
not, ``pmaddubsw`` adds two in 16 bits, another addition makes that four, and only then ``pmaddwd`` widens them: half as
much work as with 16-bit inputs, whose products ``pmaddwd`` takes two at a time.

Sums of 16 bits would overflow if weights were any bytes. :func:`quantize_weight` chooses each output's scale so that no
four weights that are added there can, whatever the inputs: 255 times those of one sign is at most 2^15 - 1. For weights
that are distributed as a trained layer's are, this costs less than one bit of the eight on average. ``vpdpbusd`` would
not need it; but so all processors have the same integers.

Sums stay in registers until a row's inputs are through; then they are made floating-point numbers, scaled and shifted
before they are stored. Three rows by two vectors of outputs fill AVX2's 16 registers, and keep the two pipes that
multiply nine tenths busy (Zen 3: 39 products a cycle of 43). Vectors are of 256 bits, of 512 where the processor has
AVX-512, with which eight rows by two vectors do as well (Zen 5: 880 GFLOP/s a thread).

While a block is multiplied, the next one's weights are read, a line for each group of each tile, so that they come as
fast as they are needed: those of a whole model are more than caches hold. All of them at the block's beginning would be
more than the processor can wait for at a time; of 32 rows the products would take a third longer. Rows in fewer tiles
than a group has lines wait for memory: there the first tile reads all lines (of four rows, products of a whole model
take two thirds to three quarters of what they took with a line for each group).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from jaxtyping import Float32, Int8, Int32, Int64
from llvmlite import ir
from numba import types

from headway.kernels.jit import jit
from headway.kernels.llvm import (
    BYTE,
    CACHE_LINE,
    FEATURES,
    FLOAT,
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
    "INPUT_OFFSET",
    "accumulator_init",
    "multiply_block",
    "pack_weight",
    "pack_weight_rows",
    "quantize_weight",
]

Array = npt.NDArray[Any]

_ADDS_FOUR = ("avx512vnni" if LANES == 16 else "avxvnni") in FEATURES
_VECTORS = 2  # of sums, beside each other
BLOCK = _VECTORS * LANES  # outputs

INPUT_OFFSET = np.int32(128)  # of the inputs
_LEVELS = 127  # the largest magnitude of a weight
_FOUR = 4  # inputs in a lane
_GROUP = 2  # times four inputs: what is added in 16 bits is one product of each half of them
_GROUPED = _GROUP * _FOUR  # inputs
_MOST = (2**15 - 1) // 255  # the largest sum of a group's weights of one sign
_TINY = np.float32(1e-30)  # so that a row of zeros stays one

_BYTES = ir.VectorType(BYTE, 4 * LANES)
_WORDS = ir.VectorType(ir.IntType(16), 2 * LANES)
_ONES = constant(_WORDS, 1)
_PMADDUBSW = {8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}[LANES]
_PMADDWD = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}[LANES]
_VPDPBUSD = {8: "llvm.x86.avx512.vpdpbusd.256", 16: "llvm.x86.avx512.vpdpbusd.512"}[LANES]


def quantize_weight(weight: Float32[Array, "N K"]) -> tuple[Int8[Array, "N K"], Float32[Array, " N"]]:
    """Weights as integers times a scale for each output; the sums that :func:`multiply` makes of them do not overflow.

    Where rounding would take a group's sum too far, its weights are rounded towards zero. Of weights that are NaN or
    infinite the integers are any, and the scale is not finite either.
    """
    padded = np.pad(weight, ((0, 0), (0, -weight.shape[1] % _GROUPED)))
    shape = len(weight), -1, _GROUP, 2, 2
    with np.errstate(invalid="ignore", over="ignore"):
        by_level = np.abs(weight).max(axis=1) / _LEVELS
        by_sum = _largest_sums(padded.reshape(shape)).max(axis=(1, 2)) / _MOST
        scale = np.maximum(np.maximum(by_level, by_sum), _TINY).astype(np.float32)
        exact = padded / scale[:, None]
        levels = np.clip(np.rint(exact), -_LEVELS, _LEVELS).astype(np.int8)
        row, group, pair = np.nonzero(_largest_sums(levels.reshape(shape).astype(np.int16)) > _MOST)
        levels.reshape(shape)[row, group, :, pair] = np.trunc(exact.reshape(shape)[row, group, :, pair]).astype(np.int8)
    return np.ascontiguousarray(levels[:, : weight.shape[1]]), scale


def _largest_sums(groups: Array) -> Array:
    """Return (N, groups, 2) for weights (N, groups, 2, 2, 2).

    Two pairs of products are added in 16 bits; this is the larger of the sums of their weights of one sign.
    """

    def add_pairs(x: Array) -> Array:
        pairs: Array = x[..., 0] + x[..., 1]
        total: Array = pairs[:, :, 0] + pairs[:, :, 1]
        return total

    return np.maximum(add_pairs(np.maximum(groups, 0)), -add_pairs(np.minimum(groups, 0)))


def pack_weight(levels: Int8[Array, "N K"]) -> tuple[Int8[Array, "blocks fours block 4"], Int32[Array, " outputs"]]:
    """Weights in the order of :func:`multiply`, and where sums begin. Zeros fill the last block and group."""
    outputs, inputs = levels.shape
    filled = np.pad(levels, ((0, -outputs % BLOCK), (0, -inputs % _GROUPED)))
    blocks = filled.reshape(len(filled) // BLOCK, BLOCK, -1, _FOUR)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)), accumulator_init(filled)


def accumulator_init(levels: Int8[Array, "N K"]) -> Int32[Array, " N"]:
    """Where the sum of each output begins."""
    return cast(Array, -INPUT_OFFSET * levels.sum(axis=1, dtype=np.int32))


def pack_weight_rows(
    levels: Int8[Array, "N K"], outputs: Int64[Array, "B blocks block"]
) -> Int8[Array, "B blocks fours block 4"]:
    """The weights of chosen outputs as :func:`pack` orders them, for each of several choices."""
    filled = np.pad(levels, ((0, 0), (0, -levels.shape[1] % _GROUPED)))
    packed = np.empty((*outputs.shape[:2], filled.shape[1] // _FOUR, BLOCK, _FOUR), dtype=np.int8)
    _pack_chosen(filled.view(np.int32), outputs, packed.view(np.int32))
    return packed


@jit
def _pack_chosen(fours: Array, outputs: Array, packed: Array) -> None:
    for choice in range(outputs.shape[0]):
        for block in range(outputs.shape[1]):
            for lane in range(BLOCK):
                output = outputs[choice, block, lane]
                for four in range(fours.shape[1]):
                    packed[choice, block, four, lane, 0] = fours[output, four]


_Tile = Callable[[int, int, int, int, int, int, int, int, int, np.float32, int, int], None]


def _tile(rows: int, lines: int) -> _Tile:
    """The loop over all inputs for so many rows and one block; for each group it has lines from ``ahead`` on read."""

    def typing(
        context: Any,
        weights: Any,
        ahead: Any,
        inputs: Any,
        inputs_stride: Any,
        groups: Any,
        starts: Any,
        input_scales: Any,
        scales: Any,
        bias: Any,
        least: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        """Addresses, and bytes from a row to the next: see :func:`multiply`."""
        address, count = types.uintp, types.intp
        return types.void(
            *(address, address, address, count, count),
            *(address, address, address, address, types.float32, address, count),
        ), generate

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Sequence[ir.Value]) -> Any:
        weights, ahead, inputs, inputs_stride, groups = arguments[:5]
        starts, input_scales, scales, bias, least, out, out_stride = arguments[5:]
        starts_of_rows = [builder.add(inputs, builder.mul(inputs_stride, INT64(row))) for row in range(rows)]
        places = [(row, vector) for row in range(rows) for vector in range(_VECTORS)]
        sums = {place: alloca(builder, INT_VECTOR) for place in places}
        for (_, vector), total in sums.items():
            builder.store(load(builder, starts, INT_VECTOR, INT64(vector)), total)
        with for_range(builder, groups) as loop:
            fours = [builder.add(builder.mul(loop.index, INT64(_GROUP)), INT64(four)) for four in range(_GROUP)]
            for line in range(lines):
                place = builder.add(builder.mul(loop.index, INT64(lines)), INT64(line))
                prefetch(builder, builder.add(ahead, builder.mul(place, INT64(CACHE_LINE))))
            first = [builder.mul(four, INT64(_VECTORS)) for four in fours]
            w = [
                [load(builder, weights, _BYTES, builder.add(four, INT64(vector))) for four in first]
                for vector in range(_VECTORS)
            ]
            for row in range(rows):
                x = [broadcast(builder, load(builder, starts_of_rows[row], INT32, four), LANES) for four in fours]
                for vector in range(_VECTORS):
                    total = sums[row, vector]
                    builder.store(_add_products(builder, builder.load(total), x, w[vector]), total)
        lowest = broadcast(builder, least, LANES)
        for row, vector in places:
            input_scale = broadcast(builder, load(builder, input_scales, FLOAT, INT64(row)), LANES)
            y = builder.sitofp(builder.load(sums[row, vector]), FLOAT_VECTOR)
            y = builder.fmul(builder.fmul(y, load(builder, scales, FLOAT_VECTOR, INT64(vector))), input_scale)
            y = builder.fadd(y, load(builder, bias, FLOAT_VECTOR, INT64(vector)))
            y = builder.select(builder.fcmp_ordered("<", y, lowest), lowest, y)  # NaN stays
            store(builder, y, builder.add(out, builder.mul(out_stride, INT64(row))), INT64(vector))
        return context.get_dummy_value()

    return intrinsic(typing)


def _add_products(builder: ir.IRBuilder, total: ir.Value, x: Sequence[ir.Value], w: Sequence[ir.Value]) -> ir.Value:
    """``total`` and the products of a group: fours of inputs, each in all lanes, and of weights, each lane its own."""
    if _ADDS_FOUR:
        add_four = llvm_function(builder, _VPDPBUSD, INT_VECTOR, INT_VECTOR, INT_VECTOR, INT_VECTOR)
        for inputs, weights in zip(x, w, strict=True):
            total = builder.call(add_four, [total, inputs, builder.bitcast(weights, INT_VECTOR)])
        return total
    add_two = llvm_function(builder, _PMADDUBSW, _WORDS, _BYTES, _BYTES)
    words = [builder.call(add_two, [builder.bitcast(a, _BYTES), b]) for a, b in zip(x, w, strict=True)]
    widen = llvm_function(builder, _PMADDWD, INT_VECTOR, _WORDS, _WORDS)
    return builder.add(total, builder.call(widen, [functools.reduce(builder.add, words), _ONES]))


# AVX-512 has 32 registers, and with vpdpbusd no sums in 16 bits take any of them.
_MANY, _SOME = (8, 4) if _ADDS_FOUR and LANES == 16 else (3, 2)  # rows
_LINES = _GROUP * _FOUR * BLOCK // CACHE_LINE  # of a group's weights
_many, _first = _tile(_MANY, 1), _tile(_MANY, _LINES)
_some, _one = _tile(_SOME, _LINES), _tile(1, _LINES)
_two = _some if _SOME == 2 else _tile(2, _LINES)


@jit
def multiply_block(
    weights: int,
    starts: int,
    scales: int,
    bias: int,
    block: int,
    inputs: int,
    width: int,
    input_scales: int,
    rows: int,
    least: np.float32,
    out: int,
    stride: int,
) -> None:
    """Compute one block of a layer's outputs for the first ``rows`` rows.

    out = max(least, (inputs - INPUT_OFFSET) @ weights[block]^T * scales * input_scales + bias)

    Arrays are given by their addresses: ``weights`` and ``starts`` as packed, ``scales`` and ``bias`` (blocks * BLOCK,)
    float32, ``inputs`` (R, ``width``) bytes with width = 4 * fours (bytes beyond the layer's inputs may be anything),
    ``input_scales`` (R,) float32, and ``out``, with ``stride`` bytes from one row to the next.
    """
    groups = width // (4 * _GROUP)
    panel, place = weights + block * BLOCK * width, 4 * BLOCK * block
    start, scale, shift = starts + place, scales + place, bias + place
    row, following = 0, panel + BLOCK * width
    while row < rows:
        x, s, y = inputs + row * width, input_scales + 4 * row, out + row * stride
        if rows - row >= _MANY:
            if row == 0 and rows < _LINES * _MANY:
                _first(panel, following, x, width, groups, start, s, scale, shift, least, y, stride)
            else:
                ahead = following + row // _MANY % _LINES * groups * CACHE_LINE
                _many(panel, ahead, x, width, groups, start, s, scale, shift, least, y, stride)
            row += _MANY
        elif rows - row >= _SOME:
            _some(panel, following, x, width, groups, start, s, scale, shift, least, y, stride)
            row += _SOME
        elif rows - row >= 2:
            _two(panel, following, x, width, groups, start, s, scale, shift, least, y, stride)
            row += 2
        else:
            _one(panel, following, x, width, groups, start, s, scale, shift, least, y, stride)
            row += 1
