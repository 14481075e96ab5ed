"""The message about other processes that slow training down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from headway import contention
from headway.contention import num_cores
from headway.training import slowdown
from headway.training.slowdown import SlowdownMonitor


class _Machine:
    """Two processors, whose counters the test sets."""

    def __init__(self) -> None:
        self.now = self.waited = self.others = 0.0
        self.messages: list[str] = []

    def pass_time(self, seconds: float, *, waited: float, others: float) -> None:
        self.now += seconds
        self.waited += waited
        self.others = others


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> _Machine:
    found = _Machine()
    monkeypatch.setattr(slowdown, "time", SimpleNamespace(monotonic=lambda: found.now))
    monkeypatch.setattr(slowdown, "processor_wait_s", lambda: found.waited)
    monkeypatch.setattr(contention.OtherProcessLoad, "measure", lambda _: found.others)
    monkeypatch.setattr(slowdown, "waiting_advice", lambda: "")
    for module in (slowdown, contention):
        monkeypatch.setattr(module, "num_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    return found


def test_training_beside_a_busy_process_is_reported_once(machine: _Machine) -> None:
    notice = SlowdownMonitor(machine.messages.append)
    for _ in range(3):
        machine.pass_time(12.0, waited=6.0, others=1.0)
        notice.check()
    assert machine.messages == [
        "other processes slow training down: they use 1.0 of 2 processors, and training (with 2 threads) waits for a "
        "processor 50% of the time; stop other programs, or train with OMP_NUM_THREADS=1"
    ]


def test_one_thread_cannot_become_fewer(machine: _Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    notice = SlowdownMonitor(machine.messages.append)
    machine.pass_time(12.0, waited=8.0, others=1.7)
    notice.check()
    assert machine.messages[0].endswith("(with 1 thread) waits for a processor 67% of the time; stop other programs")


@pytest.mark.parametrize(
    ("processes", "threads", "advice"), [(2, 2, "set OMP_NUM_THREADS=1"), (4, 1, "start fewer processes"), (2, 1, None)]
)
def test_processes_of_the_same_run_are_not_other_programs(
    machine: _Machine, monkeypatch: pytest.MonkeyPatch, processes: int, threads: int, advice: str | None
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    notice = SlowdownMonitor(machine.messages.append, processes)
    for _ in range(2):
        machine.pass_time(12.0, waited=6.0, others=1.9)
        notice.check()
    assert machine.messages == [
        f"the {processes} processes of this run have 4 threads for 2 processors, which slows training down: threads "
        f"wait for a processor 50% of the time; {advice}"
        for _ in range(advice is not None)
    ]


@pytest.mark.parametrize(
    ("seconds", "waited", "others"),
    [
        pytest.param(12.0, 6.0, 0.0, id="OpenMP's own threads compete for the processors"),
        pytest.param(600.0, 0.5, 0.1, id="a long validation or a wait for data on a quiet machine"),
        pytest.param(12.0, 0.0, 1.9, id="the system does not count the time"),
        pytest.param(5.0, 4.0, 1.5, id="a short time"),
    ],
)
def test_nothing_is_reported(machine: _Machine, seconds: float, waited: float, others: float) -> None:
    notice = SlowdownMonitor(machine.messages.append)
    for _ in range(1 if seconds < 10.0 else 3):
        machine.pass_time(seconds, waited=waited, others=others)
        notice.check()
    assert machine.messages == []


_RECIPE = """
[task]
kind = "language_model"
[data]
train = [{ files = ["text.txt"] }]
max_tokens = 1024
[tokenizer]
kind = "characters"
[model]
d_model = 128
num_heads = 4
decoder_layers = 2
max_length = 128
[training]
steps = 100000
log_every = 100
[checkpoints]
every = 100000
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 500, encoding="utf-8")
    path = tmp_path / "recipe.toml"
    path.write_text(_RECIPE, encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not count the time")
def test_training_beside_busy_processes_says_so(recipe: Path) -> None:
    command = [sys.executable, "-m", "headway", "train", recipe.name, "--run", "run"]
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(2 * num_cores())]
    try:
        with subprocess.Popen(command, cwd=recipe.parent, stderr=subprocess.PIPE, text=True) as training:
            try:
                assert training.stderr is not None
                assert any("other processes slow training down" in line for line in training.stderr)
            finally:
                training.kill()
    finally:
        for each in busy:
            each.kill()
            each.wait()


# Trains with threads that wait passively in all steps or in none, and prints a hash of the weights.
_TRAINS = """
import hashlib, sys
from pathlib import Path
from headway import contention
contention._INTERVAL_S = 0.01
contention.exceeds_processors = lambda *_: sys.argv[1] == "passive"
add, added = contention.IdleThreads.add, []
contention.IdleThreads.add = lambda self, count: (added.append(count), add(self, count))
from headway.tasks import load_recipe, train
run = Path(sys.argv[1])
train(load_recipe(Path("recipe.toml"), ["training.steps=10", "model.dropout=0.1"]), run)
(weights,) = (run / "best").glob("*.safetensors")
assert bool(added) == (sys.argv[1] == "passive"), added
print(hashlib.sha256(weights.read_bytes()).hexdigest())
"""


@pytest.mark.slow
def test_how_threads_wait_does_not_change_the_weights(recipe: Path) -> None:
    hashes = {
        subprocess.run(
            [sys.executable, "-c", _TRAINS, waiting], cwd=recipe.parent, capture_output=True, text=True, check=True,
            env=os.environ | {"OMP_NUM_THREADS": "2"},
        ).stdout
        for waiting in ("passive", "active")
    }  # fmt: skip
    assert len(hashes) == 1
