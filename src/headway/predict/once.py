"""Values that are made when they are first needed, once for all threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any


def once(make: Callable[[], Any], lock: AbstractContextManager[Any] | None = None) -> Callable[[], Any]:
    """Return a function that calls ``make`` on its first call and then returns that result, in all threads.

    ``lock`` is held during a call of ``make``.
    """
    made: list[Any] = []
    held = lock or Lock()

    def get() -> Any:
        if made:
            return made[0]
        with held:
            if not made:
                made.append(make())
        return made[0]

    return get
