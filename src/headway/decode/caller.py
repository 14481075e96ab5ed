"""The caller that code computes for, and the cancellation of its calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(eq=False)
class Caller:
    """The user on whose behalf code computes, which decides when waiting requests enter a batch.

    Attributes:
        name: Calls with the same name share one caller's share of the tokens.
        priority: Requests with a lower number enter first. 0 is the highest priority.
        canceled: Set by any thread to end the calls with :class:`concurrent.futures.CancelledError`.
        give_way: Called now and then between two steps of searches, so that others can compute meanwhile.
    """

    name: str = ""
    priority: int = 0
    canceled: threading.Event = field(default_factory=threading.Event)
    give_way: Callable[[], None] | None = None


_current: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - nobody cancels the default


@contextlib.contextmanager
def search_as(caller: Caller) -> Iterator[None]:
    """Inside the context, code computes on behalf of ``caller``."""
    token = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(token)


def current_caller() -> Caller:
    """Return on whose behalf code computes."""
    return _current.get()


def give_way() -> None:
    """Let others compute, and raise :class:`concurrent.futures.CancelledError` if the caller was canceled.

    To be called before each batch, and before each of many texts.
    """
    caller = _current.get()
    if caller.give_way is not None:
        caller.give_way()
    if caller.canceled.is_set():
        raise CancelledError
