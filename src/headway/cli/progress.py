"""What training looks like on standard error: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from headway.cli.processes import is_main

__all__ = ["ProgressListener"]


class ProgressListener:
    """Draws a run's progress; a context manager. ``unit`` is what targets are counted in."""

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
        self._last: tuple[int, float] | None = None

    def __enter__(self) -> ProgressListener:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, message: str) -> None:
        """One line."""
        self._console.print(message, markup=False)

    def work(self, what: str, done: int) -> None:
        """Counts in the bar, no line."""
        self._bar.update(self._task, completed=done, description=what)

    def step(self, step: int, steps: int, record: Mapping[str, int | float]) -> None:
        """Loss, speed and time left."""
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

    def validation(self, step: int, record: dict[str, float | str]) -> None:
        """The development scores."""
        scores = "  ".join(f"{name} {value:.2f}" for name, value in record.items() if isinstance(value, float))
        self.say(f"dev after step {step:,}: {scores}")
