"""Reports of a training run: metrics.jsonl, TensorBoard events, and a listener for progress."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, runtime_checkable

from headway.errors import MissingPackageError, OutputError
from headway.storage import atomic_write

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

__all__ = ["Listener", "Metrics", "Silence"]

_AT_THE_END = ("average", "ema")  # records that are written again whenever a run reaches its end


@runtime_checkable
class Listener(Protocol):
    """Receives the progress of a run; the command line displays it."""

    def say(self, message: str) -> None:
        """Show one line to the user."""

    def work(self, what: str, done: int) -> None:
        """Report progress of the preparation: ``done`` units of ``what`` so far."""

    def step(self, step: int, steps: int, record: Mapping[str, int | float]) -> None:
        """Report a step; ``record`` contains the newest loss, learning rate and tokens per second."""

    def validation(self, step: int, record: dict[str, float | str]) -> None:
        """Report the scores of the development set."""


class Silence:
    """A listener that does nothing."""

    def say(self, message: str) -> None:
        """Do nothing."""

    def work(self, what: str, done: int) -> None:
        """Do nothing."""

    def step(self, step: int, steps: int, record: Mapping[str, int | float]) -> None:
        """Do nothing."""

    def validation(self, step: int, record: dict[str, float | str]) -> None:
        """Do nothing."""


class Metrics:
    """Writes metrics.jsonl (one JSON object per line) and, if TensorBoard is installed, the same numbers as its events.

    Lines after ``step`` are removed first, so that the file of a resumed run is the same as without the interruption.
    """

    def __init__(self, run: Path, step: int) -> None:
        self._path = run / "metrics.jsonl"
        if self._path.exists():
            with atomic_write(self._path) as aside:
                aside.write_text("".join(_lines_up_to(self._path, step)), encoding="utf-8")
        with _explained(self._path):
            self._file: IO[str] = self._path.open("a", encoding="utf-8")
            self._board = _event_writer(run / "tensorboard", step)

    def write(self, kind: str, step: int, record: Mapping[str, int | float | str]) -> None:
        """Append a record; ``kind`` is "train" or "dev", and at the end "average" or "ema"."""
        with _explained(self._path):
            self._file.write(json.dumps({"kind": kind, "step": step, **record}) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())  # a checkpoint that survives a power cut must find its records
            if self._board is not None:
                for key, value in record.items():
                    if isinstance(value, (int, float)) and math.isfinite(value):
                        self._board.add_scalar(f"{kind}/{key}", value, step)
                self._board.flush()

    def close(self) -> None:
        """Close the files. Errors are ignored: :meth:`write` has reported what could not be written."""
        for output in (self._file, self._board):
            if output is not None:
                with suppress(OSError):
                    output.close()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({error.strerror or error}); free some space, then run the same command again"
        ) from None


def _lines_up_to(path: Path, step: int) -> list[str]:
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # torn by a crash in the middle of a write
            break
        if record["step"] <= step and record["kind"] not in _AT_THE_END:
            kept.append(line + "\n")
    return kept


def _event_writer(folder: Path, step: int) -> SummaryWriter | None:
    """Return a writer of TensorBoard events after ``step``; None, with a warning, if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        warnings.warn(str(MissingPackageError("writing TensorBoard events", "tensorboard")), stacklevel=2)
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)
