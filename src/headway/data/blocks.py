"""Blocks of equal length for language models: concatenated documents, divided every ``block_length`` tokens.

A block may contain the end of a document and the beginning of the next, with EOS between them, so no batch needs
padding. Each epoch starts its blocks at a different offset, so that the block borders move. Order and offset are a pure
function of the seed and the epoch.

For models that carry their state from block to block, :class:`StreamDataset` contains the same blocks in a different
order: row i of a batch continues row i of the previous batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headway.data.batching import (
    LazyOrder,
    PaddedBatch,
    TokenDataset,
    corpus_weights,
    pool_of_batches,
    random_order,
)
from headway.data.draws import ORDER_VERSION, make_generator
from headway.data.epoch_plan import BatchPool, EpochPlan, RowNumbers
from headway.data.store import TokenStore
from headway.text.base import BOS, EOS

_BLOCKS_AT_ONCE = 1 << 15  # number of blocks in a pool
_READ_TOKENS = 1 << 20
_MIN_STREAM = 64  # minimum number of blocks of a validation stream, because its first tokens have little context


class BlockDataset(TokenDataset):
    """A dataset of blocks from token stores of documents. Row numbers are the positions of the blocks' first tokens.

    The positions of each store begin at a multiple of ``block_length``, after the positions of the previous store.

    Args:
        stores: Token stores with text on the source side.
        weights: Number of times that an epoch contains the text of each store.
        temperature: See :func:`headway.data.batching.corpus_weights`.
        block_length: Number of tokens in a block.
        part: Start and end of this dataset's share of each store, as fractions of the store's tokens.
    """

    def __init__(
        self,
        stores: Sequence[TokenStore],
        weights: Sequence[float] | None = None,
        temperature: float | None = None,
        *,
        block_length: int,
        part: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__(stores, weights)
        if temperature is not None:
            sizes = [store.num_tokens("source") for store in self._stores]
            self._weights = corpus_weights(sizes, self._weights, temperature)
        self._block_length = block_length
        self._spans = [[round(end * store.num_tokens("source")) for end in part] for store in self._stores]
        self._blocks = [-(-(end - begin) // block_length) for begin, end in self._spans]
        self._first_blocks = np.cumsum([0, *self._blocks])

    def __len__(self) -> int:
        """Return the number of blocks."""
        return int(self._first_blocks[-1])

    @property
    def max_length(self) -> int:
        """The length of the longest block."""
        return max(min(self._block_length, end - begin) for begin, end in self._spans)

    def longest_examples(self, segmentation: int) -> NDArray[np.int64]:
        """Return an empty array, because all whole blocks have the same length."""
        return np.empty((0, 2), np.int64)

    def num_tokens(self, side: str) -> int:
        """Return the number of tokens in all blocks. The source side has no tokens."""
        return sum(end - begin for begin, end in self._spans) if side == "target" else 0

    def _target_counts(self, number: int, size: int) -> NDArray[np.int64]:
        """Return how often each token id occurs in this dataset's share of a store. Every token is a target."""
        store, (begin, end) = self._stores[number], self._spans[number]
        counts = store.token_counts("source", size)
        for outside in ((0, begin), (end, store.num_tokens("source"))):
            counts = counts - store.count_tokens("source", *outside, size)
        return counts

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
        """Return the batches of an epoch, which contain only whole blocks, as a pure function of the arguments."""
        rng = make_generator(order_version, seed, epoch)
        offset = int(rng.integers(self._block_length))
        order = random_order(self._first_blocks[:-1], self._whole_blocks(), self._weights, rng)
        return self._plan(order, self._max_rows(max_batch_tokens, max_batch_examples), offset)

    def plan_sequential(self, max_batch_tokens: int, max_batch_examples: int | None = None) -> EpochPlan:
        """Return batches for validation with every token once, in order. The last block of a store may be short."""
        order = LazyOrder(len(self), lambda positions: positions)
        return self._plan(order, self._max_rows(max_batch_tokens, max_batch_examples), 0)

    def _whole_blocks(self) -> list[int]:
        """Return the number of blocks in each store that are whole at every offset; at least 1 if it has text."""
        return [max((end - begin + 1) // self._block_length - 1, min(1, end - begin)) for begin, end in self._spans]

    def _plan(self, order: LazyOrder, num_rows: int, offset: int) -> EpochPlan:
        """Return a plan with batches of ``num_rows`` blocks from ``order``, shifted by ``offset``."""
        num_batches = -(-len(order) // num_rows)
        stride = max(_BLOCKS_AT_ONCE // num_rows, 1)  # number of batches in a pool

        def make_pool(index: int) -> BatchPool:
            first = index * stride * num_rows
            rows = order[first : first + stride * num_rows] * self._block_length + offset
            starts = np.arange(0, len(rows), num_rows)
            bounds = np.stack([starts, np.minimum(starts + num_rows, len(rows))], 1)
            return pool_of_batches(rows, bounds, self._lengths_of_rows(rows))

        return EpochPlan(-(-num_batches // stride), stride, make_pool)

    def _lengths_of_rows(self, rows: RowNumbers) -> NDArray[np.int64]:
        """Return the lengths (source, target) of each block."""
        _, starts, ends = self._locate(rows)
        return np.stack([np.zeros(len(rows), np.int64), ends - starts], 1)

    def _max_rows(self, max_batch_tokens: int, max_batch_examples: int | None) -> int:
        rows = max(max_batch_tokens // self._block_length, 1)
        return rows if max_batch_examples is None else min(rows, max_batch_examples)

    def batch(self, rows: RowNumbers) -> PaddedBatch:
        """Return the tokens of the given blocks as targets. A short block is padded; sources are empty."""
        parts = self._read_blocks(rows)
        target = np.zeros((len(parts), max(map(len, parts))), np.int64)
        for row, part in enumerate(parts):
            target[row, : len(part)] = part
        return PaddedBatch(np.zeros((len(parts), 0), np.int64), target)

    def _read_blocks(self, rows: RowNumbers) -> list[NDArray[np.int64]]:
        places = zip(*(column.tolist() for column in self._locate(rows)), strict=True)
        return [self._stores[owner].read_tokens("source", start, end) for owner, start, end in places]

    def _locate(self, rows: RowNumbers) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the store of each block, and the positions of the block's start and end in this store."""
        spans = np.array(self._spans)
        owners = np.searchsorted(self._first_blocks * self._block_length, rows, side="right") - 1
        begins, ends = spans[owners].T
        starts = begins + rows - self._first_blocks[owners] * self._block_length
        whole = np.maximum(np.minimum(starts, ends - self._block_length), begins)
        starts = np.where(rows % self._block_length, whole, starts)
        return owners, starts, np.minimum(starts + self._block_length, ends)

    def text_tokens(self) -> NDArray[np.int64]:
        """Return the ids of all tokens in order. Use this only for a development set, which fits in memory."""
        return np.concatenate([np.empty(0, np.int64), *self._tokens_in_parts()])

    @property
    def has_targets(self) -> bool:
        """Whether there is any token to predict, not counting the ends of documents."""
        return any(bool(self._can_be_target(tokens).any()) for tokens in self._tokens_in_parts())

    def _can_be_target(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the tokens that may be prediction targets, not counting the ends of documents."""
        is_text: NDArray[np.bool_] = tokens != EOS
        return is_text

    def _tokens_in_parts(self) -> Iterator[NDArray[np.int64]]:
        """Yield all tokens in order, in parts of limited size."""
        for store, (begin, end) in zip(self._stores, self._spans, strict=True):
            for start in range(begin, end, _READ_TOKENS):
                yield store.read_tokens("source", start, min(start + _READ_TOKENS, end))


class StreamDataset(BlockDataset):
    """Blocks in contiguous streams: row i of each batch continues row i of the previous batch.

    The concatenated blocks of all stores are divided into as many streams as a batch has rows. In training, the streams
    of each epoch begin at a different block. The source side of a batch contains one token per row: the token before
    the block, or BOS if the block is the first of a stream or a store, where the model starts from its initial state.

    In the first batch of an epoch, where streams begin, the row numbers are marked by taking their complements,
    ``~row``.
    """

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
        """Return the batches of an epoch, all with the same number of rows, as a pure function of the arguments."""
        rng = make_generator(order_version, seed, epoch)
        offset = int(rng.integers(self._block_length))
        counts = np.array(self._whole_blocks())
        ends = np.cumsum(counts)
        streams = min(self._max_rows(max_batch_tokens, max_batch_examples), int(ends[-1]))
        begin, length = int(rng.integers(int(ends[-1]))), int(ends[-1]) // streams

        def block_indices(positions: NDArray[np.int64]) -> NDArray[np.int64]:
            steps, rows = np.divmod(positions, streams)
            entries = (rows * length + steps - begin) % ends[-1]
            owners = np.searchsorted(ends, entries, side="right")
            blocks: NDArray[np.int64] = entries + (self._first_blocks[:-1] - (ends - counts))[owners]
            return blocks

        return self._plan(LazyOrder(length * streams, block_indices), streams, offset)

    def _plan(self, order: LazyOrder, num_rows: int, offset: int) -> EpochPlan:
        plan = super()._plan(order, num_rows, offset)
        return plan.map_pools(lambda index, pool: pool if index else _begin_streams(pool))

    def plan_sequential(self, max_batch_tokens: int, max_batch_examples: int | None = None) -> EpochPlan:
        """Return batches for validation with every token once, in streams of at least 64 blocks if possible.

        The last batches have fewer rows if the last stream is shorter than the others.
        """
        streams = min(self._max_rows(max_batch_tokens, max_batch_examples), max(len(self) // _MIN_STREAM, 1))
        length = -(-len(self) // streams)
        padded = np.full(streams * length, -1, np.int64)
        padded[: len(self)] = np.arange(len(self))
        order = padded.reshape(streams, length).T
        ends = np.cumsum((order >= 0).sum(1))
        bounds = np.stack([np.concatenate([[0], ends[:-1]]), ends], 1)
        rows = order[order >= 0] * self._block_length
        pool = _begin_streams(pool_of_batches(rows, bounds, self._lengths_of_rows(rows)))
        return EpochPlan.from_single_pool(pool)

    def _lengths_of_rows(self, rows: RowNumbers) -> NDArray[np.int64]:
        lengths = super()._lengths_of_rows(rows)
        lengths[:, 0] = 1
        return lengths

    def batch(self, rows: RowNumbers) -> PaddedBatch:
        """Return the tokens of the given blocks as targets, and the token before each block as its source."""
        begins, rows = rows < 0, np.where(rows < 0, ~rows, rows)
        owners, starts, _ = self._locate(rows)
        begins |= rows // self._block_length == self._first_blocks[owners]
        before = [
            BOS if begin else int(self._stores[owner].read_tokens("source", start - 1, start)[0])
            for begin, owner, start in zip(begins.tolist(), owners.tolist(), starts.tolist(), strict=True)
        ]
        return PaddedBatch(np.array(before, np.int64).reshape(-1, 1), super().batch(rows).target)


def _begin_streams(pool: BatchPool) -> BatchPool:
    """Replace the row numbers of the first batch with their complements."""
    end = pool.bounds[0, 1] if len(pool) else 0
    return replace(pool, order=np.concatenate([~pool.order[:end], pool.order[end:]]))
