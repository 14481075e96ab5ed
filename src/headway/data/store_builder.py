"""Build token stores in chunks, on all cores, with constant memory, and resumable after an interruption.

While the store ``NAME`` is being built, the folder ``NAME.pieces-…`` next to it contains one file (a chunk) per 65,536
examples of the corpus. The chunks depend only on the corpus and the key, so several processes on several machines can
build a store together: with n shards, each shard builds every n-th chunk. Each shard reads the whole corpus, because
reading is faster than tokenizing. The process that completes the last chunk joins all chunks to the store. When the
command is run again, only the missing chunks are built.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

from headway.contention import num_cores
from headway.data.encoding import EncodingSpec, load_chunk, save_chunk
from headway.data.store import TokenStore, join_chunks, open_store
from headway.errors import ConfigError, OutputError
from headway.storage import TemporaryFolder, lock_file

_CHUNK_EXAMPLES = 1 << 16  # takes a few seconds and a few megabytes
_CHUNK_CHARACTERS = 1 << 24  # limits the chunks of documents, whose examples are long
_SPEC_FOLDER = "headway-tokenizing-"


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` of ``total``, counted from 1. The default is the whole corpus."""

    number: int = 1
    total: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a shard in the form "2/4" (the second of four)."""
        number, slash, total = text.partition("/")
        decimal = all(part.isascii() and part.isdecimal() for part in (number, total))
        if not (slash and decimal and 1 <= int(number) <= int(total)):
            raise ConfigError(f"--shard {text!r}: expected I/N with 1 <= I <= N, for example 2/4 on the second of four")
        return cls(int(number), int(total))

    def owns(self, chunk_number: int) -> bool:
        """Return whether chunk ``chunk_number``, counted from 0, belongs to this shard."""
        return chunk_number % self.total == self.number - 1


def open_or_build_store(
    folder: Path,
    key: str,
    examples: Callable[[], Iterator[tuple[str, ...]]],
    spec: EncodingSpec,
    *,
    shard: Shard | None = None,
    progress: Callable[[int], None] | None = None,
    description: Any = None,
    count_unreadable: Callable[[], int] = lambda: 0,
) -> TokenStore | None:
    """Open the store in ``folder`` if its fingerprint is ``key``; otherwise build it from ``examples()``.

    Returns None if other shards still have chunks to build; this cannot happen if ``shard`` is None. ``progress`` is
    called with the number of examples read so far. ``description`` is saved in a new store for messages. After the last
    example, ``count_unreadable`` returns the number of examples that could not be read.
    """
    if store := open_store(folder, key):
        return store
    home = folder.with_name(f"{folder.name}.pieces-{key[:16]}-{_CHUNK_EXAMPLES}")
    paths = _build_chunks(home, examples(), spec, shard or Shard(), progress or (lambda _: None))
    if not all(path.exists() for path in paths):
        return open_store(folder, key)  # another shard may have just joined the chunks
    with lock_file(folder.with_name(f"{folder.name}.lock")):
        store = open_store(folder, key) or join_chunks(
            folder,
            key,
            spec.rows_per_example,
            spec.dtype,
            (load_chunk(path) for path in paths),
            description,
            count_unreadable(),
        )
        for chunks in folder.parent.glob(f"{folder.name}.pieces-*"):
            shutil.rmtree(chunks, ignore_errors=True)
    return store


def _build_chunks(
    folder: Path, examples: Iterator[tuple[str, ...]], spec: EncodingSpec, shard: Shard, progress: Callable[[int], None]
) -> list[Path]:
    """Build the missing chunks of a shard. Return the paths of all chunks of the corpus in order."""
    paths: list[Path] = []
    cores, done = num_cores(), 0
    pending: dict[Future[None], int] = {}  # chunks that are being tokenized, with their numbers of examples

    def add(number: int) -> None:
        nonlocal done
        done += number
        progress(done)

    def collect() -> None:
        """Wait for at least one pending chunk."""
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            number = pending.pop(future)
            future.result()
            add(number)

    # Processes are started when there is work. They are spawned, not forked, because a fork would copy locks held by
    # threads of PyTorch and the tokenizers library. After an error, chunks in progress are completed and kept. Each
    # process reads the spec from a file: if the spec were sent through a pipe that is too small for it, and the process
    # ended immediately, the parent would wait forever. Since a pickle can run code, only this user may write the file.
    TemporaryFolder.remove_abandoned(_SPEC_FOLDER)
    private = TemporaryFolder(_SPEC_FOLDER)
    spec_file = private.path / "spec.pickle"
    try:
        with ProcessPoolExecutor(cores, get_context("spawn"), _start_worker, (spec_file,)) as pool:
            for number in count():
                chunk, is_full = _next_chunk(examples)
                if not chunk:
                    break
                path = folder / f"{number:06}.npz"
                paths.append(path)
                if not shard.owns(number) or path.exists():
                    add(len(chunk))
                elif cores == 1 or (number == 0 and not is_full):  # no work to distribute
                    save_chunk(spec.encode_chunk(chunk), path)
                    add(len(chunk))
                else:
                    while len(pending) >= cores:
                        collect()
                    if not spec_file.exists():
                        spec_file.write_bytes(pickle.dumps(spec))
                    pending[pool.submit(_tokenize, path, chunk)] = len(chunk)
            while pending:
                collect()
    except BrokenProcessPool:
        raise OutputError(
            "a tokenizing process ended unexpectedly: it was killed, often because memory ran out, or a training "
            "script has no 'if __name__ == \"__main__\":'; run the same command again: completed chunks are kept"
        ) from None
    finally:
        private.remove()
    return paths


def _next_chunk(examples: Iterator[tuple[str, ...]]) -> tuple[list[tuple[str, ...]], bool]:
    """Return the examples of the next chunk (empty at the end of the corpus), and whether the chunk is full."""
    chunk: list[tuple[str, ...]] = []
    characters = 0
    for example in examples:
        chunk.append(example)
        characters += sum(map(len, example))
        if len(chunk) == _CHUNK_EXAMPLES or characters >= _CHUNK_CHARACTERS:
            return chunk, True
    return chunk, False


_spec: EncodingSpec  # set only in worker processes


def _start_worker(spec_file: Path) -> None:
    global _spec
    _spec = pickle.loads(spec_file.read_bytes())  # safe: only this user can write to the folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """End this process when its parent ends, because a killed parent does not shut down the pool."""
    parent = parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    os._exit(1)


def _tokenize(path: Path, examples: list[tuple[str, ...]]) -> None:
    save_chunk(_spec.encode_chunk(examples), path)
