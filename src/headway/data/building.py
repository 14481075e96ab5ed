"""Builds token stores: in pieces, on all cores, in flat memory, and again from where it was interrupted.

Beside the store ``NAME`` stands a folder ``NAME.pieces-…`` while it is being built, with a file for every 65,536
examples of the corpus. The pieces depend on nothing but the corpus and the key, so it does not matter which process, on
which machine, made which of them: of n shards, shard i makes every n-th piece. Each reads the whole corpus, which takes
less than tokenising it. Whoever finds that all pieces are there joins them into the store; running again goes on with
those that are missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from headway.data.encoding import Work, load_piece, save_piece
from headway.data.store import TokenStore, join, open_store
from headway.data.workers import Workers, num_cores
from headway.errors import ConfigError
from headway.storage import locked

__all__ = ["Shard", "open_or_build"]

_PIECE = 1 << 16  # examples: some seconds' work, some megabytes


@dataclass(frozen=True)
class Shard:
    """Part ``number`` of ``total``, counted from 1; the first of one is the whole."""

    number: int = 1
    total: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read "2/4"."""
        number, slash, total = text.partition("/")
        decimal = all(part.isascii() and part.isdecimal() for part in (number, total))
        if not (slash and decimal and 1 <= int(number) <= int(total)):
            raise ConfigError(f"--shard {text!r}: expected I/N with 1 <= I <= N, for example 2/4 on the second of four")
        return cls(int(number), int(total))

    def has(self, piece: int) -> bool:
        """Whether a piece, counted from 0, belongs to this part."""
        return piece % self.total == self.number - 1


def open_or_build(
    folder: Path,
    key: str,
    examples: Callable[[], Iterator[tuple[str, ...]]],
    work: Work,
    *,
    shard: Shard | None = None,
    progress: Callable[[int], None] | None = None,
) -> TokenStore | None:
    """The store in ``folder`` if its fingerprint is ``key``, or else one built anew from ``examples()``.

    None where other shards have not yet made all of their pieces; never without ``shard``. ``progress`` hears how many
    examples have been read.
    """
    if store := open_store(folder, key):
        return store
    home = folder.with_name(f"{folder.name}.pieces-{key[:16]}-{_PIECE}")
    paths = _make_pieces(home, examples(), work, shard or Shard(), progress)
    if not all(path.exists() for path in paths):
        return open_store(folder, key)  # another shard may just have joined them
    with locked(folder.with_name(f"{folder.name}.lock")):
        store = open_store(folder, key) or join(
            folder, key, work.segmentations, work.dtype, (load_piece(path) for path in paths)
        )
        for pieces in folder.parent.glob(f"{folder.name}.pieces-*"):
            shutil.rmtree(pieces, ignore_errors=True)
    return store


def _make_pieces(
    home: Path,
    examples: Iterator[tuple[str, ...]],
    work: Work,
    shard: Shard,
    progress: Callable[[int], None] | None,
) -> list[Path]:
    """Make the missing pieces of a shard; the paths of all pieces of the corpus, in their order."""
    paths: list[Path] = []
    read = 0

    def done(number: int) -> None:
        nonlocal read
        read += number
        if progress:
            progress(read)

    with Workers(work, num_cores(), done) as workers:
        for number in count():
            path = home / f"{number:06}.npz"
            if not shard.has(number) or path.exists():
                skipped = sum(1 for _ in islice(examples, _PIECE))
                if not skipped:
                    break
                done(skipped)
            else:
                chunk = list(islice(examples, _PIECE))
                if not chunk:
                    break
                if num_cores() == 1 or (number == 0 and len(chunk) < _PIECE):  # no work for others
                    save_piece(work.piece(chunk), path)
                    done(len(chunk))
                else:
                    workers.submit(path, chunk)
            paths.append(path)
        workers.finish()
    return paths
