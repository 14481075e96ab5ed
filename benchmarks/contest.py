"""Measure contestants, which are separate processes that train a model and print a line after each step.

A line contains the time, the lengths of the step's sentences, and the loss as the toolkit defines it. Tokens per second
and model FLOP per second are computed over the wall time from the end of one step to the end of another. This time
includes data loading, the optimizer and the toolkit's own reports, but not start-up; no contestant validates or saves.
Lengths include one EOS on both sides, even if a toolkit omits it from the source; padding is never counted. Peak memory
is the peak resident memory of the processes (VmHWM), including start-up.

Contestants take turns: all processes of one contestant are stopped (SIGSTOP) while another is running, so that other
load on the machine affects both equally.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from flops import training_flop

from headway.models.transformer import TransformerConfig

WARM_UP_STEPS = 5
MARK = "training-step "
# Code that a contestant runs before its own. `report` takes lists of lengths in tokens, and the loss per token.
REPORT = f"""
import json, sys, time
def report(source, target, loss):
    print({MARK!r} + json.dumps([time.perf_counter(), source, target, loss]), flush=True)
"""
# The same settings as headway.hardware.keep_freed_memory, for programs that do not call it.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}


class ContestantError(RuntimeError):
    """A contestant ended unexpectedly, for example because it ran out of memory."""


@dataclass(frozen=True)
class Settings:
    """Settings that may differ between contestants. The model and the tokens are the same for all."""

    max_tokens: int = 4_096  # size of a batch: rows x longer side, including padding
    keep_freed_memory: bool = True  # whether glibc keeps freed blocks for the next step
    workers: int = 0  # processes that load data
    pool_size: int | None = 29_000  # sentences sorted by length together (one epoch of Multi30k); None: unsorted

    def __str__(self) -> str:
        freed = "kept" if self.keep_freed_memory else "returned"
        pools = "not sorted" if self.pool_size is None else f"pools of {self.pool_size:,}"
        return f"{self.max_tokens:,} tokens, {pools}, {self.workers} workers, freed memory {freed}"


@dataclass(frozen=True)
class Step:
    """The end of a training step: its time, and the lengths of its sentences in tokens."""

    clock_s: float
    source: tuple[int, ...]
    target: tuple[int, ...]
    loss: float


@dataclass(frozen=True)
class Speed:
    """The measurements of one turn of a contestant."""

    target_tokens_per_s: float
    source_tokens_per_s: float
    model_flop_per_s: float
    peak_bytes: int
    steps: int
    loss: float  # mean over the steps, to check that training works: not NaN, and lower than with random weights


@dataclass(frozen=True)
class Trial:
    """Settings and the speed measured with them, or the reason why the run failed."""

    settings: Settings
    speed: Speed | None
    failure: str = ""


def cpu_environment(threads: int) -> dict[str, str]:
    """Return the environment of a process that computes on the CPU with this number of threads."""
    return os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": "",
    }


class Running:
    """The process of a contestant that trains a model of ``config``'s sizes. It is stopped between its turns.

    Its output, except for the lines of steps, is written to ``log``, whose folder is its working directory.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        threads: int,
        config: TransformerConfig,
        vocab_size: int,
        *,
        keep_freed_memory: bool,
    ) -> None:
        self._config, self._vocab_size, self._log = config, vocab_size, log
        self._transcript = log.open("w", encoding="utf-8")
        self._steps = 0
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=cpu_environment(threads) | (KEEP_FREED_MEMORY if keep_freed_memory else {}),
            cwd=log.parent,
            start_new_session=True,  # so that signals to the process group reach its children
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def turn(self, seconds: float) -> Speed:
        """Train for ``seconds`` and stop. Warm-up steps and the step that the last turn interrupted do not count.

        Raises:
            ContestantError: The process ended unexpectedly.
        """
        begin = time.perf_counter()  # the same clock as in the lines of steps
        os.killpg(self._process.pid, signal.SIGCONT)
        steps: list[Step] = []
        for step in self._read():
            if step.clock_s > begin and self._steps >= WARM_UP_STEPS:
                steps.append(step)
                if len(steps) > 1 and step.clock_s - steps[0].clock_s >= seconds:
                    os.killpg(self._process.pid, signal.SIGSTOP)
                    return speed(steps, peak_resident_bytes(self._process.pid), self._config, self._vocab_size)
        raise ContestantError(
            f"the process ended after {self._steps} steps, before its turn was over; its output is in {self._log}"
        )

    def close(self) -> None:
        """Kill the process and its children, whether they are running or stopped."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._transcript.close()

    def _read(self) -> Iterator[Step]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                clock_s, source, target, loss = json.loads(line.removeprefix(MARK))
                self._steps += 1
                yield Step(clock_s, tuple(source), tuple(target), loss)
            else:
                self._transcript.write(line)


def measure_once(begin: Callable[[Settings], Running], seconds: float, settings: Settings) -> Speed:
    """Start a contestant, measure one turn, and end it."""
    with begin(settings) as running:
        return running.turn(seconds)


def peak_resident_bytes(process: int) -> int:
    """Return the sum of the peak resident memory of a process and of its descendants."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines()
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))  # none once it has ended
    children = (path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children"))
    return own + sum(peak_resident_bytes(int(child)) for listed in children for child in listed)


def speed(steps: Sequence[Step], peak_bytes: int, config: TransformerConfig, vocab_size: int) -> Speed:
    """Return the rates over all steps except the first, whose end is the beginning of the second."""
    measured = steps[1:]
    elapsed_s = measured[-1].clock_s - steps[0].clock_s
    flop = sum(training_flop(config, vocab_size, step.source, step.target) for step in measured)
    return Speed(
        target_tokens_per_s=sum(sum(step.target) for step in measured) / elapsed_s,
        source_tokens_per_s=sum(sum(step.source) for step in measured) / elapsed_s,
        model_flop_per_s=flop / elapsed_s,
        peak_bytes=peak_bytes,
        steps=len(measured),
        loss=sum(step.loss for step in measured) / len(measured),
    )


def sweep(
    run: Callable[[Settings], Speed], axes: dict[str, tuple[Any, ...]], start: Settings
) -> tuple[Trial, list[Trial]]:
    """Return the trial with the most target tokens per second, and all trials.

    The search starts from ``start`` and varies one axis after the other, with the best values found so far for the
    rest.
    """
    best = attempt(run, start)
    trials = [best]
    for axis, values in axes.items():
        found = [attempt(run, replace(best.settings, **{axis: value})) for value in values]
        trials += found
        best = max([best, *found], key=lambda trial: trial.speed.target_tokens_per_s if trial.speed else 0.0)
    return best, trials


def attempt(run: Callable[[Settings], Speed], settings: Settings) -> Trial:
    """Run once with ``settings`` and return the speed or the failure."""
    try:
        return Trial(settings, run(settings))
    except ContestantError as error:
        return Trial(settings, None, str(error))
