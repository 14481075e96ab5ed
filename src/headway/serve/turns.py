"""Turns at a limited resource: those who wait are served one after the other, however much each of them asks for."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Places for a number of tasks at a time, which belong to owners. The owners take turns.

    Args:
        places: The number of tasks that may hold a place at a time.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._held: Counter[str] = Counter()
        self._num_served = 0
        self._served: dict[str, int] = {}  # number of each owner's last turn
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}

    @asynccontextmanager
    async def take(self, owner: str, most: int) -> AsyncIterator[None]:
        """Wait for a place, and hold it. An owner holds at most ``most`` places at a time."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append((turn, most))
        self._serve()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._free += 1
                self._held[owner] -= 1
            self._serve()

    def _serve(self) -> None:
        """Give the free places to the owners that wait, first to the one whose last turn was the longest ago."""
        for owner in sorted(self._waiting, key=lambda owner: self._served.get(owner, 0)):
            queue = self._waiting[owner]
            while queue and queue[0][0].done():  # canceled
                queue.popleft()
            if queue and self._free and self._held[owner] < queue[0][1]:
                queue.popleft()[0].set_result(None)
                self._free -= 1
                self._held[owner] += 1
                self._num_served += 1
                self._served[owner] = self._num_served
            if not queue:
                del self._waiting[owner]
