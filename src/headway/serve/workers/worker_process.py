"""The supervisor's view of loader and worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from headway.errors import HeadwayError
from headway.serve.glossaries import GlossaryCache, GlossaryDigest, GlossaryLines
from headway.serve.workers.messages import AddGlossaryPart, CancelJob, ResultPart, StartJob, WorkerStatus, encode

_PROCESS_CLOCK = 2  # CPUCLOCK_SCHED: the clock id of a process is ~pid << 3 | 2 (Linux, clock_getcpuclockid)
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # detect GPUs without initializing CUDA, which does not work with fork
    "MALLOC_ARENA_MAX": "1",  # one heap for all threads, because one thread does nearly all the work of a worker
}
# A decoding step reads the scattered key/value caches of many sentences. With small pages, this takes too many TLB
# entries.
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # a value that the user has set takes precedence
# Number of characters per part in which a glossary is sent. Receiving a part takes less than a millisecond.
_PART_CHARACTERS = 1 << 16


@dataclass(eq=False)
class PendingJob:
    """A job that is waiting for its result."""

    start: StartJob
    future: asyncio.Future[Any]
    parts: asyncio.Queue[ResultPart | None] = field(default_factory=asyncio.Queue)  # None marks the end
    was_retried: bool = False
    has_received_part: bool = False  # whether a part has arrived, so that the job cannot be restarted


@dataclass(eq=False)
class WorkerProcess:
    """A worker process with its connection and its jobs."""

    pid: int
    ended: asyncio.Event
    transport: asyncio.WriteTransport = field(init=False)
    pending: dict[int, PendingJob] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    unanswered_pings: int = 0  # number of pings since the last message from the process
    state: WorkerStatus = field(default_factory=lambda: WorkerStatus(0.0, 0, 0, 0))
    is_ready: bool = False
    _glossaries: GlossaryCache = field(default_factory=GlossaryCache, init=False)  # cached in this process
    _unsent: list[bytes] = field(default_factory=list, init=False)
    # Parts of glossaries, and jobs that need them. They are sent one by one, so that other jobs can overtake them.
    _waiting: deque[AddGlossaryPart | StartJob | CancelJob] = field(default_factory=deque, init=False)

    def send(self, message: Any) -> None:
        """Send a message to the process, together with the other messages of this iteration of the event loop."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send_unsent)
        self._unsent.append(encode(message))

    def send_job(self, start: StartJob) -> None:
        """Send a job to the process, preceded by the glossaries that the process does not have yet."""
        keywords, needs_glossary = dict(start.job.keywords), False
        for name, value in keywords.items():
            if isinstance(value, GlossaryLines):
                if value.digest not in self._glossaries:
                    self._waiting += _parts(value.text)
                self._glossaries.add(value)
                keywords[name], needs_glossary = value.digest, True
        start = replace(start, job=replace(start.job, keywords=keywords))
        if not (needs_glossary and self._waiting):
            self.send(start)
            return
        self._waiting.append(start)
        self.send_waiting()

    def cancel(self, number: int) -> None:
        """Cancel a job."""
        if any(isinstance(message, StartJob) and message.number == number for message in self._waiting):
            self._waiting.append(CancelJob(number))
        else:
            self.send(CancelJob(number))

    def send_waiting(self) -> None:
        """Send waiting messages one after another, as long as the process reads them immediately."""
        if self.transport.is_closing():
            self._waiting.clear()
        while self._waiting and not self.transport.get_write_buffer_size():
            self.transport.write(encode(self._waiting.popleft()))

    def has_glossary(self, digest: GlossaryDigest) -> bool:
        """Return whether the process has a glossary in its cache."""
        return digest in self._glossaries

    def _send_unsent(self) -> None:
        unsent, self._unsent = self._unsent, []
        self.transport.write(b"".join(unsent))

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process in seconds."""
        with contextlib.suppress(OSError):  # the process has ended
            return time.clock_gettime(~self.pid << 3 | _PROCESS_CLOCK)
        return 0.0

    def kill(self) -> None:
        """Kill the process if it has not ended yet."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class LoaderProcess:
    """A loader process. ``wait`` waits until the process has ended."""

    pid: int
    wait: Callable[[], Awaitable[object]]

    async def end(self, patience_s: float) -> None:
        """Wait until the process has ended, and kill it if that takes too long. Its connection must be closed."""
        waiting = asyncio.ensure_future(self.wait())
        done, _ = await asyncio.wait([waiting], timeout=patience_s)
        if not done:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            await waiting


async def start_first_loader(connection: socket.socket) -> LoaderProcess:
    """Start a loader that serves a connection. The connection is closed in this process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headway.serve.workers.loader", str(connection.fileno())),
        pass_fds=[connection.fileno()],
        stdin=subprocess.DEVNULL,
        env=_HUGE_PAGES | os.environ | _ENVIRONMENT,
    )
    connection.close()
    return LoaderProcess(process.pid, process.wait)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets.

    Raises:
        HeadwayError: Too many files are open.
    """
    try:
        return socket.socketpair()
    except OSError as error:  # too many open files
        raise HeadwayError(f"a process cannot be started: {error}") from None


def _parts(text: str) -> Iterator[AddGlossaryPart]:
    """Yield the parts of a glossary."""
    for start in range(0, len(text), _PART_CHARACTERS):
        yield AddGlossaryPart(text[start : start + _PART_CHARACTERS], start + _PART_CHARACTERS >= len(text))
