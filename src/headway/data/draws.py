"""Random numbers for the order of data that do not depend on the NumPy version.

NumPy guarantees that the raw bits of a bit generator never change, but not the numbers that ``numpy.random.Generator``
derives from them (NEP 19). :class:`StableGenerator` therefore derives its own random numbers from the raw bits. There
are two versions of the order:

    1   uses ``numpy.random.Generator``; for runs that started before version 2 existed
    2   uses :class:`StableGenerator`
"""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

ORDER_VERSION = 2  # the version that new runs use


class StableGenerator:
    """A subset of the methods of ``numpy.random.Generator``, computed from the raw bits of Philox."""

    def __init__(self, *seed: int) -> None:
        self.bit_generator = np.random.Philox(seed)

    @overload
    def random(self) -> float: ...
    @overload
    def random(self, size: int) -> NDArray[np.float64]: ...
    def random(self, size: int | None = None) -> float | NDArray[np.float64]:
        """Return uniformly distributed multiples of 2^-53 in [0, 1)."""
        bits: NDArray[np.uint64] = self.bit_generator.random_raw(1 if size is None else size)
        numbers = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return float(numbers[0]) if size is None else numbers

    @overload
    def integers(self, bound: int) -> int: ...
    @overload
    def integers(self, bound: int, size: int) -> NDArray[np.int64]: ...
    def integers(self, bound: int, size: int | None = None) -> int | NDArray[np.int64]:
        """Return integers from 0 to ``bound`` - 1 with a nearly uniform distribution (relative error below ``bound`` /
        2^53).
        """
        numbers = np.floor(self.random(1 if size is None else size) * bound).astype(np.int64)
        return int(numbers[0]) if size is None else numbers

    def geometric(self, p: float) -> int:
        """Return the number of independent trials up to the first success, which has the probability ``p``."""
        trials = 1
        while self.random() >= p:
            trials += 1
        return trials

    def permutation(self, size: int) -> NDArray[np.int64]:
        """Return the integers from 0 to ``size`` - 1 in random order."""
        return np.argsort(self.bit_generator.random_raw(size), kind="stable")

    def shuffle(self, rows: NDArray[Any]) -> None:
        """Shuffle the rows of an array in place."""
        rows[:] = rows[self.permutation(len(rows))]


RandomGenerator = np.random.Generator | StableGenerator


def make_generator(order_version: int, *seed: int) -> RandomGenerator:
    """Return the random number generator for this ``order_version``."""
    return np.random.default_rng(seed) if order_version == 1 else StableGenerator(*seed)
