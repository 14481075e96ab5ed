"""Messages between the service and its processes: pickled objects, each preceded by its length, sent over sockets."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from typing import Any, cast

from headway.serve.model_info import ModelInfo, PivotModels

_LENGTH = struct.Struct("!Q")
# Sent to a loader with the socket for a new process. These are the only messages that are not pickled.
WORKER, LOADER = b"W", b"L"

ModelFunction = str | Callable[..., Any]
"""The name of a method of a model, or a function whose first argument is the model."""


@dataclass(frozen=True)
class Job:
    """A call of a model's method, or of a function that takes the model.

    Attributes:
        model: Name of the model, or two models that translate through a third language.
        function: Name of the method, or a function whose first argument is the model.
        arguments: Positional arguments.
        keywords: Keyword arguments.
        caller: Name of the caller. Callers get equal shares of the batches.
        priority: Jobs with a lower number enter batches first.
    """

    model: str | PivotModels
    function: ModelFunction
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    caller: str = ""
    priority: int = 0

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that the job needs."""
        return (self.model,) if isinstance(self.model, str) else (self.model.first, self.model.second)

    def bind(self, model: Any) -> Callable[..., Any]:
        """Return the method of ``model``, or the function with ``model`` bound to its first argument."""
        return getattr(model, self.function) if isinstance(self.function, str) else partial(self.function, model)


@dataclass(frozen=True)
class StartJob:
    """Tells a worker to start a job.

    Attributes:
        number: Identifies the job in all messages about it.
        job: The job to start.
        has_parts: Whether the job's function returns a stream, each part of which is sent as soon as it is available.
    """

    number: int
    job: Job
    has_parts: bool = False


@dataclass(frozen=True)
class AddGlossaryPart:
    """A part of a glossary that later jobs identify by its digest.

    Attributes:
        part: A part of the glossary's lines, which may end within a line.
        is_last: Whether this is the last part of the glossary.
    """

    part: str
    is_last: bool


@dataclass(frozen=True)
class ResultPart:
    """A part of a job's result. The result itself follows later."""

    number: int
    value: Any


@dataclass(frozen=True)
class JobDone:
    """The result or the error of a job."""

    number: int
    result: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class CancelJob:
    """Tells a worker to end a job before its next step."""

    number: int


@dataclass(frozen=True)
class Ping:
    """Asks a worker for its status."""


@dataclass(frozen=True)
class WorkerStatus:
    """The status of a worker, in reply to a ping.

    Attributes:
        stalled_s: Time that the current decoding step, or turn of a job between two steps, has taken so far.
        num_sequences: Number of sequences in the worker's batches.
        num_waiting: Number of sequences and jobs that wait to enter a batch.
        steps: Number of decoding steps since the worker started.
    """

    stalled_s: float
    num_sequences: int
    num_waiting: int
    steps: int


@dataclass(frozen=True)
class ModelsLoaded:
    """Reports that a loader has loaded its models.

    Attributes:
        models: Descriptions of all models, including models that are loaded on demand.
        num_bytes: Memory of each loaded model in bytes, by name.
        notes: Notes about the models for the log.
        has_gpu: Whether PyTorch detects a GPU, which the service does not use.
    """

    models: tuple[ModelInfo, ...]
    num_bytes: dict[str, int]
    notes: tuple[str, ...] = ()
    has_gpu: bool = False


@dataclass(frozen=True)
class LoadFailed:
    """Reports that a model cannot be loaded."""

    error: Exception


@dataclass(frozen=True)
class Forked:
    """Reports that a loader has forked a process."""

    pid: int


@dataclass(frozen=True)
class ForkFailed:
    """Reports that a loader could not fork a process."""

    reason: str


@dataclass(frozen=True)
class Exited:
    """Reports that a process forked by a loader has ended."""

    pid: int
    status: int


def encode(message: Any) -> bytes:
    """Serialize a message, preceded by its length."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def receive(connection: socket.socket) -> Any:
    """Wait for a message and return it. Raises :class:`EOFError` if the other side has closed the connection.

    Nothing after the message is read, so another process may receive the next one.
    """
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size))
    return pickle.loads(_receive_bytes(connection, length))  # safe: both processes belong to the service


def _receive_bytes(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def read_messages(connection: socket.socket) -> Iterator[tuple[Any, int]]:
    """Yield the messages that arrive, each with its size in bytes, until the other side closes the connection.

    Messages that have arrived together are read with one system call: after each call, the thread has to wait for the
    interpreter lock.
    """
    with connection.makefile("rb") as stream:
        while (body := _read_body(stream)) is not None:
            yield pickle.loads(body), len(body)  # safe: both processes belong to the service


def _read_body(stream: BufferedReader) -> bytes | None:
    """Read the next message without its length, or return None if the connection has ended."""
    with suppress(OSError):  # a connection that was reset has ended, too
        head = stream.read(_LENGTH.size)
        if len(head) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            body = stream.read(length)
            return body if len(body) == length else None
    return None


class MessageReceiver(asyncio.Protocol):
    """Calls a function with each message that arrives, without waking up a task for it.

    Args:
        on_message: Called with each message. If it raises an exception, the connection is closed.
        on_end: Called once when the connection has ended, with None or the exception of a message that could not be
            read or handled.
        on_read: Called when the other side has read everything that was sent, if it did not do so immediately.
    """

    def __init__(
        self,
        on_message: Callable[[Any], None],
        on_end: Callable[[Exception | None], None],
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_message, self._on_end, self._on_read = on_message, on_end, on_read
        self._transport: asyncio.WriteTransport | None = None
        self._error: Exception | None = None
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the connection."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's class does not derive from it
        self._transport.set_write_buffer_limits(0)  # writing is paused until everything is read

    def resume_writing(self) -> None:
        """Report that everything has been read."""
        self._on_read()

    def data_received(self, data: bytes) -> None:
        """Handle the complete messages in the received data."""
        self._received += data
        while self._error is None and len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            body = self._received[_LENGTH.size : end]
            del self._received[:end]
            try:
                self._on_message(pickle.loads(body))
            except Exception as error:
                self._error = error
                assert self._transport is not None
                self._transport.abort()  # close immediately, even if some data has not been sent

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection."""
        self._on_end(self._error)
