"""What an operation on lines has to provide, so that a job can run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

Line = tuple[bytes, ...]
"""The text of a line in each file of the input, without its end."""


@dataclass(frozen=True)
class ConvertedLine:
    """The output for a line, with line ends, and the reason if the line failed."""

    output: str
    failure: str | None = None


@dataclass
class ConvertedBatch:
    """The output for consecutive lines, and what was counted."""

    lines: list[ConvertedLine]
    counts: Counter[str] = field(default_factory=Counter)


@runtime_checkable
class LineMap(Protocol):
    """An operation on lines that is ready to run. Its results depend only on the lines and on the processor."""

    @property
    def processor(self) -> dict[str, Any]:
        """What results depend on besides the job, such as the processor's features and the precision."""

    def convert(self, lines: Sequence[Line], first_line: int, location: str) -> ConvertedBatch:
        """Return the output for each line.

        Args:
            lines: The lines.
            first_line: Number of the first line, counted from 1.
            location: The name of the input.

        Raises:
            HeadwayError: The job cannot continue.
        """

    def failed_line(self, line: Line, number: int, location: str, reason: str) -> ConvertedLine:
        """Return the output for a line that cannot be converted because of a problem outside the operation.

        Raises:
            HeadwayError: The job should end with the first line that fails.
        """
