"""Report the progress of training: metrics.jsonl, TensorBoard events, and listeners."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from headway.errors import MissingPackageError, OutputError
from headway.storage import atomic_write_text, user_cache_folder

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

Scores = dict[str, float | str]  # development scores and their signatures, by name

_LARGE = 1e5
_AT_THE_END = ("average", "ema")  # kinds of records that are rewritten each time a run ends


def format_number(value: float) -> str:
    """Format a number: 12.34, or 1.6e6 for a large number."""
    if not abs(value) >= _LARGE:
        return f"{value:.2f}"
    mantissa, exponent = f"{value:.1e}".split("e") if math.isfinite(value) else (str(value), "")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


class Listener:
    """Base class of callbacks that receive the progress of a run. By default, the methods do nothing."""

    def on_message(self, message: str) -> None:
        """Called with a line of text to show to the user."""

    def on_activity_progress(self, activity: str, num_done: int) -> None:
        """Called when ``num_done`` items of ``activity``, such as "examples tokenized", are done."""

    def on_started(self, step: int, total_steps: int) -> None:
        """Called when the data are prepared and training starts or resumes after ``step`` of ``total_steps``."""

    def on_step(self, step: int, total_steps: int, record: Mapping[str, int | float]) -> None:
        """Called when ``step`` of ``total_steps`` steps are done. ``record`` contains the latest training metrics."""

    def on_time_estimate(self, step: int, total_steps: int, seconds_left: float) -> None:
        """Called once with an early estimate of the remaining time if the first report is far away."""

    def on_validation(self, step: int, record: Mapping[str, float | str]) -> None:
        """Called with the development scores after a validation."""

    def on_saved(self, step: int) -> None:
        """Called when the training state after ``step`` has been copied and is being written to a checkpoint."""


class MetricsWriter:
    """Writes metrics.jsonl (one JSON object per line) and, if TensorBoard is installed, TensorBoard events.

    Existing lines for steps after ``resume_step`` are removed first, so that a resumed run writes the same file as an
    uninterrupted run.
    """

    def __init__(self, run: Path, resume_step: int) -> None:
        self._path = run / "metrics.jsonl"
        if self._path.exists():
            atomic_write_text(self._path, "".join(_lines_up_to(self._path, resume_step)))
        with _write_errors(self._path):
            self._file: IO[str] = self._path.open("a", encoding="utf-8")
            self._board = _event_writer(run / "tensorboard", resume_step)

    def write(self, kind: str, step: int, record: Mapping[str, int | float | str]) -> None:
        """Append a record. ``kind`` is "train" or "dev" or, at the end of a run, "average" or "ema"."""
        with _write_errors(self._path):
            self._file.write(json.dumps({"kind": kind, "step": step, **record}) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())  # the records of each checkpoint must survive a power failure
            if self._board is not None:
                for key, value in record.items():
                    if isinstance(value, (int, float)) and math.isfinite(value):
                        self._board.add_scalar(f"{kind}/{key}", value, step)
                self._board.flush()

    def close(self) -> None:
        """Close the files. Errors are ignored, because :meth:`write` has already reported failed writes."""
        for output in (self._file, self._board):
            if output is not None:
                with suppress(OSError):
                    output.close()


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Convert write errors to :class:`OutputError`."""
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
        except ValueError:  # incomplete because the process was killed during a write
            break
        if record["step"] <= step and record["kind"] not in _AT_THE_END:
            kept.append(line + "\n")
    return kept


def _event_writer(folder: Path, step: int) -> SummaryWriter | None:
    """Return a writer for TensorBoard events after ``step``. If TensorBoard cannot be used, warn and return None."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        if _is_first_time("tensorboard-is-missing"):
            warnings.warn(str(MissingPackageError("writing TensorBoard events", "tensorboard")), stacklevel=2)
        return None
    if os.fsencode(folder) != str(folder).encode("utf-8", "replace"):
        warnings.warn(
            f"{folder}: TensorBoard events are not written, because TensorBoard encodes file names as UTF-8, but this "
            f"locale uses {sys.getfilesystemencoding()}; metrics.jsonl contains the same numbers",
            stacklevel=2,
        )
        return None
    return SummaryWriter(str(folder), purge_step=step + 1)


def _is_first_time(notice: str) -> bool:
    """Return whether a notice has never been shown to this user, and record that it is shown now."""
    with suppress(OutputError, OSError, RuntimeError):  # show it again if the marker cannot be written
        marker = user_cache_folder() / "notices" / notice
        if marker.exists():
            return False
        atomic_write_text(marker, "")
    return True
