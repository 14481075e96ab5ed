"""Streamed replies as server-sent events (HTML Living Standard, section 9.2)."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.http_errors import http_error

PartT = TypeVar("PartT")
_NOTHING: Any = object()  # sentinel: the first part of a stream that has no parts
_log = logging.getLogger("headway.serve")


@asynccontextmanager
async def wait_for_first_part(parts: AsyncGenerator[PartT]) -> AsyncIterator[AsyncGenerator[PartT]]:
    """Context manager that waits for the first part of a stream, and yields the stream with all parts.

    An error in the request is thus raised before anything that precedes the first part is sent.
    """
    async with aclosing(parts):
        first = await anext(parts, _NOTHING)

        async def whole() -> AsyncGenerator[PartT]:
            if first is not _NOTHING:
                yield cast("PartT", first)
            async for part in parts:
                yield part

        async with aclosing(whole()) as all_parts:
            yield all_parts


class EventStream(Response):
    """A reply with one event for each value.

    An error before the first value is raised, so that it determines the HTTP status. A later error is sent as the last
    value.

    Args:
        values: Values to send as JSON. Values of type bytes are already JSON.
        error: Returns the value that reports an error, given a message and an HTTP status.
        end: Data of an additional event at the end of the stream. None means no such event.
    """

    media_type = "text/event-stream"

    def __init__(self, values: AsyncGenerator[Any], error: Callable[[str, int], Any], end: str | None = None) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._values, self._error, self._end = values, error, end
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the client disconnects."""
        try:
            await cancel_on_disconnect(Request(scope, receive), self._send_all(send))
        except ClientDisconnect:
            if not self._has_started:
                raise

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._values):
            try:
                async for value in self._values:
                    await self._send_event(send, value if isinstance(value, bytes) else json.dumps(value).encode())
            except Exception as error:
                if not self._has_started:
                    raise
                _log.warning("an event stream has ended early: %s", type(error).__name__)
                reply = http_error(error)
                await self._send_event(send, json.dumps(self._error(reply.message, reply.status)).encode())
            if self._end is not None:
                await self._send_event(send, self._end.encode())
            await self._start(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        if not self._has_started:
            self._has_started = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

    async def _send_event(self, send: Send, data: bytes) -> None:
        await self._start(send)
        await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})
