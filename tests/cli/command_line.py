"""Helpers that run the command line in this process and check refused commands."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest

from headway.cli import main

__all__ = ["Ended", "assert_refused", "run", "write_lines"]


@dataclass(frozen=True)
class Ended:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


class _Captured(io.TextIOWrapper):
    """A stream with the attributes of a file that is open for writing, as ``IO[str]`` requires."""

    name = "captured"
    mode = "w"

    def __init__(self) -> None:
        self._content = io.BytesIO()
        super().__init__(self._content, encoding="utf-8", newline="\n")

    def text(self) -> str:
        """Return everything that has been written."""
        self.flush()
        return self._content.getvalue().decode()


def run(*words: object, stdin: bytes | io.BytesIO = b"", stderr: TextIO | None = None) -> Ended:
    """Run the command line in this process. If ``stderr`` is given, standard error is written there."""
    stdin_bytes = stdin if isinstance(stdin, io.BytesIO) else io.BytesIO(stdin)
    out, err = _Captured(), _Captured()
    code: object = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(stderr or err):
        patch.setattr(sys, "argv", ["headway", *map(str, words)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(stdin_bytes, encoding="utf-8"))
        patch.setattr("warnings.showwarning", None)  # restore what main() sets
        try:
            main()
        except SystemExit as end:
            code = end.code
    assert code is None or isinstance(code, int)
    return Ended(code or 0, out.text(), err.text())


def assert_refused(ended: Ended, message: str) -> None:
    """Check that a command ended with exit code 2, no standard output and a one-line error."""
    assert ended.code == 2, ended
    assert ended.out == ""
    last = ended.err.splitlines()[-1]
    assert last.startswith("headway: ")
    assert re.search(message, last), last
    assert "Traceback" not in ended.err
    assert ended.err.count("headway: ") == 1


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path
