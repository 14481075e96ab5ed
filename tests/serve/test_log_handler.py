"""The log is written once for each iteration of the event loop, and loses no line."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from headway.serve.log_handler import LoopLogHandler
from headway.serve.log_limit import LINES_PER_MINUTE, LogLimit


class Written:
    """A stream that remembers each write."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)

    def flush(self) -> None:
        pass


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def log(written: Written) -> logging.Logger:
    handler = LoopLogHandler()
    handler.setStream(written)
    logger = logging.Logger("of the test")
    logger.addHandler(handler)
    return logger


def test_lines_of_one_iteration_are_one_write(log: logging.Logger, written: Written) -> None:
    async def run() -> None:
        log.info("a")
        log.info("b")
        await asyncio.sleep(0.01)
        log.info("c")
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert written.parts == ["a\nb\n", "c\n"]


def test_without_a_loop_lines_are_written_at_once(log: logging.Logger, written: Written) -> None:
    log.info("a")
    log.info("b")
    assert "".join(written.parts) == "a\nb\n"


def test_the_order_is_kept_if_a_thread_writes_too(log: logging.Logger, written: Written) -> None:
    async def run() -> None:
        log.info("first")
        thread = threading.Thread(target=log.info, args=("second",))
        thread.start()
        thread.join()
        assert "".join(written.parts) == "first\nsecond\n"

    asyncio.run(run())


def test_a_stream_that_is_gone_raises_nothing_and_is_tried_once_for_each_iteration(
    log: logging.Logger, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def write(text: str) -> None:
        tried.append(text)
        raise BrokenPipeError

    monkeypatch.setattr(written, "write", write)

    async def run() -> None:
        log.info("a")
        await asyncio.sleep(0.05)

    asyncio.run(run())
    assert tried == ["a\n"]


def test_a_record_that_cannot_be_formatted_does_not_disturb_the_caller(
    log: logging.Logger, written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        log.info("%d", "a")
        log.info("b")
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert written.parts == ["b\n"]
    assert "Logging error" in capsys.readouterr().err


def test_lines_of_a_loop_that_has_ended_are_written_by_the_next(log: logging.Logger, written: Written) -> None:
    async def run(line: str) -> None:
        log.info(line)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(run("a"))
    loop.close()

    async def run_next() -> None:
        log.info("b")
        await asyncio.sleep(0.01)

    asyncio.run(run_next())
    assert "".join(written.parts) == "a\nb\n"


def test_the_last_lines_are_written_at_the_end(log: logging.Logger, written: Written) -> None:
    async def run() -> None:
        log.info("last")
        for handler in log.handlers:  # as logging.shutdown() does
            handler.flush()
        assert written.parts == ["last\n"]

    asyncio.run(run())


def test_lines_that_anyone_can_cause_are_limited(
    log: logging.Logger, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 60.0
    monkeypatch.setattr("headway.serve.log_limit.time.monotonic", lambda: now)
    log.addFilter(LogLimit())
    for _ in range(1000):
        log.info("refused")
    log.error("another level has its own limit")
    assert len(written.parts) == LINES_PER_MINUTE + 2
    assert written.parts[-3:-1] == ["refused\n", "further lines of this kind are omitted for the rest of this minute\n"]
    now += 60.0
    log.info("refused")
    assert len(written.parts) == LINES_PER_MINUTE + 3
