"""Masks for dropout, from random numbers that any thread can begin anywhere.

The i-th 64 random bits are those of SplitMix64 (Steele, Lea and Flood 2014) after i steps: a hash of the seed and i, so
what a mask is does not depend on how many threads make it. Sixteen bits decide on each element.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from headway.kernels.compiling import compiled, compiled_for_threads
from headway.kernels.threads import share

__all__ = ["fill_mask"]

Array = npt.NDArray[Any]

_PART = 2048  # words of 64 bits at a time, which a cache holds
_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


def fill_mask(out: Array, seed: int, dropped: int, kept: Any) -> None:
    """Each of ``out`` (N,) becomes ``kept``, or 0 with a probability of ``dropped`` / 2^16."""
    share(_fill_shared, _fill, out, np.uint64(seed), np.uint16(dropped), out.dtype.type(kept))


def _fill(out: Array, seed: Any, dropped: Any, kept: Any) -> None:
    zero = out.dtype.type(0)
    for part in numba.prange(-(-len(out) // (4 * _PART))):
        words = np.empty(_PART, dtype=np.uint64)
        for i in range(_PART):
            word = seed + np.uint64(part * _PART + i + 1) * _STEP
            word = (word ^ (word >> _SHIFTS[0])) * _FIRST
            word = (word ^ (word >> _SHIFTS[1])) * _SECOND
            words[i] = word ^ (word >> _SHIFTS[2])
        bits = words.view(np.uint16)
        first = part * 4 * _PART
        of_part = out[first : first + 4 * _PART]
        for i in range(len(of_part)):
            of_part[i] = kept if bits[i] >= dropped else zero


_fill_shared, _fill = compiled_for_threads(_fill), compiled(_fill)
