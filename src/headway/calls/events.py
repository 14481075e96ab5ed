"""Typed events of a training run, for the argument ``on_progress`` of :func:`headway.train`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.training.report import Listener


@dataclass(frozen=True)
class TrainingEvent:
    """Something that has happened in a training run.

    Attributes:
        step: Number of optimizer steps that the run has taken.
        stop: Function that ends training after the current step, which is then saved. Any thread may call it at any
            time, also after the event.
    """

    step: int
    stop: Callable[[], None]


@dataclass(frozen=True)
class Started(TrainingEvent):
    """The data are tokenized, and the first step follows. ``step`` is not 0 if a run is resumed.

    Attributes:
        folder: The run folder.
        total_steps: Number of steps of the whole run.
    """

    folder: Path
    total_steps: int


@dataclass(frozen=True)
class StepDone(TrainingEvent):
    """A step whose metrics are recorded: every ``training.log_every`` steps, and the last one.

    Attributes:
        total_steps: Number of steps of the whole run.
        metrics: The line of metrics.jsonl: ``loss`` in nats per target token, ``learning_rate``,
            ``target_tokens_per_s``, ``elapsed_s`` and others.
    """

    total_steps: int
    metrics: Mapping[str, int | float]

    @property
    def loss(self) -> float:
        """The mean training loss since the last event of this type, in nats per target token."""
        return float(self.metrics["loss"])


@dataclass(frozen=True)
class Validated(TrainingEvent):
    """The development set has been scored.

    Attributes:
        scores: The scores and their signatures, as in metrics.jsonl; ``loss`` is in nats per target token.
    """

    scores: Mapping[str, float | str]


@dataclass(frozen=True)
class Saved(TrainingEvent):
    """The training state is copied, and is written to a checkpoint while training continues."""


@dataclass(frozen=True)
class Finished(TrainingEvent):
    """Training has ended, and everything is written.

    Attributes:
        folder: The run folder.
        interrupted: Whether it ended early, so that it can be resumed.
    """

    folder: Path
    interrupted: bool


class EventListener(Listener):
    """Passes the progress of a run on to a function, as events, and to another listener.

    What the function raises is kept in ``error``, and ends training after the current step.

    Args:
        on_progress: The function.
        folder: The run folder.
        stop: The event that ends training.
        other: The other listener, such as one that shows the progress.
    """

    def __init__(
        self, on_progress: Callable[[TrainingEvent], object], folder: Path, stop: threading.Event, other: Listener
    ) -> None:
        self.error: BaseException | None = None
        self._on_progress, self._folder, self._stop, self._other = on_progress, folder, stop, other

    def _send(self, event: TrainingEvent) -> None:
        if self.error is None:
            try:
                self._on_progress(event)
            # Including KeyboardInterrupt: training saves its state before this error is raised.
            except BaseException as error:
                self.error = error
                self._stop.set()

    def on_message(self, message: str) -> None:
        """Pass a message on to the other listener."""
        self._other.on_message(message)

    def on_activity_progress(self, activity: str, num_done: int) -> None:
        """Pass a count on to the other listener."""
        self._other.on_activity_progress(activity, num_done)

    def on_first_steps(self, step: int, total_steps: int, seconds_left: float) -> None:
        """Pass an estimate on to the other listener."""
        self._other.on_first_steps(step, total_steps, seconds_left)

    def on_started(self, step: int, total_steps: int) -> None:
        """Send :class:`Started`."""
        self._other.on_started(step, total_steps)
        self._send(Started(step, self._stop.set, self._folder, total_steps))

    def on_step(self, step: int, total_steps: int, record: Mapping[str, int | float]) -> None:
        """Send :class:`StepDone`."""
        self._other.on_step(step, total_steps, record)
        self._send(StepDone(step, self._stop.set, total_steps, dict(record)))

    def on_validation(self, step: int, record: Mapping[str, float | str]) -> None:
        """Send :class:`Validated`."""
        self._other.on_validation(step, record)
        self._send(Validated(step, self._stop.set, dict(record)))

    def on_saved(self, step: int) -> None:
        """Send :class:`Saved`."""
        self._other.on_saved(step)
        self._send(Saved(step, self._stop.set))

    def on_finished(self, step: int, interrupted: bool) -> None:
        """Send :class:`Finished`."""
        self._send(Finished(step, self._stop.set, self._folder, interrupted))
