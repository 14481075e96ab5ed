from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import contest
import pytest
from flops import training_flop

from headway.models.transformer import TransformerConfig

# One step a second by its own clock: three source and two target tokens each.
STEADY = f"""
import json, os, time
print("not a step", os.environ.get("MALLOC_TRIM_THRESHOLD_"), os.environ["OMP_NUM_THREADS"], flush=True)
for second in range(100):
    print({contest.MARK!r} + json.dumps([float(second), [3], [2], 10.0 - second]), flush=True)
time.sleep(60)
"""
SETTINGS = contest.Settings()


def watch(code: str, folder: Path, seconds: float, *, keep: bool = True) -> tuple[list[contest.Step], int]:
    return contest.watch([sys.executable, "-S", "-c", code], folder / "log", seconds, threads=3, keep_freed_memory=keep)


def test_steps_are_watched_until_the_time_after_the_warm_up_is_over(tmp_path: Path) -> None:
    steps, peak = watch(STEADY, tmp_path, 4.0)
    assert [step.clock_s for step in steps] == list(range(contest.WARM_UP_STEPS + 4))
    assert steps[0] == contest.Step(0.0, (3,), (2,), 10.0)
    assert 1 << 20 < peak < 1 << 28
    assert (tmp_path / "log").read_text() == f"not a step {contest.KEEP_FREED_MEMORY['MALLOC_TRIM_THRESHOLD_']} 3\n"


def test_the_c_library_is_left_alone_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    watch(STEADY, tmp_path, 1.0, keep=False)
    assert (tmp_path / "log").read_text() == "not a step None 3\n"


def test_rates_leave_the_warm_up_out(tmp_path: Path) -> None:
    steps, _ = watch(STEADY, tmp_path, 4.0)
    slow_start = [replace(step, clock_s=step.clock_s - 50.0) for step in steps[:4]] + steps[4:]
    config = TransformerConfig.preset("tiny")
    speed = contest.speed(slow_start, 77, config, 100)
    assert speed == contest.Speed(
        target_tokens_per_s=2.0,
        source_tokens_per_s=3.0,
        model_flop_per_s=training_flop(config, 100, [3], [2]),
        peak_bytes=77,
        steps=4,
        loss=(5 + 4 + 3 + 2) / 4,
    )


def test_a_contestant_that_ends_early_is_named_with_its_output(tmp_path: Path) -> None:
    with pytest.raises(contest.ContestantError, match=r"ended after 0 steps.*its output is in .*log"):
        watch("print('no memory')", tmp_path, 1.0)
    assert (tmp_path / "log").read_text() == "no memory\n"


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
    _, peak = watch(code, tmp_path, 1.0)
    assert 200 << 20 < peak < 300 << 20


def rate(settings: contest.Settings) -> contest.Speed:
    """Fastest with 8,192 tokens and two workers, which help only there."""
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
