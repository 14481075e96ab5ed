"""Blocks of equal length for language models: documents one after the other, divided every ``block_length`` tokens.

A block may contain the end of one document and the beginning of the next, with EOS between them, so that no batch needs
padding. Each epoch begins its blocks at another offset, so that the borders between them move. Order and offset are a
pure function of the seed and the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headway.data.batching import (
    EpochPlan,
    ExampleOrder,
    Lengths,
    PaddedBatch,
    RowNumbers,
    TokenDataset,
    corpus_weights,
    draw_examples,
)
from headway.data.store import TokenStore


class BlockDataset(TokenDataset):
    """Token stores of documents as a data set of blocks. Row numbers are the positions of the blocks' first tokens.

    The positions of a store begin at a multiple of ``block_length``, after those of the store before it.

    Args:
        stores: The stores, with their text on the source side.
        weights: How often an epoch contains the text of each store.
        temperature: See :func:`headway.data.batching.corpus_weights`.
        block_length: Tokens in a block.
        part: The part of the tokens of each store that belongs to this data set, as two fractions.
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

    def num_tokens(self, side: str) -> int:
        """Return the number of tokens in all blocks. Only the target side has any."""
        return sum(end - begin for begin, end in self._spans) if side == "target" else 0

    def lengths(self, side: str, segmentation: int) -> Lengths:
        """Return the length of each block."""
        lengths = np.full(len(self), self._block_length if side == "target" else 0, np.int32)
        if side == "target":
            for (begin, end), blocks, following in zip(self._spans, self._blocks, self._first_blocks[1:], strict=True):
                if blocks:
                    lengths[following - 1] = end - begin - (blocks - 1) * self._block_length
        return lengths

    def plan_epoch(
        self, seed: int, epoch: int, *, max_batch_tokens: int, pool_size: int, max_batch_examples: int | None = None
    ) -> EpochPlan:
        """Return the batches of an epoch, all of whole blocks: the same for the same arguments on every machine."""
        rng = np.random.default_rng((seed, epoch))
        offset = int(rng.integers(self._block_length))
        # Wherever the blocks begin, so many are whole. A shorter text is one block.
        whole = [max((end - begin + 1) // self._block_length - 1, min(1, end - begin)) for begin, end in self._spans]
        order = draw_examples(self._first_blocks[:-1], whole, self._weights, rng)
        return self._plan(order, max_batch_tokens, max_batch_examples, offset)

    def plan_sequential(self, max_batch_tokens: int, max_batch_examples: int | None = None) -> EpochPlan:
        """Return batches with every token once, in order: for validation. The last block of a store may be short."""
        return self._plan(np.arange(len(self)), max_batch_tokens, max_batch_examples, 0)

    def _plan(
        self, order: ExampleOrder, max_batch_tokens: int, max_batch_examples: int | None, offset: int
    ) -> EpochPlan:
        rows = max(max_batch_tokens // self._block_length, 1)
        rows = rows if max_batch_examples is None else min(rows, max_batch_examples)
        starts = np.arange(0, len(order), rows)
        bounds = np.stack([starts, np.minimum(starts + rows, len(order))], 1)
        return EpochPlan(order, bounds, segmentation=offset, num_segmentations=self._block_length)

    def batch(self, rows: RowNumbers) -> PaddedBatch:
        """Return the tokens of some blocks on the target side. A short block is padded; sources are empty."""
        parts = [self._block(int(row)) for row in rows]
        target = np.zeros((len(parts), max(map(len, parts))), np.int64)
        for at, part in enumerate(parts):
            target[at, : len(part)] = part
        return PaddedBatch(np.zeros((len(parts), 0), np.int64), target)

    def _block(self, row: int) -> NDArray[np.int64]:
        owner = int(np.searchsorted(self._first_blocks * self._block_length, row, side="right")) - 1
        begin, end = self._spans[owner]
        start = begin + row - int(self._first_blocks[owner]) * self._block_length
        start = max(min(start, end - self._block_length), begin) if row % self._block_length else start
        return self._stores[owner].read_tokens("source", start, min(start + self._block_length, end))

    def text_tokens(self) -> NDArray[np.int64]:
        """Return all tokens in order: the token ids of a development set, which fits in memory."""
        spans = zip(self._stores, self._spans, strict=True)
        return np.concatenate([store.read_tokens("source", begin, end) for store, (begin, end) in spans])
