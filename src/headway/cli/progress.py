"""Progress on standard error: a bar if it is a terminal, otherwise plain lines, which only training prints."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from headway.errors import escape_unprintable
from headway.torchrun import is_main_process
from headway.training.report import Listener, shown_number


class ProgressListener(Listener):
    """Context manager that shows the progress of a training run. ``unit`` is the unit of the training speed."""

    def __init__(self, unit: Literal["tokens", "texts"] = "tokens") -> None:
        self._unit = unit
        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True, quiet=not is_main_process())
        disable = not self._console.is_terminal
        self._bar = progress_bar(MofNCompleteColumn(), console=self._console, disable=disable)
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
        """Print one line. Names of files in it may contain control characters."""
        self._console.print(escape_unprintable(message), markup=False)

    def progress(self, activity: str, num_done: int) -> None:
        """Show a count and its rate in the bar; print nothing."""
        if activity != self._work[0]:
            self._work = (activity, time.monotonic())
        seconds = time.monotonic() - self._work[1]
        rate = f"{num_done / seconds:,.0f}/s" if seconds > 1 else ""
        self._bar.update(self._task, completed=num_done, description=activity, numbers=rate)

    def step(self, step: int, total_steps: int, record: Mapping[str, int | float]) -> None:
        """Show loss, speed and time left."""
        loss = record["loss"]
        shown = f"{loss:.3f}" if abs(loss) < 1000 else shown_number(loss)
        numbers = f"loss {shown}  {record['target_tokens_per_s']:,.0f} {self._unit}/s"
        if self._console.is_terminal:
            self._bar.update(self._task, description="training", completed=step, total=total_steps, numbers=numbers)
            return
        elapsed, eta = record["elapsed_s"], ""
        if self._last is not None and step > self._last[0]:
            seconds = (elapsed - self._last[1]) / (step - self._last[0]) * (total_steps - step)
            eta = f"  ETA {timedelta(seconds=round(seconds))}"
        self._last = (step, elapsed)
        self.say(
            f"step {step:,}/{total_steps:,}  {numbers}  lr {record['learning_rate']:.2e}  "
            f"elapsed {timedelta(seconds=round(elapsed))}{eta}"
        )

    def first_steps(self, step: int, total_steps: int, seconds_left: float) -> None:
        """Show the time left."""
        self._bar.update(self._task, description="training", completed=step, total=total_steps)
        self.say(f"step {step:,}/{total_steps:,}  about {timedelta(seconds=round(seconds_left))} left")

    def validation(self, step: int, record: Mapping[str, float | str]) -> None:
        """Print the development scores."""
        scores = "  ".join(
            f"{name} {shown_number(value)}" for name, value in record.items() if isinstance(value, float)
        )
        self.say(f"dev after step {step:,}: {scores}")


def progress_bar(*columns: ProgressColumn, console: Console | None = None, **options: Any) -> Progress:
    """Return a progress bar on standard error: description, bar, ``columns``, numbers, elapsed time and time left."""
    # No markup: the name of a file in a description may have brackets.
    description, numbers = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[numbers]}"))
    shown = description, BarColumn(bar_width=None), *columns, numbers
    times = TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn(elapsed_when_finished=False)
    return Progress(*shown, *times, console=console or Console(file=sys.stderr), **options)
