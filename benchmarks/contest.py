"""How a contestant is watched: a process of its own that trains and prints a line after each step.

A line holds the clock, the lengths of the step's sentences and the loss, whatever the toolkit calls so. From these
follow tokens per second and model FLOP per second, over wall time from the end of one step to the end of another: data
loading, optimiser and the toolkit's own reports are inside, start-up is not, and nobody validates or saves. A length
counts one end symbol on both sides, also where a toolkit leaves it out of the source; padding is never counted. The
peak of resident memory is the processes' own (VmHWM), start-up included.

Contestants run by turns: all processes of one are stopped (SIGSTOP) while another has the machine, so that what else
goes on there meets both alike.
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
# What a contestant runs before its own code; `report` wants lengths, in tokens, as lists, and the loss of a token.
REPORT = f"""
import json, sys, time
def report(source, target, loss):
    print({MARK!r} + json.dumps([time.perf_counter(), source, target, loss]), flush=True)
"""
# The same as headway.hardware.keep_freed_memory, for programs that do not ask for it themselves.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}


class ContestantError(RuntimeError):
    """A contestant ended by itself, for want of memory, say."""


@dataclass(frozen=True)
class Settings:
    """What a contestant may choose for itself; model and tokens are the same for all."""

    max_tokens: int = 4_096  # of a batch: rows x longer side, padding included
    keep_freed_memory: bool = True  # glibc keeps freed blocks for the next step
    workers: int = 0  # processes that load data
    pool_size: int | None = 29_000  # sentences sorted by length together (one epoch of Multi30k); none: not sorted

    def __str__(self) -> str:
        freed = "kept" if self.keep_freed_memory else "returned"
        pools = "not sorted" if self.pool_size is None else f"pools of {self.pool_size:,}"
        return f"{self.max_tokens:,} tokens, {pools}, {self.workers} workers, freed memory {freed}"


@dataclass(frozen=True)
class Step:
    """One training step as it was seen to end, with the lengths of its sentences in tokens."""

    clock_s: float
    source: tuple[int, ...]
    target: tuple[int, ...]
    loss: float


@dataclass(frozen=True)
class Speed:
    """What one turn of a contestant measured."""

    target_tokens_per_s: float
    source_tokens_per_s: float
    model_flop_per_s: float
    peak_bytes: int
    steps: int
    loss: float  # the mean over the steps, which shows that it trains: no NaN, and below that of random weights


@dataclass(frozen=True)
class Trial:
    """Settings, and the speed that they gave, or why they gave none."""

    settings: Settings
    speed: Speed | None
    failure: str = ""


def place(threads: int) -> dict[str, str]:
    """The environment of a process that computes on the processor, in so many threads."""
    return os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": "",
    }


class Running:
    """A contestant that trains a model of ``config``'s sizes: started at once, awake only in its turns.

    What it prints besides its steps goes to ``log``, beside which it runs.
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
            env=place(threads) | (KEEP_FREED_MEMORY if keep_freed_memory else {}),
            cwd=log.parent,
            start_new_session=True,  # so that its children stop and end with it
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def turn(self, seconds: float) -> Speed:
        """Train for ``seconds`` after the warm-up, or after the step that the last turn's end cut, and stop.

        Raises:
            ContestantError: it ended by itself.
        """
        begin = time.perf_counter()  # the clock of its steps too
        os.killpg(self._process.pid, signal.SIGCONT)
        steps: list[Step] = []
        for step in self._read():
            if step.clock_s > begin and self._steps >= WARM_UP_STEPS:
                steps.append(step)
                if len(steps) > 1 and step.clock_s - steps[0].clock_s >= seconds:
                    os.killpg(self._process.pid, signal.SIGSTOP)
                    return speed(steps, peak_resident_bytes(self._process.pid), self._config, self._vocab_size)
        raise ContestantError(
            f"it ended after {self._steps} steps, before its time was up; its output is in {self._log}"
        )

    def close(self) -> None:
        """End it, in whatever state it is."""
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


def alone(begin: Callable[[Settings], Running], seconds: float, settings: Settings) -> Speed:
    """One turn of a contestant that is started for it."""
    with begin(settings) as running:
        return running.turn(seconds)


def peak_resident_bytes(process: int) -> int:
    """The peaks of a process and of those that it started, summed."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines()
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))  # none once it has ended
    children = (path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children"))
    return own + sum(peak_resident_bytes(int(child)) for listed in children for child in listed)


def speed(steps: Sequence[Step], peak_bytes: int, config: TransformerConfig, vocab_size: int) -> Speed:
    """The rates over the steps after the first, which tells only when the next began."""
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
    """The trial with the most target tokens per second, and all trials.

    From ``start``, one axis after the other is tried with the best of the others so far.
    """
    best = attempt(run, start)
    trials = [best]
    for axis, values in axes.items():
        found = [attempt(run, replace(best.settings, **{axis: value})) for value in values]
        trials += found
        best = max([best, *found], key=lambda trial: trial.speed.target_tokens_per_s if trial.speed else 0.0)
    return best, trials


def attempt(run: Callable[[Settings], Speed], settings: Settings) -> Trial:
    """One run, which may fail."""
    try:
        return Trial(settings, run(settings))
    except ContestantError as error:
        return Trial(settings, None, str(error))
