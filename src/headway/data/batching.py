"""Which examples stand in which batch: a pure function of the seed and the epoch.

Shuffle all examples, cut the order into pools, sort each pool by length, cut it into batches by a budget of tokens,
shuffle the batches. Sentences of like length come together (Vaswani et al. 2017, section 5.1), so little is padding;
which ones do, and when, changes every epoch. The position in training is then one number, and resuming needs no state
but that number. Where a store holds several sampled segmentations of each text, epochs take turns among them.

``max_tokens`` bounds rows x the longer side, padding included; an example longer than that is a batch of its own.
``max_examples`` bounds the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headway.data.store import SIDES, TokenStore

__all__ = ["Batch", "Corpora", "EpochPlan", "tempered", "token_batches"]

Lengths = NDArray[np.int32]
Rows = NDArray[np.int64]
Order = NDArray[np.int32] | NDArray[np.int64]  # examples; four bytes each up to two billion of them

_FEW = 8  # rows, of which leaving one out costs more than it saves


@dataclass(frozen=True)
class Batch:
    """Padded tokens: sources (B, S) and targets (B, T), each row ending in the end symbol before its padding."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one epoch: batch i holds the examples ``order[bounds[i, 0]:bounds[i, 1]]``.

    Indexing gives rows of the stores: of each example the row of ``segmentation``, one of ``segmentations``.
    """

    order: Order
    bounds: NDArray[np.int64]
    segmentation: int = 0
    segmentations: int = 1

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, index: int) -> Rows:
        start, end = self.bounds[index]
        return self.order[start:end].astype(np.int64) * self.segmentations + self.segmentation

    def __iter__(self) -> Iterator[Rows]:
        return (self[index] for index in range(len(self)))


def token_batches(
    source: Lengths,
    target: Lengths,
    order: Order,
    *,
    max_tokens: int,
    pool_size: int,
    rng: np.random.Generator | None,
    max_examples: int | None = None,
) -> EpochPlan:
    """Cut ``order`` into pools of ``pool_size`` examples and these into batches; see the module.

    ``order`` is sorted in place. ``rng`` shuffles the batches; None leaves them sorted inside their pools.
    """
    bounds = [np.empty((0, 2), np.int64)]
    for begin in range(0, len(order), pool_size):
        pool = order[begin : begin + pool_size]
        sources, targets = source[pool], target[pool]
        # By target, then by source, which runs up and down in turn: neighbours are alike on both sides, seams included.
        ranking = np.lexsort((np.where(targets % 2, sources, -sources), targets))
        bounds.append(begin + _cut(np.maximum(sources, targets)[ranking], max_tokens, max_examples))
        order[begin : begin + pool_size] = pool[ranking]
    plan = np.concatenate(bounds)
    if rng is not None:
        rng.shuffle(plan)
    return EpochPlan(order, plan)


def _cut(longer: Lengths, max_tokens: int, max_examples: int | None = None) -> NDArray[np.int64]:
    """(start, end) of consecutive batches in which rows, and rows x the longest, stay within the budget.

    Many rows are even in number, but for the rest: a product over an odd number of tokens takes a tenth longer
    (oneDNN's of bfloat16, measured with AVX-512).
    """
    bounds = []
    start = 0
    while start < len(longer):
        most = max_tokens // max(int(longer[start]), 1) + 1
        most = most if max_examples is None else min(most, max_examples)
        window = np.maximum.accumulate(longer[start : start + most])
        cost = window.astype(np.int64) * np.arange(1, len(window) + 1)
        rows = max(int(np.searchsorted(cost, max_tokens, side="right")), 1)
        if rows >= _FEW and start + rows < len(longer):
            rows -= rows % 2
        end = start + rows
        bounds.append((start, end))
        start = end
    return np.array(bounds, np.int64).reshape(-1, 2)


class Corpora:
    """Several stores as one training set, each with a weight: how often an epoch shows each of its examples.

    A weight of 2.5 shows every example twice, and half of them, drawn anew each epoch, a third time. With a
    ``temperature`` the weights are those of :func:`tempered`.
    """

    def __init__(
        self, stores: Sequence[TokenStore], weights: Sequence[float] | None = None, temperature: float | None = None
    ) -> None:
        self._stores = list(stores)
        self._weights = list(weights or [1.0] * len(self._stores))
        if temperature is not None:
            self._weights = tempered([len(store) for store in self._stores], self._weights, temperature)
        self._starts = np.cumsum([0] + [len(store) for store in self._stores])
        (self.segmentations,) = {store.segmentations for store in self._stores}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def source_lengths(self) -> Lengths:
        """The length of every row's source, read when asked for."""
        return self._row_lengths("source")

    @property
    def target_lengths(self) -> Lengths:
        """The length of every row's target, read when asked for."""
        return self._row_lengths("target")

    def num_tokens(self, side: str) -> int:
        """Tokens of all examples on one side, with their end symbols; of several segmentations the mean."""
        return sum(store.num_tokens(side) for store in self._stores) // self.segmentations

    def epoch(
        self, seed: int, epoch: int, *, max_tokens: int, pool_size: int, max_examples: int | None = None
    ) -> EpochPlan:
        """The batches of an epoch, the same for the same arguments on every machine."""
        rng = np.random.default_rng((seed, epoch))
        dtype = np.int32 if len(self) <= np.iinfo(np.int32).max else np.int64
        parts = []
        for start, store, weight in zip(self._starts, self._stores, self._weights, strict=False):
            whole, fraction = divmod(weight, 1.0)
            own = np.arange(start, start + len(store), dtype=dtype)
            parts += [own] * int(whole)
            if fraction:
                parts.append(own[rng.random(len(store)) < fraction])
        order = np.concatenate(parts)
        rng.shuffle(order)
        return self._batches(order, epoch % self.segmentations, max_tokens, pool_size, rng, max_examples)

    def sequential(self, *, max_tokens: int, max_examples: int | None = None) -> EpochPlan:
        """Every example once, sorted by length, in no random order: for validation."""
        return self._batches(np.arange(len(self)), 0, max_tokens, max(len(self), 1), None, max_examples)

    def _batches(
        self,
        order: Order,
        segmentation: int,
        max_tokens: int,
        pool_size: int,
        rng: np.random.Generator | None,
        max_examples: int | None = None,
    ) -> EpochPlan:
        source, target = self.lengths("source", segmentation), self.lengths("target", segmentation)
        plan = token_batches(
            source, target, order, max_tokens=max_tokens, pool_size=pool_size, rng=rng, max_examples=max_examples
        )
        return replace(plan, segmentation=segmentation, segmentations=self.segmentations)

    def lengths(self, side: str, segmentation: int) -> Lengths:
        """The length of every example's source or target in one segmentation."""
        return np.concatenate([store.lengths(side, segmentation) for store in self._stores])

    def _row_lengths(self, side: str) -> Lengths:
        return np.concatenate([store.row_lengths(side) for store in self._stores])

    def batch(self, rows: Rows) -> Batch:
        """The padded tokens of some rows."""
        if len(self._stores) == 1:
            return Batch(self._stores[0].padded("source", rows), self._stores[0].padded("target", rows))
        return Batch(self._mixed("source", rows), self._mixed("target", rows))

    def _mixed(self, side: str, rows: Rows) -> NDArray[np.int64]:
        starts = self._starts * self.segmentations
        owners = np.searchsorted(starts, rows, side="right") - 1
        parts = {
            owner: self._stores[owner].padded(side, rows[owners == owner] - starts[owner])
            for owner in np.unique(owners)
        }
        tokens = np.zeros((len(rows), max(part.shape[1] for part in parts.values())), np.int64)
        for owner, part in parts.items():
            tokens[owners == owner, : part.shape[1]] = part
        return tokens

    def padding(self, plan: EpochPlan) -> float:
        """The share of padding in the source and target tensors of a plan's batches."""
        if not len(plan):
            return 0.0
        starts, ends = plan.bounds[np.argsort(plan.bounds[:, 0])].T
        real = cells = 0
        for side in SIDES:
            lengths = self.lengths(side, plan.segmentation)[plan.order]
            real += int(lengths.sum())
            cells += int(((ends - starts) * np.maximum.reduceat(lengths, starts)).sum())
        return 1 - real / cells


def tempered(sizes: Sequence[int], weights: Sequence[float], temperature: float) -> list[float]:
    """How often an epoch as long as all corpora shows each example of each, where corpus i's share of the epoch is
    proportional to (weight x size)^(1 / temperature) (Arivazhagan et al., "Massively Multilingual Neural Machine
    Translation in the Wild", 2019, section 4.2)."""
    mass = [(weight * size) ** (1 / temperature) for weight, size in zip(weights, sizes, strict=True)]
    shares = [part / max(sum(mass), 1e-300) for part in mass]
    # Rounded, for 0.9999999999999999 would leave examples out.
    return [round(share * sum(sizes) / max(size, 1), 12) for share, size in zip(shares, sizes, strict=True)]
