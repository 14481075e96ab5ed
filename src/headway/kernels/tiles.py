"""Products of 8-bit weights and 16-bit inputs, in tiles that fit the processor's registers.

The innermost loops of a matrix product in integers, given to LLVM as vector operations, for compilers do not find them:

    out[r, n] = sum over k of x[r, k] * w[n, k]

for a few rows r and one block of outputs n. Weights are packed so that what one instruction reads lies together
(:func:`pack`): of each block of :data:`BLOCK` outputs, for each pair of neighbouring k, the pairs of all outputs. One
vector of weights is widened to 16 bits and multiplied with a pair of inputs that stands in all lanes; ``pmaddwd``, the
instruction, adds the two products of each pair in 32 bits, where no sum of less than 2^16 products of bytes overflows.
Sums stay in registers until a row's inputs are through; then they are made floating-point numbers, scaled and shifted
before they are stored.

Six rows by two vectors of outputs keep 12 of AVX2's 16 registers as sums, 2 for weights and 1 for inputs: 29
multiplications a cycle of the 32 that there are. Vectors are of 256 bits, of 512 where the processor has AVX-512 (there
LLVM makes one instruction of product and sum, ``vpdpwssd``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import llvmlite.binding
import numpy as np
import numpy.typing as npt
from jaxtyping import Int8
from llvmlite import ir
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

from headway.kernels.compiling import compiled

__all__ = ["BLOCK", "as_float", "multiply", "pack"]

Array = npt.NDArray[Any]
cgutils: Any = untyped_cgutils

_LANES = 16 if llvmlite.binding.get_host_cpu_features().get("avx512bw") else 8  # sums in a vector
_VECTORS = 2  # of sums, beside each other
BLOCK = _VECTORS * _LANES  # outputs

_BYTES = ir.VectorType(ir.IntType(8), 2 * _LANES)
_WORDS = ir.VectorType(ir.IntType(16), 2 * _LANES)
_SUMS = ir.VectorType(ir.IntType(32), _LANES)
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_PMADDWD = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}[_LANES]


def pack(levels: Int8[Array, "N K"]) -> Int8[Array, "blocks pairs block 2"]:
    """Weights in the order of :func:`multiply`; where N or K does not fill a block or a pair, zeros do."""
    outputs, inputs = levels.shape
    padded = np.pad(levels, ((0, -outputs % BLOCK), (0, -inputs % 2)))
    blocks = padded.reshape(len(padded) // BLOCK, BLOCK, padded.shape[1] // 2, 2)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3))


_Tile = Callable[[int, int, int, int, int, int, int, np.float32, int, int], None]


def _tile(rows: int, *, fetch: bool = False) -> _Tile:
    """The loop over all pairs for so many rows and one block; ``fetch``: it also has the next block's weights read."""

    def typing(
        context: Any,
        weights: Any,
        inputs: Any,
        inputs_stride: Any,
        pairs: Any,
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
            *(address, address, count, count, address, address, address, types.float32, address, count)
        ), _generate

    def _generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        weights, inputs, inputs_stride, pairs, input_scales, scales, bias, least, out, out_stride = arguments
        pmaddwd = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_SUMS, [_WORDS, _WORDS]), _PMADDWD)

        prefetch = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), _INT32, _INT32, _INT32]),
            "llvm.prefetch.p0i8",
        )

        def load(address: ir.Value, kind: ir.Type, index: ir.Value) -> ir.Value:
            return builder.load(builder.gep(builder.inttoptr(address, kind.as_pointer()), [index]), align=1)

        def everywhere(value: ir.Value) -> ir.Value:
            alone = ir.Constant(ir.VectorType(value.type, _LANES), ir.Undefined)
            lane = ir.Constant(ir.VectorType(_INT32, _LANES), [0] * _LANES)
            return builder.shuffle_vector(builder.insert_element(alone, value, _INT32(0)), alone, lane)

        sums = [[cgutils.alloca_once(builder, _SUMS) for _ in range(_VECTORS)] for _ in range(rows)]
        starts = [builder.add(inputs, builder.mul(inputs_stride, _INT64(row))) for row in range(rows)]
        for vector in (vector for row in sums for vector in row):
            builder.store(ir.Constant(_SUMS, [0] * _LANES), vector)
        with cgutils.for_range(builder, pairs) as loop:
            at = builder.mul(loop.index, _INT64(_VECTORS))
            if fetch:
                ahead = builder.mul(builder.add(loop.index, pairs), _INT64(2 * BLOCK))
                where = builder.inttoptr(builder.add(weights, ahead), ir.IntType(8).as_pointer())
                builder.call(prefetch, [where, _INT32(0), _INT32(2), _INT32(1)])  # to read, into level 2, data
            widened = [
                builder.sext(load(weights, _BYTES, builder.add(at, _INT64(vector))), _WORDS)
                for vector in range(_VECTORS)
            ]
            for row in range(rows):
                pair = builder.bitcast(everywhere(load(starts[row], _INT32, loop.index)), _WORDS)
                for vector in range(_VECTORS):
                    product = builder.call(pmaddwd, [widened[vector], pair])
                    builder.store(builder.add(builder.load(sums[row][vector]), product), sums[row][vector])
        for row in range(rows):
            input_scale = everywhere(load(input_scales, _FLOAT, _INT64(row)))
            place = builder.add(out, builder.mul(out_stride, _INT64(row)))
            for vector in range(_VECTORS):
                y = builder.sitofp(builder.load(sums[row][vector]), _FLOATS)
                y = builder.fmul(builder.fmul(y, load(scales, _FLOATS, _INT64(vector))), input_scale)
                y = builder.fadd(y, load(bias, _FLOATS, _INT64(vector)))
                lowest = everywhere(least)
                y = builder.select(builder.fcmp_ordered("<", y, lowest), lowest, y)  # NaN stays
                pointer = builder.gep(builder.inttoptr(place, _FLOATS.as_pointer()), [_INT64(vector)])
                builder.store(y, pointer, align=1)
        return context.get_dummy_value()

    return cast(_Tile, intrinsic(inspect.unwrap(typing)))


_six, _four, _two, _one = (_tile(rows) for rows in (6, 4, 2, 1))
_first_six = _tile(6, fetch=True)


@compiled
def multiply(
    weights: Array,
    scales: Array,
    bias: Array,
    block: int,
    inputs: Array,
    input_scales: Array,
    rows: int,
    least: np.float32,
    out: int,
    stride: int,
) -> None:
    """Compute one block of a layer's outputs for the first ``rows`` rows.

    They are max(least, inputs @ weights[block]^T * scales * input_scales + bias). ``weights`` are packed; ``scales``
    and ``bias`` (blocks * BLOCK,) float32; ``inputs`` (R, 2 * pairs) int16; ``input_scales`` (R,) float32. ``out`` is
    the address of the first row's outputs, ``stride`` the bytes to the next.
    """
    pairs, width = weights.shape[1], 2 * inputs.shape[1]
    panel = weights.ctypes.data + block * 2 * BLOCK * pairs
    scale, shift = scales.ctypes.data + 4 * BLOCK * block, bias.ctypes.data + 4 * BLOCK * block
    row = 0
    while row < rows:
        x, s, y = inputs.ctypes.data + row * width, input_scales.ctypes.data + 4 * row, out + row * stride
        if rows - row >= 6 and row == 0:
            _first_six(panel, x, width, pairs, s, scale, shift, least, y, stride)
            row += 6
        elif rows - row >= 6:
            _six(panel, x, width, pairs, s, scale, shift, least, y, stride)
            row += 6
        elif rows - row >= 4:
            _four(panel, x, width, pairs, s, scale, shift, least, y, stride)
            row += 4
        elif rows - row >= 2:
            _two(panel, x, width, pairs, s, scale, shift, least, y, stride)
            row += 2
        else:
            _one(panel, x, width, pairs, s, scale, shift, least, y, stride)
            row += 1


def _float_of_bits(context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


as_float = cast(Callable[[np.int32], np.float32], intrinsic(inspect.unwrap(_float_of_bits)))
