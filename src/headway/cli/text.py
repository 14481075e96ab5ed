"""Lines in, lines out: how the commands read and write text."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from headway.errors import DataError, LengthError

__all__ = ["input_lines", "locating", "one_line", "output_file"]

_STANDARD = Path("-")


def input_lines(path: Path | None) -> Iterator[str]:
    """The lines of a file, which may be compressed, or of standard input (also "-"); ``\\n`` or ``\\r\\n`` ends one."""
    from headway.data.readers import read_lines

    if path is not None and path != _STANDARD:
        yield from read_lines(path)
        return
    for number, line in enumerate(sys.stdin.buffer, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if b"\0" in line:
            raise DataError(f"standard input, line {number}: looks binary (a NUL byte); expected UTF-8 text")
        try:
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"standard input, line {number}: not UTF-8 text ({error.reason} at byte {error.start + 1}); "
                "expected UTF-8"
            ) from None


@contextmanager
def output_file(path: Path | None) -> Iterator[IO[str]]:
    """Standard output (also "-"), or a file that appears whole when all is written and not at all after an error."""
    from headway.storage import replaced_file

    if path is None or path == _STANDARD:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
        yield sys.stdout
        sys.stdout.flush()
        return
    with replaced_file(path) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
        yield file


@contextmanager
def locating(path: Path | None) -> Iterator[None]:
    """Put the name of the input before an error that knows only the line."""
    try:
        yield
    except LengthError as error:
        raise LengthError(f"{path or 'standard input'}, {error}") from None


def one_line(text: str) -> str:
    """A translation as one line of output, whatever is in it."""
    return text.replace("\r", " ").replace("\n", " ")
