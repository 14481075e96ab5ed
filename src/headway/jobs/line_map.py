"""The interface of an operation that a job applies to lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

Line = tuple[bytes, ...]
"""The text of a line in each file of the input, without its line end."""


@dataclass(frozen=True)
class ConvertedLine:
    """The output for a line, including line ends, and the reason for the failure if the line failed."""

    output: str
    failure: str | None = None


@dataclass
class ConvertedBatch:
    """The output for consecutive lines, and the operation's own counts, by name."""

    lines: list[ConvertedLine]
    counts: Counter[str] = field(default_factory=Counter)


@runtime_checkable
class LineMap(Protocol):
    """An operation on lines that is ready to run. Its results depend only on the lines and on the processor."""

    @property
    def processor(self) -> dict[str, Any]:
        """Properties of the machine that affect the results, such as processor features and precision."""

    def convert(self, lines: Sequence[Line], first_line: int, location: str) -> ConvertedBatch:
        """Return the output for each line.

        Args:
            lines: Consecutive lines to convert.
            first_line: Number of the first line in its file, counted from 1.
            location: Name of the input, for messages.

        Raises:
            HeadwayError: The job cannot continue.
        """

    def make_failed_line(self, line: Line, number: int, location: str, reason: str) -> ConvertedLine:
        """Return the output for a line that cannot be converted because of a problem outside the operation.

        Raises:
            HeadwayError: The operation is configured to stop at the first failed line.
        """
