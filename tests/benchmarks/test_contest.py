from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import contest
import pytest
from flops import training_flop

from headway.models.transformer import TransformerConfig

# A hundred steps per second, with three source and two target tokens each. The clock is that of the test, which adds
# the number of seconds in the file `pause` to it.
STEADY = f"""
import json, os, pathlib, time
pause = pathlib.Path("pause")
print("not a step", os.environ.get("MALLOC_TRIM_THRESHOLD_"), os.environ["OMP_NUM_THREADS"], flush=True)
for step in range(60_000):
    time.sleep(0.001)
    clock_s = 0.01 * (step + 1) + (float(pause.read_text()) if pause.exists() else 0.0)
    print({contest.MARK!r} + json.dumps([clock_s, [3], [2], step]), flush=True)
"""
SETTINGS = contest.Settings()
NOT_KEPT = contest.Settings(keep_freed_memory=False)
CONFIG = TransformerConfig.preset("tiny")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(contest, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def begin(code: str, folder: Path, *, keep: bool = True) -> contest.Running:
    command = [sys.executable, "-S", "-c", code]
    return contest.Running(command, folder / "log", 3, CONFIG, 100, keep_freed_memory=keep)


def test_turns_leave_out_the_warm_up_and_the_steps_that_their_ends_cut(tmp_path: Path, clock: SimpleNamespace) -> None:
    with begin(STEADY, tmp_path) as running:
        first = running.turn(0.105)
        os.waitid(os.P_PID, running._process.pid, os.WSTOPPED)
        clock.now = 5000.0  # steps continue where they stopped, and rates exclude the pause
        (tmp_path / "pause").write_text("5000")
        second = running.turn(0.105)
    for speed in (first, second):
        assert speed.steps == 11  # each begins when the one before it ends
        assert speed.target_tokens_per_s == pytest.approx(200.0)
        assert speed.source_tokens_per_s == pytest.approx(300.0)
        assert 1 << 20 < speed.peak_bytes < 1 << 28
    begins = [speed.loss - (speed.steps - 1) / 2 for speed in (first, second)]  # the loss is the step's number
    assert begins[0] == contest.WARM_UP_STEPS
    assert begins[1] > begins[0] + first.steps
    expected = f"not a step {contest.KEEP_FREED_MEMORY['MALLOC_TRIM_THRESHOLD_']} 3\n"
    assert (tmp_path / "log").read_text() == expected


@pytest.mark.usefixtures("clock")
def test_a_contestant_has_ended_once_it_is_closed(tmp_path: Path) -> None:
    with begin(f"import os; print(os.getpid(), flush=True)\n{STEADY}", tmp_path) as running:
        running.turn(0.0)
    process = int((tmp_path / "log").read_text().split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.usefixtures("clock")
def test_the_c_library_keeps_its_settings_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    contest.measure_once(lambda settings: begin(STEADY, tmp_path, keep=settings.keep_freed_memory), 0.0, NOT_KEPT)
    assert (tmp_path / "log").read_text() == "not a step None 3\n"


def test_rates_start_at_the_end_of_the_first_step() -> None:
    steps = [contest.Step(clock_s, (3,), (2,), 10.0 - clock_s) for clock_s in (4.0, 5.0, 6.0, 8.0)]
    assert contest.speed(steps, 77, CONFIG, 100) == contest.Speed(
        target_tokens_per_s=6 / 4,
        source_tokens_per_s=9 / 4,
        model_flop_per_s=training_flop(CONFIG, 100, [3], [2]) * 3 / 4,
        peak_bytes=77,
        steps=3,
        loss=(5 + 4 + 2) / 3,
    )


def test_a_contestant_that_ends_early_is_named_with_its_output(tmp_path: Path) -> None:
    with (
        begin("print('no memory')", tmp_path) as running,
        pytest.raises(contest.ContestantError, match=r"ended after 0 steps.*its output is in .*log"),
    ):
        running.turn(1.0)
    assert (tmp_path / "log").read_text() == "no memory\n"


@pytest.mark.usefixtures("clock")
def test_the_peak_covers_what_was_freed_and_the_processes_that_were_started(tmp_path: Path) -> None:
    allocate = "block = bytearray(b'x') * (100 << 20); del block; "
    child = allocate + "import time; print(flush=True); time.sleep(60)"
    code = f"""
import subprocess, sys
{allocate}
child = subprocess.Popen([sys.executable, "-S", "-c", {child!r}], stdout=subprocess.PIPE)
child.stdout.readline()
{STEADY}
"""
    with begin(code, tmp_path) as running:
        assert 200 << 20 < running.turn(0.0).peak_bytes < 300 << 20


def rate(settings: contest.Settings) -> contest.Speed:
    """Return a speed that is highest with 8,192 tokens and two workers. Workers help only with 8,192 tokens."""
    if settings.max_tokens > 10_000:
        raise contest.ContestantError("out of memory")
    tokens = settings.max_tokens * (1 + settings.workers if settings.max_tokens == 8_192 else 1 - settings.workers / 10)
    return contest.Speed(tokens, tokens, 1.0, 1, 1, 1.0)


def test_a_sweep_keeps_the_best_of_each_axis_for_the_next() -> None:
    best, trials = contest.sweep(rate, {"max_tokens": (8_192, 16_384), "workers": (1, 2)}, SETTINGS)
    assert best.settings == replace(SETTINGS, max_tokens=8_192, workers=2)
    tried = [(trial.settings.max_tokens, trial.settings.workers) for trial in trials]
    assert tried == [(4_096, 0), (8_192, 0), (16_384, 0), (8_192, 1), (8_192, 2)]
    assert trials[2] == contest.Trial(replace(SETTINGS, max_tokens=16_384), None, "out of memory")


def test_a_sweep_over_nothing_is_one_run() -> None:
    best, trials = contest.sweep(rate, {}, SETTINGS)
    assert trials == [best] == [contest.Trial(SETTINGS, rate(SETTINGS))]
