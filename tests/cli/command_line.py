"""Run the command line in this process, and what a refused command looks like."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.cli import main

__all__ = ["Ended", "assert_refused", "run", "write_lines"]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def run(*words: object, stdin: bytes = b"") -> Ended:
    """Run the command line in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
    code: object = 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["headway", *map(str, words)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        patch.setattr("warnings.showwarning", None)  # put back whatever main() sets
        try:
            main()
        except SystemExit as end:
            code = end.code
        out.flush()
        err.flush()
    assert code is None or isinstance(code, int)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Ended(code or 0, *texts)


def assert_refused(ended: Ended, message: str) -> None:
    """Exit code 2, nothing on standard output, and one line that says what is wrong."""
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
