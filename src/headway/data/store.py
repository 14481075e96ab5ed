"""Token stores: corpora that are tokenized once and stored in files for random access to rows.

A store is a folder:

    source.tokens    the concatenated token ids of all sources, uint16 (uint32 for vocabularies over 65,536)
    source.offsets   int64, one more than the number of rows: row r is tokens[offsets[r]:offsets[r + 1]]
    target.tokens, target.offsets
    store.json       format, counts, a fingerprint and a description of the files, tokenizers and options, and
                     the number of occurrences of each token, after it has been requested once
    source.lengths, target.lengths    the length of each row, uint16 or uint32; derived from the offsets when needed

Sources and targets end with the end symbol. Each example has one row or, with K sampled segmentations, K consecutive
rows: segmentation k of example i is row i x K + k.

Rows are read from the file on demand, so memory use does not grow with the corpus, and the operating system caches as
much as fits. (Memory-mapped files would be counted as memory of the process, and unmapping them regularly is slower
than reading: 3.8 ms compared with 1.0 ms for 220 random rows out of ten million.) ``store.json`` is written last: a
store without it is incomplete.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from headway.config import Config
from headway.errors import DataError, OutputError
from headway.storage import atomic_write, atomic_write_folder, atomic_write_text

SIDES = ("source", "target")

_FORMAT = 2
_LENGTHS_AT_ONCE = 1 << 20
_TOKENS_AT_ONCE = 1 << 20
_SETTLED_NS = 2_000_000_000  # no common file system has coarser modification times


class FilterConfig(Config):
    """Length limits for training examples. Longer examples are removed. Lengths do not include the end symbol."""

    max_length: int = Field(256, ge=1, description="Maximum length of source and target, in tokens.")
    max_length_ratio: float = Field(
        9.0, gt=1, description="Maximum length of the longer side, as a multiple of the shorter side (plus 10 tokens)."
    )


@dataclass(frozen=True)
class FilterCounts:
    """Numbers of examples that were read, removed (by reason), and truncated.

    ``unreadable`` is the number of examples skipped because their lines are invalid (``data.on_error = "skip"``).
    """

    read: int
    empty: int
    too_long: int
    ratio: int
    truncated: int = 0
    unreadable: int = 0

    @property
    def kept(self) -> int:
        """The number of examples in the store."""
        return self.read - self.empty - self.too_long - self.ratio - self.unreadable

    def __add__(self, other: FilterCounts) -> FilterCounts:
        return FilterCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        dropped = f"{self.empty:,} with an empty side, {self.too_long:,} too long, {self.ratio:,} by length ratio"
        dropped += f", {self.unreadable:,} unreadable" if self.unreadable else ""
        truncated = f"; {self.truncated:,} of them truncated to the model's maximum length" if self.truncated else ""
        return f"{self.kept:,} of {self.read:,} examples kept (removed: {dropped}){truncated}"


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokenized examples of a corpus: the tokens of all rows and the length of each row, by side."""

    tokens: dict[str, NDArray[Any]]
    lengths: dict[str, NDArray[np.int64]]
    filter_counts: FilterCounts


class TokenStore:
    """A complete token store, opened for reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        header = self._header()
        self.format: int = header["format"]
        # The counts are read by position, because older stores use the name "cut" for "truncated".
        self.filter_counts = FilterCounts(*dict(header["counts"]).values())
        self.fingerprint: str = header["fingerprint"]
        self.num_segmentations: int = header["segmentations"]
        self._offsets = {side: _Array(folder / f"{side}.offsets", "int64") for side in SIDES}
        self._tokens = {side: _Array(folder / f"{side}.tokens", header["dtype"]) for side in SIDES}
        self._row_lengths: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return (len(self._offsets["source"]) - 1) // self.num_segmentations

    @property
    def is_complete(self) -> bool:
        """Whether the token files have the lengths implied by the offsets. This may be False after a power failure."""
        last = len(self._offsets["source"]) - 1
        return all(self._offsets[side].read([(last, last + 1)])[0] == self.num_tokens(side) for side in SIDES)

    def num_tokens(self, side: str) -> int:
        """Return the number of tokens in all rows of one side, including end symbols."""
        return len(self._tokens[side])

    def token_counts(self, side: str, size: int) -> NDArray[np.int64]:
        """Return how often each of ``size`` token ids occurs on one side, summed over all segmentations.

        The counts are computed once and cached in store.json if this file can be written.
        """
        header = self._header()
        stored = header.get("token_counts", {}).get(side, [])
        if sum(stored) == self.num_tokens(side):
            counts = np.array(stored, np.int64)
        else:
            counts = self.count_tokens(side, 0, self.num_tokens(side), size)
            header["token_counts"] = {**header.get("token_counts", {}), side: counts.tolist()}
            with suppress(OutputError):
                atomic_write_text(self.folder / "store.json", json.dumps(header) + "\n")
        return np.pad(counts, (0, size - len(counts)))

    def count_tokens(self, side: str, start: int, end: int, size: int) -> NDArray[np.int64]:
        """Return how often each of ``size`` token ids occurs among the tokens ``start`` to ``end`` - 1 of one side."""
        counts = np.zeros(size, np.int64)
        for first in range(start, end, _TOKENS_AT_ONCE):
            counts += np.bincount(self.read_tokens(side, first, min(first + _TOKENS_AT_ONCE, end)), minlength=size)
        return counts

    def _header(self) -> dict[str, Any]:
        header: dict[str, Any] = json.loads((self.folder / "store.json").read_text(encoding="utf-8"))
        return header

    def lengths(self, side: str, segmentation: int = 0) -> NDArray[np.int32]:
        """Return the length of each example's source or target in one segmentation, including the end symbol."""
        rows = len(self) * self.num_segmentations
        at_once = _LENGTHS_AT_ONCE * self.num_segmentations
        parts = [np.empty(0, np.int32)]
        for start in range(0, rows, at_once):
            part = self._offsets[side].read([(start, min(start + at_once, rows) + 1)])
            parts.append(np.diff(part)[segmentation :: self.num_segmentations].astype(np.int32))
        return np.concatenate(parts)

    def lengths_of(self, examples: NDArray[np.int64], side: str, segmentation: int = 0) -> NDArray[np.int32]:
        """Return the source or target lengths of the given examples; see :meth:`lengths`."""
        return self._mapped_lengths(side)[examples * self.num_segmentations + segmentation].astype(np.int32)

    def longest_example(self, side: str, segmentation: int = 0) -> tuple[int, int]:
        """Return the lengths (source, target) of the example that is longest on one side."""
        example = int(self._mapped_lengths(side)[segmentation :: self.num_segmentations].argmax())
        source, target = (int(self.lengths_of(np.array([example]), row_side, segmentation)[0]) for row_side in SIDES)
        return source, target

    def _mapped_lengths(self, side: str) -> NDArray[Any]:
        """Return the lengths of all rows, memory-mapped when they are first needed."""
        if side not in self._row_lengths:
            self._row_lengths[side] = self._map_lengths(side)
        return self._row_lengths[side]

    def _map_lengths(self, side: str) -> NDArray[Any]:
        """Memory-map the file of row lengths, so that all processes share its pages. Write the file if it does not
        exist.

        If it cannot be written, the lengths are computed in memory.
        """
        path, rows = self.folder / f"{side}.lengths", len(self._offsets[side]) - 1
        if not rows:
            return np.empty(0, np.uint16)
        if (lengths := _mapped(path, rows, self.num_tokens(side))) is not None:
            return lengths
        starts = range(0, rows, _LENGTHS_AT_ONCE)
        spans = [(start, min(start + _LENGTHS_AT_ONCE, rows) + 1) for start in starts]
        longest = max(int(np.diff(self._offsets[side].read([span])).max()) for span in spans)
        dtype = np.dtype(np.uint16 if longest <= np.iinfo(np.uint16).max else np.uint32)
        parts = (np.diff(self._offsets[side].read([span])).astype(dtype) for span in spans)
        try:
            with atomic_write(path) as aside, aside.open("wb") as file:
                for part in parts:
                    part.tofile(file)
        except OutputError:
            return np.concatenate([np.diff(self._offsets[side].read([span])).astype(dtype) for span in spans])
        lengths = _mapped(path, rows, self.num_tokens(side))
        if lengths is None:
            raise DataError(
                f"{self.folder}: the store is damaged (its row lengths do not add up to its number of tokens); remove "
                "the folder to rebuild it"
            )
        return lengths

    def read_tokens(self, side: str, start: int, end: int) -> NDArray[np.int64]:
        """Return the tokens ``start`` to ``end`` - 1 of the concatenated rows of one side."""
        return self._tokens[side].read([(start, end)]).astype(np.int64)

    def row_of_token(self, side: str, token: int) -> tuple[int, int]:
        """Return the row that contains token number ``token`` of one side, and the number of tokens before this row.

        If ``token`` is the total number of tokens, return the number of rows and the number of tokens.
        """
        offsets = self._offsets[side]

        def offset(row: int) -> int:
            return int(offsets.read([(row, row + 1)])[0])

        row = bisect_right(range(len(offsets)), token, key=offset) - 1
        return row, offset(row)

    def read_padded(self, side: str, rows: NDArray[np.int64], pad_id: int = 0) -> NDArray[np.int64]:
        """Return the tokens of the given rows, right-padded to the longest of these rows."""
        spans = self._offsets[side].read([(row, row + 2) for row in rows.tolist()]).reshape(-1, 2)
        lengths = spans[:, 1] - spans[:, 0]
        tokens = np.full((len(rows), int(lengths.max())), pad_id, np.int64)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = self._tokens[side].read(spans.tolist())
        return tokens


class _Array:
    """A one-dimensional array in a file that stays open."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return os.fstat(self._file).st_size // self._dtype.itemsize

    def read(self, spans: Iterable[Sequence[int]]) -> NDArray[Any]:
        """Return the concatenated items of all spans [start, end)."""
        size = self._dtype.itemsize
        parts = [os.pread(self._file, size * (end - start), size * start) for start, end in spans]
        return np.frombuffer(b"".join(parts), self._dtype)


def _mapped(path: Path, rows: int, num_tokens: int) -> NDArray[Any] | None:
    """Memory-map the lengths of ``rows`` rows. Returns None if the file does not exist or is damaged."""
    try:
        size = path.stat().st_size
        if size not in (2 * rows, 4 * rows):
            return None
        dtype: np.dtype[Any] = np.dtype(np.uint16 if size == 2 * rows else np.uint32)
        with path.open("rb") as file:
            parts = (np.fromfile(file, dtype, _LENGTHS_AT_ONCE) for _ in range(0, rows, _LENGTHS_AT_ONCE))
            total = sum(int(part.sum(dtype=np.int64)) for part in parts)
        return np.asarray(np.memmap(path, dtype, "r")) if total == num_tokens else None
    except OSError:
        return None


def open_store(folder: Path, *keys: str) -> TokenStore | None:
    """Open the store in ``folder`` if it is complete and its fingerprint is one of ``keys``; otherwise return None."""
    try:
        store = TokenStore(folder)
        return store if store.format == _FORMAT and store.fingerprint in keys and store.is_complete else None
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None


def stored_fingerprint(folder: Path) -> str | None:
    """Return the fingerprint of the store in ``folder``, which may be incomplete, or None if there is no store."""
    try:
        value = json.loads((folder / "store.json").read_text(encoding="utf-8"))["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(value)


def read_description(folder: Path) -> Any:
    """Return the saved description of the files and options of the store in ``folder``, or None if there is none."""
    try:
        return json.loads((folder / "store.json").read_text(encoding="utf-8")).get("made_from")
    except (OSError, ValueError, AttributeError):
        return None


def join_chunks(
    folder: Path,
    key: str,
    num_segmentations: int,
    dtype: np.dtype[Any],
    chunks: Iterable[Chunk],
    description: Any = None,
    unreadable: int = 0,
) -> TokenStore:
    """Concatenate the chunks of a corpus, in order, and write the store ``folder`` atomically.

    ``description`` is saved for messages; see :func:`read_description`. ``unreadable`` is the number of examples that
    could not be read, so that no chunk contains them.
    """
    counts = FilterCounts(unreadable, 0, 0, 0, unreadable=unreadable)
    with atomic_write_folder(folder) as aside:
        with ExitStack() as stack:
            tokens = {side: stack.enter_context((aside / f"{side}.tokens").open("wb")) for side in SIDES}
            offsets = {side: stack.enter_context((aside / f"{side}.offsets").open("wb")) for side in SIDES}
            ends = dict.fromkeys(SIDES, 0)
            for side in SIDES:
                offsets[side].write(np.zeros(1, np.int64).tobytes())
            for chunk in chunks:
                counts += chunk.filter_counts
                for side in SIDES:
                    tokens[side].write(chunk.tokens[side].astype(dtype, copy=False).tobytes())
                    offsets[side].write((ends[side] + np.cumsum(chunk.lengths[side], dtype=np.int64)).tobytes())
                    ends[side] += len(chunk.tokens[side])
        header = {
            "format": _FORMAT,
            "fingerprint": key,
            "dtype": dtype.name,
            "segmentations": num_segmentations,
            "counts": asdict(counts),
            "made_from": description,
        }
        (aside / "store.json").write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")
    return TokenStore(folder)


def fingerprint(*parts: object) -> str:
    """Return a hash of the ``repr`` of ``parts``, which must not depend on the machine."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()


class ContentHashes:
    """Computes hashes of file contents, and caches them in the JSON file ``cache_file``.

    A hash is cached with the file's size and modification time, and reused as long as both are unchanged. The hash of a
    file that was modified within the last two seconds is not cached, because the file may change again within the
    resolution of the modification time.
    """

    def __init__(self, cache_file: Path) -> None:
        self._cache_file = cache_file
        try:
            known = json.loads(cache_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        self._known: dict[str, object] = known if isinstance(known, dict) else {}
        self._is_changed = False

    def hash_file(self, path: Path) -> str:
        """Return the hash of the content of ``path``, in hexadecimal."""
        return self.hash_files([path])[0]

    def hash_files(self, paths: Sequence[Path], progress: Callable[[int], None] = lambda _: None) -> list[str]:
        """Return the hash of the content of each file. ``progress`` is called with the number of hashed files.

        The cache is saved only once, at the end or after an error, so that the time is linear in the number of files.

        Raises:
            DataError: A file is missing or cannot be read.
        """
        try:
            hashes: list[str] = []
            for path in paths:
                hashes.append(self._hash(path))
                progress(len(hashes))
            return hashes
        finally:
            if self._is_changed:
                atomic_write_text(self._cache_file, json.dumps(self._known, indent=2) + "\n")
                self._is_changed = False

    def _hash(self, path: Path) -> str:
        try:
            name, status = str(path.resolve()), path.stat()
            if stat.S_ISFIFO(status.st_mode):
                raise DataError(f"{path}: is a pipe, but a corpus is read several times; write its content to a file")
            entry = self._known.get(name)
            if isinstance(entry, list) and entry[:2] == [status.st_size, status.st_mtime_ns]:
                return str(entry[2])
            settled = time.time_ns() - status.st_mtime_ns > _SETTLED_NS
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; expected a corpus file") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); expected a corpus file") from None
        if settled:
            self._known[name] = [status.st_size, status.st_mtime_ns, digest]
            self._is_changed = True
        return digest
