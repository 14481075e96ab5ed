"""A fleet whose models or workers cannot be started says why, and never waits forever."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from pathlib import Path
from typing import cast

import pytest
from running_service import unpack_model

from headway.errors import HeadwayError
from headway.serve.errors import UnavailableError
from headway.serve.glossaries import GlossaryDigest, GlossaryLines
from headway.serve.model_info import ModelSpec
from headway.serve.workers.messages import AddGlossaryPart, CancelJob, Job, MessageReceiver, StartJob, receive
from headway.serve.workers.process_fleet import ProcessFleet, _next_worker
from headway.serve.workers.worker_process import PendingJob, WorkerProcess

_PATIENCE_S = 60.0
JOB = Job("model", "translate_each", (["Good morning"],))


def make_fleet(folder: Path) -> ProcessFleet:
    return ProcessFleet([ModelSpec("missing", str(folder / "missing"))], workers=1, on_loss=lambda: pytest.fail("lost"))


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="missing"):
        asyncio.run(asyncio.wait_for(make_fleet(tmp_path).start(), _PATIENCE_S))


def test_the_loader_is_killed_before_it_answers(tmp_path: Path) -> None:
    async def start() -> None:
        fleet = make_fleet(tmp_path)
        await fleet.start_loading()
        assert fleet._loader is not None
        os.kill(fleet._loader.pid, signal.SIGKILL)
        await asyncio.wait_for(fleet.start(), _PATIENCE_S)

    with pytest.raises(HeadwayError, match="ended unexpectedly"):
        asyncio.run(start())


def test_closing_while_the_models_are_loaded_ends_the_start(tmp_path: Path) -> None:
    async def start() -> None:
        fleet = make_fleet(tmp_path)
        await fleet.start_loading()
        starting = asyncio.ensure_future(fleet.start())
        await asyncio.sleep(0)
        await fleet.close()
        await asyncio.wait_for(starting, _PATIENCE_S)

    with pytest.raises(HeadwayError, match="ended unexpectedly"):
        asyncio.run(start())


def test_nobody_needs_to_ask_for_the_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def start_loading() -> None:
        fleet = make_fleet(tmp_path)
        await fleet.start_loading()
        assert fleet._loaded is not None
        await asyncio.wait([fleet._loaded], timeout=_PATIENCE_S)
        await fleet.close()

    with caplog.at_level(logging.ERROR, "asyncio"):
        asyncio.run(start_loading())
    assert not caplog.records


async def start_fleet(folder: Path) -> ProcessFleet:
    spec = ModelSpec("model", str(unpack_model(folder)), {"precision": "float32"})
    fleet = ProcessFleet([spec], workers=1, on_loss=lambda: None)
    await asyncio.wait_for(fleet.start(), _PATIENCE_S)
    return fleet


@pytest.mark.slow
def test_a_worker_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    async def check() -> None:
        fleet = await start_fleet(tmp_path)
        start, failures = fleet._start_worker, iter(range(2))

        async def start_at_last(number: int) -> None:
            for _ in failures:
                raise HeadwayError("too many open files")
            await start(number)

        fleet._start_worker = start_at_last  # type: ignore[method-assign]
        os.kill(fleet.pids[0], signal.SIGKILL)
        found = await asyncio.wait_for(fleet.call(JOB), _PATIENCE_S)
        assert len(found) == 1
        assert next(failures, None) is None
        await fleet.close()

    asyncio.run(check())


@pytest.mark.slow
def test_jobs_fail_at_once_when_no_worker_can_be_started_again(tmp_path: Path) -> None:
    async def check() -> None:
        fleet = await start_fleet(tmp_path)
        assert fleet._loader is not None
        worker = fleet.pids[0]
        os.kill(worker, signal.SIGSTOP)
        waiting = asyncio.ensure_future(fleet.call(JOB))
        await asyncio.sleep(0)
        os.kill(fleet._loader.pid, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(waiting, _PATIENCE_S)
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(fleet.call(JOB), _PATIENCE_S)
        await fleet.close()

    asyncio.run(check())


def test_a_job_goes_to_an_idle_worker_that_has_its_glossary() -> None:
    class Worker(WorkerProcess):
        def __init__(self, num_jobs: int, has: bool) -> None:
            self.pending, self._has = dict.fromkeys(range(num_jobs), cast(PendingJob, None)), has

        def has_glossary(self, _: GlossaryDigest) -> bool:
            return self._has

    workers = [Worker(1, True), Worker(0, False), Worker(0, True)]
    assert _next_worker(workers, [GlossaryDigest(b"one")]) is workers[2]
    assert _next_worker(workers, []) is workers[1]
    assert _next_worker(workers[:2], [GlossaryDigest(b"one")]) is workers[1]


def test_other_jobs_overtake_a_large_glossary_and_the_jobs_that_need_it() -> None:
    glossary = GlossaryLines("\n".join(f"word{number}\tWort{number}" for number in range(100_000)))
    with_glossary = Job("model", "translate_each", (["a"],), {"glossary": glossary})

    async def send(ours: socket.socket, are_sent: asyncio.Event) -> None:
        worker = WorkerProcess(0, asyncio.Event())
        receiver = MessageReceiver(pytest.fail, lambda error: None, on_read=worker.send_waiting)
        worker.transport, _ = await asyncio.get_running_loop().create_connection(lambda: receiver, sock=ours)
        worker.send_job(StartJob(1, with_glossary))
        worker.send_job(StartJob(2, with_glossary))
        worker.cancel(2)
        worker.send_job(StartJob(3, JOB))
        are_sent.set()
        while worker._waiting or worker.transport.get_write_buffer_size():
            await asyncio.sleep(0.001)
        worker.send_job(StartJob(4, with_glossary))
        await asyncio.sleep(0.01)
        worker.transport.close()

    def read(theirs: socket.socket) -> list[object]:
        messages = list[object]()
        with theirs, contextlib.suppress(EOFError):
            while True:
                messages.append(receive(theirs))
        return messages

    async def check() -> list[object]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        are_sent = asyncio.Event()
        sending = asyncio.ensure_future(send(ours, are_sent))
        await are_sent.wait()  # the process is busy until then
        messages = await asyncio.to_thread(read, theirs)
        await sending
        return messages

    messages = asyncio.run(check())
    others = [message for message in messages if not isinstance(message, AddGlossaryPart)]
    numbers = [(type(message), message.number) for message in others if isinstance(message, StartJob | CancelJob)]
    assert numbers == [(StartJob, 3), (StartJob, 1), (StartJob, 2), (CancelJob, 2), (StartJob, 4)]
    parts = [message for message in messages if isinstance(message, AddGlossaryPart)]
    assert "".join(message.part for message in parts) == glossary.text
    assert [message.is_last for message in parts] == [False] * (len(parts) - 1) + [True]
    assert messages.index(others[0]) < len(parts) / 2
    first = others[1]
    assert isinstance(first, StartJob)
    assert first.job.keywords == {"glossary": glossary.digest}
