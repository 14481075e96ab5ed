"""Random permutations of large ranges, computed on access instead of being stored.

A balanced Feistel network with random round keys permutes all numbers of 2k bits (Luby and Rackoff 1988). A smaller
range is permuted by applying the network until the result is in the range (cycle walking; Black and Rogaway 2002,
section 4). The bits are mixed as in SplitMix64 (Steele et al. 2014, figure 13).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.data.draws import RandomGenerator

_ROUNDS = 8


class Permutation:
    """A random permutation of the integers from 0 to ``size`` - 1, drawn with ``rng``."""

    def __init__(self, size: int, rng: RandomGenerator) -> None:
        self._size = size
        self._half_bits = np.uint64(max(-(-(size - 1).bit_length() // 2), 1))
        self._keys = rng.bit_generator.random_raw(_ROUNDS)

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
        left, right, mixed = numbers >> self._half_bits, numbers & mask, np.empty_like(numbers)
        shifted = np.empty_like(numbers)
        for key in self._keys:
            np.add(right, key, out=mixed)
            _mix_bits(mixed, shifted)
            mixed &= mask
            mixed ^= left
            left, right, mixed = right, mixed, left
        left <<= self._half_bits
        left |= right
        return left


def _mix_bits(x: NDArray[np.uint64], shifted: NDArray[np.uint64]) -> None:
    """Mix the bits of each number in place. ``shifted`` is overwritten."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.right_shift(x, np.uint64(shift), out=shifted)
        x ^= shifted
        x *= np.uint64(factor)
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
