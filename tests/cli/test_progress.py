"""Progress on standard error: shown on a terminal, and nothing otherwise."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import run, write_lines


@pytest.fixture
def model(tmp_path: Path, make_translator: Callable[..., Any]) -> Path:
    make_translator().bundle.save(tmp_path / "model", "# Card")
    return tmp_path / "model"


def on_terminal(*words: object) -> tuple[str, str]:
    """Run a command whose standard error is a terminal; return what it writes there and to standard output."""
    ours, theirs = pty.openpty()
    chunks: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # Linux reports an error when the other end is closed
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with pytest.MonkeyPatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "120")
        ended = run(*words, stderr=terminal)
    reader.join()
    os.close(ours)
    shown = b"".join(chunks).decode()
    assert ended.code == 0, shown
    return shown, ended.out


def test_a_terminal_sees_lines_rate_and_time_left(model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "source", ["das rote Haus"] * 5)
    shown, out = on_terminal("translate", model, "-i", source)
    assert out == run("translate", model, "-i", source).out
    assert re.search(r"translating.* 5 lines .*lines/s.*ETA", shown)
    shown, _ = on_terminal("score", model, "--source", source, "--target", source)
    assert re.search(r"scoring.* 5 lines ", shown)
    shown, _ = on_terminal("evaluate", model, "--source", source, "--reference", source)
    assert re.search(r"translating.* 5 lines ", shown)


def test_without_a_terminal_nothing_is_shown(model: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "source", ["das rote Haus"] * 5)
    assert run("translate", model, "-i", source, "--no-guard").err == ""
