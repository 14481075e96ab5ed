"""Which examples stand in which batch: a pure function of the seed and the epoch.

Shuffle all examples, cut the order into pools, sort each pool by length, cut it into batches by a budget of tokens,
shuffle the batches. Sentences of like length come together (Vaswani et al. 2017, section 5.1), so little is padding;
which ones do, and when, changes every epoch. The position in training is then one number, and resuming needs no state
but that number.

``max_tokens`` bounds rows x the longer side, padding included. An example longer than the budget is a batch of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.data.store import TokenStore

__all__ = ["Batch", "Corpora", "EpochPlan", "token_batches"]

Lengths = NDArray[np.int32]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Padded tokens: sources (B, S) and targets (B, T), each row ending in the end symbol before its padding."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one epoch: batch i holds the examples ``rows[bounds[i, 0]:bounds[i, 1]]``."""

    rows: Rows
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, index: int) -> Rows:
        start, end = self.bounds[index]
        return self.rows[start:end]

    def __iter__(self) -> Iterator[Rows]:
        return (self[index] for index in range(len(self)))


def token_batches(
    source: Lengths, target: Lengths, rows: Rows, *, max_tokens: int, pool_size: int, rng: np.random.Generator | None
) -> EpochPlan:
    """Cut ``rows``, in their order, into pools of ``pool_size`` examples and these into batches; see the module.

    ``rng`` shuffles the batches; None leaves them sorted inside their pools.
    """
    ordered, bounds = [], []
    for begin in range(0, len(rows), pool_size):
        pool = rows[begin : begin + pool_size]
        # By target, then by source, which runs up and down in turn: neighbours are alike on both sides, seams included.
        by_source = np.where(target[pool] % 2, source[pool], -source[pool])
        pool = pool[np.lexsort((by_source, target[pool]))]
        ordered.append(pool)
        bounds.append(begin + _cut(np.maximum(source[pool], target[pool]), max_tokens))
    plan = np.concatenate(bounds) if bounds else np.empty((0, 2), np.int64)
    if rng is not None:
        rng.shuffle(plan)
    return EpochPlan(np.concatenate(ordered) if ordered else rows, plan)


def _cut(longer: Lengths, max_tokens: int) -> NDArray[np.int64]:
    """(start, end) of consecutive batches in which rows x the longest stays within the budget."""
    bounds = []
    start = 0
    while start < len(longer):
        window = np.maximum.accumulate(longer[start : start + max_tokens // max(int(longer[start]), 1) + 1])
        cost = window.astype(np.int64) * np.arange(1, len(window) + 1)
        end = start + max(int(np.searchsorted(cost, max_tokens, side="right")), 1)
        bounds.append((start, end))
        start = end
    return np.array(bounds, np.int64).reshape(-1, 2)


class Corpora:
    """Several stores as one training set, each with a weight: how often an epoch shows each of its examples.

    A weight of 2.5 shows every example twice, and half of them, drawn anew each epoch, a third time.
    """

    def __init__(self, stores: Sequence[TokenStore], weights: Sequence[float] | None = None) -> None:
        self._stores = list(stores)
        self._weights = list(weights or [1.0] * len(self._stores))
        self._starts = np.cumsum([0] + [len(store) for store in self._stores])
        self.source_lengths: Lengths = np.concatenate([store.lengths("source") for store in self._stores])
        self.target_lengths: Lengths = np.concatenate([store.lengths("target") for store in self._stores])

    def __len__(self) -> int:
        return len(self.source_lengths)

    def epoch(self, seed: int, epoch: int, *, max_tokens: int, pool_size: int) -> EpochPlan:
        """The batches of an epoch, the same for the same arguments on every machine."""
        rng = np.random.default_rng((seed, epoch))
        parts = []
        for start, store, weight in zip(self._starts, self._stores, self._weights, strict=False):
            whole, fraction = divmod(weight, 1.0)
            own = start + np.arange(len(store))
            extra = own[rng.random(len(store)) < fraction] if fraction else own[:0]
            parts += [np.tile(own, int(whole)), extra]
        rows = np.concatenate(parts)
        rng.shuffle(rows)
        return token_batches(
            self.source_lengths, self.target_lengths, rows, max_tokens=max_tokens, pool_size=pool_size, rng=rng
        )

    def sequential(self, *, max_tokens: int) -> EpochPlan:
        """Every example once, sorted by length, in no random order: for validation."""
        rows = np.arange(len(self))
        return token_batches(
            self.source_lengths, self.target_lengths, rows, max_tokens=max_tokens, pool_size=max(len(self), 1), rng=None
        )

    def batch(self, rows: Rows) -> Batch:
        """The padded tokens of some examples."""
        if len(self._stores) == 1:
            return Batch(self._stores[0].padded("source", rows), self._stores[0].padded("target", rows))
        return Batch(self._mixed("source", rows), self._mixed("target", rows))

    def _mixed(self, side: str, rows: Rows) -> NDArray[np.int64]:
        owners = np.searchsorted(self._starts, rows, side="right") - 1
        lengths = self.source_lengths if side == "source" else self.target_lengths
        tokens = np.zeros((len(rows), int(lengths[rows].max())), np.int64)
        for owner in np.unique(owners):
            mine = np.flatnonzero(owners == owner)
            part = self._stores[owner].padded(side, rows[mine] - self._starts[owner])
            tokens[mine, : part.shape[1]] = part
        return tokens

    def padding(self, plan: EpochPlan) -> float:
        """The share of padding in the source and target tensors of a plan's batches."""
        real = int(self.source_lengths[plan.rows].sum()) + int(self.target_lengths[plan.rows].sum())
        cells = sum(len(rows) * int(self.source_lengths[rows].max() + self.target_lengths[rows].max()) for rows in plan)
        return 1 - real / cells if cells else 0.0
