"""Measure the cost of 2,000 connections without a key for ``headway serve``: memory, temporary files, and delays.

    python benchmarks/keyless_connections.py --model runs/quickstart-en-de/best --output keyless-DATE.json
    python benchmarks/keyless_connections.py --model MODEL --only uploads,pipelined --connections 500

Each kind of connection is tested with a separate service with keys and default limits. All connections are opened, send
as much as they may, and stay open for some seconds without reading. The requirements are that the memory of the front
process grows by at most 150 MB, that no temporary file is written, and that ``GET /health``, sent every 50 ms, waits
for at most 0.25 s.
"""

import asyncio
import http.client
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import typer
from attacks import service

from headway.hardware import processor_name

MEMORY_MB, HEALTH_S = 150.0, 0.25
SPARE = 20  # connections that are left for others
PERIOD = 12  # number of different requests
POST = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {}\r\n"
JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"
PART = '--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'


def unfinished(path: str, content_type: str, num_bytes: int, start: str = "") -> bytes:
    """Return a request whose body never ends."""
    head = POST.format(path, content_type) + f"Content-Length: {num_bytes + 1}\r\n\r\n" + start
    return head.encode() + b"a" * (num_bytes - len(start))


def get(path: str, rest: str = "") -> bytes:
    """Return a request of the method GET."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{rest}\r\n".encode()


def kinds() -> dict[str, Callable[[int], bytes]]:
    """Return, for each kind of connection, a function from a connection's number to the bytes that it sends."""
    apis = [("/translate", JSON), ("/v2/translate", FORM), ("/language/translate/v2", JSON), ("/translate", MULTIPART)]
    headers = [("/api/v1/translate", JSON), ("/v1/completions", JSON), ("/models/model", JSON), ("/api/v1/jobs", JSON)]
    uploads = [("/translate_file", MULTIPART), ("/v2/document", MULTIPART), ("/api/v1/documents", MULTIPART)]
    return {
        "idle": lambda _: b"",
        "heads": lambda _: b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 60_000,
        "many-headers": lambda _: b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 90,
        "bodies": lambda number: unfinished(*apis[number % 4], 4_000_000, '{"q": "'),
        "small-bodies": lambda number: unfinished(*apis[number % 4], 100_000, '{"q": "'),
        "bodies-with-the-key-in-a-header": lambda number: unfinished(*headers[number % 4], 4_000_000, '{"text": "'),
        "uploads": lambda number: unfinished(*uploads[number % 3], 15_000_000, PART),
        "chunks": lambda _: POST.format("/translate", JSON).encode()
        + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 100_000,
        "pipelined": lambda _: get("/api/v1/openapi.json") * 4000,
        "pipelined-files": lambda _: get("/") * 4000,
        "unread-replies": lambda number: get(("/api/v1/openapi.json", "/page/main.js", "/metrics")[number % 3]),
        "unread-replies-with-bodies": lambda _: get("/api/v1/openapi.json", "Content-Length: 9999\r\n") + b"a" * 9_000,
    }  # fmt: skip


async def attack(port: int, kind: str, connections: int, seconds: float) -> None:
    """Open connections of a kind, send as much as the service accepts, and close them after some seconds."""
    make = cache(kinds()[kind])

    async def one(number: int) -> None:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)  # hardly reads anything
                data = memoryview(make(number % PERIOD))
                for start in range(0, len(data), 65_536):
                    writer.write(data[start : start + 65_536])
                    await writer.drain()
                await asyncio.sleep(seconds)
                del reader

    await asyncio.gather(*map(one, range(connections)))


def run_attack(port: int, kind: str, connections: int, seconds: float) -> None:
    """Run :func:`attack` in this process."""
    asyncio.run(attack(port, kind, connections, seconds))


def measure_health(port: int, channel: Connection) -> None:
    """Send ``GET /health`` repeatedly. After the first message, measure until the second message.

    Then send back the longest time in seconds.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    longest, begun = 0.0, False
    while not (begun and channel.poll()):
        if channel.poll():
            channel.recv()
            longest, begun = 0.0, True
        start = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        longest = max(longest, time.perf_counter() - start)
        time.sleep(0.05)
    channel.send(longest)


def resident_bytes(pid: int) -> int:
    """Return the memory that belongs to a process alone."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


@dataclass(frozen=True)
class KeylessOutcome:
    """The effects of connections of one kind.

    Attributes:
        kind: The kind of the connections.
        memory_mb: The largest growth of the memory of the front process, in megabytes.
        memory_left_mb: The remaining growth after the connections are closed.
        temporary_bytes: The largest size of the temporary files.
        health_seconds: The longest time of ``GET /health``.
        holds: Whether the requirements are met.
    """

    kind: str
    memory_mb: float
    memory_left_mb: float
    temporary_bytes: int
    health_seconds: float
    holds: bool


def temporary_bytes(pid: int, folder: Path) -> int:
    """Return the size of the temporary files of a process, including those that have no name."""
    named = {path.resolve(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    unnamed = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            target = str(link.readlink())
            if target.startswith(str(folder)) and target.endswith(" (deleted)"):
                unnamed += link.stat().st_size
    return sum(named.values()) + unnamed


def measure(model: Path, kind: str, connections: int, seconds: float) -> KeylessOutcome:
    """Measure connections of a kind."""
    context = multiprocessing.get_context("spawn")
    with service(model) as running:
        pid, port = running.process.pid, running.port
        channel, other_end = context.Pipe()
        probe = context.Process(target=measure_health, args=(port, other_end))
        probe.start()
        time.sleep(3.0)
        channel.send("begin")
        before = resident_bytes(pid)
        attacker = context.Process(target=run_attack, args=(port, kind, connections, seconds))
        attacker.start()
        most, temporary = 0, 0
        while attacker.is_alive():
            most = max(most, resident_bytes(pid) - before)
            temporary = max(temporary, temporary_bytes(pid, running.temporary))
            time.sleep(0.1)
        attacker.join()
        time.sleep(2.0)
        left = resident_bytes(pid) - before
        channel.send("end")
        longest = channel.recv()
        probe.join()
        holds = most <= MEMORY_MB * 1e6 and not temporary and longest <= HEALTH_S
        return KeylessOutcome(kind, round(most / 1e6, 1), round(left / 1e6, 1), temporary, round(longest, 3), holds)


def main(
    model: Annotated[Path, typer.Option(help="Model folder.")],
    output: Annotated[Path | None, typer.Option(help="JSON file for the results.")] = None,
    only: Annotated[str, typer.Option(help=f"Kinds of connections: {', '.join(kinds())}. Default: all.")] = "",
    connections: Annotated[int, typer.Option(help="Number of connections.")] = 2000 - SPARE,
    seconds: Annotated[float, typer.Option(help="Time in seconds for which the connections stay open.")] = 15.0,
) -> None:
    """Measure each kind of connections."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    outcomes = []
    for kind in only.split(",") if only else kinds():
        outcomes.append(measure(model, kind, connections, seconds))
        print(outcomes[-1], flush=True)
        if output is not None:
            result = {
                "date": datetime.now(UTC).isoformat(timespec="seconds"), "processor": processor_name(),
                "cores": os.cpu_count(), "connections": connections, "seconds": seconds,
                "bars": {"memory_mb": MEMORY_MB, "temporary_bytes": 0, "health_seconds": HEALTH_S},
                "outcomes": list(map(asdict, outcomes)),
            }  # fmt: skip
            output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    raise typer.Exit(int(not all(outcome.holds for outcome in outcomes)))


if __name__ == "__main__":
    typer.run(main)
