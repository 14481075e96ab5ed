"""Which jobs of a worker share its main thread, and that they do not hold it up."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from concurrent.futures import CancelledError
from typing import Any

import pytest

from headway.errors import DataError
from headway.predict import Glossary, TranslateOptions
from headway.serve.errors import WorkerError
from headway.serve.glossaries import GlossaryCache, GlossaryLines
from headway.serve.workers.messages import (
    AddGlossaryPart,
    CancelJob,
    Job,
    JobDone,
    Ping,
    StartJob,
    WorkerStatus,
    encode,
    receive,
)
from headway.serve.workers.waiting_jobs import WaitingJobs
from headway.serve.workers.worker import _is_short, run_worker


@pytest.mark.parametrize(
    ("job", "short"),
    [
        (Job("m", "translate_each", (["a"],)), True),
        (Job("m", "stream", ("a",)), True),
        (Job("m", "translate_each", (["a"],), {"options": TranslateOptions(alignment=True)}), False),
        (Job("m", "translate_each", (["a"],), {"options": TranslateOptions()}), True),
        (Job("m", "translate_each", (["a"],), {"glossary": GlossaryLines("a\tb")}), True),
        (Job("m", "translate_each", (["a"],), priority=1), False),
        (Job("m", "score", (["a"],)), False),
        (Job("m", len, ([1],)), False),
    ],
)
def test_short_jobs_search_and_do_little_else(job: Job, short: bool) -> None:
    assert _is_short(job) is short


class Model:
    """A model whose jobs tell in which thread they run. One of them waits for a permission."""

    def __init__(self, permitted: Any) -> None:
        self.permitted = permitted

    def translate_each(self, texts: list[str]) -> str:
        if texts == ["wait"]:
            self.permitted.wait(30)
        return threading.current_thread().name

    def score(self, _: list[str]) -> str:
        return threading.current_thread().name

    def generate(self, _: str) -> Any:
        return threading.Lock()  # cannot be sent


@pytest.mark.slow
def test_a_worker_answers_while_a_job_computes() -> None:
    """Other threads answer long jobs and pings, and a ping tells how long the main thread has computed."""
    context = multiprocessing.get_context("spawn")
    permitted = context.Event()
    ours, theirs = socket.socketpair()
    with ours:
        process = context.Process(target=run_worker, args=(theirs, {"m": Model(permitted)}))
        process.start()
        theirs.close()
        ours.settimeout(60)
        for start in (
            StartJob(1, Job("m", "translate_each", (["wait"],))),
            StartJob(2, Job("m", "score", (["a"],))),
            StartJob(3, Job("m", "translate_each", (["a" * 5000],))),
        ):
            ours.sendall(encode(start))
        found = sorted((receive(ours) for _ in range(2)), key=lambda done: int(done.number))
        assert [done.number for done in found] == [2, 3]
        assert all(done.result.startswith("job") for done in found)
        stalled = 0.0
        while not stalled:  # until the main thread has begun
            ours.sendall(encode(Ping()))
            pong = receive(ours)
            assert isinstance(pong, WorkerStatus)
            stalled = pong.stalled_s
        permitted.set()
        assert receive(ours) == JobDone(1, "MainThread")
        ours.sendall(encode(StartJob(4, Job("m", "generate", ("a",)))))
        failed = receive(ours)
        assert (failed.number, type(failed.error)) == (4, WorkerError)
        ours.sendall(encode(StartJob(5, Job("m", "translate_each", (["a"],)))))
        assert receive(ours) == JobDone(5, "MainThread")
    process.join(30)  # it ends when its connection is closed
    assert process.exitcode == 0


class PanicError(BaseException):
    """As the panic of a library in Rust, no Exception."""


class BadModel:
    """A model whose jobs panic, or compute without giving way until an exception ends them."""

    is_glossary_prepared = False
    is_preparing = False

    def translate_each(self, texts: list[str], glossary: Glossary | None = None) -> list[str]:
        if texts == ["panic"]:
            raise PanicError
        return texts if glossary is None else [threading.current_thread().name]

    def has_prepared(self, _: Glossary) -> bool:
        return self.is_glossary_prepared

    def check_glossary(self, glossary: Glossary) -> None:
        assert not self.is_glossary_prepared
        assert not self.is_preparing  # another glossary
        self.is_preparing = True
        time.sleep(0.2)
        self.is_preparing = False
        if glossary.entries[0].source == "bad":
            raise DataError("bad")
        self.is_glossary_prepared = True

    def score(self, _: list[str]) -> None:
        while True:
            sum(range(1000))


@pytest.mark.slow_but_every(2)
def test_a_panic_fails_its_job_alone_and_a_canceled_job_ends_by_an_exception() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = socket.socketpair()
    with ours:
        process = context.Process(target=run_worker, args=(theirs, {"m": BadModel()}))
        process.start()
        theirs.close()
        ours.settimeout(60)
        for number, text in ((1, "panic"), (2, "ein")):
            ours.sendall(encode(StartJob(number, Job("m", "translate_each", ([text],)))))
        done = sorted((receive(ours) for _ in range(2)), key=lambda one: int(one.number))
        assert isinstance(done[0].error, WorkerError)
        assert done[1].result == ["ein"]
        ours.sendall(encode(StartJob(3, Job("m", "score", (["a"],)))))
        ours.sendall(encode(CancelJob(3)))
        canceled = receive(ours)
        assert (canceled.number, type(canceled.error)) == (3, CancelledError)
        ours.sendall(encode(StartJob(4, Job("m", "translate_each", (["zwei"],)))))
        assert receive(ours).result == ["zwei"]

        # Glossaries are prepared one after the other, and callers take turns.
        bad = [GlossaryLines(f"bad\t{number}") for number in range(4)]
        ours.sendall(b"".join(encode(AddGlossaryPart(lines.text, is_last=True)) for lines in bad))
        for number, (caller, lines) in enumerate(zip("aaab", bad, strict=True), 20):
            keywords = {"glossary": lines.digest}
            ours.sendall(encode(StartJob(number, Job("m", "translate_each", (["vier"],), keywords, caller))))
        failed = [receive(ours) for _ in range(4)]
        assert [done.number for done in failed] in (
            [20, 23, 21, 22],
            [20, 21, 23, 22],
        )  # 21 may be taken before 23 arrives
        assert {str(done.error) for done in failed} == {"bad"}

        # The jobs that need a glossary are held while it is prepared, and short jobs afterwards.
        for begin, text in ((5, "bad\tb"), (10, "a\tb")):
            lines = GlossaryLines(text)
            job = Job("m", "translate_each", (["drei"],), {"glossary": lines.digest})
            ours.sendall(encode(AddGlossaryPart(lines.text, is_last=True)))
            ours.sendall(b"".join(encode(StartJob(begin + n, job)) for n in range(4)) + encode(CancelJob(begin)))
            canceled, *others = (receive(ours) for _ in range(4))
            assert (canceled.number, type(canceled.error)) == (begin, CancelledError)
            assert [done.number for done in others] == [begin + 1, begin + 2, begin + 3]
            if begin == 5:
                assert [str(done.error) for done in others] == ["bad"] * 3
            else:
                assert [done.result for done in others] == [["MainThread"]] * 3
    process.join(60)
    assert process.exitcode == 0


def test_callers_take_turns_at_starting_jobs() -> None:
    jobs = WaitingJobs[int]()
    for number, name in enumerate("aaab"):
        jobs.put(name, number)
    assert [jobs.get() for _ in range(4)] == [0, 3, 1, 2]
    jobs.wake()
    assert jobs.get() is None


def test_the_service_knows_which_glossaries_a_worker_has() -> None:
    """Both keep the same list, so that a glossary is sent once while it is used again."""
    sent = GlossaryCache()
    lines = [GlossaryLines(f"{number}\tb") for number in range(70)]
    for number in (*range(64), 0, *range(64, 70)):
        sent.add(lines[number])
    assert lines[0].digest in sent  # used again
    assert lines[1].digest not in sent
    sent.add(GlossaryLines("\n".join(["a\tb"] * 250_000)))
    assert lines[0].digest not in sent
