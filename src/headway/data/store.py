"""The token store: a corpus, tokenised once, in files that are read row by row.

A store is a folder:

    source.tokens    the token ids of all sources one after the other, uint16 (uint32 for vocabularies over 65,536)
    source.offsets   int64, one more than rows: row r is tokens[offsets[r]:offsets[r + 1]]
    target.tokens, target.offsets
    store.json       format, counts, and a fingerprint of the inputs, the tokenizers and the options

Sources and targets end in the end symbol. Each example has one row, or with K sampled segmentations K rows, one after
the other: segmentation k of example i is row i x K + k.

Rows are read where they lie, so that memory stays flat however large the corpus is; the system keeps in its cache what
fits. (Mapped into memory the files would count as the process's own, and to unmap them now and then costs more than
reading: 3.8 ms against 1.0 for 220 random rows of ten million.) The header is written last, so that a store without one
is unfinished.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from headway.config import Config
from headway.storage import atomic_write_folder

__all__ = ["SIDES", "FilterConfig", "FilterCounts", "Piece", "TokenStore", "join", "open_store"]

SIDES = ("source", "target")

_FORMAT = 2
_LENGTHS_AT_ONCE = 1 << 20


class FilterConfig(Config):
    """Which training examples are left out. Lengths are in tokens, without the end symbol."""

    max_length: int = Field(256, ge=1, description="Longest source or target kept, in tokens.")
    max_length_ratio: float = Field(
        9.0, gt=1, description="Longer side over shorter side at most; short sentences get 10 tokens of grace."
    )


@dataclass(frozen=True)
class FilterCounts:
    """How many examples a corpus had, how many were left out for which reason, and how many of the others were cut."""

    read: int
    empty: int
    too_long: int
    ratio: int
    cut: int = 0

    @property
    def kept(self) -> int:
        """Examples in the store."""
        return self.read - self.empty - self.too_long - self.ratio

    def __add__(self, other: FilterCounts) -> FilterCounts:
        return FilterCounts(*(mine + theirs for mine, theirs in zip(self._numbers, other._numbers, strict=True)))

    def __str__(self) -> str:
        dropped = f"{self.empty:,} with an empty side, {self.too_long:,} too long, {self.ratio:,} by length ratio"
        cut = f"; {self.cut:,} of them cut to the longest that the model reads" if self.cut else ""
        return f"{self.kept:,} of {self.read:,} examples kept (left out: {dropped}){cut}"

    @property
    def _numbers(self) -> tuple[int, ...]:
        return (self.read, self.empty, self.too_long, self.ratio, self.cut)


@dataclass(frozen=True)
class Piece:
    """Consecutive examples of a corpus, tokenised: for each side its tokens, and how many belong to each row."""

    tokens: dict[str, NDArray[Any]]
    lengths: dict[str, NDArray[np.int64]]
    counts: FilterCounts


class TokenStore:
    """A finished store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        header = json.loads((folder / "store.json").read_text(encoding="utf-8"))
        self.counts = FilterCounts(**header["counts"])
        self.fingerprint: str = header["fingerprint"]
        self.segmentations: int = header["segmentations"]
        self._offsets = {side: _Array(folder / f"{side}.offsets", "int64") for side in SIDES}
        self._tokens = {side: _Array(folder / f"{side}.tokens", header["dtype"]) for side in SIDES}

    def __len__(self) -> int:
        return (len(self._offsets["source"]) - 1) // self.segmentations

    def num_tokens(self, side: str) -> int:
        """Tokens of all rows on one side, with their end symbols."""
        return len(self._tokens[side])

    def lengths(self, side: str, segmentation: int = 0) -> NDArray[np.int32]:
        """The length of each example's source or target in one segmentation, with its end symbol."""
        return self._strided_lengths(side, segmentation, self.segmentations)

    def row_lengths(self, side: str) -> NDArray[np.int32]:
        """The length of each row: each example in all its segmentations, one after the other."""
        return self._strided_lengths(side, 0, 1)

    def _strided_lengths(self, side: str, first: int, stride: int) -> NDArray[np.int32]:
        """Those of the rows ``first``, ``first + stride``, ..."""
        rows = len(self) * self.segmentations
        at_once = _LENGTHS_AT_ONCE * stride
        parts = [np.empty(0, np.int32)]
        for start in range(0, rows, at_once):
            part = self._offsets[side].read([(start, min(start + at_once, rows) + 1)])
            parts.append(np.diff(part)[first::stride].astype(np.int32))
        return np.concatenate(parts)

    def padded(self, side: str, rows: NDArray[np.int64], pad: int = 0) -> NDArray[np.int64]:
        """The tokens of the given rows, (rows, longest), padded at the end."""
        spans = self._offsets[side].read([(row, row + 2) for row in rows.tolist()]).reshape(-1, 2)
        lengths = spans[:, 1] - spans[:, 0]
        found = np.full((len(rows), int(lengths.max())), pad, np.int64)
        found[np.arange(found.shape[1]) < lengths[:, None]] = self._tokens[side].read(spans.tolist())
        return found


class _Array:
    """A one-dimensional array in a file that stays open."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return os.fstat(self._file).st_size // self._dtype.itemsize

    def read(self, spans: Iterable[Sequence[int]]) -> NDArray[Any]:
        """The items from start to before end of each (start, end), one span after the other."""
        size = self._dtype.itemsize
        parts = [os.pread(self._file, size * (end - start), size * start) for start, end in spans]
        return np.frombuffer(b"".join(parts), self._dtype)


def open_store(folder: Path, key: str) -> TokenStore | None:
    """The store in ``folder`` if it is whole and its fingerprint is ``key``; a stale one is never used."""
    try:
        header = json.loads((folder / "store.json").read_text(encoding="utf-8"))
        fits = header["format"] == _FORMAT and header["fingerprint"] == key
        return TokenStore(folder) if fits and all(_is_whole(folder, side, header["dtype"]) for side in SIDES) else None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _is_whole(folder: Path, side: str, dtype: str) -> bool:
    """Whether the tokens' file is as long as the offsets say; after a power cut it may not be."""
    offsets = _Array(folder / f"{side}.offsets", "int64")
    (tokens,) = offsets.read([(len(offsets) - 1, len(offsets))])
    return bool((folder / f"{side}.tokens").stat().st_size == tokens * np.dtype(dtype).itemsize)


def join(folder: Path, key: str, segmentations: int, dtype: np.dtype[Any], pieces: Iterable[Piece]) -> TokenStore:
    """Write the store ``folder`` from the pieces of its corpus in their order, whole or not at all."""
    counts = FilterCounts(0, 0, 0, 0)
    with atomic_write_folder(folder) as aside:
        with ExitStack() as stack:
            tokens = {side: stack.enter_context((aside / f"{side}.tokens").open("wb")) for side in SIDES}
            offsets = {side: stack.enter_context((aside / f"{side}.offsets").open("wb")) for side in SIDES}
            ends = dict.fromkeys(SIDES, 0)
            for side in SIDES:
                offsets[side].write(np.zeros(1, np.int64).tobytes())
            for piece in pieces:
                counts += piece.counts
                for side in SIDES:
                    tokens[side].write(piece.tokens[side].astype(dtype, copy=False).tobytes())
                    offsets[side].write((ends[side] + np.cumsum(piece.lengths[side], dtype=np.int64)).tobytes())
                    ends[side] += len(piece.tokens[side])
        header = {
            "format": _FORMAT,
            "fingerprint": key,
            "dtype": dtype.name,
            "segmentations": segmentations,
            "counts": asdict(counts),
        }
        (aside / "store.json").write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")
    return TokenStore(folder)
