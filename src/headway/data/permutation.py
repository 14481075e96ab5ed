"""Random permutations of large ranges that are computed where they are needed, so that they take no memory.

A balanced Feistel network with random round keys permutes all numbers of 2k bits (Luby and Rackoff 1988). A smaller
range is permuted by applying the network until the result is in the range (cycle walking; Black and Rogaway 2002,
section 4). The bits are mixed as in SplitMix64 (Steele et al. 2014, figure 13).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8


class Permutation:
    """A random permutation of the numbers 0 to ``size`` - 1, determined by the state of ``rng``."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self._size = size
        self._half_bits = np.uint64(max(-(-(size - 1).bit_length() // 2), 1))
        self._keys = rng.integers(2**64, size=_ROUNDS, dtype=np.uint64)

    def __len__(self) -> int:
        return self._size

    def __call__(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where each of ``numbers`` is moved."""
        moved = self._walk(numbers.astype(np.uint64))
        while len(outside := np.flatnonzero(moved >= self._size)):
            moved[outside] = self._walk(moved[outside])
        return moved.astype(np.int64)

    def _walk(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        mask = (np.uint64(1) << self._half_bits) - np.uint64(1)
        left, right = numbers >> self._half_bits, numbers & mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        joined: NDArray[np.uint64] = left << self._half_bits | right
        return joined


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)
