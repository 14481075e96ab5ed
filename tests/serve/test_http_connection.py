"""Clients that are slow, that send too much, or that stay connected."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
from in_process import listening
from running_service import RunningService, running, unpack_model
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.serve.listeners import open_sockets

RECEIVE_S = 1.0
PATIENCE_S = 60.0  # also on a busy machine
POST = b"POST /v2/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("served")
    unpack_model(folder)
    limits = f"receive_seconds = {RECEIVE_S}, connections = 20, header_bytes = 10_000, body_bytes = 2000"
    (folder / "serve.toml").write_text(f'limits = {{ {limits} }}\nworkers = 1\nmodels = [{{ path = "model" }}]\n')
    with running(["--config", str(folder / "serve.toml")]) as found:
        yield found


def connect(service: RunningService) -> socket.socket:
    return socket.create_connection(("127.0.0.1", httpx.URL(service.url).port or 0), timeout=30)


def reply_of(connection: socket.socket) -> bytes:
    """Return what arrives until the service closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def is_error(reply: bytes, status: int, body: dict[str, Any]) -> bool:
    head, _, found = reply.partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 %d " % status) and json.loads(found) == body


@pytest.mark.slow_but_every(5)
@pytest.mark.parametrize(
    "start",
    [b"", b"\r\n", b"GET /lang", b"GET /languages HTTP/1.1\r\nHost: local", POST + b'Content-Length: 999\r\n\r\n{"a"'],
    ids=["nothing", "empty-lines", "url", "headers", "body"],
)
def test_a_request_that_trickles_ends(service: RunningService, start: bytes) -> None:
    """A byte now and then does not keep a connection open."""
    began = time.monotonic()
    with connect(service) as connection:
        connection.sendall(start)
        connection.settimeout(RECEIVE_S / 5)
        reply = None
        while reply is None:
            assert time.monotonic() < began + PATIENCE_S, "each byte has begun a new time limit"
            try:
                reply = connection.recv(65536)
            except TimeoutError:
                connection.sendall(start[:1])
    assert time.monotonic() - began > RECEIVE_S
    if not start:
        assert reply == b""
    else:
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert list(json.loads(reply.partition(b"\r\n\r\n")[2])) == ["message" if start.startswith(POST) else "error"]


def test_a_request_that_begins_with_the_previous_one_and_trickles_ends(service: RunningService) -> None:
    with connect(service) as connection:
        began = time.monotonic()
        start = b'Content-Length: 999\r\n\r\n{"a"'
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + POST + start)
        connection.settimeout(RECEIVE_S / 5)
        replies = b""
        while b"HTTP/1.1 408 " not in replies:
            assert time.monotonic() < began + PATIENCE_S, "each byte has begun a new time limit"
            try:
                replies += connection.recv(65536)
            except TimeoutError:
                connection.sendall(b" ")
        assert replies.startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
def test_time_in_which_the_service_works_does_not_count(service: RunningService) -> None:
    """A request that is complete may take longer to answer than a client may take to send one."""
    body = {"text": ["a"] * 100, "source": "en", "target": "de", "options": {"beam_size": 50, "min_length": 40}}
    began = time.monotonic()
    reply = httpx.post(f"{service.url}/api/v1/translate", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert time.monotonic() - began > RECEIVE_S


@pytest.mark.slow
def test_a_reply_that_is_not_received_is_given_up(service: RunningService) -> None:
    with connect(service) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(400):
            try:
                connection.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            except ConnectionError:
                break
        time.sleep(3 * RECEIVE_S)
        with pytest.raises(ConnectionError):  # noqa: PT012
            for _ in range(1000):
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                time.sleep(0.01)


def test_headers_are_bounded(service: RunningService) -> None:
    """Those of one request, and a header without an end, of which nothing more is stored."""
    headers = {"x": "a" * 11_000}
    refused = httpx.get(f"{service.url}/v1/models", headers=headers)
    assert (refused.status_code, refused.json()["error"]["message"]) == (431, "The request headers are too large")
    with connect(service) as connection:
        connection.sendall(b"GET /languages HTTP/1.1\r\nHost: localhost\r\nX: ")
        sent = 0
        with pytest.raises(ConnectionError):  # noqa: PT012
            while sent < 50_000_000:
                sent += connection.send(b"a" * 100_000)
                time.sleep(0.005)
    assert sent < 20_000_000


def test_a_body_without_a_length_is_bounded(service: RunningService) -> None:
    def parts() -> Iterator[bytes]:
        yield from [b" " * 500] * 5

    for path in ("/translate", "/api/v1/translate", "/v1/completions"):
        reply = httpx.post(service.url + path, content=parts(), headers={"content-type": "application/json"})
        assert reply.status_code == 413, reply.text
        assert "The body has more than 2,000 bytes" in reply.text


def test_invalid_http_gets_an_error_of_its_api(service: RunningService) -> None:
    with connect(service) as connection:
        connection.sendall(POST + b"Content-Length: x\r\n\r\n")
        assert is_error(reply_of(connection), 400, {"message": "Invalid HTTP request received."})
    with connect(service) as connection:
        connection.sendall(b"FOO BAR\r\n\r\n")
        assert is_error(reply_of(connection), 400, {"error": "Invalid HTTP request received."})


def test_a_request_is_answered_although_the_next_one_is_invalid(service: RunningService) -> None:
    with connect(service) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nnothing like HTTP\r\n\r\n")
        first, _, second = reply_of(connection).partition(b'{"status":"ok"}')
    assert (first[:13], second[:13]) == (b"HTTP/1.1 200 ", b"HTTP/1.1 400 ")


def test_the_number_of_headers_is_bounded(service: RunningService) -> None:
    with connect(service) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a:\r\n" * 150)
        assert is_error(reply_of(connection), 431, {"error": "Too many request headers"})


def test_the_body_of_an_answered_request_is_not_awaited_forever(service: RunningService) -> None:
    with connect(service) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        assert is_error(reply_of(connection), 200, {"status": "ok"})


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without reading the body."""
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def read(scope: Scope, receive: Receive, send: Send) -> None:
    """Read a body that does not end."""
    while (await receive()).get("more_body"):
        pass


@pytest.mark.parametrize("num_bytes", [100, 100_000, 2_000_000])
def test_a_client_that_is_refused_can_send_its_body_and_go_on(num_bytes: int) -> None:
    with listening(refuse) as url, closing(HTTPConnection("127.0.0.1", httpx.URL(url).port)) as connection:
        connection.timeout = PATIENCE_S
        for method in ("POST", "PUT", "GET"):
            connection.request(method, "/", body=None if method == "GET" else b"a" * num_bytes)
            with connection.getresponse() as reply:
                assert (reply.status, reply.will_close) == (403, False)


@pytest.mark.parametrize("app", [refuse, read])
@pytest.mark.parametrize("start", [b"0\r\n", b"0\r\nx: ", b"1;x="], ids=["trailers", "trailer", "extension"])
def test_what_surrounds_a_chunked_body_is_bounded(app: ASGIApp, start: bytes) -> None:
    with listening(app) as url, socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0), 30) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + start)
        part, sent = (b"x: y\r\n" if start == b"0\r\n" else b"x") * 10_000, 0
        with suppress(ConnectionError):
            while sent < 20_000_000:
                sent += connection.send(part)
        assert sent < 20_000_000


class TestPipelining:
    """A client sends further requests before it has the reply to the first one."""

    @pytest.fixture
    def app(self) -> Slow:
        return Slow()

    @pytest.fixture
    def connection(self, app: Slow) -> Iterator[socket.socket]:
        with listening(app) as url, socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0), 30) as connected:
            yield connected

    @pytest.mark.parametrize("size", [1, 7, 10_000])
    def test_all_are_answered_in_order(self, connection: socket.socket, app: Slow, size: int) -> None:
        app.release.set()
        posts = [b"POST /%d HTTP/1.1\r\nContent-Length: 5\r\n\r\nGET /" % number for number in range(20)]
        data = b"".join([*posts, b"GET /20 HTTP/1.1\r\nConnection: close\r\n\r\n"])
        for start in range(0, len(data), size):
            connection.sendall(data[start : start + size])
        assert [int(path) for path in re.findall(rb"\r\n\r\n/(\d+)", reply_of(connection))] == list(range(21))
        assert app.most_at_once == 1

    @pytest.mark.parametrize("next_requests", [b"", b"GET /1 HTTP/1.1\r\n\r\n", b"GET /1 HTTP/1.1\r\n\r\n" * 5000])
    def test_a_client_that_closes_the_connection_is_noticed(
        self, connection: socket.socket, app: Slow, next_requests: bytes
    ) -> None:
        connection.sendall(b"GET /0 HTTP/1.1\r\n\r\n")
        assert app.has_begun.wait(PATIENCE_S)
        connection.sendall(next_requests)
        connection.close()
        assert app.is_disconnected.wait(PATIENCE_S)

    def test_what_is_stored_is_bounded(self, connection: socket.socket, app: Slow) -> None:
        connection.sendall(b"GET /0 HTTP/1.1\r\n\r\n")
        assert app.has_begun.wait(PATIENCE_S)
        for _ in range(100):
            connection.sendall(b"GET /1 HTTP/1.1\r\n\r\n" * 2000)
        app.release.set()
        with suppress(ConnectionResetError):  # the service has closed it, with data that it has not read
            assert reply_of(connection).count(b"HTTP/1.1 200 ") == 1
        assert app.most_at_once == 1

    def test_requests_in_the_same_data_as_the_end_of_a_chunked_body(self, connection: socket.socket, app: Slow) -> None:
        """The end of such a body is known to the parser only, so the requests after it must be sent again."""
        app.release.set()
        head, body = b"POST /0 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n0\r\n\r\n"
        connection.sendall(head + body + b"GET /1 HTTP/1.1\r\n\r\n")
        assert reply_of(connection).endswith(b"\r\n\r\n/0")


class Slow:
    """An application that reads the body of a request, and answers with its path when it is released."""

    def __init__(self) -> None:
        self.has_begun, self.release, self.is_disconnected = threading.Event(), threading.Event(), threading.Event()
        self.at_once = self.most_at_once = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        while (await receive()).get("more_body"):
            pass
        self.has_begun.set()
        disconnecting = asyncio.ensure_future(receive())
        while not self.release.is_set() and not disconnecting.done():
            await asyncio.sleep(0.001)
        if disconnecting.done():
            self.is_disconnected.set()
            return
        disconnecting.cancel()
        body = scope["path"].encode()
        self.at_once -= 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


def test_connections_are_bounded(service: RunningService) -> None:
    idle = [connect(service) for _ in range(20)]
    try:
        with connect(service) as connection:
            assert is_error(reply_of(connection), 503, {"error": "Too many connections"})
    finally:
        for each in idle:
            each.close()
    assert httpx.get(f"{service.url}/health").status_code == 200


def test_a_reply_does_not_wait_until_the_client_acknowledges_its_head() -> None:
    with (
        open_sockets(["127.0.0.1"], 0, 0o600) as (listener,),
        socket.create_connection(listener.socket.getsockname()),
    ):
        connection, _ = listener.socket.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
