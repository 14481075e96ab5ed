"""Convert texts to chunks of a token store: tokenization, length filters, language tags and end symbols.

This code also runs in worker processes.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headway.data.store import SIDES, Chunk, FilterConfig, FilterCounts
from headway.errors import OutputError
from headway.storage import atomic_write
from headway.text.corpus_encoder import PackedIds


@runtime_checkable
class TextEncoder(Protocol):
    """Tokenizes each text to a row of tokens."""

    @property
    def vocab_size(self) -> int: ...  # noqa: D102

    def encode(self, texts: Sequence[str]) -> PackedIds: ...  # noqa: D102


@runtime_checkable
class SubwordSampler(Protocol):
    """Tokenizes each text to several rows of tokens, by random segmentation.

    ``encode`` returns all rows of the first text, then all rows of the second text, and so on.
    """

    @property
    def num_segmentations(self) -> int: ...  # noqa: D102

    def encode(self, texts: Sequence[str]) -> PackedIds: ...  # noqa: D102


@dataclass(frozen=True)
class SideSpec:
    """Specification for converting the texts of one side (source or target) to rows of tokens.

    Attributes:
        encoder: The tokenizer as used at inference time. Length filters use its token counts.
        sampler: The tokenizer for stored rows with random segmentations. None means that ``encoder`` is used.
        prefix_ids: Token ids added before each row, such as a language tag.
        suffix_ids: Token ids added after each row, such as the end symbol.
        max_length: Maximum row length, including prefix and suffix; longer rows are truncated. None means no limit.
    """

    encoder: TextEncoder
    sampler: SubwordSampler | None = None
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    max_length: int | None = None


@dataclass(frozen=True)
class EncodingSpec:
    """Specification for tokenizing and filtering the examples of a corpus. It is sent to worker processes.

    Attributes:
        sides: Specifications of the source and target sides.
        filters: Length limits. None keeps every example, as for development sets.
        normalize: Function that normalizes texts before tokenization. None leaves them unchanged.
    """

    sides: tuple[SideSpec, SideSpec]
    filters: FilterConfig | None
    normalize: Callable[[str], str] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of token ids in the store."""
        largest = max(side.encoder.vocab_size for side in self.sides)
        return np.dtype(np.uint16 if largest <= 1 << 16 else np.uint32)

    @property
    def rows_per_example(self) -> int:
        """The number of stored rows per example: the sampler's number of segmentations, or 1 without a sampler."""
        sampler = self.sides[0].sampler
        return sampler.num_segmentations if sampler else 1

    def encode_chunk(self, examples: Sequence[tuple[str, ...]]) -> Chunk:
        """Tokenize and filter consecutive examples."""
        columns = [[example[number] for example in examples] for number in range(len(SIDES))]
        if self.normalize is not None:
            columns = [list(map(self.normalize, texts)) for texts in columns]
        plain = [side.encoder.encode(texts) for side, texts in zip(self.sides, columns, strict=True)]
        keep, counts = self._filter(columns, plain)
        tokens, lengths = {}, {}
        for name, side, texts, packed in zip(SIDES, self.sides, columns, plain, strict=True):
            if side.sampler:
                packed = side.sampler.encode([texts[index] for index in np.flatnonzero(keep)])
            elif not keep.all():
                packed = PackedIds(packed.ids[np.repeat(keep, packed.lengths)], packed.lengths[keep])
            tokens[name], lengths[name] = _add_special(_truncate(packed, side), side, self.dtype)
        return Chunk(tokens, lengths, counts)

    def _filter(self, columns: list[list[str]], plain: list[PackedIds]) -> tuple[NDArray[np.bool_], FilterCounts]:
        """Return a mask of the examples to keep, and the numbers of removed examples by reason.

        An example to which several reasons apply is counted once, under the first reason.
        """
        count = len(columns[0])
        source, target = (packed.lengths for packed in plain)
        truncated = np.zeros(count, bool)
        for side, lengths in zip(self.sides, (source, target), strict=True):
            truncated |= lengths > _max_text_length(side)
        if self.filters is None:
            return np.ones(count, bool), FilterCounts(count, 0, 0, 0, int(truncated.sum()))
        blank = [[not text or text.isspace() for text in texts] for texts in columns]
        longer = np.maximum(source, target)
        empty = np.array(blank, bool).any(0)
        too_long = ~empty & (longer > self.filters.max_length)
        uneven = longer > self.filters.max_length_ratio * np.minimum(source, target) + 10
        ratio = ~empty & ~too_long & uneven
        keep = ~(empty | too_long | ratio)
        return keep, FilterCounts(count, *(int(mask.sum()) for mask in (empty, too_long, ratio, truncated & keep)))


def _max_text_length(side: SideSpec) -> int:
    """Return the maximum number of tokens in a row, excluding prefix and suffix."""
    return sys.maxsize if side.max_length is None else side.max_length - len(side.prefix_ids) - len(side.suffix_ids)


def _truncate(packed: PackedIds, side: SideSpec) -> PackedIds:
    limit = _max_text_length(side)
    if not (packed.lengths > limit).any():
        return packed
    positions = np.arange(len(packed.ids)) - np.repeat(np.cumsum(packed.lengths) - packed.lengths, packed.lengths)
    return PackedIds(packed.ids[positions < limit], np.minimum(packed.lengths, limit))


def _add_special(packed: PackedIds, side: SideSpec, dtype: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Add prefixes and suffixes to all rows. Return the tokens of all rows, and the row lengths."""
    counts, rows = (len(side.prefix_ids), len(side.suffix_ids)), len(packed.lengths)
    ends = np.cumsum(packed.lengths)
    # row by row, as np.insert requires
    positions = np.repeat(np.stack([ends - packed.lengths, ends], 1), counts, axis=1)
    special = np.tile(np.array(side.prefix_ids + side.suffix_ids, dtype), rows)
    return np.insert(packed.ids.astype(dtype), positions.ravel(), special), packed.lengths + sum(counts)


def save_chunk(chunk: Chunk, path: Path) -> None:
    """Write a chunk atomically."""
    arrays = {f"{side}_tokens": chunk.tokens[side] for side in SIDES}
    arrays |= {f"{side}_lengths": chunk.lengths[side] for side in SIDES}
    with atomic_write(path) as aside, aside.open("wb") as file:
        np.savez(file, allow_pickle=False, counts=list(astuple(chunk.filter_counts)), **arrays)


def load_chunk(path: Path) -> Chunk:
    """Read a chunk that :func:`save_chunk` wrote, and verify its checksums.

    Raises:
        OutputError: The file was damaged and has been removed.
    """
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return Chunk(
                {side: arrays[f"{side}_tokens"] for side in SIDES},
                {side: arrays[f"{side}_lengths"] for side in SIDES},
                FilterCounts(*arrays["counts"].tolist()),
            )
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError):
        path.unlink()
        raise OutputError(
            f"{path}: the file was damaged and has been removed; run the same command again to rebuild it"
        ) from None
