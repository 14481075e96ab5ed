"""The token store: a corpus, tokenised once, in memory-mapped files.

A store is a folder:

    source.tokens    the token ids of all sources one after the other, uint16 (uint32 for vocabularies over 65,536)
    source.offsets   int64, N + 1 of them: example i is tokens[offsets[i]:offsets[i + 1]]
    target.tokens, target.offsets
    store.json       format, counts, and a fingerprint of the inputs, the tokenizers and the options

Sources and targets end in the end symbol. Only pages in use are in memory, so that memory stays flat however large
the corpus is. A store whose fingerprint differs from what is asked for is stale: it is built again, never used. The
header is written last, so that a store without one is unfinished.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from headway.config import Config
from headway.errors import DataError
from headway.storage import replaced_folder

__all__ = ["Encoder", "FilterConfig", "FilterCounts", "TokenStore", "fingerprint", "open_or_build"]

_FORMAT = 1
_SIDES = ("source", "target")
_CHUNK = 4096  # examples tokenised at a time: enough for the tokenizer's threads, little memory


@runtime_checkable
class Encoder(Protocol):
    """What the store needs of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...  # noqa: D102

    @property
    def fingerprint(self) -> str: ...  # noqa: D102

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...  # noqa: D102


class FilterConfig(Config):
    """Which training examples are left out. Lengths are in tokens, without the end symbol."""

    max_length: int = Field(256, ge=1, description="Longest source or target kept, in tokens.")
    max_length_ratio: float = Field(
        9.0, gt=1, description="Longer side over shorter side at most; short sentences get 10 tokens of grace."
    )


@dataclass(frozen=True)
class FilterCounts:
    """How many examples a corpus had, and how many were left out for which reason."""

    read: int
    empty: int
    too_long: int
    ratio: int

    @property
    def kept(self) -> int:
        """Examples in the store."""
        return self.read - self.empty - self.too_long - self.ratio

    def __str__(self) -> str:
        dropped = f"{self.empty:,} with an empty side, {self.too_long:,} too long, {self.ratio:,} by length ratio"
        return f"{self.kept:,} of {self.read:,} pairs kept (left out: {dropped})"


class TokenStore:
    """A finished store, mapped into memory for reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        header = json.loads((folder / "store.json").read_text(encoding="utf-8"))
        self.counts = FilterCounts(**header["counts"])
        self.fingerprint: str = header["fingerprint"]
        dtype = np.dtype(header["dtype"])
        self._offsets = {side: _mapped(folder / f"{side}.offsets", np.dtype(np.int64)) for side in _SIDES}
        self._tokens = {side: _mapped(folder / f"{side}.tokens", dtype) for side in _SIDES}

    def __len__(self) -> int:
        return len(self._offsets["source"]) - 1

    def lengths(self, side: str) -> NDArray[np.int32]:
        """The length of each example's source or target, with its end symbol."""
        return np.diff(self._offsets[side]).astype(np.int32)

    def padded(self, side: str, rows: NDArray[np.int64], pad: int = 0) -> NDArray[np.int64]:
        """The given examples' tokens, (rows, longest), padded at the end."""
        starts, ends = self._offsets[side][rows], self._offsets[side][rows + 1]
        columns = starts[:, None] + np.arange(int((ends - starts).max()))
        inside = columns < ends[:, None]
        tokens = self._tokens[side][np.where(inside, columns, 0)]
        return np.where(inside, tokens, pad).astype(np.int64)


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def fingerprint(files: Iterable[Path], *parts: object) -> str:
    """A hash of the contents of ``files`` and of whatever else decides what a store holds."""
    digest = hashlib.blake2b(digest_size=20)
    digest.update(repr((_FORMAT, *parts)).encode())
    for path in files:
        try:
            digest.update(f"{path.stat().st_size} ".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); expected a corpus file") from None
    return digest.hexdigest()


def open_or_build(
    folder: Path,
    key: str,
    examples: Callable[[], Iterator[tuple[str, ...]]],
    encoders: tuple[Encoder, Encoder],
    filters: FilterConfig | None,
    *,
    end: int,
    progress: Callable[[int], None] | None = None,
) -> TokenStore:
    """The store in ``folder`` if its fingerprint is ``key``, or else one built anew from ``examples()``.

    ``encoders`` are the source's and the target's. ``filters`` of None keeps everything (development sets). ``end``
    is the end symbol's id; ``progress`` hears how many examples have been read.
    """
    if _fingerprint_of(folder) == key:
        return TokenStore(folder)
    dtype = np.dtype(np.uint16 if max(encoder.vocab_size for encoder in encoders) <= 1 << 16 else np.uint32)
    with replaced_folder(folder) as aside:
        counts = _build(aside, examples(), encoders, filters, end, dtype, progress)
        header = {"format": _FORMAT, "fingerprint": key, "dtype": dtype.name, "counts": asdict(counts)}
        (aside / "store.json").write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")
    return TokenStore(folder)


def _fingerprint_of(folder: Path) -> str | None:
    try:
        header = json.loads((folder / "store.json").read_text(encoding="utf-8"))
        whole = header["format"] == _FORMAT and all(_is_whole(folder, side, header["dtype"]) for side in _SIDES)
        return str(header["fingerprint"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def _is_whole(folder: Path, side: str, dtype: str) -> bool:
    """Whether the tokens' file is as long as the offsets say; after a power cut it may not be."""
    tokens = _mapped(folder / f"{side}.offsets", np.dtype(np.int64))[-1]
    return bool((folder / f"{side}.tokens").stat().st_size == tokens * np.dtype(dtype).itemsize)


def _build(
    folder: Path,
    examples: Iterator[tuple[str, ...]],
    encoders: tuple[Encoder, Encoder],
    filters: FilterConfig | None,
    end: int,
    dtype: np.dtype[Any],
    progress: Callable[[int], None] | None,
) -> FilterCounts:
    counts = dict.fromkeys(("read", "empty", "too_long", "ratio"), 0)
    with _Side(folder, "source", dtype) as source_side, _Side(folder, "target", dtype) as target_side:
        while chunk := list(islice(examples, _CHUNK)):
            counts["read"] += len(chunk)
            encoded = [
                encoder.encode_batch(texts) for encoder, texts in zip(encoders, zip(*chunk, strict=True), strict=True)
            ]
            for texts, source, target in zip(chunk, *encoded, strict=True):
                if filters and (reason := _reason_against(texts, len(source), len(target), filters)):
                    counts[reason] += 1
                else:
                    source_side.append([*source, end])
                    target_side.append([*target, end])
            source_side.flush()
            target_side.flush()
            if progress:
                progress(counts["read"])
    return FilterCounts(**counts)


def _reason_against(texts: tuple[str, ...], source: int, target: int, filters: FilterConfig) -> str | None:
    """Why a pair is left out, as the name of a count; None keeps it. Lengths are in tokens."""
    shorter, longer = sorted((source, target))
    if not all(text.strip() for text in texts):
        return "empty"
    if longer > filters.max_length:
        return "too_long"
    return "ratio" if longer > filters.max_length_ratio * shorter + 10 else None


class _Side:
    """One side's two files while they are written."""

    def __init__(self, folder: Path, side: str, dtype: np.dtype[Any]) -> None:
        self._tokens: IO[bytes] = (folder / f"{side}.tokens").open("wb")
        self._offsets: IO[bytes] = (folder / f"{side}.offsets").open("wb")
        self._dtype = dtype
        self._position = 0
        self._rows: list[list[int]] = []
        self._offsets.write(np.zeros(1, np.int64).tobytes())

    def append(self, tokens: list[int]) -> None:
        self._rows.append(tokens)

    def flush(self) -> None:
        lengths = np.array([len(row) for row in self._rows], np.int64)
        self._offsets.write((self._position + np.cumsum(lengths)).tobytes())
        self._tokens.write(np.array([token for row in self._rows for token in row], self._dtype).tobytes())
        self._position += int(lengths.sum())
        self._rows.clear()

    def __enter__(self) -> _Side:
        return self

    def __exit__(self, *_: object) -> None:
        with self._offsets:  # closed even where the disk is too full to close the other
            self._tokens.close()
