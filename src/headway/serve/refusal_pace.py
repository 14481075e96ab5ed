"""Delay the refusals of senders that are refused again and again.

A client that immediately repeats a refused request costs time of the event loop, which all clients share. What it is
refused with is therefore sent late once it has been refused often: clients that wait for their replies then send less.
No request that is answered waits. Without keys, refusals are never delayed, because senders cannot be distinguished.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_PER_SECOND = 50.0  # refusals of a sender that are sent at once, on average
_BURST = 100  # refusals that are sent at once after two quiet seconds
_LONGEST_S = 2.0
_MAX_SENDERS = 10_000


class RefusalPace:
    """Decides how long to delay refusals.

    Args:
        clock: A monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[str, float] = {}  # when the next refusal of each sender is due

    def delay(self, sender: str) -> float:
        """Count a refusal, and return its delay in seconds."""
        now = self._clock()
        due = max(self._next.get(sender, 0.0), now - _BURST / _PER_SECOND)
        if len(self._next) >= _MAX_SENDERS and sender not in self._next:
            self._next = {name: other for name, other in self._next.items() if other > now}
        self._next[sender] = min(due, now + _LONGEST_S) + 1 / _PER_SECOND
        return min(max(0.0, due - now), _LONGEST_S)
