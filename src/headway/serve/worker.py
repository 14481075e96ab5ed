"""The process that computes. Each job runs in a thread of its own, and their searches share batches."""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

from headway.decode import Caller, SharedSearch, search_as
from headway.errors import HeadwayError
from headway.hardware import return_freed_memory
from headway.predict.continuation import Continuation, ContinuationStream
from headway.predict.pivot import PivotTranslator
from headway.serve.glossaries import GlossaryLines
from headway.serve.messages import (
    MAX_JOBS,
    Cancel,
    Done,
    Job,
    Part,
    Ping,
    PivotModels,
    Pong,
    WorkerError,
    encode,
    receive,
)

_IDLE_PINGS = 4  # a worker without jobs for this many pings is idle


@runtime_checkable
class SearchSharer(Protocol):
    """A model whose calls can share their batches."""

    def share_search(self, search: SharedSearch) -> None:
        """Let all calls share the batches of ``search``."""


def run_worker(connection: socket.socket, models: dict[str, Any]) -> None:
    """Answer the jobs that arrive until the connection is closed."""
    _Worker(connection, models).run()


class _Worker:
    def __init__(self, connection: socket.socket, models: dict[str, Any]) -> None:
        self._connection, self._models = connection, models
        self._search = SharedSearch()
        for model in models.values():
            if isinstance(model, SearchSharer):
                model.share_search(self._search)
        self._sending = threading.Lock()
        self._callers: dict[int, Caller] = {}
        self._idle_pings = 0  # pings since the last job began

    def run(self) -> None:
        with ThreadPoolExecutor(MAX_JOBS, thread_name_prefix="job") as pool:
            while True:
                try:
                    message = receive(self._connection)
                except (EOFError, OSError):
                    os._exit(0)  # jobs in progress have no one to answer to
                match message:
                    case Ping():
                        self._send(self._pong())
                        self._return_memory()
                    case Cancel():
                        self._cancel(message.number)
                    case Job():
                        self._start(message, pool)

    def _start(self, job: Job, pool: ThreadPoolExecutor) -> None:
        caller = self._callers[job.number] = Caller(job.caller, job.priority)
        self._idle_pings = 0
        pool.submit(self._answer, job, caller)

    def _cancel(self, number: int) -> None:
        caller = self._callers.get(number)
        if caller is not None:
            caller.canceled.set()

    def _answer(self, job: Job, caller: Caller) -> None:
        try:
            if caller.canceled.is_set():
                raise CancelledError
            with search_as(caller):
                method = job.bind(self._model(job.model))
                keywords = {
                    name: value.build() if isinstance(value, GlossaryLines) else value
                    for name, value in job.keywords.items()
                }
                result = method(*job.arguments, **keywords)
                if job.has_parts:
                    result = self._send_parts(job.number, result)
                reply = Done(job.number, result)
        except (HeadwayError, CancelledError) as error:
            reply = Done(job.number, error=error)
        except Exception:
            traceback.print_exc()
            reply = Done(job.number, error=WorkerError())
        self._callers.pop(job.number, None)
        self._send(reply)

    def _model(self, model: str | PivotModels) -> Any:
        if isinstance(model, str):
            return self._models[model]
        first, second = self._models[model.first], self._models[model.second]
        return PivotTranslator(first, second, pivot_language=model.languages, candidates=model.candidates)

    def _send_parts(self, number: int, stream: ContinuationStream[Any]) -> Continuation | None:
        for part in stream:
            self._send(Part(number, part))
        return stream.continuation

    def _pong(self) -> Pong:
        search = self._search
        started = search.step_started
        stalled = 0.0 if started is None else time.monotonic() - started
        return Pong(stalled, search.num_sequences, search.num_waiting, search.num_steps)

    def _return_memory(self) -> None:
        """Return freed memory to the system when there has been no job for some pings."""
        if not self._callers:
            self._idle_pings += 1
            if self._idle_pings == _IDLE_PINGS:
                return_freed_memory()

    def _send(self, message: Any) -> None:
        data = encode(message)
        with self._sending:
            try:
                self._connection.sendall(data)
            except OSError:
                os._exit(0)  # the service has ended
