"""Messages between the service and its processes: pickled objects on a socket, each preceded by its length."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from headway.serve.model_info import ModelInfo, PivotModels

_LENGTH = struct.Struct("!Q")
# Sent to a loader with the socket of a new process. These are the only messages that are not pickled.
WORKER, LOADER = b"W", b"L"

ModelFunction = str | Callable[..., Any]
"""The name of a method of a model, or a function whose first argument is the model."""


@dataclass(frozen=True)
class Job:
    """A call of a model's method, or of a function that takes the model.

    Attributes:
        model: The name of the model, or two models.
        function: The name of the method, or a function whose first argument is the model.
        arguments: The function's positional arguments.
        keywords: The function's keyword arguments.
        caller: Who calls. Callers get equal shares of the batches.
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
        """Return the method of ``model``, or the function with it as its first argument."""
        return getattr(model, self.function) if isinstance(self.function, str) else partial(self.function, model)


@dataclass(frozen=True)
class StartJob:
    """Begin a job.

    Attributes:
        number: Identifies the job in all messages about it.
        job: The job.
        has_parts: Whether its function returns a stream of parts, each of which is sent as soon as it is available.
    """

    number: int
    job: Job
    has_parts: bool = False


@dataclass(frozen=True)
class AddGlossary:
    """A part of a glossary that the following jobs name by its digest.

    Attributes:
        part: Its lines, or some of their characters.
        is_last: Whether the glossary is complete with this part.
    """

    part: str
    is_last: bool


@dataclass(frozen=True)
class Part:
    """A part of the result of a job; more parts follow."""

    number: int
    value: Any


@dataclass(frozen=True)
class Done:
    """The result of a job, or its error."""

    number: int
    result: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Cancel:
    """End a job before its next step."""

    number: int


@dataclass(frozen=True)
class Ping:
    """Ask a worker whether it is alive."""


@dataclass(frozen=True)
class Pong:
    """A worker is alive.

    Attributes:
        stalled_s: How long the present decoding step, or turn of a job between two steps, has taken so far, in seconds.
        num_sequences: Sequences in its batches.
        num_waiting: Sequences that wait to enter them.
        steps: Decoding steps since it started.
    """

    stalled_s: float
    num_sequences: int
    num_waiting: int
    steps: int


@dataclass(frozen=True)
class Loaded:
    """The models are loaded.

    Attributes:
        models: All models, including those that are loaded on demand.
        num_bytes: The memory of each model that is loaded.
        notes: Remarks about the models for the log.
        has_gpu: Whether PyTorch finds a GPU, which the service does not use.
    """

    models: tuple[ModelInfo, ...]
    num_bytes: dict[str, int]
    notes: tuple[str, ...] = ()
    has_gpu: bool = False


@dataclass(frozen=True)
class LoadFailed:
    """A model cannot be loaded."""

    error: Exception


@dataclass(frozen=True)
class Forked:
    """A loader has started the process that it was asked for."""

    pid: int


@dataclass(frozen=True)
class ForkFailed:
    """A loader could not start the process that it was asked for."""

    reason: str


@dataclass(frozen=True)
class Exited:
    """A process that a loader has started has ended."""

    pid: int
    status: int


def encode(message: Any) -> bytes:
    """Return a message as bytes, with its length before it."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def receive(connection: socket.socket) -> Any:
    """Wait for a message. Raises :class:`EOFError` when the other side has closed the connection."""
    return receive_with_size(connection)[0]


def receive_with_size(connection: socket.socket) -> tuple[Any, int]:
    """Wait for a message like :func:`receive`, and return it and its number of bytes."""
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size))
    return pickle.loads(_receive_bytes(connection, length)), length  # between processes of one service


def _receive_bytes(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


class MessageReceiver(asyncio.Protocol):
    """Calls a function with each message that arrives, without a task that has to wake up for it.

    Args:
        on_message: The function. If it raises an exception, the connection is closed.
        on_end: Called once, when the connection has ended, with the error of a message that could not be read or
            handled, or None.
        on_read: Called when the other side has read everything that was sent, if it could not do so immediately.
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
        """Remember the connection."""
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's does not derive from it
        self._transport.set_write_buffer_limits(0)  # writing is paused until everything is read

    def resume_writing(self) -> None:
        """Report that everything has been read."""
        self._on_read()

    def data_received(self, data: bytes) -> None:
        """Handle the messages that are complete now."""
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
        """Report the end."""
        self._on_end(self._error)
