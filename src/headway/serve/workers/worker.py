"""A worker process. It runs jobs concurrently, and their searches share batches.

Short jobs that do little besides searching run in greenlets of the main thread, whose loop computes the steps of all
searches (see :mod:`headway.serve.workers.shared_search`). Most jobs are of this kind, and running each of them in a
thread would take as much time as the search of a small model. Jobs that may compute for long without a pause run in
separate threads.
"""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from greenlet import GreenletExit

from headway.decode import Caller, SearchFunction, SearchStepsFunction, use_caller
from headway.errors import HeadwayError
from headway.hardware import move_to_huge_pages, return_freed_memory
from headway.predict.language_modeling.continuation import Continuation, ContinuationStream
from headway.predict.translation.options import TranslateOptions
from headway.predict.translation.pivot import PivotTranslator
from headway.serve.errors import WorkerError
from headway.serve.glossaries import GlossaryCache, GlossaryDigest, GlossaryLines
from headway.serve.model_info import PivotModels
from headway.serve.translation_json import translate_to_json
from headway.serve.workers.fleet import MAX_JOBS_PER_WORKER
from headway.serve.workers.held_jobs import HeldJobs, PreparationKey
from headway.serve.workers.messages import (
    AddGlossaryPart,
    CancelJob,
    Job,
    JobDone,
    Ping,
    ResultPart,
    StartJob,
    WorkerStatus,
    encode,
    read_messages,
)
from headway.serve.workers.shared_search import SharedSearch
from headway.serve.workers.waiting_jobs import WaitingJobs

_IDLE_PINGS = 4  # a worker that has no jobs during this many pings is idle
# Maximum number of jobs to start per step. Encoding the texts of several jobs together takes less time than encoding
# them one by one, but running jobs wait meanwhile.
_STARTS_PER_STEP = 16
# Methods and functions of short jobs. They must not search, or call give_way(), in PyTorch's inference mode.
_SEARCHING = {"translate_each", translate_to_json, "generate", "stream", "stream_tokens"}
_SHORT_JOB_BYTES = 4096  # maximum message size of a short job; longer texts take long to compute
_SWITCH_S = 0.0005  # the interpreter's switch interval, for which the main thread may wait; Python's default is 5 ms
_GC_THRESHOLD = 10_000  # with Python 3.11's default, 700, garbage collections take 3 % of the time of a small model
_TURN_S = 0.005  # a thread that has computed for this time pauses if the main thread has work
_CANCEL_S = 1.0  # if the thread of a canceled job still runs after this time, it is ended by an exception


@runtime_checkable
class ReplaceableSearch(Protocol):
    """A model whose search functions can be replaced, so that its calls share batches."""

    def replace_search(self, search: SearchFunction, steps: SearchStepsFunction) -> None:
        """Use these functions for all searches."""


def run_worker(connection: socket.socket, models: dict[str, Any]) -> None:
    """Run the jobs that arrive until the connection is closed."""
    move_to_huge_pages(shares_weights=True)
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(_GC_THRESHOLD)
    _Worker(connection, models).run()


class _Worker:
    def __init__(self, connection: socket.socket, models: dict[str, Any]) -> None:
        self._connection, self._models = connection, models
        self._short_jobs = WaitingJobs[tuple[StartJob, Caller]]()
        self._pool = ThreadPoolExecutor(MAX_JOBS_PER_WORKER, thread_name_prefix="job")
        self._search = SharedSearch(on_call=self._short_jobs.wake)
        for model in models.values():
            if isinstance(model, ReplaceableSearch):
                model.replace_search(self._search, self._search.steps)
        self._sending = threading.Lock()
        self._thread = threading.get_ident()
        self._unsent: list[bytes] = []  # results of jobs in the main thread, which are sent together after each step
        self._callers: dict[int, Caller] = {}
        self._threads: dict[int, int] = {}  # thread ids of jobs that run in a thread, keyed by job number
        self._interrupting = threading.Lock()
        self._glossaries = GlossaryCache()
        self._held_jobs = HeldJobs()
        self._preparations = WaitingJobs[tuple[PreparationKey, GlossaryLines, Caller]]()
        self._idle_pings = 0  # number of pings since the last job began

    def run(self) -> None:
        threading.Thread(target=self._receive, name="receive", daemon=True).start()
        threading.Thread(target=self._prepare_glossaries, name="prepare", daemon=True).start()
        while True:
            self._start_jobs()
            try:
                self._search.advance()
            finally:
                self._send_unsent()

    def _start_jobs(self) -> None:
        """Start some of the short jobs that have arrived. If there is no work, wait for a job or a thread's search."""
        for _ in range(_STARTS_PER_STEP):
            if not self._search.has_work:
                self._send_unsent()
            elif not self._short_jobs:
                return
            short_job = self._short_jobs.get()
            if short_job is None:
                return
            self._search.start(self._run_job, *short_job, caller=short_job[1].name)

    def _receive(self) -> None:
        """Handle messages in a thread, even while the main thread computes."""
        parts: list[str] = []  # the parts of a glossary received so far
        for message, num_bytes in read_messages(self._connection):
            match message:
                case Ping():
                    self._send(encode(self._pong()))
                    self._return_memory()
                case CancelJob():
                    self._cancel(message.number)
                case AddGlossaryPart(part, is_last):
                    parts.append(part)
                    if is_last:
                        self._glossaries.add(GlossaryLines("".join(parts)))
                        parts.clear()
                case StartJob(number, job):
                    caller = self._callers[number] = Caller(job.caller, job.priority)
                    self._idle_pings = 0
                    self._queue(self._with_glossaries(message), caller, num_bytes <= _SHORT_JOB_BYTES)
        os._exit(0)  # nobody would receive the results of jobs in progress

    def _queue(self, start: StartJob, caller: Caller, is_small: bool) -> None:
        """Queue a job for the main thread if it is short, otherwise for a separate thread.

        A job whose glossary is not prepared yet is held until it is. One thread prepares all glossaries, because
        several threads would compete with the main thread for the interpreter lock.
        """
        if (lines := self._missing_glossary(start.job)) is not None:
            key = start.job.model, lines.digest
            if self._held_jobs.hold(key, (start, caller, is_small)):
                self._preparations.put(caller.name, (key, lines, caller))
            if caller.cancel_event.is_set():  # the job may have been canceled before it was held
                self._end_held(start.number)
        elif is_small and _is_short(start.job):
            caller.give_way = self._search.give_way
            self._short_jobs.put(caller.name, (start, caller))
        else:
            caller.give_way = _Pauses(self._search)
            self._pool.submit(self._run_in_thread, start, caller)

    def _missing_glossary(self, job: Job) -> GlossaryLines | None:
        """Return the glossary of a job if it has not been prepared for the model yet, otherwise None."""
        for value in job.keywords.values():
            if isinstance(value, GlossaryLines) and not (
                value.is_built and self._model(job.model).has_prepared(value.build())
            ):
                return value
        return None

    def _prepare_glossaries(self) -> None:
        while True:
            if (preparation := self._preparations.get()) is not None:
                self._prepare(*preparation)

    def _prepare(self, key: PreparationKey, lines: GlossaryLines, first: Caller) -> None:
        """Prepare a glossary, then queue the jobs that wait for it, or report the error for them.

        If a job is canceled, the preparation continues, because the next job would otherwise have to start it again.
        """
        error: Exception | None = None
        try:
            with use_caller(Caller(first.name, first.priority, give_way=_Pauses(self._search))):
                self._model(key[0]).check_glossary(lines.build())
        except HeadwayError as problem:
            error = problem
        except BaseException:  # a panic of a Rust library is not an Exception
            traceback.print_exc()
            error = WorkerError()
        for start, caller, is_small in self._held_jobs.release(key):
            if error is None:
                self._queue(start, caller, is_small)
            else:
                self._callers.pop(start.number, None)
                self._send(encode(JobDone(start.number, error=error)))

    def _end_held(self, number: int) -> None:
        """End a canceled job if it is waiting for a glossary."""
        if self._held_jobs.remove(number):
            self._callers.pop(number, None)
            self._send(encode(JobDone(number, error=CancelledError())))

    def _with_glossaries(self, start: StartJob) -> StartJob:
        """Return the job with the digests in its arguments replaced by glossaries."""
        keywords = start.job.keywords
        if not any(isinstance(value, GlossaryDigest) for value in keywords.values()):
            return start
        known = {
            name: self._glossaries.get(value) if isinstance(value, GlossaryDigest) else value
            for name, value in keywords.items()
        }
        return replace(start, job=replace(start.job, keywords=known))

    def _cancel(self, number: int) -> None:
        caller = self._callers.get(number)
        if caller is not None:
            caller.cancel_event.set()
            self._end_held(number)
            if number in self._threads:
                timer = threading.Timer(_CANCEL_S, self._interrupt, (number,))
                timer.daemon = True
                timer.start()

    def _interrupt(self, number: int) -> None:
        """Raise an exception in the thread of a canceled job that is still running."""
        with self._interrupting:
            if (thread := self._threads.get(number)) is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(CancelledError))

    def _run_in_thread(self, start: StartJob, caller: Caller) -> None:
        self._run_job(start, caller, self._interruptible)

    @contextmanager
    def _interruptible(self, number: int) -> Iterator[None]:
        """Context manager in which a job in a thread can be interrupted."""
        with self._interrupting:
            self._threads[number] = threading.get_ident()
        try:
            yield
        finally:
            with self._interrupting:
                self._threads.pop(number, None)

    def _run_job(
        self,
        start: StartJob,
        caller: Caller,
        context: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        number, job = start.number, start.job
        try:
            if caller.cancel_event.is_set():
                raise CancelledError
            with use_caller(caller), context(number):
                function = job.bind(self._model(job.model))
                keywords = {
                    name: value.build() if isinstance(value, GlossaryLines) else value
                    for name, value in job.keywords.items()
                }
                result = function(*job.arguments, **keywords)
                if start.has_parts:
                    result = self._send_parts(number, result)
                reply = encode(JobDone(number, result))
        except (HeadwayError, CancelledError) as error:
            reply = encode(JobDone(number, error=error))
        except (SystemExit, KeyboardInterrupt, GreenletExit):
            raise
        except BaseException:  # a panic of a Rust library is not an Exception
            traceback.print_exc()
            reply = encode(JobDone(number, error=WorkerError()))
        self._callers.pop(number, None)
        self._send(reply)

    def _model(self, model: str | PivotModels) -> Any:
        if isinstance(model, str):
            return self._models[model]
        first, second = self._models[model.first], self._models[model.second]
        return PivotTranslator(first, second, pivot_language=model.pivot_codes, candidates=model.num_candidates)

    def _send_parts(self, number: int, stream: ContinuationStream[Any]) -> Continuation | None:
        for part in stream:
            self._send(encode(ResultPart(number, part)))
        return stream.continuation

    def _pong(self) -> WorkerStatus:
        search = self._search
        started = search.turn_started
        stalled = 0.0 if started is None else time.monotonic() - started
        return WorkerStatus(stalled, search.num_sequences, search.num_waiting + len(self._short_jobs), search.num_steps)

    def _return_memory(self) -> None:
        """Return freed memory to the system after several pings without a job."""
        if not self._callers:
            self._idle_pings += 1
            if self._idle_pings == _IDLE_PINGS:
                gc.collect()
                gc.freeze()  # later collections skip long-lived objects such as glossaries
                return_freed_memory()

    def _send(self, data: bytes) -> None:
        if threading.get_ident() == self._thread:
            self._unsent.append(data)
        else:
            self._send_now(data)

    def _send_unsent(self) -> None:
        if self._unsent:
            self._send_now(b"".join(self._unsent))
            self._unsent.clear()

    def _send_now(self, data: bytes) -> None:
        with self._sending:
            try:
                self._connection.sendall(data)
            except OSError:
                os._exit(0)  # the service has ended


class _Pauses:
    """Pauses a thread that has computed for some time if the main thread has work, so that both get half the time."""

    def __init__(self, search: SharedSearch) -> None:
        self._search, self._since = search, time.monotonic()

    def __call__(self) -> None:
        elapsed = time.monotonic() - self._since
        if elapsed > _TURN_S:
            if self._search.has_work:
                time.sleep(min(elapsed, 10 * _TURN_S))
            self._since = time.monotonic()


def _is_short(job: Job) -> bool:
    """Return whether a job has the highest priority and does little besides searching."""
    options = job.keywords.get("options")
    needs_forward_pass = isinstance(options, TranslateOptions) and options.alignment
    return job.function in _SEARCHING and job.priority == 0 and not needs_forward_pass
