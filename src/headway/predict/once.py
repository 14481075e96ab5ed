"""Values that are computed when they are first needed, once for all threads."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any


def once(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that calls ``make`` on its first call and then returns that result, in all threads."""
    made: list[Any] = []
    lock = Lock()

    def get() -> Any:
        with lock:
            if not made:
                made.append(make())
        return made[0]

    return get
