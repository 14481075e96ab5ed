"""A small HTTP client for load tests: many connections from one thread, with little time spent on each request."""

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    """A reply: its status, the bytes of its head and body, the time of its request, and its response time."""

    status: int
    head: bytes
    body: bytes
    seconds: float
    sent_at: float = 0.0

    @property
    def headers(self) -> dict[str, str]:
        """The headers, with names in lower case."""
        lines = (line.partition(":") for line in self.head.decode("latin-1").split("\r\n")[1:])
        return {name.lower(): value.strip() for name, _, value in lines}

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


def post_request(path: str, value: Any) -> bytes:
    """Return a request that sends a value as JSON."""
    body = json.dumps(value).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """A connection that stays open between requests and sends one request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._sent_at = 0.0
        self._reply: asyncio.Future[Reply] | None = None

    async def send(self, request: bytes) -> Reply:
        """Send a request and wait for the reply."""
        loop = asyncio.get_running_loop()
        self._sent_at = time.perf_counter()
        if self._transport is None:
            self._transport, _ = await loop.create_connection(lambda: self, self._host, self._port)
        self._reply = loop.create_future()
        self._transport.write(request)
        return await self._reply

    def data_received(self, data: bytes) -> None:
        """Collect the reply."""
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
        if self._reply is None or not end or len(body) < int(length[1] if length else 0):
            return
        seconds, self._received = time.perf_counter() - self._sent_at, b""
        self._reply.set_result(Reply(int(head[9:12]), head, body, seconds, self._sent_at))
        self._reply = None
        if re.search(rb"\r\nconnection: *close", head, re.IGNORECASE):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that has no reply yet."""
        self._transport, self._received = None, b""
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(exc or ConnectionResetError())

    def close(self) -> None:
        """Close the connection, like a client that no longer needs the reply."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None


async def closed_loop(
    port: int, path: str, values: Sequence[Any], connections: int, host: str = "127.0.0.1"
) -> tuple[list[Reply], float]:
    """Send each value once, one after the other on each of the connections. Return the replies and the total time."""
    requests = [post_request(path, value) for value in values]
    replies: list[Reply | None] = [None] * len(values)
    waiting = iter(range(len(values)))

    async def send_all() -> None:
        connection = Connection(host, port)
        for at in waiting:
            replies[at] = await connection.send(requests[at])
        connection.close()

    start = time.perf_counter()
    await asyncio.gather(*(send_all() for _ in range(connections)))
    return [reply for reply in replies if reply is not None], time.perf_counter() - start


async def open_loop(
    port: int,
    path: str,
    make: Callable[[int], Any],
    *,
    rate: float,
    seconds: float,
    seed: int = 1,
    host: str = "127.0.0.1",
) -> tuple[list[Reply], float]:
    """Send requests at random times (a Poisson process), whether or not earlier requests have been answered.

    Args:
        port: The port of the service.
        path: The path of the requests.
        make: Returns the value of a request for its number.
        rate: Requests per second.
        seconds: Time during which requests are sent.
        seed: Random seed of the times.
        host: The address of the service.

    Returns:
        The replies, and the time from the first request to the last reply.
    """
    draw, free, replies, tasks = random.Random(seed), list[Connection](), list[Reply](), set[asyncio.Task[None]]()

    async def send(number: int) -> None:
        connection = free.pop() if free else Connection(host, port)
        try:
            replies.append(await connection.send(post_request(path, make(number))))
        except ConnectionError:
            connection.close()
            replies.append(Reply(0, b"", b"", 0.0))
        free.append(connection)

    start, due, number = time.perf_counter(), 0.0, 0
    while due < seconds:
        delay = start + due - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        task = asyncio.ensure_future(send(number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
        due += draw.expovariate(rate)
    while tasks:
        await asyncio.wait(tasks)
    for connection in free:
        connection.close()
    return replies, time.perf_counter() - start


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
