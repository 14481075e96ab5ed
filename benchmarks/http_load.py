"""A small HTTP client for load tests: many connections from one thread, with little time spent on each request."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reply:
    """A reply: its status, headers, body, and the time that it took."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float
    sent_at: float = 0.0

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


@dataclass
class Connection:
    """A connection that is kept open between requests."""

    host: str
    port: int
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = field(default=None, init=False)

    async def post(self, path: str, value: Any) -> Reply:
        """Send a value as JSON and wait for the reply."""
        body = json.dumps(value).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        start = time.perf_counter()
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.host, self.port)
        reader, writer = self.streams
        writer.write(head.encode() + body)
        received = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = received.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Reply(int(first.split()[1]), headers, content, time.perf_counter() - start, start)

    def close(self) -> None:
        """Close the connection, as a client does that has lost interest."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def closed_loop(
    port: int, path: str, values: Sequence[Any], connections: int, host: str = "127.0.0.1"
) -> tuple[list[Reply], float]:
    """Send each value once, one after the other on each of the connections. Return the replies and the whole time."""
    replies: list[Reply | None] = [None] * len(values)
    waiting = iter(range(len(values)))

    async def send_all() -> None:
        connection = Connection(host, port)
        for at in waiting:
            replies[at] = await connection.post(path, values[at])
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
    """Send requests at random times (a Poisson process), whether earlier ones are answered or not.

    Args:
        port: The port of the service.
        path: The path of the requests.
        make: Returns the value of a request for its number.
        rate: Requests per second.
        seconds: Time in which they are sent.
        seed: Random seed of the times.
        host: The address of the service.

    Returns:
        The replies, and the time from the first request to the last reply.
    """
    draw, free, replies, tasks = random.Random(seed), list[Connection](), list[Reply](), set[asyncio.Task[None]]()

    async def send(number: int) -> None:
        connection = free.pop() if free else Connection(host, port)
        try:
            replies.append(await connection.post(path, make(number)))
        except (ConnectionError, asyncio.IncompleteReadError):
            connection.close()
            replies.append(Reply(0, {}, b"", 0.0))
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
