"""Processes that tokenise pieces of a corpus beside each other.

Each is a fresh Python that runs this file: nothing of the program that asks is imported again (no PyTorch, no script
without a main guard) and nothing is forked from its threads. It reads pickled messages on its standard input, the
:class:`Work` and then one (path, examples) after the other, and answers each with None or the exception that it met. It
ends when its input does, so it cannot outlive the program that started it by more than one piece.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn, cast

from headway.data.encoding import Work, save_piece
from headway.errors import OutputError

__all__ = ["Workers", "num_cores"]


def num_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """At most ``count`` processes that do ``work``, started when there is something to do; a context manager.

    ``done`` hears of each piece that is finished: the number of its examples.
    """

    def __init__(self, work: Work, count: int, done: Callable[[int], None]) -> None:
        self._work, self._count, self._done = work, count, done
        self._all: list[subprocess.Popen[bytes]] = []
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy: dict[IO[bytes], tuple[subprocess.Popen[bytes], int]] = {}

    def submit(self, path: Path, examples: list[tuple[str, ...]]) -> None:
        """Have ``examples`` tokenised into the piece ``path``, and go on as soon as somebody does so."""
        if not self._idle and len(self._all) < self._count:
            self._start()
        while not self._idle:
            self._collect()
        worker = self._idle.pop()
        self._busy[_output(worker)] = (worker, len(examples))
        self._send(worker, (path, examples))

    def finish(self) -> None:
        """Wait until all is done."""
        while self._busy:
            self._collect()

    def _start(self) -> None:
        # No Ctrl-C for them: it is heard here, and closing their input ends them.
        worker = subprocess.Popen(
            [sys.executable, "-m", "headway.data.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            process_group=0,
        )
        self._all.append(worker)
        self._idle.append(worker)
        self._send(worker, self._work)

    def _send(self, worker: subprocess.Popen[bytes], message: object) -> None:
        assert worker.stdin is not None
        try:
            pickle.dump(message, worker.stdin, pickle.HIGHEST_PROTOCOL)
            worker.stdin.flush()
        except BrokenPipeError:
            self._report_end(worker)

    def _collect(self) -> None:
        """Wait for at least one answer."""
        ready = wait(cast("list[int]", [*self._busy]))  # it takes whatever has a fileno()
        for output in cast("list[IO[bytes]]", ready):
            worker, count = self._busy.pop(output)
            try:
                error = pickle.load(output)
            except EOFError:
                self._report_end(worker)
            if error is not None:
                raise error
            self._idle.append(worker)
            self._done(count)

    def _report_end(self, worker: subprocess.Popen[bytes]) -> NoReturn:
        raise OutputError(
            f"a process that tokenises has ended (exit code {worker.wait()}; -9: killed, often for want of memory); "
            "run the same command again: what is done is kept"
        )

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End all processes; of what is not done nothing is left."""
        for worker in self._all:
            if kind is not None:
                worker.kill()
            for stream in (worker.stdin, worker.stdout):
                assert stream is not None
                with suppress(BrokenPipeError):
                    stream.close()
            worker.wait()


def _output(worker: subprocess.Popen[bytes]) -> IO[bytes]:
    assert worker.stdout is not None
    return worker.stdout


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    work: Work = pickle.load(requests)
    while True:
        try:
            path, examples = pickle.load(requests)
        except EOFError:
            return
        answer: Exception | None = None
        try:
            save_piece(work.piece(examples), path)
        except Exception as error:  # whatever it is, the program that asked reports it
            answer = error
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not stand among the answers
    _serve(sys.stdin.buffer, _answers)
