"""Waiting until all tasks of an event loop wait for something else than the loop."""

from __future__ import annotations

import asyncio


async def settle() -> None:
    """Run the event loop until what is ready has been done. No clock decides how long this takes."""
    for _ in range(50):
        await asyncio.sleep(0)
