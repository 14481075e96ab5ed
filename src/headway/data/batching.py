"""Batches of each epoch, as a pure function of the seed and the epoch.

Shuffle all examples, split the order into pools, sort each pool by length, split it into batches by a token budget, and
shuffle the batches. Sentences of similar length share a batch (Vaswani et al. 2017, section 5.1), so there is little
padding. The composition and order of batches change every epoch. Because an epoch's batches depend only on the seed and
the epoch, the index of the next batch is all that resuming within an epoch needs. If a store has several sampled
segmentations of each text, epochs alternate between them.

``max_batch_tokens`` limits the number of rows times the length of the longer side, padding included; a longer example
forms its own batch. ``max_batch_examples`` limits the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headway.data.draws import ORDER_VERSION, Draws, RawDraws, make_draws
from headway.data.permutation import Permutation
from headway.data.store import SIDES, TokenStore

Lengths = NDArray[np.int32]
RowNumbers = NDArray[np.int64]
ExampleOrder = NDArray[np.int32] | NDArray[np.int64]  # example indices: int32 up to two billion examples

_SHUFFLED_POOLS = 8  # whose batches are shuffled together; examples are in random pools
_INDICES_AT_ONCE = 1 << 14  # few enough for a processor's cache
_MIN_EVEN_ROWS = 8  # in smaller batches, dropping a row to make the number even costs more than it saves


@dataclass(frozen=True)
class PaddedBatch:
    """Padded tokens: sources (B, S) and targets (B, T). Each row ends with the end symbol, followed by padding."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]


@dataclass(frozen=True)
class ComputedOrder:
    """An order of examples that is computed on access instead of stored.

    Attributes:
        length: Number of examples in the order.
        indices: Function that returns the example indices at given positions of the order.
    """

    length: int
    indices: Callable[[NDArray[np.int64]], NDArray[np.int64]]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, positions: slice) -> NDArray[np.int64]:
        return self.indices(np.arange(*positions.indices(self.length)))

    def as_array(self, num_examples: int) -> ExampleOrder:
        """Return the whole order, in which all indices are below ``num_examples``."""
        fits = num_examples <= np.iinfo(np.int32).max
        found: ExampleOrder = np.empty(self.length, np.int32) if fits else np.empty(self.length, np.int64)
        for begin in range(0, self.length, _INDICES_AT_ONCE):
            found[begin : begin + _INDICES_AT_ONCE] = self[begin : begin + _INDICES_AT_ONCE]
        return found


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one epoch: batch i contains the examples ``order[bounds[i, 0]:bounds[i, 1]]``.

    Indexing returns the row numbers of a batch in the token store: for each example, the row of ``segmentation``.
    """

    order: ExampleOrder | ComputedOrder
    bounds: NDArray[np.int64]
    segmentation: int = 0
    num_segmentations: int = 1

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, index: int) -> RowNumbers:
        start, end = self.bounds[index]
        return self.order[start:end].astype(np.int64) * self.num_segmentations + self.segmentation

    def __iter__(self) -> Iterator[RowNumbers]:
        return (self[index] for index in range(len(self)))


def plan_batches(
    source: Lengths,
    target: Lengths,
    order: ExampleOrder,
    max_batch_tokens: int,
    pool_size: int,
    rng: Draws | None,
    max_batch_examples: int | None = None,
) -> EpochPlan:
    """Split ``order`` into pools of ``pool_size`` examples, and the pools into batches, as described in the module.

    Each pool of ``order`` is sorted in place. ``rng`` shuffles the batches: all of them or, if its draws are
    :class:`RawDraws`, those of every eight pools. If it is None, they are not shuffled.
    """
    bounds = [np.empty((0, 2), np.int64)]
    for begin in range(0, len(order), pool_size):
        pool = order[begin : begin + pool_size]
        sources, targets = source[pool], target[pool]
        # Sort by target length, then by source length, alternately ascending and descending, so that neighbors have
        # similar lengths on both sides even if their target lengths differ.
        ranking = np.lexsort((np.where(targets % 2, sources, -sources), targets))
        bounds.append(begin + _split(np.maximum(sources, targets)[ranking], max_batch_tokens, max_batch_examples))
        order[begin : begin + pool_size] = pool[ranking]
    if isinstance(rng, RawDraws):
        for begin in range(1, len(bounds), _SHUFFLED_POOLS):
            shuffled = np.concatenate(bounds[begin : begin + _SHUFFLED_POOLS])
            rng.shuffle(shuffled)
            bounds[begin : begin + _SHUFFLED_POOLS] = [shuffled, *[bounds[0]] * (_SHUFFLED_POOLS - 1)]
    plan = np.concatenate(bounds)
    if isinstance(rng, np.random.Generator):
        rng.shuffle(plan)
    return EpochPlan(order, plan)


def _split(longer: Lengths, max_batch_tokens: int, max_batch_examples: int | None = None) -> NDArray[np.int64]:
    """Return (start, end) of consecutive batches.

    A batch has at most ``max_batch_examples`` rows. The number of rows times the longest length is at most
    ``max_batch_tokens``, unless the batch is a single long example. Batches of at least ``_MIN_EVEN_ROWS`` rows, except
    the last batch, are rounded down to an even number of rows, because a matrix product over an odd number of tokens
    takes 10 % longer (oneDNN in bfloat16, measured with AVX-512).
    """
    bounds = []
    start = 0
    while start < len(longer):
        most = max_batch_tokens // max(int(longer[start]), 1) + 1
        most = most if max_batch_examples is None else min(most, max_batch_examples)
        window = np.maximum.accumulate(longer[start : start + most])
        cost = window.astype(np.int64) * np.arange(1, len(window) + 1)
        rows = max(int(np.searchsorted(cost, max_batch_tokens, side="right")), 1)
        if rows >= _MIN_EVEN_ROWS and start + rows < len(longer):
            rows -= rows % 2
        end = start + rows
        bounds.append((start, end))
        start = end
    return np.array(bounds, np.int64).reshape(-1, 2)


class TokenDataset:
    """One or more token stores as one data set.

    The weight of a store is the number of times that an epoch contains each of its examples. With a weight of 2.5, an
    epoch contains every example twice, and a random half of them a third time. If ``temperature`` is given,
    :func:`corpus_weights` adjusts the weights.
    """

    def __init__(
        self, stores: Sequence[TokenStore], weights: Sequence[float] | None = None, temperature: float | None = None
    ) -> None:
        self._stores = list(stores)
        self._weights = list(weights or [1.0] * len(self._stores))
        if temperature is not None:
            self._weights = corpus_weights([len(store) for store in self._stores], self._weights, temperature)
        self._starts = np.cumsum([0] + [len(store) for store in self._stores])
        (self.num_segmentations,) = {store.num_segmentations for store in self._stores}

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def max_length(self) -> int:
        """Length of the longest row of either side in any segmentation; 0 if there are no examples."""
        rows = ((side, segmentation) for side in SIDES for segmentation in range(self.num_segmentations))
        return max(int(self.lengths(*each).max(initial=0)) for each in rows)

    def num_tokens(self, side: str) -> int:
        """Return the number of tokens on one side, including end symbols, averaged over the segmentations."""
        return sum(store.num_tokens(side) for store in self._stores) // self.num_segmentations

    def plan_epoch(
        self,
        seed: int,
        epoch: int,
        *,
        max_batch_tokens: int,
        pool_size: int,
        max_batch_examples: int | None = None,
        order_version: int = ORDER_VERSION,
    ) -> EpochPlan:
        """Return the batches of an epoch. The same arguments give the same batches on every machine.

        For ``order_version`` see :mod:`headway.data.draws`.
        """
        rng, starts, sizes = make_draws(order_version, seed, epoch), self._starts[:-1], list(map(len, self._stores))
        order: ExampleOrder
        if isinstance(rng, np.random.Generator):
            order = draw_examples(starts, sizes, self._weights, rng)
        else:
            order = random_order(starts, sizes, self._weights, rng).as_array(len(self))
        segmentation = epoch % self.num_segmentations
        return self._batches(order, segmentation, max_batch_tokens, pool_size, rng, max_batch_examples)

    def plan_sequential(self, max_batch_tokens: int, max_batch_examples: int | None = None) -> EpochPlan:
        """Return batches for validation, which contain every example once, sorted by length and not shuffled."""
        return self._batches(np.arange(len(self)), 0, max_batch_tokens, max(len(self), 1), None, max_batch_examples)

    def _batches(
        self,
        order: ExampleOrder,
        segmentation: int,
        max_batch_tokens: int,
        pool_size: int,
        rng: Draws | None,
        max_batch_examples: int | None = None,
    ) -> EpochPlan:
        source, target = self.lengths("source", segmentation), self.lengths("target", segmentation)
        plan = plan_batches(source, target, order, max_batch_tokens, pool_size, rng, max_batch_examples)
        return replace(plan, segmentation=segmentation, num_segmentations=self.num_segmentations)

    def lengths(self, side: str, segmentation: int) -> Lengths:
        """Return the source or target length of every example in one segmentation."""
        return np.concatenate([store.lengths(side, segmentation) for store in self._stores])

    def batch(self, rows: RowNumbers) -> PaddedBatch:
        """Return the padded tokens of the given rows."""
        return PaddedBatch(self._padded("source", rows), self._padded("target", rows))

    def _padded(self, side: str, rows: RowNumbers) -> NDArray[np.int64]:
        if len(self._stores) == 1:
            return self._stores[0].read_padded(side, rows)
        starts = self._starts * self.num_segmentations
        owners = np.searchsorted(starts, rows, side="right") - 1
        parts = {
            owner: self._stores[owner].read_padded(side, rows[owners == owner] - starts[owner])
            for owner in np.unique(owners)
        }
        tokens = np.zeros((len(rows), max(part.shape[1] for part in parts.values())), np.int64)
        for owner, part in parts.items():
            tokens[owners == owner, : part.shape[1]] = part
        return tokens

    def batch_lengths(self, plan: EpochPlan, side: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return two numbers for each batch of a plan: the maximum and the sum of the lengths on one side."""
        assert not isinstance(plan.order, ComputedOrder)
        if not len(plan):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        lengths = self.lengths(side, plan.segmentation)[plan.order].astype(np.int64)
        batches = np.argsort(plan.bounds[:, 0])
        starts = plan.bounds[batches, 0]
        longest, total = np.empty((2, len(plan)), np.int64)
        longest[batches], total[batches] = np.maximum.reduceat(lengths, starts), np.add.reduceat(lengths, starts)
        return longest, total

    def padding_fraction(self, plan: EpochPlan) -> float:
        """Return the fraction of padding in the source and target tensors of a plan's batches."""
        rows, real, cells = plan.bounds[:, 1] - plan.bounds[:, 0], 0, 0
        for side in SIDES:
            longest, total = self.batch_lengths(plan, side)
            real += int(total.sum())
            cells += int((rows * longest).sum())
        return 1 - real / cells if cells else 0.0


def draw_examples(
    starts: Sequence[int] | NDArray[np.int64],
    sizes: Sequence[int],
    weights: Sequence[float],
    rng: np.random.Generator,
) -> ExampleOrder:
    """Return the examples of an epoch in random order, in version 1 of the order.

    The examples of a corpus are numbered from its start. Each occurs as often as the corpus's weight says; a fraction
    of the weight is the share of the examples, drawn at random, that occur once more.
    """
    dtype = np.int32 if sum(sizes) + max(starts, default=0) <= np.iinfo(np.int32).max else np.int64
    parts = []
    for start, size, weight in zip(starts, sizes, weights, strict=True):
        whole, fraction = divmod(weight, 1.0)
        own = np.arange(start, start + size, dtype=dtype)
        parts += [own] * int(whole)
        if fraction:
            parts.append(own[rng.random(size) < fraction])
    order = np.concatenate(parts)
    rng.shuffle(order)
    return order


def random_order(
    starts: Sequence[int] | NDArray[np.int64],
    sizes: Sequence[int],
    weights: Sequence[float],
    rng: Draws,
    *,
    at_least_one: bool = False,
) -> ComputedOrder:
    """Return a random order of the examples of an epoch, or of blocks of text.

    The examples of a corpus are numbered from its start. Each occurs as often as the corpus's weight says; a fraction
    of the weight is the share of the examples, chosen at random, that occur once more. Their number is rounded up or
    down at random, so that small corpora are read as well. With ``at_least_one``, the order is not empty.
    """
    firsts, lengths = np.array(starts), np.array(sizes)
    copies, shares = np.divmod(weights, 1.0)
    rounding = rng.random(len(lengths)) if shares.any() else 0.0
    whole = (lengths * copies).astype(np.int64)
    counts = whole + np.floor(lengths * shares + rounding).astype(np.int64)
    if at_least_one and not counts.any():
        counts[np.argmax(lengths * shares)] = 1
    ends = np.cumsum(counts)
    shuffled, drawn = Permutation(int(ends[-1]), rng), [Permutation(int(size), rng) for size in lengths]

    def indices(positions: NDArray[np.int64]) -> NDArray[np.int64]:
        entries = shuffled(positions)
        owners = np.searchsorted(ends, entries, side="right")
        for owner in np.flatnonzero(np.bincount(owners)):
            chosen = owners == owner
            example = entries[chosen] - (ends[owner] - counts[owner])
            if counts[owner] > whole[owner]:
                is_drawn = example >= whole[owner]
                example[is_drawn] = drawn[owner](example[is_drawn] - whole[owner])
            if counts[owner] > lengths[owner]:
                example %= lengths[owner]
            entries[chosen] = firsts[owner] + example
        return entries

    return ComputedOrder(len(shuffled), indices)


def corpus_weights(sizes: Sequence[int], weights: Sequence[float], temperature: float) -> list[float]:
    """Return, for each corpus, the number of times that an epoch contains each of its examples.

    An epoch is as long as all corpora together. The share of corpus i in an epoch is proportional to
    (weight x size)^(1 / temperature) (Arivazhagan et al., "Massively Multilingual Neural Machine Translation in the
    Wild", 2019, section 4.2).
    """
    mass = [(weight * size) ** (1 / temperature) for weight, size in zip(weights, sizes, strict=True)]
    shares = [part / max(sum(mass), 1e-300) for part in mass]
    # Round, because a weight of 0.9999999999999999 would drop examples.
    return [round(share * sum(sizes) / max(size, 1), 12) for share, size in zip(shares, sizes, strict=True)]
