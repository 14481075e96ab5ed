"""The batches of an epoch, computed pool by pool on demand.

An epoch consists of pools of batches. The pools are a pure function of the seed and the epoch, and each pool can be
computed independently. Only the current pool is in memory, regardless of the size of the corpus.

A position in an epoch is a single number, ``pool * pool_stride + batch``, which is sufficient to resume within an
epoch. If a pool has fewer batches than ``pool_stride``, the positions after its last batch are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RowNumbers = NDArray[np.int64]
ExampleOrder = NDArray[np.int32] | NDArray[np.int64]  # example indices; int32 for up to two billion examples


@dataclass(frozen=True)
class BatchPool:
    """Some batches of an epoch: batch i contains the examples ``order[bounds[i, 0]:bounds[i, 1]]``.

    Indexing returns the row numbers of a batch in the token store. The store has one row per segmentation of an
    example; ``segmentation`` selects the row.

    Attributes:
        order: Indices of examples.
        bounds: Start and end of each batch in ``order`` (N, 2).
        max_lengths: Lengths of the longest source and the longest target in each batch (N, 2).
        num_tokens: Numbers of source and target tokens in each batch (N, 2), excluding padding.
        is_exact: Whether ``max_lengths`` and ``num_tokens`` are exact. Otherwise they are upper bounds.
        segmentation: Index of the segmentation to use.
        num_segmentations: Number of rows per example in the store.
    """

    order: ExampleOrder
    bounds: NDArray[np.int64]
    max_lengths: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    is_exact: bool = True
    segmentation: int = 0
    num_segmentations: int = 1

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, index: int) -> RowNumbers:
        start, end = self.bounds[index]
        return self.order[start:end].astype(np.int64) * self.num_segmentations + self.segmentation

    def __iter__(self) -> Iterator[RowNumbers]:
        return (self[index] for index in range(len(self)))

    @property
    def num_rows(self) -> NDArray[np.int64]:
        """The number of rows of each batch."""
        return self.bounds[:, 1] - self.bounds[:, 0]

    @property
    def padding_fraction(self) -> float:
        """The fraction of padding in the source and target tensors of all batches."""
        cells = int((self.num_rows[:, None] * self.max_lengths).sum())
        return 1 - int(self.num_tokens.sum()) / cells if cells else 0.0


class EpochPlan:
    """The pools of one epoch.

    Args:
        num_pools: Number of pools.
        pool_stride: Number of positions per pool, which is at least its number of batches.
        make_pool: Function that computes a pool from its index.
    """

    def __init__(self, num_pools: int, pool_stride: int, make_pool: Callable[[int], BatchPool]) -> None:
        self.num_pools, self.pool_stride = num_pools, pool_stride
        self._make_pool = make_pool
        self._newest: tuple[int, BatchPool] | None = None

    @classmethod
    def from_single_pool(cls, pool: BatchPool) -> EpochPlan:
        """Return a plan with a single pool, so that positions are batch indices."""
        return cls(min(len(pool), 1), max(len(pool), 1), lambda _: pool)

    def map_pools(self, change: Callable[[int, BatchPool], BatchPool]) -> EpochPlan:
        """Return a plan with changed pools. ``change`` receives the index of a pool and the pool."""
        return EpochPlan(self.num_pools, self.pool_stride, lambda index: change(index, self._make_pool(index)))

    def pool(self, index: int) -> BatchPool:
        """Return a pool. The most recent pool is cached, because its batches are used consecutively."""
        newest = self._newest
        if newest is None or newest[0] != index:
            newest = self._newest = index, self._make_pool(index)
        return newest[1]

    def locate(self, position: int) -> tuple[BatchPool, int, int] | None:
        """Find the first batch at or after ``position``. Return its pool, its index in the pool, and its position.

        Returns None if the epoch has no more batches.
        """
        number, index = divmod(position, self.pool_stride)
        while number < self.num_pools:
            pool = self.pool(number)
            if index < len(pool):
                return pool, index, number * self.pool_stride + index
            number, index = number + 1, 0
        return None

    def estimate_len(self) -> int:
        """Return the number of batches, assuming that all pools except the last have the same number as the first."""
        return len(self.pool(0)) * (self.num_pools - 1) + len(self.pool(self.num_pools - 1))

    def __getitem__(self, position: int) -> RowNumbers:
        location = self.locate(position)
        if location is None or location[2] != position:
            raise IndexError(position)
        pool, index, _ = location
        return pool[index]

    def __iter__(self) -> Iterator[RowNumbers]:
        return (rows for index in range(self.num_pools) for rows in self.pool(index))
