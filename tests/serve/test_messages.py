"""Messages between the service and its processes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headway.serve.workers.messages import CancelJob, JobDone, MessageReceiver, Ping, ResultPart, encode, read_messages

MESSAGES = [Ping(), ResultPart(1, "first"), JobDone(1, "x" * 100_000), CancelJob(2)]


def received(send: Callable[[socket.socket], Awaitable[None]], on_message: Callable[[Any], None]) -> Exception | None:
    """Let ``send`` write to a connection, close it, and return the error with which it ended."""

    async def run() -> Exception | None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        receiver = MessageReceiver(on_message, ended.set_result)
        await asyncio.get_running_loop().create_connection(lambda: receiver, sock=ours)
        await send(theirs)
        theirs.close()
        return await asyncio.wait_for(ended, 60)

    return asyncio.run(run())


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_messages_arrive_however_they_are_cut(size: int) -> None:
    data, found = b"".join(map(encode, MESSAGES[:2] if size < 7 else MESSAGES)), list[Any]()

    async def send(connection: socket.socket) -> None:
        for at in range(0, len(data), size):
            await asyncio.get_running_loop().sock_sendall(connection, data[at : at + size])
            await asyncio.sleep(0)

    assert received(send, found.append) is None
    assert b"".join(map(encode, found)) == data


def test_a_connection_ends_in_the_middle_of_a_message() -> None:
    found = list[Any]()

    async def send(connection: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(connection, encode(Ping()) + encode(ResultPart(1, "x"))[:-1])

    assert received(send, found.append) is None
    assert found == [Ping()]


def test_a_message_that_cannot_be_read_ends_the_connection() -> None:
    found = list[Any]()

    async def send(connection: socket.socket) -> None:
        data = encode(Ping()) + encode(ResultPart(1, "x"))[:-1] + b"?" + encode(Ping())
        await asyncio.get_running_loop().sock_sendall(connection, data)

    error = received(send, found.append)
    assert isinstance(error, Exception)
    assert found == [Ping()]


def test_a_message_that_cannot_be_handled_ends_the_connection() -> None:
    async def send(connection: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(connection, encode(Ping()) + encode(Ping()))

    calls = list[Any]()

    def fail(message: Any) -> None:
        calls.append(message)
        raise RuntimeError("wrong")

    error = received(send, fail)
    assert isinstance(error, RuntimeError)
    assert calls == [Ping()]


@pytest.mark.parametrize("size", [7, 1 << 20])
def test_a_worker_reads_messages_until_the_connection_ends(size: int) -> None:
    """A message that the other side has not sent completely is ignored."""
    data = b"".join(map(encode, MESSAGES)) + encode(Ping())[:-1]
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs:
            for start in range(0, len(data), size):
                theirs.sendall(data[start : start + size])

    threading.Thread(target=send).start()
    with ours:
        found = list(read_messages(ours))
    assert [message for message, _ in found] == MESSAGES
    assert sum(num_bytes + 8 for _, num_bytes in found) == len(data) - len(encode(Ping())) + 1
