"""From texts to a piece of a token store: segmentation, filters, tags and end symbols. Runs in workers too."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headway.data.store import SIDES, FilterConfig, FilterCounts, Piece
from headway.errors import OutputError
from headway.storage import replaced_file
from headway.text.packed import Packed

__all__ = ["Encoder", "Sampler", "Side", "Work", "load_piece", "save_piece"]


@runtime_checkable
class Encoder(Protocol):
    """Cuts each text in one way."""

    @property
    def vocab_size(self) -> int: ...  # noqa: D102

    def encode(self, texts: Sequence[str]) -> Packed: ...  # noqa: D102


@runtime_checkable
class Sampler(Protocol):
    """Cuts each text in several ways: ``encode`` gives all of the first text, then all of the second, and so on."""

    @property
    def segmentations(self) -> int: ...  # noqa: D102

    def encode(self, texts: Sequence[str]) -> Packed: ...  # noqa: D102


@dataclass(frozen=True)
class Side:
    """How the texts of one side become rows of tokens.

    Attributes:
        encoder: Cuts a text as a trained model meets it; filters go by these lengths.
        sampler: Where given, cuts what is stored instead.
        before: Tokens put in front of each row, such as a language tag.
    """

    encoder: Encoder
    sampler: Sampler | None = None
    before: tuple[int, ...] = ()


@dataclass(frozen=True)
class Work:
    """What is done to every example of a corpus: all that a worker has to know.

    Attributes:
        sides: The source's and the target's.
        filters: None keeps everything (development sets).
        end: The id of the end symbol.
    """

    sides: tuple[Side, Side]
    filters: FilterConfig | None
    end: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of token ids in the store."""
        widest = max(side.encoder.vocab_size for side in self.sides)
        return np.dtype(np.uint16 if widest <= 1 << 16 else np.uint32)

    @property
    def segmentations(self) -> int:
        """Rows for each example."""
        sampler = self.sides[0].sampler
        return sampler.segmentations if sampler else 1

    def piece(self, examples: Sequence[tuple[str, ...]]) -> Piece:
        """Tokenise consecutive examples."""
        columns = [[example[number] for example in examples] for number in range(len(SIDES))]
        plain = [side.encoder.encode(texts) for side, texts in zip(self.sides, columns, strict=True)]
        keep, counts = self._filtered(columns, plain)
        tokens, lengths = {}, {}
        for name, side, texts, packed in zip(SIDES, self.sides, columns, plain, strict=True):
            if side.sampler:
                packed = side.sampler.encode([texts[index] for index in np.flatnonzero(keep)])
            elif not keep.all():
                packed = Packed(packed.ids[np.repeat(keep, packed.lengths)], packed.lengths[keep])
            tokens[name] = _framed(packed, side.before, self.end, self.dtype)
            lengths[name] = packed.lengths + len(side.before) + 1
        return Piece(tokens, lengths, counts)

    def _filtered(self, columns: list[list[str]], plain: list[Packed]) -> tuple[NDArray[np.bool_], FilterCounts]:
        """Which examples stay, and why the others do not; of several reasons the first counts."""
        count = len(columns[0])
        if self.filters is None:
            return np.ones(count, bool), FilterCounts(count, 0, 0, 0)
        blank = [[not text or text.isspace() for text in texts] for texts in columns]
        source, target = (packed.lengths for packed in plain)
        longer = np.maximum(source, target)
        empty = np.array(blank, bool).any(0)
        too_long = ~empty & (longer > self.filters.max_length)
        uneven = longer > self.filters.max_length_ratio * np.minimum(source, target) + 10
        ratio = ~empty & ~too_long & uneven
        return ~(empty | too_long | ratio), FilterCounts(count, int(empty.sum()), int(too_long.sum()), int(ratio.sum()))


def _framed(packed: Packed, before: tuple[int, ...], end: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Each row with the tokens that go before it and the end symbol."""
    lengths = packed.lengths + len(before) + 1
    ends = np.cumsum(lengths)
    framed = np.full(int(lengths.sum()), end, dtype)
    inside = np.ones(len(framed), bool)
    inside[ends - 1] = False
    for place, token in enumerate(before):
        framed[ends - lengths + place] = token
        inside[ends - lengths + place] = False
    framed[inside] = packed.ids
    return framed


def save_piece(piece: Piece, path: Path) -> None:
    """Write a piece, whole or not at all."""
    arrays = {f"{side}_tokens": piece.tokens[side] for side in SIDES}
    arrays |= {f"{side}_lengths": piece.lengths[side] for side in SIDES}
    counts = piece.counts
    with replaced_file(path) as aside, aside.open("wb") as file:
        np.savez(file, allow_pickle=False, counts=[counts.read, counts.empty, counts.too_long, counts.ratio], **arrays)


def load_piece(path: Path) -> Piece:
    """Read what :func:`save_piece` wrote; its checksums are checked on the way."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return Piece(
                {side: arrays[f"{side}_tokens"] for side in SIDES},
                {side: arrays[f"{side}_lengths"] for side in SIDES},
                FilterCounts(*arrays["counts"].tolist()),
            )
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError):
        path.unlink()
        raise OutputError(f"{path}: damaged, and now removed; run the same command again to make it anew") from None
