"""Delay the replies to senders whose requests are refused repeatedly.

A client that immediately repeats a refused request takes up time of the event loop, which all clients share. After many
refusals, replies to this client are therefore delayed: clients that wait for their replies then send fewer requests.
Requests that are not refused are never delayed. Without keys, refusals are not delayed either, because senders cannot
be distinguished.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_PER_SECOND = 50.0  # average rate of refusals per sender that are not delayed
_BURST = 100  # number of refusals that are not delayed after two seconds without refusals
_LONGEST_S = 2.0  # maximum delay
_MAX_SENDERS = 10_000


class RefusalThrottle:
    """Computes how long to delay refusals.

    Args:
        clock: Returns the time of a monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next: dict[str, float] = {}  # when the next refusal of each sender is due

    def delay(self, sender: str) -> float:
        """Count a refusal of a sender's request, and return its delay in seconds."""
        now = self._clock()
        due = max(self._next.get(sender, 0.0), now - _BURST / _PER_SECOND)
        if len(self._next) >= _MAX_SENDERS and sender not in self._next:
            self._next = {name: other for name, other in self._next.items() if other > now}
        self._next[sender] = min(due, now + _LONGEST_S) + 1 / _PER_SECOND
        return min(max(0.0, due - now), _LONGEST_S)
