"""The queue in front of the workers, with a clock that the tests set."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence

import pytest
from settling import settle

from headway.serve.admission import Admission, estimated_tokens
from headway.serve.errors import OverloadedError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock, slots: int = 1, max_tokens: int = 1000, max_seconds: float = 10.0) -> Admission:
    return Admission(slots=slots, max_tokens=max_tokens, max_seconds=max_seconds, clock=clock)


async def run_jobs(admission: Admission, jobs: Sequence[tuple[str, str, int]]) -> list[str]:
    """Start jobs (name, caller, priority) of ten tokens while the only slot is held; return the order of entry."""
    order: list[str] = []

    async def job(name: str, caller: str, priority: int) -> None:
        async with admission.enter(10, caller, priority):
            order.append(name)

    async with admission.enter(10, "holder", 0):
        tasks = [asyncio.create_task(job(*each)) for each in jobs]
        await settle()
        assert order == []
    await asyncio.gather(*tasks)
    return order


def test_texts_are_measured_in_tokens() -> None:
    assert estimated_tokens("") == 4
    assert estimated_tokens("x" * 40) == 14


def test_keys_get_equal_shares_and_bulk_waits() -> None:
    jobs = [("a1", "a", 0), ("a2", "a", 0), ("a3", "a", 0), ("bulk", "c", 1), ("b1", "b", 0)]
    assert asyncio.run(run_jobs(make(Clock()), jobs)) == ["a1", "b1", "a2", "a3", "bulk"]


def test_a_caller_leaves_room_for_others_however_large_its_jobs_are() -> None:
    async def check(first_job: int) -> None:
        admission = Admission(
            slots=9, max_tokens=1000, max_seconds=10.0, leaves_room=True, first_rate=1000.0, clock=Clock()
        )
        async with admission.enter(first_job, "a", 0):
            with pytest.raises(OverloadedError):
                admission.check_capacity(110, "a")
            admission.check_capacity(250, "b")

    for first_job in (400, 5000):  # an empty queue accepts any
        asyncio.run(check(first_job))


def test_the_queue_is_bounded_in_tokens_and_in_seconds_and_says_when_to_come_again() -> None:
    async def check() -> None:
        clock = Clock()
        admission = make(clock, slots=4, max_tokens=1000, max_seconds=10.0)
        for _ in range(40):
            async with admission.enter(400, "a", 0):
                clock.now += 8.0
        assert admission.unfinished_tokens == 0
        rate = (
            admission.tokens_per_second
        )  # 50 tokens per second, of which 10 seconds are 500 tokens; the last 8 seconds count most
        assert rate == pytest.approx(50, rel=0.5)
        async with admission.enter(450, "a", 0):
            with pytest.raises(OverloadedError) as full:
                async with admission.enter(900, "a", 0):
                    pass
            assert full.value.retry_after == math.ceil(350 / rate)
            async with admission.enter(500, "a", 0):  # 450 tokens before it are less than ten seconds
                assert admission.unfinished_tokens == 950
                with pytest.raises(OverloadedError) as late:
                    async with admission.enter(10, "a", 0):
                        pass
                assert late.value.retry_after == math.ceil(950 / rate - 10)
        with pytest.raises(OverloadedError):
            async with admission.enter(10, "a", 0), admission.enter(5000, "a", 0):
                pass

    asyncio.run(check())


def test_a_new_key_does_not_wait_for_the_jobs_of_another_one() -> None:
    async def check() -> None:
        admission, order = make(Clock()), list[str]()

        async def job(caller: str) -> None:
            async with admission.enter(10, caller, 0):
                order.append(caller)
                await settle()

        tasks = [asyncio.create_task(job("many")) for _ in range(5)]
        await settle()
        await asyncio.gather(*tasks, asyncio.create_task(job("few")))
        assert order.index("few") <= 2

    asyncio.run(check())


def test_bulk_work_waits_for_all_interactive_work() -> None:
    async def check() -> None:
        admission = Admission(slots=9, max_tokens=2000, max_seconds=1.0, first_rate=100.0, clock=Clock())
        async with admission.enter(500, "interactive", 0):
            with pytest.raises(OverloadedError) as late:
                admission.check_capacity(10, "bulk", 1)
            assert late.value.retry_after == 4
            admission.check_capacity(10, "other", 0)
        async with admission.enter(500, "bulk", 1):
            admission.check_capacity(10, "interactive", 0)

    asyncio.run(check())


def test_a_key_is_not_refused_because_another_one_has_much_work() -> None:
    async def check() -> None:
        admission = Admission(slots=9, max_tokens=2000, max_seconds=1.0, first_rate=100.0, clock=Clock())
        async with admission.enter(1000, "many", 0):
            with pytest.raises(OverloadedError):
                admission.check_capacity(10, "many")
            async with admission.enter(20, "few", 0), admission.enter(20, "few", 0), admission.enter(20, "third", 0):
                admission.check_capacity(10, "few")  # its 40 tokens are done when "many" has got 40 and "third" 20
                async with admission.enter(300, "few", 0):
                    with pytest.raises(OverloadedError) as late:
                        admission.check_capacity(10, "few")
                    assert late.value.retry_after == 6  # 340 + 340 + 20 tokens are before it, and 100 may be
                    admission.check_capacity(10, "new")
                    with pytest.raises(OverloadedError):
                        admission.check_capacity(641, "new")  # all together have at most 2000 tokens

    asyncio.run(check())


def test_what_fits_into_the_batches_is_not_refused_for_the_time_it_takes() -> None:
    async def check() -> None:
        admission = Admission(
            slots=9, max_tokens=500, max_seconds=0.1, batch_tokens=300, first_rate=100.0, clock=Clock()
        )
        async with admission.enter(150, "a", 0), admission.enter(150, "b", 0):
            assert admission.estimated_seconds == 3.0
            async with admission.enter(10, "c", 0):  # 300 tokens before it
                with pytest.raises(OverloadedError) as late:  # and 310 before this one
                    admission.check_capacity(10)
                assert late.value.retry_after == 1
        async with admission.enter(150, "a", 0):
            with pytest.raises(OverloadedError):
                admission.check_capacity(351)  # the limit of the tokens holds all the same

    asyncio.run(check())


def test_the_speed_of_a_burst_is_not_forgotten_at_once() -> None:
    async def check() -> None:
        clock = Clock()
        admission = make(clock, slots=100, max_tokens=10**6, max_seconds=1000.0)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(50):
                await stack.enter_async_context(admission.enter(100, "a", 0))
            clock.now += 5.0
        full = admission.tokens_per_second
        assert full == pytest.approx(1000, rel=0.01)
        async with admission.enter(10, "a", 0):
            clock.now += 2.0
        assert 0.5 * full < admission.tokens_per_second < full
        async with admission.enter(10, "a", 0):
            clock.now += 200.0
        assert admission.tokens_per_second < 10

    asyncio.run(check())


def test_an_empty_queue_accepts_a_job_of_any_size() -> None:
    async def check() -> None:
        async with make(Clock()).enter(10**6, "a", 0):
            pass

    asyncio.run(check())


def test_the_parts_of_a_job_for_which_there_is_room_are_not_refused() -> None:
    async def check() -> None:
        admission = make(Clock())
        async with admission.enter(10**6, "a", 0):
            with pytest.raises(OverloadedError):
                async with admission.enter(1, "a", 0):
                    pass

        async def part() -> None:
            async with admission.enter(10**6, "a", 0, has_room=True):
                await asyncio.sleep(0)

        admission.check_capacity(10 * 10**6)
        await asyncio.wait_for(asyncio.gather(*(part() for _ in range(10))), 60)

    asyncio.run(check())


def test_room_is_kept_for_jobs_that_enter_later() -> None:
    async def check() -> None:
        admission = make(Clock())
        with admission.reserve(10**6, "a", 0) as give_back:
            for name in "ab":
                with pytest.raises(OverloadedError):
                    admission.check_capacity(10**6, name)
            give_back(999_000)
            async with admission.enter(999_000, "a", 0, has_room=True):
                assert admission.unfinished_tokens == 10**6
            assert admission.unfinished_tokens == 1000
            give_back(10**6)  # no more than there is
            assert admission.unfinished_tokens == 0
        assert (admission.unfinished_tokens, admission.num_jobs) == (0, 0)
        admission.check_capacity(10**6, "a")

    asyncio.run(check())


def test_a_job_that_is_canceled_while_it_waits_leaves_no_trace() -> None:
    async def check() -> None:
        admission = make(Clock())

        async def job() -> None:
            async with admission.enter(10, "a", 0):
                pass

        async with admission.enter(10, "holder", 0):
            waiting = asyncio.create_task(job())
            await settle()
            waiting.cancel()
            await settle()
            assert admission.num_jobs == 1
        assert (admission.num_jobs, admission.unfinished_tokens) == (0, 0)
        await asyncio.wait_for(job(), 60)

    asyncio.run(check())


def test_work_outside_of_the_queue_waits_for_it_and_is_never_in_the_way() -> None:
    async def check() -> None:
        clock = Clock()
        admission = make(clock, slots=2, max_tokens=100)
        first_rate = admission.tokens_per_second
        async with admission.enter(90, "a", 0):
            assert admission.estimated_seconds < 0.5
            await asyncio.wait_for(admission.wait_until_quiet(), 60)
            with admission.bypass_queue(10**6):  # it refuses nobody
                async with admission.enter(10, "b", 0):
                    assert admission.unfinished_tokens == 100
                with pytest.raises(OverloadedError):
                    async with admission.enter(11, "b", 0):
                        pass
        admission = make(clock)
        async with admission.enter(round(first_rate), "a", 0):  # a second of work
            waiting = asyncio.create_task(admission.wait_until_quiet())
            await asyncio.sleep(0.12)
            assert not waiting.done()
        await asyncio.wait_for(waiting, 60)

    asyncio.run(check())


def test_the_speed_is_also_measured_by_work_outside_of_the_queue() -> None:
    clock = Clock()
    admission = make(clock)
    for _ in range(40):
        with admission.bypass_queue(400):
            clock.now += 8.0
    assert admission.tokens_per_second == pytest.approx(50, rel=0.5)
