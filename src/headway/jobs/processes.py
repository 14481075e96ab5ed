"""The workers of one machine. A supervisor process loads the operation and forks the workers, which share its memory.

The command (:func:`run_workers`) starts the supervisor (:func:`supervise`) and reads its messages, one JSON object per
line. The supervisor has one thread and computes nothing after loading, so that it can fork safely. It replaces workers
that die, and gives up if many die without finishing a chunk. If the command ends or is killed, the workers also end.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from headway import errors
from headway.errors import HeadwayError
from headway.jobs.line_map import LineMap
from headway.jobs.plan import JobChunk, Plan
from headway.jobs.worker import EXIT_RELEASED, Worker
from headway.parent_process import end_with_parent

_FAILED = 2  # exit code after an error that the user can correct
_END_WITHIN_S = 20.0
_CHECK_S = 0.1
# Seconds between two requests to stop. A process that has just been forked may miss the first request.
_REPEAT_S = 1.0
# A worker uses one thread: one process per core is faster than several threads.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
_ENVIRONMENT = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # makes PyTorch detect GPUs without initializing CUDA


class WorkersStopped(Exception):  # noqa: N818  # not an error: the user has stopped the workers
    """A signal has stopped the workers, which have released their chunks."""


def run_workers(
    command: Sequence[str],
    *,
    one_thread: bool,
    on_chunk: Callable[[int], None] = lambda lines: None,
) -> None:
    """Run the supervisor process until all chunks of the job have a result.

    SIGTERM and Ctrl-C stop the workers, which release their chunks.

    Args:
        command: Arguments of the Python interpreter that runs the supervisor.
        one_thread: Whether each worker uses one thread, unless environment variables set another number.
        on_chunk: Called with the number of lines of each chunk that these workers finish.

    Raises:
        HeadwayError: The job cannot continue.
        WorkersStopped: This process or a worker has received SIGTERM.
        KeyboardInterrupt: The user has pressed Ctrl-C.
    """
    environment = {**(_ONE_THREAD if one_thread else {}), **os.environ, **_ENVIRONMENT}
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment, text=True
    )
    assert process.stdout is not None
    is_main = threading.current_thread() is threading.main_thread()

    def on_terminate(number: int, frame: FrameType | None) -> None:
        raise WorkersStopped

    before = signal.signal(signal.SIGTERM, on_terminate) if is_main else None
    try:
        message = _read_messages(process.stdout, on_chunk)
        process.wait()
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()
    if message is not None:
        raise _error_of(message)
    if process.returncode == EXIT_RELEASED:
        raise WorkersStopped
    if process.returncode:
        raise HeadwayError(f"the process that supervises the workers has ended with exit code {process.returncode}")


def _read_messages(stream: Iterable[str], on_chunk: Callable[[int], None]) -> dict[str, Any] | None:
    """Report finished chunks to ``on_chunk`` until the stream ends. Return the first error message, if any."""
    error = None
    for line in stream:
        message = json.loads(line)
        if "error" in message:
            error = error or message
        else:
            on_chunk(message["lines"])
    return error


def _error_of(message: Mapping[str, Any]) -> HeadwayError:
    kind = vars(errors).get(message["kind"], HeadwayError)
    error: HeadwayError = kind.__new__(kind)
    HeadwayError.__init__(error, message["error"])
    return error


class _Outbox:
    """Sends messages to the command. Messages are short enough to be written to the pipe atomically."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, unless the command has ended."""
        with suppress(OSError):
            os.write(self._descriptor, (json.dumps(message) + "\n").encode())

    def send_error(self, error: HeadwayError) -> None:
        """Send an error, whose message is truncated if it is very long."""
        self.send({"error": str(error)[:1000], "kind": type(error).__name__})


def supervise(plan: Plan, load: Callable[[], LineMap], num_workers: int) -> NoReturn:
    """Load the operation, supervise the workers, and exit. This is the main function of the supervisor process.

    The exit code is 0 if all chunks have a result, 2 after an error, which was sent to the command, and 75 if the
    workers were stopped by a signal.

    Args:
        plan: The plan of the job.
        load: Loads the operation. A single worker calls it itself, so that it can use a GPU.
        num_workers: Number of workers to fork.
    """
    outbox = _Outbox(os.dup(1))
    os.dup2(2, 1)  # redirects what libraries print to standard error
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command also receives Ctrl-C, and handles it
    try:
        line_map = load() if num_workers > 1 else None
    except HeadwayError as error:
        outbox.send_error(error)
        os._exit(_FAILED)
    gc.collect()
    gc.freeze()  # otherwise garbage collection in workers would write to every object and so copy every shared page
    os._exit(_Supervisor(plan, load, line_map, num_workers, outbox).run())


class _Supervisor:
    """Forks workers, replaces workers that die, and ends all of them on SIGTERM or after an error."""

    def __init__(
        self, plan: Plan, load: Callable[[], LineMap], line_map: LineMap | None, num_workers: int, outbox: _Outbox
    ) -> None:
        self._plan, self._load, self._line_map, self._outbox = plan, load, line_map, outbox
        self._num_workers, self._parent = num_workers, os.getppid()
        self._workers = set[int]()
        self._result, self._is_stopping, self._is_done = 0, False, False
        self._deaths = 0  # number of workers that have died since a chunk was last finished
        self._finished, self._count_finished = os.pipe()  # a pipe that contains one byte per finished chunk
        os.set_blocking(self._finished, False)
        os.set_blocking(self._count_finished, False)  # the pipe is read only after a worker has died

    def run(self) -> int:
        """Supervise the workers until all of them have ended. Return the exit code."""
        for _ in range(self._num_workers):
            self._fork()
        signal.signal(signal.SIGTERM, lambda *_: self._stop(EXIT_RELEASED))
        deadline = next_request = 0.0
        while self._workers:
            time.sleep(_CHECK_S)
            if os.getppid() != self._parent:
                self._stop(EXIT_RELEASED)
            self._reap()
            now = time.monotonic()
            if self._is_stopping and now >= next_request:
                deadline, next_request = deadline or now + _END_WITHIN_S, now + _REPEAT_S
                self._send_all(signal.SIGTERM if now < deadline else signal.SIGKILL)
        return 0 if self._is_done and self._result == EXIT_RELEASED else self._result

    def _fork(self) -> None:
        pid = os.fork()
        if not pid:
            self._become_worker()
        self._workers.add(pid)

    def _stop(self, result: int) -> None:
        if not self._is_stopping:
            self._is_stopping, self._result = True, result

    def _send_all(self, number: signal.Signals) -> None:
        for pid in self._workers:
            os.kill(pid, signal.SIGCONT)  # a suspended process handles no other signals
            os.kill(pid, number)

    def _reap(self) -> None:
        """Handle the workers that have ended."""
        while self._workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._workers.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if self._is_stopping:
                continue
            if code == 0:
                self._is_done = True
            elif code == EXIT_RELEASED:  # a user has stopped only this worker
                self._result = EXIT_RELEASED
            elif code == _FAILED:
                self._stop(_FAILED)
            elif self._is_hopeless():
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                self._outbox.send_error(
                    HeadwayError(
                        f"workers keep ending ({how}) without finishing a chunk; if the system killed them, "
                        "the machine may be out of memory: try fewer --workers, or smaller --chunk-lines"
                    )
                )
                self._stop(_FAILED)
            else:
                self._fork()

    def _is_hopeless(self) -> bool:
        """Count the death of a worker. Return whether too many workers have died since a chunk was last finished.

        A line that crashes workers is found after the second death (:mod:`headway.jobs.isolation`).
        """
        with suppress(BlockingIOError):
            while os.read(self._finished, 1 << 12):
                self._deaths = 0
        self._deaths += 1
        return self._deaths > 3 * self._num_workers + 3

    def _become_worker(self) -> NoReturn:
        try:
            os._exit(self._work())
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _work(self) -> int:
        """Run a worker in this process. Return the exit code."""
        signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_RELEASED))
        end_with_parent(os.getppid())  # so that another worker can take over the chunk at once

        def on_chunk(chunk: JobChunk) -> None:
            with suppress(BlockingIOError):
                os.write(self._count_finished, b".")
            self._outbox.send({"lines": chunk.num_lines})

        try:
            worker = Worker(self._plan, self._line_map or self._load(), on_chunk=on_chunk)
            signal.signal(signal.SIGTERM, lambda *_: worker.stop())
            worker.run()
        except HeadwayError as error:
            self._outbox.send_error(error)
            return _FAILED
        return 0
