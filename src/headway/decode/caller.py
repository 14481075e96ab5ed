"""The user that a computation is for, and its cancellation."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(eq=False)
class Caller:
    """The user that a computation is for. Name and priority decide when its waiting requests enter a batch.

    Attributes:
        name: Calls with the same name share one caller's share of the tokens.
        priority: Requests with a lower number enter first. 0 is the highest priority.
        canceled: Set by any thread to end the calls with :class:`concurrent.futures.CancelledError`.
        give_way: Called between batches and between texts. It may let other computations run first.
    """

    name: str = ""
    priority: int = 0
    canceled: threading.Event = field(default_factory=threading.Event)
    give_way: Callable[[], None] | None = None


_current: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - nobody cancels the default


@contextlib.contextmanager
def search_as(caller: Caller) -> Iterator[None]:
    """Set the caller of all computations inside the context."""
    token = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(token)


def current_caller() -> Caller:
    """Return the caller that :func:`search_as` has set."""
    return _current.get()


def give_way() -> None:
    """Give waiting computations a chance to run. Call this before each batch, and before each of many texts.

    Raises:
        CancelledError: The caller was canceled.
    """
    caller = _current.get()
    if caller.give_way is not None:
        caller.give_way()
    if caller.canceled.is_set():
        raise CancelledError
