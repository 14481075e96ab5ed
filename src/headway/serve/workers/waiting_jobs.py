"""A fair queue for a worker's jobs, in which callers take turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingJobs(Generic[T]):
    """A queue in which a caller with one job does not have to wait for all jobs of another caller.

    Any thread may add jobs, but only one thread may take them.
    """

    def __init__(self) -> None:
        self._arrived: SimpleQueue[tuple[str, T] | None] = SimpleQueue()  # None means that wake() was called
        self._by_caller: OrderedDict[str, deque[T]] = OrderedDict()

    def put(self, caller: str, job: T) -> None:
        """Add a job for a caller."""
        self._arrived.put((caller, job))

    def wake(self) -> None:
        """Make :meth:`get` return None if there are no jobs."""
        self._arrived.put(None)

    def get(self) -> T | None:
        """Wait for a job, and return the next caller's job, or None after :meth:`wake` if there are no jobs."""
        is_waiting = not self._by_caller
        while is_waiting or not self._arrived.empty():
            arrived = self._arrived.get()
            is_waiting = False
            if arrived is not None:
                caller, job = arrived
                self._by_caller.setdefault(caller, deque()).append(job)
        if not self._by_caller:
            return None
        caller, jobs = self._by_caller.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self._by_caller[caller] = jobs
        return job

    def __bool__(self) -> bool:
        return bool(self._by_caller) or not self._arrived.empty()

    def __len__(self) -> int:
        return self._arrived.qsize() + sum(map(len, list(self._by_caller.values())))
