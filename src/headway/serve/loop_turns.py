"""Limit the number of tasks per iteration of the event loop, so that many tasks together do not block it."""

from __future__ import annotations

import asyncio
from collections import deque


class LoopTurns:
    """Lets a limited number of tasks continue in each iteration of the event loop. The others wait in order.

    Args:
        per_iteration: Maximum number of tasks that continue in each iteration.
    """

    def __init__(self, per_iteration: int) -> None:
        self._per_iteration = self._left = per_iteration
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def wait(self) -> None:
        """Wait for this task's turn. If no other tasks are waiting, it comes immediately."""
        if not self._is_scheduled:
            self._schedule()
        if self._left:
            self._left -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _schedule(self) -> None:
        self._is_scheduled = True
        asyncio.get_running_loop().call_soon(self._begin_iteration)

    def _begin_iteration(self) -> None:
        self._is_scheduled, self._left = False, self._per_iteration
        while self._left and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # not canceled
                turn.set_result(None)
                self._left -= 1
        if self._waiting:
            self._schedule()
