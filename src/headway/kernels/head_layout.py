"""Convert between the two layouts of attention heads: merged, as in a projection's output, or split by head.

P parts (queries, keys, values) with H heads of width K, for B sentences with T positions, have shape (B, T, P * H * K)
when merged and (P, B * H, T, K) when split. Arrays are float32 or uint16 (the bits of bfloat16).
"""

from __future__ import annotations

import numba
import numpy as np

from headway.kernels.float_bits import cast_like, to_float32
from headway.kernels.jit import Array, jit_serial_and_parallel


def split_heads(merged: Array, bias: Array, split: Array) -> None:
    """Add ``bias`` (P * H * K,) in float32 to each position of ``merged``, and write the result to ``split``."""
    _split(merged, bias, split)


def merge_heads(split: Array, merged: Array) -> Array:
    """Write ``split`` to ``merged``, and return its sum over all positions (P * H * K,) in float32."""
    sums = np.empty((len(merged), merged.shape[2]), dtype=np.float32)
    _merge(split, merged, sums)
    total: Array = sums.sum(0)
    return total


@jit_serial_and_parallel
def _split(merged: Array, bias: Array, split: Array) -> None:
    sentences, length, _ = merged.shape
    parts, width = len(split), split.shape[3]
    heads = split.shape[1] // sentences
    for sentence in numba.prange(sentences):
        for part in range(parts):
            for head in range(heads):
                first = (part * heads + head) * width
                own_bias = bias[first : first + width]
                for position in range(length):
                    source = merged[sentence, position, first : first + width]
                    target = split[part, sentence * heads + head, position]
                    for i in range(width):
                        target[i] = cast_like(to_float32(source[i]) + own_bias[i], target[i])


@jit_serial_and_parallel
def _merge(split: Array, merged: Array, sums: Array) -> None:
    sentences, length, _ = merged.shape
    parts, width = len(split), split.shape[3]
    heads = split.shape[1] // sentences
    for sentence in numba.prange(sentences):
        for part in range(parts):
            for head in range(heads):
                first = (part * heads + head) * width
                total = sums[sentence, first : first + width]
                total[:] = np.float32(0)
                for position in range(length):
                    source = split[part, sentence * heads + head, position]
                    target = merged[sentence, position, first : first + width]
                    for i in range(width):
                        total[i] += to_float32(source[i])
                        target[i] = source[i]
