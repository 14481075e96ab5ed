"""Rotate the queries and keys in a projection's output to their positions (Su et al. 2021, "RoFormer")."""

from __future__ import annotations

import numba
from llvmlite import ir
from numba import types

from headway.kernels.float_bits import cast_like, emit_cast, emit_read_float32, to_float32
from headway.kernels.jit import Array, jit_serial_and_parallel
from headway.kernels.llvm import FLOAT_VECTOR, INT64, LANES, Builder, intrinsic


def rotate_heads(x: Array, cosine: Array, sine: Array, num_heads: int, out: Array) -> None:
    """Write x (B, T, P) to ``out``, with each pair of units in the first ``num_heads`` heads rotated.

    x and out are contiguous and either float32 or uint16 (the bits of bfloat16). ``cosine`` and ``sine`` (T, K) are
    float32.
    Unit k of a head becomes x[k] * cosine[k] + x[other unit of the pair] * sine[k]. P must be at least ``num_heads`` K.
    """
    _rotate(x, cosine, sine, num_heads, out)


@intrinsic(lambda x, like, *_: types.void(types.uintp, like, *(types.uintp,) * 3, types.intp))
def _rotate_head(
    builder: Builder,
    x: ir.Value,
    like: ir.Value,
    cosine: ir.Value,
    sine: ir.Value,
    out: ir.Value,
    width: ir.Value,
) -> None:
    """Rotate one head, whose ``width`` is a multiple of LANES."""
    swapped = [lane ^ 1 for lane in range(LANES)]
    with builder.loop(builder.udiv(width, INT64(LANES))) as i:
        lanes = emit_read_float32(builder, x, like.type, i, FLOAT_VECTOR)
        other = builder.shuffle(lanes, lanes, swapped)
        turned = builder.fadd(
            builder.fmul(lanes, builder.read(cosine, FLOAT_VECTOR, i)),
            builder.fmul(other, builder.read(sine, FLOAT_VECTOR, i)),
        )
        builder.write(emit_cast(builder, turned, like.type), out, i)


@jit_serial_and_parallel
def _rotate(x: Array, cosine: Array, sine: Array, num_heads: int, out: Array) -> None:
    sentences, length, total = x.shape
    width = cosine.shape[1]
    whole = width // LANES * LANES
    for row in numba.prange(sentences * length):
        sentence, position = row // length, row % length
        own_x, own_out = x[sentence, position], out[sentence, position]
        own_cosine, own_sine = cosine[position], sine[position]
        for head in range(num_heads):
            first = head * width
            angles = own_cosine.ctypes.data, own_sine.ctypes.data
            _rotate_head(own_x[first:].ctypes.data, own_x[0], *angles, own_out[first:].ctypes.data, whole)
            for unit in range(whole, width):
                other = to_float32(own_x[first + (unit ^ 1)])
                turned = to_float32(own_x[first + unit]) * own_cosine[unit] + other * own_sine[unit]
                own_out[first + unit] = cast_like(turned, own_out[first + unit])
        for unit in range(num_heads * width, total):
            own_out[unit] = own_x[unit]
