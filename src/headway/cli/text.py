"""Lines in, lines out: how the commands read and write text."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from itertools import chain, islice
from pathlib import Path
from typing import IO, cast

__all__ = ["byte_windows", "input_lines", "one_line", "output_file", "place_of"]

_STANDARD = Path("-")
_WINDOW_LINES = 2048  # read ahead, so that sentences of like length are translated together
_WINDOW_BYTES = 1 << 20
_READ_BYTES = 1 << 18


def place_of(path: Path | None) -> str:
    """What messages call an input."""
    return "standard input" if path is None or path == _STANDARD else str(path)


def input_lines(path: Path | None) -> Iterator[str]:
    """The lines of a file, which may be compressed, or of standard input (also "-"); ``\\n`` or ``\\r\\n`` ends one."""
    from headway.data.readers import decode_lines

    for number, line in enumerate(chain.from_iterable(byte_windows(path))):
        yield decode_lines(line, place_of(path), number)


def byte_windows(path: Path | None, workers: int = 1) -> Iterator[list[bytes]]:
    """The lines of a file or of standard input, undecoded, some thousands at a time for each of the ``workers``.

    Of standard input a window is what has arrived, so that whoever writes line by line, and waits, gets an answer; a
    pipe holds some 64 KiB.
    """
    from headway.data.readers import read_byte_lines

    if path is not None and path != _STANDARD:
        yield from _windows(read_byte_lines(path), workers)
        return
    started = False
    for lines in _arriving(cast("BufferedIOBase", sys.stdin.buffer), workers):
        if not started:
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
            started = True
        yield from _windows((line.removesuffix(b"\r") for line in lines), workers)


def _windows(lines: Iterable[bytes], workers: int) -> Iterator[list[bytes]]:
    """Windows of at most 2,048 lines for each worker, and of little more than a mebibyte."""
    lines, most_lines, most_bytes = iter(lines), workers * _WINDOW_LINES, workers * _WINDOW_BYTES
    while window := list(islice(lines, 1)):
        size = len(window[0])
        while len(window) < most_lines and size < most_bytes and (more := next(lines, None)) is not None:
            window.append(more)
            size += len(more)
        yield window


def _arriving(stream: BufferedIOBase, workers: int) -> Iterator[list[bytes]]:
    """The whole lines that have arrived, each time some have; it waits only while there are none."""
    carried: list[bytes] = []
    while chunk := stream.read1(workers * _READ_BYTES):
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield b"".join([*carried, head]).split(b"\n")
            carried = []
        carried.append(tail)
    if last := b"".join(carried):
        yield [last]


@contextmanager
def output_file(path: Path | None) -> Iterator[IO[str]]:
    """Standard output (also "-"), or a file that appears whole when all is written and not at all after an error."""
    from headway.storage import atomic_write

    if path is None or path == _STANDARD:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
        yield sys.stdout
        sys.stdout.flush()
        return
    with atomic_write(path) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
        yield file


def one_line(text: str) -> str:
    """A translation as one line of output, whatever is in it."""
    return text.replace("\r", " ").replace("\n", " ")
