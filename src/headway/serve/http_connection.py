"""HTTP connections for uvicorn: one request at a time, limits for slow clients, and bounded memory per client."""

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
from headway.serve.errors import OverloadedError
from headway.serve.received_bytes import ReceivedBytes, ReceivedRequest, sender_id

_READ_BYTES = 16_384  # maximum number of bytes to read at a time
_WAITING_BYTES = 16_384  # maximum size of pipelined requests
_MAX_HEADERS = 100
_HEAD_END = b"\r\n\r\n"


class BoundedHttpConnection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """An HTTP connection with limits on the size of headers and on the time that the client takes.

    The client must send each request, and receive each piece of a reply, within ``receive_seconds``. The time in which
    the service processes the request does not count.

    Requests are answered one after the other. Data of further requests that arrives in the meantime is buffered, but
    not parsed. The connection continues reading, because it would otherwise not notice that the client has closed it.
    If the client sends more data than the buffer can store, the connection is closed after the current reply.

    Args:
        limits: Returns the current limits.
        received: Bounds the bytes of all requests that are being received.
        error: Returns an error reply, given a URL, a message and a status, in the format of the API of that URL.
    """

    _buffer = memoryview(bytearray(_READ_BYTES))  # shared by all connections, because one callback fills and reads it

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Callable[[], LimitsConfig],
        received: ReceivedBytes,
        error: Callable[[bytes, str, int], Response],
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits, self._received, self._error = limits, received, error
        self._receiving: asyncio.TimerHandle | None = None  # timeout of an incomplete request
        self._sending: asyncio.TimerHandle | None = None  # timeout of an unsent reply
        self._in_head, self._head_tail = True, b""
        self._head_bytes = 0  # size of the head, or of everything in a chunked body except its content
        self._head = ReceivedRequest(received, "", is_known=False)
        self._body_left: int | None = 0  # remaining bytes of the body, or None if the body is chunked
        self._waiting = bytearray()  # data of the next requests
        self._is_ignoring = False  # whether the parser is processing another request from the same data
        self.url = b""  # URL of the request, set by the parent class

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for a request."""
        super().connection_made(transport)
        self._head = ReceivedRequest(self._received, sender_id(self.client[0] if self.client else None), is_known=False)
        # With a limit of 0, pause_writing is called whenever the client reads more slowly than the service writes.
        transport.set_write_buffer_limits(0)
        if len(self.connections) > self._limits().connections:
            self._refuse(503, "Too many connections")
        self._expect_data()

    # Methods for receiving.

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read into. It is small because many connections may send data at the same time."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process data of a request from the buffer."""
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Process data of a request."""
        while data and not self.transport.is_closing():
            if self._is_answering:
                self._wait(data)
                return
            size = self._part_size(data)
            self._feed(data[:size])
            data = data[size:]
        cycle = self.cycle
        if cycle is not None and cycle.body and cycle.more_body and not cycle.response_complete:
            self.flow.pause_reading()  # until the application has taken this part of the body

    def _wait(self, data: bytes) -> None:
        """Buffer data of the next requests while the current request is being answered."""
        self._waiting += data
        if len(self._waiting) > _WAITING_BYTES:
            self._waiting.clear()
            self.cycle.keep_alive = False

    def _part_size(self, data: bytes) -> int:
        """Return the number of bytes of ``data`` that are known to belong to the current request or its head."""
        if self._in_head:
            seen = self._head_tail + data
            end = seen.find(_HEAD_END)
            if end >= 0:
                size = end + len(_HEAD_END) - len(self._head_tail)
                self._head_tail = b""
                return size
            self._head_tail = seen[1 - len(_HEAD_END) :]
        elif self._body_left is not None:
            return min(len(data), max(1, self._body_left))
        return len(data)

    def _feed(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            try:
                self._head.add(len(data))
            except OverloadedError:
                self._refuse(429, "The service is busy; try again later")
                return
        elif self._body_left is not None:
            self._body_left -= len(data)
        else:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._is_answering:
            self._expect_data()
        if self.transport.is_closing():
            return
        if self._head_bytes > self._limits().header_bytes:
            self._refuse(431, "The request headers are too large")
        elif len(self.headers or ()) > _MAX_HEADERS:
            self._refuse(431, "Too many request headers")

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """Begin a request. Ignore it if its data arrived together with the end of the current request."""
        self._is_ignoring = self._is_answering
        if self._is_ignoring:
            self.cycle.keep_alive = False
            self.headers, self.url = [], b""  # for the ignored request; the application keeps the current request's
        else:
            super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers after a chunked body are ignored, because no application reads them."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass a request to the application."""
        if self._is_ignoring or self.transport.is_closing():
            return
        if len(self.headers) > _MAX_HEADERS:
            self._refuse(431, "Too many request headers")
            return
        names = {name: value for name, value in self.headers if name in (b"content-length", b"transfer-encoding")}
        length = names.get(b"content-length", b"0")
        self._body_left = int(length) if length.isdigit() and b"transfer-encoding" not in names else None
        super().on_headers_complete()
        self._in_head, self._head_bytes = False, 0

    def on_body(self, body: bytes) -> None:
        """Process a part of a body."""
        self._head_bytes = 0
        if not self._is_ignoring and self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Finish receiving a request, and stop its timeout."""
        if self._is_ignoring or self.cycle is None:
            return
        super().on_message_complete()
        self._in_head, self._head_bytes = True, 0
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    # Methods for replying.

    def on_response_complete(self) -> None:
        """Release the request, and process the next one if it has already arrived."""
        self._head.release()
        self.headers, self.url = [], b""
        # The rest of the body is discarded as it arrives, so that the client can finish sending it.
        self.cycle.body = bytearray()
        self.scope = self.cycle.scope = {}  # type: ignore[typeddict-item]
        super().on_response_complete()
        if self._waiting:
            data = bytes(self._waiting)
            self._waiting.clear()
            self.data_received(data)

    def pause_writing(self) -> None:
        """Start the timeout within which the client must receive the data that has been sent."""
        super().pause_writing()
        self._sending = self.loop.call_later(self._limits().receive_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timeout, because the client has received the data."""
        super().resume_writing()
        if self._sending is not None:
            self._sending.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timeouts and release the request."""
        for timer in filter(None, (self._receiving, self._sending)):
            timer.cancel()
        self._waiting.clear()
        self._head.release()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not valid HTTP."""
        if self._is_answering:  # the request before the invalid one is still being answered
            self.cycle.keep_alive = False
        else:
            self._refuse(400, msg)

    @property
    def _is_answering(self) -> bool:
        """Whether a complete request is waiting for the end of its reply."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def _expect_data(self) -> None:
        if self._receiving is None:
            self._receiving = self.loop.call_later(self._limits().receive_seconds, self._on_late)

    def _on_late(self) -> None:
        self._receiving = None
        if self.transport.is_closing():
            return
        is_answered = not self._in_head and self.cycle is not None and self.cycle.response_complete
        if self._is_answering or self.flow.read_paused:  # the client is waiting for a reply, or reading is paused
            self._expect_data()
        elif is_answered or (self._in_head and not self._head_bytes):
            self.transport.close()
        else:
            self._refuse(408, "The request did not arrive in time")

    def _refuse(self, status: int, message: str) -> None:
        """Close the connection, after sending an error unless a reply has begun."""
        if self._in_head or self.cycle is None or not self.cycle.response_started:
            reply = self._error(self.url, message, status)
            reply.headers["connection"] = "close"
            reply.headers["x-content-type-options"] = "nosniff"
            lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
            lines += [name + b": " + value for name, value in reply.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(reply.body)]))
        self.transport.close()
