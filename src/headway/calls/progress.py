"""Show the progress of long tasks with rich: as a bar in a terminal or notebook cell, or as plain lines elsewhere."""

from __future__ import annotations

import io
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from headway.notebook_html import join_fragments
from headway.torchrun import is_main_process
from headway.training.report import Listener, format_number

_LINES = 4  # number of recent messages shown below the progress bar in a notebook
_UPDATE_S = 0.2  # time between two updates of the notebook's bar
_WIDTH = 100  # width of the notebook's bar in characters
_BOX = '<pre style="line-height:1.4;overflow-x:auto;background:none;color:inherit;margin:0">{code}</pre>'


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

    def on_message(self, message: str) -> None:
        """Print one line, escaping control characters (which file names may contain)."""
        self._console.print(escape_unprintable(message), markup=False)

    def on_activity_progress(self, activity: str, num_done: int) -> None:
        """Show a count and its rate in the bar; print nothing."""
        if activity != self._work[0]:
            self._work = (activity, time.monotonic())
        seconds = time.monotonic() - self._work[1]
        rate = f"{num_done / seconds:,.0f}/s" if seconds > 1 else ""
        self._bar.update(self._task, completed=num_done, description=activity, numbers=rate)

    def on_step(self, step: int, total_steps: int, record: Mapping[str, int | float]) -> None:
        """Show the loss, the speed and the time left."""
        numbers = self._show_step(step, total_steps, record)
        if self._console.is_terminal:
            return
        elapsed, eta = record["elapsed_s"], ""
        if self._last is not None and step > self._last[0]:
            seconds = (elapsed - self._last[1]) / (step - self._last[0]) * (total_steps - step)
            eta = f"  ETA {timedelta(seconds=round(seconds))}"
        self._last = (step, elapsed)
        self.on_message(
            f"step {step:,}/{total_steps:,}  {numbers}  lr {record['learning_rate']:.2e}  "
            f"elapsed {timedelta(seconds=round(elapsed))}{eta}"
        )

    def _show_step(self, step: int, total_steps: int, record: Mapping[str, int | float]) -> str:
        """Show a step in the bar, and return its loss and speed as text."""
        loss = record["loss"]
        shown = f"{loss:.3f}" if abs(loss) < 1000 else format_number(loss)
        numbers = f"loss {shown}  {record['target_tokens_per_s']:,.0f} {self._unit}/s"
        self._bar.update(self._task, description="training", completed=step, total=total_steps, numbers=numbers)
        return numbers

    def on_time_estimate(self, step: int, total_steps: int, seconds_left: float) -> None:
        """Show the time left."""
        self._bar.update(self._task, description="training", completed=step, total=total_steps)
        self.on_message(f"step {step:,}/{total_steps:,}  about {timedelta(seconds=round(seconds_left))} left")

    def on_validation(self, step: int, record: Mapping[str, float | str]) -> None:
        """Print the development scores."""
        scores = "  ".join(
            f"{name} {format_number(value)}" for name, value in record.items() if isinstance(value, float)
        )
        self.on_message(f"dev after step {step:,}: {scores}")


class NotebookListener(ProgressListener):
    """Shows the progress of a training run in a single output of a notebook cell, which is updated repeatedly.

    rich can only update outputs through ipywidgets, whose outputs do not appear in exported notebooks.
    """

    def __init__(self, unit: Literal["tokens", "texts"] = "tokens") -> None:
        super().__init__(unit)  # the inherited bar stays hidden, because a notebook is not a terminal
        self._lines = deque[str](maxlen=_LINES)
        self._output: Any = None  # IPython's display handle of the cell's output
        self._updated = 0.0

    def __enter__(self) -> NotebookListener:
        from IPython.display import HTML, display

        self._output = display(HTML(self._repr_html_()), display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop_task(self._task)
        self._update()

    def on_message(self, message: str) -> None:
        """Show one line below the bar."""
        self._lines.append(escape_unprintable(message))
        self._update()

    def on_activity_progress(self, activity: str, num_done: int) -> None:
        """Show a count and its rate in the bar."""
        super().on_activity_progress(activity, num_done)
        self._update_now_and_then()

    def on_step(self, step: int, total_steps: int, record: Mapping[str, int | float]) -> None:
        """Show the loss, the speed and the time left."""
        self._show_step(step, total_steps, record)
        self._update_now_and_then()

    def _update_now_and_then(self) -> None:
        if time.monotonic() - self._updated >= _UPDATE_S:
            self._update()

    def _update(self) -> None:
        from IPython.display import HTML

        self._updated = time.monotonic()
        self._output.update(HTML(self._repr_html_()))

    def _repr_html_(self) -> str:
        console = Console(file=io.StringIO(), record=True, width=_WIDTH, force_jupyter=False, highlight=False)
        console.print(self._bar.get_renderable())
        for line in self._lines:
            console.print(line, markup=False, soft_wrap=True)
        return join_fragments(console.export_html(inline_styles=True, code_format=_BOX))


@contextmanager
def show_training_progress(unit: Literal["tokens", "texts"], wanted: bool) -> Iterator[Listener]:
    """Yield a listener, which shows a run's progress in a terminal or below a notebook cell if ``wanted``."""
    console = Console(file=sys.stderr)
    if not (wanted and is_main_process() and (console.is_jupyter or console.is_terminal)):
        yield Listener()
        return
    with NotebookListener(unit) if console.is_jupyter else ProgressListener(unit) as listener:
        yield listener


def progress_bar(*columns: ProgressColumn, console: Console | None = None, **options: Any) -> Progress:
    """Return a progress bar on standard error: description, bar, ``columns``, numbers, elapsed time and time left."""
    # Disable markup, because a description may contain a file name with brackets.
    description, numbers = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[numbers]}"))
    shown = description, BarColumn(bar_width=None), *columns, numbers
    times = TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn(elapsed_when_finished=False)
    return Progress(*shown, *times, console=console or Console(file=sys.stderr), **options)
