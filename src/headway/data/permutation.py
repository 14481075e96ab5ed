"""Random permutations of large ranges, computed on access instead of stored.

A balanced Feistel network with random round keys permutes all numbers of 2k bits (Luby and Rackoff 1988). A smaller
range is permuted by applying the network until the result is in the range (cycle walking; Black and Rogaway 2002,
section 4). The bits are mixed as in SplitMix64 (Steele et al. 2014, figure 13).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8


class Permutation:
    """A random permutation of the integers from 0 to ``size`` - 1, drawn with ``rng``."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self._size = size
        self._half_bits = np.uint64(max(-(-(size - 1).bit_length() // 2), 1))
        self._keys = rng.integers(2**64, size=_ROUNDS, dtype=np.uint64)

    def __len__(self) -> int:
        return self._size

    def __call__(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the image of each of ``numbers`` under the permutation."""
        images = self._apply_network(numbers.astype(np.uint64))
        while len(outside := np.flatnonzero(images >= self._size)):
            images[outside] = self._apply_network(images[outside])
        return images.astype(np.int64)

    def _apply_network(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        mask = (np.uint64(1) << self._half_bits) - np.uint64(1)
        left, right = numbers >> self._half_bits, numbers & mask
        for key in self._keys:
            left, right = right, left ^ (_mix_bits(right + key) & mask)
        joined: NDArray[np.uint64] = left << self._half_bits | right
        return joined


def _mix_bits(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)
