"""Cancel the work of a request when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Return the result of ``work``, which is canceled when the client disconnects.

    Raises:
        ClientDisconnect: The client has disconnected.
    """
    task = asyncio.current_task()
    assert task is not None
    has_left, earlier = False, task.cancelling()

    async def watch() -> None:
        nonlocal has_left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    watching = asyncio.ensure_future(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if has_left and task.cancelling() == earlier + 1:  # otherwise the task was also canceled from elsewhere
            raise ClientDisconnect from None
        raise
    finally:
        watching.cancel()
        if has_left:
            task.uncancel()
