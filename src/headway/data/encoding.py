"""From texts to a piece of a token store: segmentation, filters, tags and end symbols. Runs in workers too."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headway.data.store import SIDES, FilterConfig, FilterCounts, Piece
from headway.errors import OutputError
from headway.storage import atomic_write
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
        after: Tokens put behind each row, such as the end symbol.
        longest: Rows are cut to so many tokens, those around them included; None: never.
    """

    encoder: Encoder
    sampler: Sampler | None = None
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    longest: int | None = None


@dataclass(frozen=True)
class Work:
    """What is done to every example of a corpus: all that a worker has to know.

    Attributes:
        sides: The source's and the target's.
        filters: None keeps everything (development sets).
    """

    sides: tuple[Side, Side]
    filters: FilterConfig | None

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
            tokens[name], lengths[name] = _framed(_cut(packed, side), side.before, side.after, self.dtype)
        return Piece(tokens, lengths, counts)

    def _filtered(self, columns: list[list[str]], plain: list[Packed]) -> tuple[NDArray[np.bool_], FilterCounts]:
        """Which examples stay, and why the others do not; of several reasons the first counts."""
        count = len(columns[0])
        source, target = (packed.lengths for packed in plain)
        over = np.zeros(count, bool)
        for side, lengths in zip(self.sides, (source, target), strict=True):
            over |= lengths > _room(side)
        if self.filters is None:
            return np.ones(count, bool), FilterCounts(count, 0, 0, 0, int(over.sum()))
        blank = [[not text or text.isspace() for text in texts] for texts in columns]
        longer = np.maximum(source, target)
        empty = np.array(blank, bool).any(0)
        too_long = ~empty & (longer > self.filters.max_length)
        uneven = longer > self.filters.max_length_ratio * np.minimum(source, target) + 10
        ratio = ~empty & ~too_long & uneven
        keep = ~(empty | too_long | ratio)
        return keep, FilterCounts(count, *(int(each.sum()) for each in (empty, too_long, ratio, over & keep)))


def _room(side: Side) -> int:
    """How many tokens a row may have beside those around it."""
    return sys.maxsize if side.longest is None else side.longest - len(side.before) - len(side.after)


def _cut(packed: Packed, side: Side) -> Packed:
    """The rows, each at most as long as its side allows."""
    room = _room(side)
    if not (packed.lengths > room).any():
        return packed
    places = np.arange(len(packed.ids)) - np.repeat(np.cumsum(packed.lengths) - packed.lengths, packed.lengths)
    return Packed(packed.ids[places < room], np.minimum(packed.lengths, room))


def _framed(
    packed: Packed, before: tuple[int, ...], after: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Each row with the tokens that go before and behind it, and how long it then is."""
    lengths = packed.lengths + len(before) + len(after)
    ends = np.cumsum(lengths)
    framed = np.empty(int(lengths.sum()), dtype)
    inside = np.ones(len(framed), bool)
    starts = ends - lengths
    around = [(starts + place, token) for place, token in enumerate(before)]
    around += [(ends - len(after) + place, token) for place, token in enumerate(after)]
    for places, token in around:
        framed[places] = token
        inside[places] = False
    framed[inside] = packed.ids
    return framed, lengths


def save_piece(piece: Piece, path: Path) -> None:
    """Write a piece, whole or not at all."""
    arrays = {f"{side}_tokens": piece.tokens[side] for side in SIDES}
    arrays |= {f"{side}_lengths": piece.lengths[side] for side in SIDES}
    counts = piece.counts
    with atomic_write(path) as aside, aside.open("wb") as file:
        np.savez(file, allow_pickle=False, counts=list(astuple(counts)), **arrays)


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
