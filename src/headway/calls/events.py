"""Typed events of a training run, passed to the ``on_progress`` callback of :func:`headway.train`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.training.report import Listener


@dataclass(frozen=True)
class TrainingEvent:
    """Base class of the events of a training run.

    Attributes:
        step: Number of optimizer steps that the run has taken.
        stop: Function that ends training after the current step and saves a checkpoint. Any thread may call it at any
            time, even after the event has been handled.
    """

    step: int
    stop: Callable[[], None]


@dataclass(frozen=True)
class Started(TrainingEvent):
    """The data are tokenized, and training is about to begin. ``step`` is not 0 if a run is resumed.

    Attributes:
        folder: The folder of the run.
        total_steps: Number of steps of the whole run.
    """

    folder: Path
    total_steps: int


@dataclass(frozen=True)
class StepDone(TrainingEvent):
    """A step whose metrics have been recorded: every ``training.log_every`` steps, and the last step.

    Attributes:
        total_steps: Number of steps of the whole run.
        metrics: The step's record in metrics.jsonl: ``loss`` in nats per target token, ``learning_rate``,
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
    """The training state has been copied, and is written to a checkpoint while training continues."""


@dataclass(frozen=True)
class Finished(TrainingEvent):
    """Training has ended, and all files have been written.

    Attributes:
        folder: The folder of the run.
        interrupted: Whether training ended early and can be resumed.
    """

    folder: Path
    interrupted: bool


class EventListener(Listener):
    """Passes the progress of a run as events to a function, and also to another listener.

    An exception raised by the function is stored in ``error``, and ends training after the current step.

    Args:
        on_progress: Function that receives the events.
        folder: The folder of the run.
        stop: Set to end training after the current step.
        other: Another listener, such as one that shows a progress bar.
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
            # Also catch KeyboardInterrupt: training saves its state before this error is raised.
            except BaseException as error:
                self.error = error
                self._stop.set()

    def on_message(self, message: str) -> None:
        """Forward a message to the other listener."""
        self._other.on_message(message)

    def on_activity_progress(self, activity: str, num_done: int) -> None:
        """Forward a count to the other listener."""
        self._other.on_activity_progress(activity, num_done)

    def on_time_estimate(self, step: int, total_steps: int, seconds_left: float) -> None:
        """Forward an estimate to the other listener."""
        self._other.on_time_estimate(step, total_steps, seconds_left)

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
