"""The caller that a thread computes for, and the cancellation of its calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(eq=False)
class Caller:
    """The user on whose behalf a thread computes, which decides when waiting requests enter a batch.

    Attributes:
        name: Calls with the same name share one caller's share of the tokens.
        priority: Requests with a lower number enter first. 0 is the highest priority.
        canceled: Set by any thread to end the calls with :class:`concurrent.futures.CancelledError`.
    """

    name: str = ""
    priority: int = 0
    canceled: threading.Event = field(default_factory=threading.Event)


_current: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - nobody cancels the default


@contextlib.contextmanager
def search_as(caller: Caller) -> Iterator[None]:
    """Inside the context, this thread computes on behalf of ``caller``."""
    token = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(token)


def current_caller() -> Caller:
    """Return on whose behalf this thread computes."""
    return _current.get()


def raise_if_canceled() -> None:
    """Raise :class:`concurrent.futures.CancelledError` if the caller was canceled. To be called before each batch."""
    if _current.get().canceled.is_set():
        raise CancelledError
