"""Compose the batches of each epoch, as a pure function of the seed and the epoch.

All examples are shuffled and split into pools; each pool is sorted by length and split into batches by a token budget;
then the batches are shuffled. Sentences of similar length share a batch (Vaswani et al. 2017, section 5.1), so there is
little padding. The composition and order of batches change every epoch. If a store contains several sampled
segmentations of each text, epochs alternate between them.

The order of the examples is computed on access (:func:`random_order`), and each pool when it is reached
(:class:`~headway.data.epoch_plan.EpochPlan`), so an epoch does not have to fit in memory. Batches are shuffled only
within their pool, but the examples of a pool come from the whole corpus. Runs that started with version 1 of the order
keep it: the whole epoch is in memory, and the batches of all pools are shuffled together.

``max_batch_tokens`` limits the number of rows times the length of the longer side, including padding; an example that
is longer than this forms its own batch. ``max_batch_examples`` limits the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.draws import ORDER_VERSION, RandomGenerator, make_generator
from headway.data.epoch_plan import BatchPool, EpochPlan, ExampleOrder, RowNumbers
from headway.data.permutation import Permutation
from headway.data.store import SIDES, TokenStore

Lengths = NDArray[np.int32]

_MIN_EVEN_ROWS = 8  # in smaller batches, an even number of rows saves less time than dropping a row costs


@dataclass(frozen=True)
class PaddedBatch:
    """Padded tokens: sources (B, S) and targets (B, T). Each row ends with the end symbol, followed by padding."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]


@dataclass(frozen=True)
class LazyOrder:
    """An order of examples that is computed on access instead of being stored.

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


def plan_batches(
    source: Lengths,
    target: Lengths,
    order: ExampleOrder,
    max_batch_tokens: int,
    pool_size: int,
    rng: np.random.Generator | None,
    max_batch_examples: int | None = None,
) -> BatchPool:
    """Split ``order`` into pools of ``pool_size`` examples, and the pools into batches (see the module docstring).

    Each pool of ``order`` is sorted in place. ``rng`` shuffles the batches of all pools together; if it is None, they
    are not shuffled.
    """
    tables = [np.empty((0, 6), np.int64)]
    for begin in range(0, len(order), pool_size):
        examples = order[begin : begin + pool_size]
        pool = make_batches(examples, source[examples], target[examples], max_batch_tokens, max_batch_examples)
        order[begin : begin + pool_size] = pool.order
        tables.append(np.concatenate([begin + pool.bounds, pool.max_lengths, pool.num_tokens], 1))
    table = np.concatenate(tables)
    if rng is not None:
        rng.shuffle(table)
    return BatchPool(order, table[:, :2], table[:, 2:4], table[:, 4:])


def make_batches(
    examples: ExampleOrder,
    source: Lengths,
    target: Lengths,
    max_batch_tokens: int,
    max_batch_examples: int | None = None,
) -> BatchPool:
    """Sort ``examples``, whose lengths are ``source`` and ``target``, by length, and split them into batches."""
    # Sort by target length, then by source length, alternately ascending and descending, so that neighbors have similar
    # lengths on both sides even if their target lengths differ.
    ranking = np.lexsort((np.where(target % 2, source, -source), target))
    lengths = np.stack([source[ranking], target[ranking]], 1)
    bounds = _split(lengths.max(1), max_batch_tokens, max_batch_examples)
    return pool_of_batches(examples[ranking], bounds, lengths)


def pool_of_batches(order: ExampleOrder, bounds: NDArray[np.int64], lengths: NDArray[Any]) -> BatchPool:
    """Return the pool of consecutive batches with these ``bounds``.

    Row i of ``lengths`` contains the source and target lengths of the example ``order[i]``.
    """
    if not len(bounds):
        return BatchPool(order, bounds, bounds, bounds)
    longest = np.maximum.reduceat(lengths, bounds[:, 0]).astype(np.int64)
    return BatchPool(order, bounds, longest, np.add.reduceat(lengths, bounds[:, 0], dtype=np.int64))


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
    """A dataset of one or more token stores.

    The weight of a store is the number of times that an epoch contains each of its examples. With a weight of 2.5, an
    epoch contains every example twice, and a random half of the examples a third time. If ``temperature`` is not None,
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
        """Length of the longest source or target row in any segmentation; 0 if there are no examples."""
        return max(
            int(self.longest_examples(segmentation).max(initial=0)) for segmentation in range(self.num_segmentations)
        )

    def longest_examples(self, segmentation: int) -> NDArray[np.int64]:
        """Return the lengths (source, target) of two examples: with the longest source, and with the longest target."""
        lengths = [store.longest_example(side, segmentation) for store in self._stores if len(store) for side in SIDES]
        pairs = np.array(lengths, np.int64).reshape(-1, 2)
        return pairs[pairs.argmax(0)] if len(pairs) else pairs

    def num_tokens(self, side: str) -> int:
        """Return the number of tokens on one side, including end symbols, averaged over the segmentations."""
        return sum(store.num_tokens(side) for store in self._stores) // self.num_segmentations

    def target_shares(self, size: int) -> NDArray[np.float64]:
        """Return the share of each of ``size`` token ids among the targets of an epoch, over all segmentations."""
        counts = np.zeros(size)
        for number, weight in enumerate(self._weights):
            counts += weight * self._target_counts(number, size)
        shares: NDArray[np.float64] = counts / counts.sum()
        return shares

    def _target_counts(self, number: int, size: int) -> NDArray[np.int64]:
        """Return how often each of ``size`` token ids is a target in store ``number``."""
        return self._stores[number].token_counts("target", size)

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
        """Return the batches of an epoch. Equal arguments give equal batches on every machine.

        For ``order_version``, see :mod:`headway.data.draws`.
        """
        rng, segmentation = make_generator(order_version, seed, epoch), epoch % self.num_segmentations
        sizes = [len(store) for store in self._stores]
        if isinstance(rng, np.random.Generator):
            examples = draw_examples(self._starts[:-1], sizes, self._weights, rng)
            return self._batches(examples, segmentation, max_batch_tokens, pool_size, rng, max_batch_examples)
        order = random_order(self._starts[:-1], sizes, self._weights, rng)

        def make_pool(index: int) -> BatchPool:
            examples = order[index * pool_size : (index + 1) * pool_size]
            source, target = (self._lengths_of(examples, side, segmentation) for side in SIDES)
            pool = make_batches(examples, source, target, max_batch_tokens, max_batch_examples)
            # + 1, because a trailing 0 in a seed has no effect
            shuffled = make_generator(order_version, seed, epoch, index + 1).permutation(len(pool))
            return replace(
                pool,
                bounds=pool.bounds[shuffled],
                max_lengths=pool.max_lengths[shuffled],
                num_tokens=pool.num_tokens[shuffled],
                segmentation=segmentation,
                num_segmentations=self.num_segmentations,
            )

        return EpochPlan(-(-len(order) // pool_size), pool_size, make_pool)

    def plan_sequential(self, max_batch_tokens: int, max_batch_examples: int | None = None) -> EpochPlan:
        """Return batches for validation, which contain every example once, sorted by length."""
        order, pool_size = np.arange(len(self)), max(len(self), 1)
        return self._batches(order, 0, max_batch_tokens, pool_size, None, max_batch_examples)

    def _batches(
        self,
        order: ExampleOrder,
        segmentation: int,
        max_batch_tokens: int,
        pool_size: int,
        rng: np.random.Generator | None,
        max_batch_examples: int | None = None,
    ) -> EpochPlan:
        """Return a plan that is completely in memory."""
        source, target = self.lengths("source", segmentation), self.lengths("target", segmentation)
        pool = plan_batches(source, target, order, max_batch_tokens, pool_size, rng, max_batch_examples)
        pool = replace(pool, segmentation=segmentation, num_segmentations=self.num_segmentations)
        return EpochPlan.from_single_pool(pool)

    def lengths(self, side: str, segmentation: int) -> Lengths:
        """Return the source or target length of every example in one segmentation."""
        return np.concatenate([store.lengths(side, segmentation) for store in self._stores])

    def _lengths_of(self, examples: NDArray[np.int64], side: str, segmentation: int) -> Lengths:
        """Return the source or target lengths of the given examples."""
        lengths = np.empty(len(examples), np.int32)
        owners = np.searchsorted(self._starts, examples, side="right") - 1
        for owner in np.unique(owners):
            chosen = owners == owner
            lengths[chosen] = self._stores[owner].lengths_of(examples[chosen] - self._starts[owner], side, segmentation)
        return lengths

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


def random_order(
    starts: Sequence[int] | NDArray[np.int64],
    sizes: Sequence[int],
    weights: Sequence[float],
    rng: RandomGenerator,
) -> LazyOrder:
    """Return a random order of the examples of an epoch, computed on access.

    The examples of corpus i are numbered from ``starts[i]``. The integer part of a corpus's weight is the number of
    times that each of its examples occurs. The fractional part is the share of randomly chosen examples that occur once
    more. Their number is randomly rounded up or down, so that small corpora are not always ignored. The order contains
    at least one example, unless all corpora are empty.
    """
    copies, shares = np.divmod(weights, 1.0)
    rounding = rng.random(len(sizes)) if shares.any() else 0.0
    counts = (np.array(sizes) * copies + np.floor(np.array(sizes) * shares + rounding)).astype(np.int64)
    if any(sizes) and not counts.any():
        counts[np.argmax(np.array(sizes) * shares)] = 1
    ends = np.cumsum(counts)
    shuffled, drawn = Permutation(int(ends[-1]), rng), [Permutation(int(size), rng) for size in sizes]

    def indices(positions: NDArray[np.int64]) -> NDArray[np.int64]:
        entries = shuffled(positions)
        owners = np.searchsorted(ends, entries, side="right")
        for owner in np.unique(owners):
            chosen = owners == owner
            copy, example = np.divmod(entries[chosen] - (ends[owner] - counts[owner]), sizes[owner])
            is_drawn = copy == copies[owner]
            example[is_drawn] = drawn[owner](example[is_drawn])
            entries[chosen] = starts[owner] + example
        return entries

    return LazyOrder(len(shuffled), indices)


def draw_examples(
    starts: Sequence[int] | NDArray[np.int64],
    sizes: Sequence[int],
    weights: Sequence[float],
    rng: np.random.Generator,
) -> ExampleOrder:
    """Return the examples of an epoch in random order, using version 1 of the order.

    The examples of corpus i are numbered from ``starts[i]``. The integer part of a corpus's weight is the number of
    times that each of its examples occurs, and the fractional part is the share of randomly drawn examples that occur
    once more.
    """
    dtype = np.int32 if sum(sizes) + max(starts, default=0) <= np.iinfo(np.int32).max else np.int64
    parts = []
    for start, size, weight in zip(starts, sizes, weights, strict=True):
        whole, fraction = divmod(weight, 1.0)
        indices = np.arange(start, start + size, dtype=dtype)
        parts += [indices] * int(whole)
        if fraction:
            parts.append(indices[rng.random(size) < fraction])
    order = np.concatenate(parts)
    rng.shuffle(order)
    return order


def corpus_weights(sizes: Sequence[int], weights: Sequence[float], temperature: float) -> list[float]:
    """Return the number of times that an epoch contains each example of each corpus.

    An epoch is as long as all corpora together. The share of corpus i in an epoch is proportional to
    (weight x size)^(1 / temperature) (Arivazhagan et al., "Massively Multilingual Neural Machine Translation in the
    Wild", 2019, section 4.2).
    """
    mass = [(weight * size) ** (1 / temperature) for weight, size in zip(weights, sizes, strict=True)]
    shares = [part / max(sum(mass), 1e-300) for part in mass]
    # Rounded, because a weight of 0.9999999999999999 would drop examples.
    return [round(share * sum(sizes) / max(size, 1), 12) for share, size in zip(shares, sizes, strict=True)]
