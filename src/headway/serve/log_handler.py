"""A log handler that writes once per iteration of the event loop instead of once per line."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys


class LoopLogHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error. Lines from outside an event loop or from other threads are written immediately."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._lines: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop in which the lines will be written

    def emit(self, record: logging.LogRecord) -> None:
        """Buffer a line until the event loop has run the callbacks that are due now."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            super().emit(record)
            return
        try:
            line = self.format(record) + self.terminator
        except Exception:
            self.handleError(record)
            return
        if not self._lines or self._loop is not loop:
            self._loop = loop
            loop.call_soon(self.flush)
        self._lines.append(line)

    def flush(self) -> None:
        """Write the buffered lines. Lines that cannot be written are lost: this error cannot be logged either."""
        assert self.lock is not None
        with self.lock:
            lines, self._lines = self._lines, []
            with contextlib.suppress(OSError, ValueError):
                if lines:
                    self.stream.write("".join(lines))
                super().flush()
