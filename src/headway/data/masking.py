"""Mask tokens in blocks of text, for masked language models.

    unit     tokens that are masked together                                      source
    tokens   single tokens                                                        Devlin et al. 2019, section 3.1
    words    all tokens of a word                                                 BERT's "whole word masking"
    spans    runs of words with lengths from a geometric distribution with        Joshi et al. 2020, "SpanBERT",
             p = 0.2, up to 10 words                                              section 3.1

By default, 80 % of the chosen tokens are replaced by MASK, 10 % are replaced by random tokens, and 10 % are unchanged.
With ``spans``, all tokens of a span are treated alike. Only the chosen tokens are predicted.

The masking of a block is a pure function of the seed, the epoch and the block's position in the text
(:mod:`headway.data.draws`). Each epoch masks different tokens. In the development set, the same tokens are always
masked, regardless of the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from headway.config import Config
from headway.data.batching import LazyOrder, PaddedBatch
from headway.data.blocks import BlockDataset
from headway.data.draws import ORDER_VERSION, RandomGenerator, make_generator
from headway.data.epoch_plan import EpochPlan, RowNumbers
from headway.data.store import TokenStore
from headway.errors import ConfigError
from headway.text.base import BOS, EOS, NUM_SPECIAL, TextTokenizer
from headway.text.words import end_word_bits, start_word_bits

_SPAN_P, _MAX_SPAN = 0.2, 10
_ANY_WORD = 3  # the bits of all kinds of words; a token that contains part of a character may belong to any kind
_OVERHEAD = 2  # BOS and EOS

Tokens = NDArray[np.int64]


class MaskingConfig(Config):
    """Configuration of masking: which tokens are masked, and how they are replaced."""

    unit: Literal["tokens", "words", "spans"] = Field(
        "tokens", description="Unit of masking: single tokens, whole words, or runs of words (SpanBERT)."
    )
    fraction: float = Field(0.15, gt=0, lt=1, description="Share of the tokens that are masked and predicted.")
    mask: float = Field(0.8, ge=0, le=1, description="Share of the masked tokens that are replaced by the mask token.")
    random: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of the masked tokens that are replaced by random tokens. The rest are unchanged.",
    )

    @model_validator(mode="after")
    def _shares(self) -> MaskingConfig:
        if self.mask + self.random > 1 + 1e-9:
            raise ValueError(f"mask + random = {self.mask + self.random:g}: expected shares that add up to at most 1")
        return self


class Masking:
    """Chooses the tokens to mask, and replaces them.

    Raises:
        ConfigError: The tokenizer has no mask token.
    """

    def __init__(self, config: MaskingConfig, tokenizer: TextTokenizer) -> None:
        if tokenizer.mask_id is None:
            raise ConfigError("the tokenizer has no mask token; start from a masked language model")
        self._config, self._mask_id = config, tokenizer.mask_id
        self._is_text, self._starts, self._ends = _token_table(tokenizer)
        self._text_ids = np.flatnonzero(self._is_text)

    def can_mask(self, tokens: Tokens) -> NDArray[np.bool_]:
        """Return a mask of the tokens that are text: neither special nor unknown to the vocabulary."""
        return self._is_text[tokens]

    def mask_tokens(self, tokens: Tokens, rng: RandomGenerator) -> tuple[Tokens, NDArray[np.bool_]]:
        """Return the masked tokens, and a mask of the positions to predict (at least one if there is text)."""
        config, is_text = self._config, self._is_text[tokens]
        begins = is_text if config.unit == "tokens" else is_text & ~self._continues_word(tokens)
        # index of the unit at each position, or -1 without a unit
        unit_of = np.where(is_text, np.cumsum(begins) - 1, -1)
        sizes = np.bincount(unit_of[is_text])
        budget = max(round(config.fraction * int(sizes.sum())), 1)
        chosen = (_choose_spans if config.unit == "spans" else _choose_units)(sizes, budget, rng)
        predicted = np.append(chosen, -1)[unit_of] >= 0
        positions = np.flatnonzero(predicted)
        together = chosen[unit_of[positions]] if config.unit == "spans" else np.arange(len(positions))
        draws = rng.random(len(tokens))[together]
        random = self._text_ids[rng.integers(len(self._text_ids), size=len(positions))]
        hidden = np.where(draws < config.mask + config.random, random, tokens[positions])
        read = tokens.copy()
        read[positions] = np.where(draws < config.mask, self._mask_id, hidden)
        return read, predicted

    def _continues_word(self, tokens: Tokens) -> NDArray[np.bool_]:
        """Return a mask of the tokens that continue the word of the previous token."""
        continues = np.zeros(len(tokens), bool)
        continues[1:] = self._is_text[tokens[:-1]] & (self._ends[tokens[:-1]] & self._starts[tokens[1:]] != 0)
        return continues


def _choose_units(sizes: NDArray[np.int64], budget: int, rng: RandomGenerator) -> NDArray[np.int64]:
    """Choose random units until they contain ``budget`` tokens. Return a number per chosen unit, -1 for others."""
    order = rng.permutation(len(sizes))
    count = int(np.searchsorted(np.cumsum(sizes[order]), budget)) + 1
    chosen = np.full(len(sizes), -1)
    chosen[order[:count]] = np.arange(len(order[:count]))
    return chosen


def _choose_spans(sizes: NDArray[np.int64], budget: int, rng: RandomGenerator) -> NDArray[np.int64]:
    """Choose random spans of units until they contain ``budget`` tokens. Return the span of each unit, or -1."""
    chosen, span = np.full(len(sizes), -1), 0
    while len(sizes) and budget > 0:
        begin, length = int(rng.integers(len(sizes))), min(int(rng.geometric(_SPAN_P)), _MAX_SPAN)
        units = begin + np.flatnonzero(chosen[begin : begin + length] < 0)
        units = units[: int(np.searchsorted(np.cumsum(sizes[units]), budget)) + 1]
        chosen[units] = span
        span += len(units) > 0
        budget -= int(sizes[units].sum())
    return chosen


def _token_table(tokenizer: TextTokenizer) -> tuple[NDArray[np.bool_], NDArray[np.int8], NDArray[np.int8]]:
    """Return for each id whether it is text, and its bit sets for word starts and ends (:mod:`headway.text.words`)."""
    first = tokenizer.encode("a")[-1:]
    before = tokenizer.decode(first)
    # A tokenizer may insert spaces when it joins tokens.
    texts = [tokenizer.decode([*first, index]).removeprefix(before) for index in range(tokenizer.vocab_size)]
    is_text = np.array([bool(text) for text in texts])
    is_text[:NUM_SPECIAL] = False  # UNK also decodes to text
    broken = "\N{REPLACEMENT CHARACTER}"
    starts = [_ANY_WORD if text.startswith(broken) else start_word_bits(text) for text in texts]
    # A space belongs to the following word, even if it is a separate token.
    ends = [_ANY_WORD if text == " " or text.endswith(broken) else end_word_bits(text) for text in texts]
    return is_text, np.array(starts, np.int8), np.array(ends, np.int8)


class MaskedBlockDataset(BlockDataset):
    """Blocks between BOS and EOS, with masked tokens on the source side and the original tokens as targets.

    The target is PAD at all positions that are not predicted. ``block_length`` includes BOS and EOS. See
    :class:`BlockDataset` for the other arguments.
    """

    def __init__(
        self,
        stores: Sequence[TokenStore],
        weights: Sequence[float] | None = None,
        temperature: float | None = None,
        *,
        block_length: int,
        masking: Masking,
        seed: int,
        order_version: int = ORDER_VERSION,
        part: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__(stores, weights, temperature, block_length=block_length - _OVERHEAD, part=part)
        self._masking, self._seed, self._order_version = masking, seed, order_version
        # Row numbers of epoch e begin at e + 1 times this number. Smaller row numbers are used for validation.
        self._rows_per_epoch = max(len(self), 1) * self._block_length

    @property
    def max_length(self) -> int:
        """The length of the longest block, including BOS and EOS."""
        return super().max_length + _OVERHEAD

    def num_tokens(self, side: str) -> int:
        """Return the number of text tokens, which is the same for both sides."""
        return super().num_tokens("target")

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
        """Return the batches of an epoch, as a pure function of the arguments."""
        limits = {"max_batch_tokens": self._text_tokens(max_batch_tokens), "pool_size": pool_size}
        plan = super().plan_epoch(
            seed, epoch, **limits, max_batch_examples=max_batch_examples, order_version=order_version
        )
        first_row = (epoch + 1) * self._rows_per_epoch
        return plan.map_pools(lambda _, pool: replace(pool, order=pool.order + first_row))

    def plan_sequential(self, max_batch_tokens: int, max_batch_examples: int | None = None) -> EpochPlan:
        """Return batches for validation with every token once, in order."""
        return super().plan_sequential(self._text_tokens(max_batch_tokens), max_batch_examples)

    def _plan(self, order: LazyOrder, num_rows: int, offset: int) -> EpochPlan:
        plan = super()._plan(order, num_rows, offset)
        # upper bounds, because the masked tokens have not been chosen yet
        return plan.map_pools(lambda _, pool: replace(pool, is_exact=False))

    def _lengths_of_rows(self, rows: RowNumbers) -> NDArray[np.int64]:
        return np.repeat(super()._lengths_of_rows(rows)[:, 1:] + _OVERHEAD, 2, axis=1)

    def _text_tokens(self, max_batch_tokens: int) -> int:
        return max_batch_tokens // (self._block_length + _OVERHEAD) * self._block_length

    def batch(self, rows: RowNumbers) -> PaddedBatch:
        """Return the masked tokens as sources, and the tokens to predict as targets."""
        epochs, places = np.divmod(rows, self._rows_per_epoch)
        blocks = zip(epochs.tolist(), places.tolist(), self._read_blocks(places), strict=True)
        parts = [self._hide(*block) for block in blocks]
        source, target = (np.zeros((len(parts), max(len(part[0]) for part in parts)), np.int64) for _ in range(2))
        for row, (read, original) in enumerate(parts):
            source[row, : len(read)], target[row, : len(read)] = read, original
        return PaddedBatch(source, target)

    def _target_counts(self, number: int, size: int) -> NDArray[np.int64]:
        return super()._target_counts(number, size) * self._can_be_target(np.arange(size))

    def _can_be_target(self, tokens: Tokens) -> NDArray[np.bool_]:
        return self._masking.can_mask(tokens)

    def _hide(self, epoch: int, place: int, tokens: Tokens) -> tuple[Tokens, Tokens]:
        # the EOS of a document also ends the block
        tokens = tokens[:-1] if len(tokens) > 1 and tokens[-1] == EOS else tokens
        draws = make_generator(self._order_version, self._seed if epoch else 0, epoch, place)
        read, predicted = self._masking.mask_tokens(tokens, draws)
        return np.concatenate([[BOS], read, [EOS]]), np.concatenate([[0], np.where(predicted, tokens, 0), [0]])
