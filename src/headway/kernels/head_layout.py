"""Where the numbers of attention's heads stand: side by side as a projection leaves them, or one head after the other.

Numbers are float32 or uint16, the bits of bfloat16. P parts (queries, keys, values) of H heads, each K wide, of B
sentences of T positions stand side by side as (B, T, P * H * K), apart as (P, B * H, T, K).
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from headway.kernels.float_bits import cast_like, to_float32
from headway.kernels.jit import jit_serial_and_parallel
from headway.kernels.threads import run_threaded

__all__ = ["merge_heads", "split_heads"]

Array = npt.NDArray[Any]


def split_heads(joined: Array, bias: Array, apart: Array) -> None:
    """``apart`` = the heads of ``joined``, after ``bias`` (P * H * K,) of float32 has been added to all positions."""
    run_threaded(_part, joined, bias, apart)


def merge_heads(apart: Array, joined: Array) -> Array:
    """``joined`` = the heads side by side; returns their sum over all positions, in float32."""
    sums = np.empty((len(joined), joined.shape[2]), dtype=np.float32)
    run_threaded(_join, apart, joined, sums)
    total: Array = sums.sum(0)
    return total


@jit_serial_and_parallel
def _part(joined: Array, bias: Array, apart: Array) -> None:
    sentences, length, _ = joined.shape
    parts, width = len(apart), apart.shape[3]
    heads = apart.shape[1] // sentences
    for sentence in numba.prange(sentences):
        for kind in range(parts):
            for head in range(heads):
                first = (kind * heads + head) * width
                of_bias = bias[first : first + width]
                for position in range(length):
                    taken = joined[sentence, position, first : first + width]
                    put = apart[kind, sentence * heads + head, position]
                    for i in range(width):
                        put[i] = cast_like(to_float32(taken[i]) + of_bias[i], put[i])


@jit_serial_and_parallel
def _join(apart: Array, joined: Array, sums: Array) -> None:
    sentences, length, _ = joined.shape
    parts, width = len(apart), apart.shape[3]
    heads = apart.shape[1] // sentences
    for sentence in numba.prange(sentences):
        for kind in range(parts):
            for head in range(heads):
                first = (kind * heads + head) * width
                total = sums[sentence, first : first + width]
                total[:] = np.float32(0)
                for position in range(length):
                    taken = apart[kind, sentence * heads + head, position]
                    put = joined[sentence, position, first : first + width]
                    for i in range(width):
                        total[i] += to_float32(taken[i])
                        put[i] = taken[i]
