"""Workers as tasks of Ray, one of which is killed. Ray is not installed by default (extra ``ray``)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import run, write_lines

pytest_plugins = ["model_folders"]  # the fixtures of that file


def pulling_processes() -> list[int]:
    """Return the processes that run a task named pull."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::pull"):
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.slow
def test_a_killed_worker_changes_nothing(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    draws, words, float32 = random.Random(1), ["das", "rote", "Haus", "der"], ("--precision", "float32")
    lines = [" ".join(draws.choices(words, k=draws.randrange(6))) for _ in range(4000)]
    source, job = write_lines(tmp_path / "in", lines), tmp_path / "job"
    options = ["--chunk-lines", "100", "--ray", "local"]
    command = [sys.executable, "-m", "headway", "corpus", "translate", str(folders["translator"]), str(source)]
    process = subprocess.Popen([*command, "-o", str(job), *float32, *options], stderr=subprocess.DEVNULL)
    while len(list(job.glob("results/*/*"))) < 3 and process.poll() is None:
        time.sleep(0.1)
    os.kill(pulling_processes()[0], signal.SIGKILL)
    assert process.wait() == 0
    assert run("corpus", "join", job, "-o", tmp_path / "out", "--verify").code == 0
    assert (tmp_path / "out").read_text() == run("translate", folders["translator"], "-i", source, *float32).out


def test_without_ray_the_extra_is_named(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = run("corpus", "translate", folders["translator"], folders["source"], "-o", tmp_path / "x", "--ray", "auto")
    assert ended.code == 2
    assert "--ray needs the package 'ray', which is not installed; pip install 'headway[ray]'" in ended.err
