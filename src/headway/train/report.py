"""What a run writes down while it trains: metrics.jsonl and TensorBoard events; and what it tells whoever listens."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

from torch.utils.tensorboard.writer import SummaryWriter

from headway.storage import replaced_file

__all__ = ["Listener", "Metrics", "Silence"]


@runtime_checkable
class Listener(Protocol):
    """Hears of a run's progress; the command line draws it."""

    def say(self, message: str) -> None:
        """One line for the user."""

    def work(self, what: str, done: int) -> None:
        """Preparation goes on: ``done`` units of ``what`` so far."""

    def step(self, step: int, steps: int, record: dict[str, float]) -> None:
        """A step is done; ``record`` holds the newest loss, learning rate and tokens per second."""

    def validation(self, step: int, record: dict[str, float | str]) -> None:
        """The development set has been scored."""


class Silence:
    """Listens and does nothing."""

    def say(self, message: str) -> None:
        """Nothing."""

    def work(self, what: str, done: int) -> None:
        """Nothing."""

    def step(self, step: int, steps: int, record: dict[str, float]) -> None:
        """Nothing."""

    def validation(self, step: int, record: dict[str, float | str]) -> None:
        """Nothing."""


class Metrics:
    """metrics.jsonl, one JSON object a line, and the same numbers as TensorBoard events.

    Lines later than ``step`` are removed first: a run that resumes reads as if it had never stopped.
    """

    def __init__(self, run: Path, step: int) -> None:
        path = run / "metrics.jsonl"
        if path.exists():
            with replaced_file(path) as aside:
                aside.write_text("".join(_lines_up_to(path, step)), encoding="utf-8")
        self._file: IO[str] = path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def write(self, kind: str, step: int, record: dict[str, float | str]) -> None:
        """Append a record of ``kind`` ("train", "dev" or "average")."""
        self._file.write(json.dumps({"kind": kind, "step": step, **record}) + "\n")
        self._file.flush()
        for key, value in record.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                self._board.add_scalar(f"{kind}/{key}", value, step)

    def close(self) -> None:
        """Close both."""
        self._file.close()
        self._board.close()


def _lines_up_to(path: Path, step: int) -> list[str]:
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # torn by a crash in the middle of a write
            break
        if record["step"] <= step:
            kept.append(line + "\n")
    return kept
