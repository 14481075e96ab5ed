"""The log of the service, which is written once for each iteration of the event loop instead of once for each line."""

from __future__ import annotations

import asyncio
import logging
import sys


class LoopLogHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error. Lines of other threads, and from outside an event loop, are written at once."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line until the event loop has run the callbacks that are due now."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            super().emit(record)
            return
        if not self._lines:
            loop.call_soon(self.flush)
        self._lines.append(self.format(record) + self.terminator)

    def flush(self) -> None:
        """Write the lines."""
        with self.lock:  # type: ignore[union-attr]
            lines, self._lines = self._lines, []
        if lines:
            self.stream.write("".join(lines))
        super().flush()
