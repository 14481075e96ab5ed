"""Progress on standard error: shown on a terminal, and nothing otherwise."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
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
    """Run a command whose standard error is a terminal; returns what it wrote there and to standard output."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headway", *map(str, words)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # Linux reports the other end's closing as an error
                break
            if not chunk:
                break
            shown += chunk
        assert process.stdout is not None
        out = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0, shown
    return shown.decode(), out


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
