"""Supervise a loader and the workers that it forks, and send jobs to the workers.

A worker that ends or does not answer pings is replaced. Its jobs are sent to another worker once. A job that loses a
second worker fails with :class:`UnavailableError`, because it may have caused the failures.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from headway.errors import HeadwayError
from headway.serve.errors import UnavailableError
from headway.serve.glossaries import GlossaryDigest, GlossaryLines
from headway.serve.model_info import ModelSpec
from headway.serve.workers.fleet import Fleet
from headway.serve.workers.messages import (
    LOADER,
    WORKER,
    Exited,
    Forked,
    ForkFailed,
    Job,
    JobDone,
    LoadFailed,
    MessageReceiver,
    ModelsLoaded,
    Ping,
    ResultPart,
    StartJob,
    WorkerStatus,
    encode,
)
from headway.serve.workers.worker_process import (
    LoaderProcess,
    PendingJob,
    WorkerProcess,
    socket_pair,
    start_first_loader,
)

_log = logging.getLogger("headway.serve")
_PING_S = 0.25  # time between two pings of a worker
_CANCEL_S = 5.0  # a worker that has not ended a canceled job after this much CPU time is killed
# A worker that ends within this time after its start counts as a failure. After two failures in a row, the next start
# is delayed.
_YOUNG_S = 5.0
_MAX_WAIT_S = 10.0  # maximum delay before a worker is restarted
_END_S = 2.0  # a loader that has not ended after this time is killed

T = TypeVar("T")


class ProcessFleet(Fleet):
    """Loads models, and calls their methods in worker processes.

    Args:
        models: Models to load. Models that are loaded on demand are only described.
        workers: Number of worker processes.
        parent: A fleet with other loaded models. The new loader is forked from its loader, and also has these models.
        on_loss: Called when the loader has ended unexpectedly.
        silence_s: A worker that neither answers pings nor uses the CPU for this time is killed.
        step_s: A worker that takes longer than this for a decoding step, or to answer a ping, is killed.
    """

    def __init__(
        self,
        models: Sequence[ModelSpec],
        *,
        workers: int,
        parent: ProcessFleet | None = None,
        on_loss: Callable[[], None],
        silence_s: float = 3.0,
        step_s: float = 30.0,
    ) -> None:
        super().__init__(workers)
        self._specs = list(models)
        self._parent, self._on_loss = parent, on_loss
        self._silence_s, self._step_s = silence_s, step_s
        self._workers: list[WorkerProcess | None] = [None] * workers
        self._numbers = itertools.count(1)
        self._waiting: list[PendingJob] = []  # jobs for which no worker is ready
        self._ended: dict[int, asyncio.Event] = {}  # by process id
        self._forked: asyncio.Queue[tuple[int, asyncio.Event] | HeadwayError] = asyncio.Queue()
        self._forking = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._is_lost = False  # whether the loader has ended, so that no worker can be started any more
        self._loader: LoaderProcess | None = None
        self._control: socket.socket | None = None  # sends sockets to the loader
        self._transport: asyncio.WriteTransport | None = None  # sends messages to the loader over the same connection
        self._loaded: asyncio.Future[None] | None = None

    # Start and end.

    async def start_loading(self) -> None:
        """Start the process that loads the models."""
        ours, theirs = socket_pair()
        loop = asyncio.get_running_loop()
        self._control, self._loaded = ours, loop.create_future()
        receiver = MessageReceiver(self._receive_from_loader, self._on_loader_end)
        self._transport, _ = await loop.create_connection(lambda: receiver, sock=ours.dup())
        if self._parent is None:
            self._loader = await start_first_loader(theirs)
        else:
            pid, ended = await self._parent.fork(LOADER, theirs)
            self._loader = LoaderProcess(pid, ended.wait)
        if not self._transport.is_closing():
            self._transport.write(encode(self._specs))

    async def start(self) -> None:
        """Wait until the models are loaded, and start the workers. On failure or cancellation, end all processes.

        Raises:
            HeadwayError: A model cannot be loaded.
        """
        try:
            if self._loader is None:
                await self.start_loading()
            assert self._loaded is not None
            await self._loaded
            await asyncio.gather(*(self._start_worker(number) for number in range(self.num_workers)))
        except BaseException:
            await self.close()
            raise
        for number in range(self.num_workers):
            self._spawn(self._supervise_worker(number))

    async def close(self) -> None:
        """End all processes immediately."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        workers = list(filter(None, self._workers))
        for worker in workers:
            worker.kill()
            worker.transport.close()
        if self._transport is not None and self._control is not None:
            self._transport.close()
            self._control.close()
        for pending in [*self._waiting, *(job for worker in workers for job in worker.pending.values())]:
            self._fail(pending)
        if self._loader is not None:
            await self._loader.end(_END_S if self.models else 0.0)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _receive_from_loader(self, message: Any) -> None:
        assert self._loaded is not None
        match message:
            case ModelsLoaded():
                self.models, self.num_bytes = {model.name: model for model in message.models}, message.num_bytes
                self.has_gpu = message.has_gpu
                for note in message.notes:
                    _log.info("%s", note)
                self._loaded.set_result(None)
            case LoadFailed():
                self._fail_to_load(message.error)
            case Forked():
                ended = self._ended[message.pid] = asyncio.Event()
                self._forked.put_nowait((message.pid, ended))
            case ForkFailed():
                self._forked.put_nowait(HeadwayError(f"a process cannot be started: {message.reason}"))
            case Exited():
                if message.status and not self._closing:
                    _log.warning("process %d ended with status %d", message.pid, message.status)
                self._ended.pop(message.pid).set()

    def _on_loader_end(self, error: Exception | None) -> None:
        assert self._loaded is not None
        self._is_lost = True
        for ended in self._ended.values():  # the loader can no longer report the end of these processes
            ended.set()
        self._forked.put_nowait(HeadwayError("a process cannot be started: the process that forks it has ended"))
        self._assign_waiting_jobs()
        if error is not None:
            _log.error("the process that loads the models sent an invalid message", exc_info=error)
        if not self._loaded.done():
            text = "the process that loads the models ended unexpectedly; see its messages above"
            self._fail_to_load(HeadwayError(text))
        elif self.models and not self._closing:
            _log.error("the process that loads %s has ended", ", ".join(self.num_bytes) or "the models")
            self._on_loss()

    def _fail_to_load(self, error: Exception) -> None:
        assert self._loaded is not None
        self._loaded.set_exception(error)
        # Retrieve the exception, so that asyncio does not warn if no caller awaits the future.
        self._loaded.exception()

    async def fork(self, kind: bytes, connection: socket.socket) -> tuple[int, asyncio.Event]:
        """Make the loader fork a process that serves a connection.

        Args:
            kind: Kind of the process: WORKER or LOADER.
            connection: Connection for the new process. It is closed in this process.

        Returns:
            The process id, and an event that is set when the process has ended.

        Raises:
            HeadwayError: The system cannot start another process.
        """
        # Replies arrive in the order of the requests, so the reply to a canceled request must also be received.
        return await asyncio.shield(self._spawn(self._fork(kind, connection)))

    async def _fork(self, kind: bytes, connection: socket.socket) -> tuple[int, asyncio.Event]:
        with connection:
            async with self._forking:
                assert self._control is not None
                try:
                    await asyncio.to_thread(socket.send_fds, self._control, [kind], [connection.fileno()])
                except OSError as error:  # the loader has ended
                    raise HeadwayError(f"a process cannot be started: {error}") from None
                forked = await self._forked.get()
        if isinstance(forked, HeadwayError):
            raise forked
        return forked

    async def _start_worker(self, number: int) -> None:
        ours, theirs = socket_pair()
        try:
            worker = WorkerProcess(*await self.fork(WORKER, theirs))
            receiver = MessageReceiver(
                partial(self._receive, worker), partial(self._on_end, worker), on_read=worker.send_waiting
            )
            worker.transport, _ = await asyncio.get_running_loop().create_connection(lambda: receiver, sock=ours)
        except BaseException:
            ours.close()
            raise
        self._workers[number] = worker
        worker.send(Ping())

    async def _supervise_worker(self, number: int) -> None:
        """Watch a worker, and start a new worker whenever it has ended."""
        failures = 0
        while True:
            worker = self._workers[number]
            assert worker is not None
            await self._watch(worker)
            self._workers[number] = None
            self._reassign_jobs(worker)
            worker.transport.close()
            self.restarts += 1
            failures = failures + 1 if time.monotonic() - worker.started < _YOUNG_S else 0
            while self._workers[number] is None:
                if self._is_lost:
                    return
                if failures > 1:
                    await asyncio.sleep(min(0.1 * 2**failures, _MAX_WAIT_S))
                try:
                    await self._start_worker(number)
                except HeadwayError as error:
                    failures = max(failures, 1) + 1
                    _log.warning("%s", error)

    async def _watch(self, worker: WorkerProcess) -> None:
        """Ping a worker until it ends, and kill it if it hangs.

        On a busy machine, a worker that gets little CPU time answers late, but is not killed.
        """
        # CPU time at the last pings
        used_s: deque[float] = deque(maxlen=max(2, round(self._silence_s / _PING_S) - 1))
        while not worker.ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(worker.ended.wait(), _PING_S)
                return
            # Count pings instead of measuring time, because time also passes while this process is busy.
            used_s.append(worker.cpu_seconds())
            limit_s = self._silence_s if used_s[-1] == used_s[0] else self._step_s
            if worker.unanswered_pings * _PING_S > limit_s or worker.state.stalled_s > self._step_s:
                _log.warning("killing worker process %d, which does not respond", worker.pid)
                worker.kill()
                self._reassign_jobs(worker)
                await worker.ended.wait()
                return
            worker.unanswered_pings += 1
            worker.send(Ping())

    def _receive(self, worker: WorkerProcess, message: Any) -> None:
        worker.unanswered_pings = 0
        match message:
            case WorkerStatus():
                worker.state = message
                if not worker.is_ready:
                    worker.is_ready = True
                    self._assign_waiting_jobs()
            case ResultPart():
                self._on_part(worker, message)
            case JobDone():
                self._on_done(worker, message)

    def _on_end(self, worker: WorkerProcess, error: Exception | None) -> None:
        if error is not None:
            _log.error("killing worker process %d, which has sent an invalid message", worker.pid, exc_info=error)
            worker.kill()
        self._reassign_jobs(worker)

    # Jobs.

    @property
    def num_ready(self) -> int:
        """The number of workers that can take jobs."""
        return len(self._ready_workers())

    def _ready_workers(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker is not None and worker.is_ready]

    @property
    def states(self) -> list[WorkerStatus]:
        """The last status message of each worker."""
        return [worker.state for worker in self._workers if worker is not None]

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.pid for worker in self._workers if worker is not None]

    def private_bytes(self) -> int:
        """Return the memory that is not shared between workers, in bytes."""
        total = 0
        for pid in self.pids:
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                sizes = [line.split()[1] for line in text.splitlines() if line.startswith("Private_")]
                total += 1024 * sum(map(int, sizes))
        return total

    def num_workers_without_glossary(self, digest: GlossaryDigest) -> int:
        """See :meth:`Fleet.num_workers_without_glossary`."""
        ready = self._ready_workers()
        if ready and _next_worker(ready, [digest]).has_glossary(digest):
            return 0
        return sum(worker is not None and not worker.has_glossary(digest) for worker in self._workers)

    async def call(self, job: Job) -> Any:
        """See :meth:`Fleet.call`. Raises UnavailableError if the job loses two workers, or if the fleet is closed."""
        pending = self._submit(StartJob(next(self._numbers), job))
        try:
            return await pending.future
        except asyncio.CancelledError:
            self._cancel(pending)
            raise

    async def stream(self, job: Job) -> AsyncGenerator[Any]:
        """Yield the parts of a job's result, and then the result.

        Raises the same exceptions as :meth:`call`. A stream that loses its worker after the first part is not
        restarted.
        """
        pending = self._submit(StartJob(next(self._numbers), job, has_parts=True))
        pending.future.add_done_callback(lambda _: pending.parts.put_nowait(None))
        try:
            while (part := await pending.parts.get()) is not None:
                yield part.value
            yield pending.future.result()
        finally:
            if not pending.future.done():
                pending.future.cancel()
                self._cancel(pending)

    def _submit(self, start: StartJob) -> PendingJob:
        if self._closing:
            raise UnavailableError
        pending = PendingJob(start, asyncio.get_running_loop().create_future())
        self._assign_job(pending)
        return pending

    def _assign_job(self, pending: PendingJob) -> None:
        """Send a job to a worker, or let it wait if no worker is ready."""
        ready = self._ready_workers()
        if not ready:
            if self._is_lost:
                self._fail(pending)
            else:
                self._waiting.append(pending)
            return
        glossaries = [value.digest for value in pending.start.job.keywords.values() if isinstance(value, GlossaryLines)]
        worker = _next_worker(ready, glossaries)
        worker.pending[pending.start.number] = pending
        worker.send_job(pending.start)

    def _assign_waiting_jobs(self) -> None:
        waiting, self._waiting = self._waiting, []
        for pending in waiting:
            if not pending.future.done():
                self._assign_job(pending)

    def _reassign_jobs(self, worker: WorkerProcess) -> None:
        """Stop sending jobs to a worker that has ended, and send its jobs to other workers."""
        worker.is_ready = False
        lost, worker.pending = worker.pending, {}
        for pending in lost.values():
            if pending.was_retried or pending.has_received_part:
                self._fail(pending)
            elif not pending.future.done():
                pending.was_retried = True
                self._assign_job(pending)

    def _fail(self, pending: PendingJob) -> None:
        if not pending.future.done():
            pending.future.set_exception(UnavailableError())

    def _on_part(self, worker: WorkerProcess, part: ResultPart) -> None:
        pending = worker.pending.get(part.number)
        if pending is not None:
            pending.has_received_part = True
            pending.parts.put_nowait(part)

    def _on_done(self, worker: WorkerProcess, done: JobDone) -> None:
        pending = worker.pending.pop(done.number, None)
        if pending is None or pending.future.done():
            return
        if done.error is None:
            pending.future.set_result(done.result)
        else:
            pending.future.set_exception(done.error)

    def _cancel(self, pending: PendingJob) -> None:
        number = pending.start.number
        for worker in filter(None, self._workers):
            if number in worker.pending:
                worker.cancel(number)
                limits = worker.cpu_seconds() + _CANCEL_S, time.monotonic() + self._step_s
                asyncio.get_running_loop().call_later(_CANCEL_S, self._expect_end, worker, number, *limits)
        if pending in self._waiting:
            self._waiting.remove(pending)

    def _expect_end(self, worker: WorkerProcess, number: int, used_s: float, deadline: float) -> None:
        """Kill a worker that does not end a canceled job before it has used this CPU time or before the deadline."""
        if number not in worker.pending:
            return
        if worker.cpu_seconds() < used_s and time.monotonic() < deadline:
            asyncio.get_running_loop().call_later(_PING_S, self._expect_end, worker, number, used_s, deadline)
        else:
            _log.warning("killing worker process %d, which did not end a canceled job", worker.pid)
            worker.kill()


def _next_worker(ready: Sequence[WorkerProcess], glossaries: Sequence[GlossaryDigest]) -> WorkerProcess:
    """Return a worker with the fewest jobs, if possible one that has the glossaries for the next job."""
    fewest = min(len(worker.pending) for worker in ready)
    idlest = [worker for worker in ready if len(worker.pending) == fewest]
    return next((worker for worker in idlest if all(map(worker.has_glossary, glossaries))), idlest[0])
