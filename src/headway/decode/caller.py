"""The user on whose behalf a computation runs, and how another thread cancels the computation."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(eq=False)
class Caller:
    """The user on whose behalf a computation runs. Name and priority decide when waiting requests enter a batch.

    Attributes:
        name: Identifies the user. Calls with the same name get one share of the tokens together.
        priority: Requests with a lower number enter first. 0 is the highest priority.
        cancel_event: An event. Any thread may set it to end the calls with :class:`concurrent.futures.CancelledError`.
        give_way: Function that is called between batches and between texts. It may first run other computations.
    """

    name: str = ""
    priority: int = 0
    cancel_event: threading.Event = field(default_factory=threading.Event)
    give_way: Callable[[], None] | None = None


_current: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 - the default caller is never canceled


@contextlib.contextmanager
def use_caller(caller: Caller) -> Iterator[None]:
    """Set the caller of all computations inside the context."""
    token = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(token)


def current_caller() -> Caller:
    """Return the caller set by :func:`use_caller`."""
    return _current.get()


def give_way() -> None:
    """Let waiting computations run. Call this before each batch, and before each text of a long list.

    Raises:
        CancelledError: The caller was canceled.
    """
    caller = _current.get()
    if caller.give_way is not None:
        caller.give_way()
    if caller.cancel_event.is_set():
        raise CancelledError
