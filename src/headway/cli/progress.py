"""Progress on standard error: a bar on a terminal, otherwise plain lines for training only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from headway.cli.processes import is_main
from headway.train.report import Listener

__all__ = ["ProgressListener", "line_progress"]


class ProgressListener(Listener):
    """Shows the progress of a training run; a context manager. ``unit`` is the unit of the training rate."""

    def __init__(self, unit: Literal["tokens", "texts"] = "tokens") -> None:
        self._unit = unit
        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True, quiet=not is_main())
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("preparing", total=None, numbers="")
        self._work = ("", 0.0)  # the current preparation job and when it began
        self._last: tuple[int, float] | None = None

    def __enter__(self) -> ProgressListener:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, message: str) -> None:
        """Print one line."""
        self._console.print(message, markup=False)

    def work(self, what: str, done: int) -> None:
        """Show a count and its rate in the bar; print nothing."""
        if what != self._work[0]:
            self._work = (what, time.monotonic())
        seconds = time.monotonic() - self._work[1]
        rate = f"{done / seconds:,.0f}/s" if seconds > 1 else ""
        self._bar.update(self._task, completed=done, description=what, numbers=rate)

    def step(self, step: int, steps: int, record: Mapping[str, int | float]) -> None:
        """Show loss, speed and time left."""
        numbers = f"loss {record['loss']:.3f}  {record['target_tokens_per_s']:,.0f} {self._unit}/s"
        if self._console.is_terminal:
            self._bar.update(self._task, description="training", completed=step, total=steps, numbers=numbers)
            return
        elapsed = record["elapsed_s"]
        eta = ""
        if self._last is not None and step > self._last[0]:
            seconds = (elapsed - self._last[1]) / (step - self._last[0]) * (steps - step)
            eta = f"  ETA {timedelta(seconds=round(seconds))}"
        self._last = (step, elapsed)
        self.say(
            f"step {step:,}/{steps:,}  {numbers}  lr {record['learning_rate']:.2e}  "
            f"elapsed {timedelta(seconds=round(elapsed))}{eta}"
        )

    def validation(self, step: int, record: Mapping[str, float | str]) -> None:
        """Print the development scores."""
        scores = "  ".join(f"{name} {value:.2f}" for name, value in record.items() if isinstance(value, float))
        self.say(f"dev after step {step:,}: {scores}")


@contextmanager
def line_progress(what: str, source: Path | None) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a job over the lines of ``source`` on a terminal: lines done, rate, time left.

    The time left is estimated from bytes, because the number of lines is not known before the end. A compressed or
    piped input has no known size, so it has no estimate either.

    Yields:
        A function that counts finished lines and the bytes of input that they took.
    """
    plain = source is not None and source.is_file() and source.suffix not in (".gz", ".zst", ".bz2", ".xz")
    size = source.stat().st_size if source is not None and plain else None
    done, begin = 0, time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        redirect_stdout=False,
        transient=True,
    )
    task = bar.add_task(what, total=size, numbers="")

    def advance(lines: int, read: int) -> None:
        nonlocal done
        done += lines
        rate = done / max(time.monotonic() - begin, 1e-3)
        bar.update(task, advance=read, numbers=f"{done:,} lines  {rate:,.0f} lines/s")

    with bar:
        yield advance
