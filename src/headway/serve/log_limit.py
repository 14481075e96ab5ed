"""Limit the log lines that requests without a key can cause, so that strangers cannot fill the disk."""

from __future__ import annotations

import logging
import time
from collections import Counter

ANONYMOUS_LOG = "headway.serve.anonymous"  # logger for requests that need no key
LINES_PER_MINUTE = 100
_MINUTE_S = 60.0


class LogLimit(logging.Filter):
    """Passes a limited number of lines per level and minute. One more line reports that further lines are omitted."""

    def __init__(self) -> None:
        super().__init__()
        self._minute = 0
        self._num_lines = Counter[int]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a log line."""
        minute = int(time.monotonic() / _MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._num_lines.clear()
        self._num_lines[record.levelno] += 1
        if self._num_lines[record.levelno] == LINES_PER_MINUTE + 1:
            record.msg, record.args = "further lines of this kind are omitted for the rest of this minute", ()
            record.exc_info = None
        return self._num_lines[record.levelno] <= LINES_PER_MINUTE + 1


_LIMITS = {name: LogLimit() for name in (ANONYMOUS_LOG, "uvicorn.error")}


def limit_log_lines() -> None:
    """Limit the log lines about requests without a key, and about connections that are not valid HTTP."""
    for name, limit in _LIMITS.items():
        logging.getLogger(name).addFilter(limit)  # has no effect if the filter was already added
