"""uvicorn's HTTP connections, with time limits for slow clients and a limit on the size of headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from headway.serve.config import LimitsConfig


class BoundedHttpConnection(HttpToolsProtocol):
    """An HTTP connection with limits on the size of headers and on the time that the client takes.

    The client must send each request, and receive each reply, within ``receive_seconds``. Time in which the service
    works does not count.

    Args:
        limits: Returns the present limits.
        error: Returns an error in the form of the API that a URL belongs to.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Callable[[], LimitsConfig],
        error: Callable[[bytes, str, int], Response],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits, self._error = limits, error
        self._receiving: asyncio.TimerHandle | None = None  # runs while a request is incomplete
        self._sending: asyncio.TimerHandle | None = None  # runs while a reply is not sent
        self._in_head, self._head_bytes = True, 0
        self.url = b""  # URL of the request, set by the parent class

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # pause_writing is then called whenever the client is slower than we are
        if len(self.connections) > self._limits().connections:
            self._refuse(503, "Too many connections")
        self._expect_data()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._is_answering:
            self._expect_data()
        if self._in_head and self._head_bytes > self._limits().header_bytes and not self.transport.is_closing():
            self._refuse(431, "The headers are too large")

    def on_headers_complete(self) -> None:
        """Begin to answer a request."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop waiting for the client."""
        super().on_message_complete()
        self._in_head, self._head_bytes = True, 0
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def pause_writing(self) -> None:
        """Start the timeout for the client to receive the data that has been sent."""
        super().pause_writing()
        self._sending = self.loop.call_later(self._limits().receive_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop waiting until the client has received what was sent."""
        super().resume_writing()
        if self._sending is not None:
            self._sending.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the timers."""
        for timer in filter(None, (self._receiving, self._sending)):
            timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not valid HTTP."""
        if self._is_answering:  # the request before the invalid one
            self.cycle.keep_alive = False
        else:
            self._refuse(400, msg)

    @property
    def _is_answering(self) -> bool:
        """Whether a request is complete, and its reply is not."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def _expect_data(self) -> None:
        if self._receiving is None:
            self._receiving = self.loop.call_later(self._limits().receive_seconds, self._on_late)

    def _on_late(self) -> None:
        self._receiving = None
        if self.transport.is_closing():
            return
        if self._is_answering or self.flow.read_paused:  # the client waits, or this side does not read
            self._expect_data()
        elif self._in_head and not self._head_bytes:
            self.transport.close()
        else:
            self._refuse(408, "The request did not arrive in time")

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error, unless a reply has begun, and close the connection."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            reply = self._error(self.url, message, status)
            reply.headers["connection"] = "close"
            lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
            lines += [name + b": " + value for name, value in reply.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(reply.body)]))
        self.transport.close()
