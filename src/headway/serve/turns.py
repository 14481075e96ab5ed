"""A fair semaphore: owners are served in turns, no matter how many tasks each of them has."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSemaphore:
    """A semaphore that serves the owners of waiting tasks in turns.

    Args:
        slots: Maximum number of tasks at a time.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._held: Counter[str] = Counter()
        self._num_served = 0
        self._served: dict[str, int] = {}  # sequence number of each owner's last turn
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}

    @asynccontextmanager
    async def slot(self, owner: str, most: int) -> AsyncIterator[None]:
        """Context manager that waits for a slot and occupies it until the end of the block.

        The owner occupies at most ``most`` slots at a time.
        """
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
        """Assign the free slots to waiting owners, starting with the owner whose last turn was the longest ago."""
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
