"""Measure how long the event loop is blocked by work that belongs in a worker or a thread."""

from __future__ import annotations

import asyncio
import time

_PERIOD_S = 0.05
_WINDOW_S = 60.0


class LoopWatch:
    """Checks the clock every 50 ms, and stores the longest delay of the last one or two minutes."""

    def __init__(self) -> None:
        self._due = self._window_end = 0.0
        self._longest = self._longest_before = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def longest_block_s(self) -> float:
        """The longest time for which the loop was blocked, in seconds."""
        return max(self._longest, self._longest_before)

    def start(self) -> None:
        """Start watching the running event loop."""
        self._window_end = time.monotonic() + _WINDOW_S
        self._wait()

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._due = time.monotonic() + _PERIOD_S
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        self._longest = max(self._longest, now - self._due)
        if now > self._window_end:
            self._longest_before, self._longest, self._window_end = self._longest, 0.0, now + _WINDOW_S
        self._wait()
