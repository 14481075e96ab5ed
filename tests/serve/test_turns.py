"""Owners take turns at a limited resource."""

from __future__ import annotations

import asyncio

import pytest

from headway.serve.turns import FairSemaphore


def test_owners_take_turns() -> None:
    """However many tasks one owner has, the first task of another is next."""
    order: list[str] = []

    async def work(turns: FairSemaphore, owner: str, most: int) -> None:
        async with turns.slot(owner, most):
            order.append(owner)
            await asyncio.sleep(0)

    async def run() -> None:
        turns = FairSemaphore(1)
        await asyncio.gather(*(work(turns, owner, 1) for owner in "aaaabbc"))

    asyncio.run(run())
    assert "".join(order) == "abcabaa"


def test_one_owner_leaves_places_for_others() -> None:
    async def run() -> None:
        turns, most = FairSemaphore(2), 1
        async with turns.slot("a", most):
            second = asyncio.ensure_future(turns.slot("a", most).__aenter__())
            await asyncio.sleep(0)
            assert not second.done()
            async with asyncio.timeout(1), turns.slot("b", most):
                assert not second.done()
        await second

    asyncio.run(run())


@pytest.mark.parametrize("is_served", [False, True])
def test_a_canceled_task_gives_its_turn_back(is_served: bool) -> None:
    async def run() -> None:
        turns = FairSemaphore(1)
        holder = turns.slot("a", 1)
        await holder.__aenter__()
        waiting = asyncio.ensure_future(turns.slot("b", 1).__aenter__())
        await asyncio.sleep(0)
        if is_served:
            await holder.__aexit__(None, None, None)
            waiting.cancel()  # it has its turn, but has not noticed it
        else:
            waiting.cancel()
            await holder.__aexit__(None, None, None)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(1), turns.slot("c", 1):
            pass

    asyncio.run(run())
