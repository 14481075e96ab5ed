"""The short jobs of a worker that wait for their start, of which callers take turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from queue import SimpleQueue

from headway.decode import Caller
from headway.serve.workers.messages import StartJob

ShortJob = tuple[StartJob, Caller]


class WaitingJobs:
    """A queue in which a caller with one job does not wait for all jobs of another one.

    Any thread may add jobs, and one thread takes them.
    """

    def __init__(self) -> None:
        self._arrived: SimpleQueue[ShortJob | None] = SimpleQueue()  # None means that wake() was called
        self._by_caller: OrderedDict[str, deque[ShortJob]] = OrderedDict()

    def put(self, job: ShortJob) -> None:
        """Add a job."""
        self._arrived.put(job)

    def wake(self) -> None:
        """Make the next :meth:`get` return None if there is no job."""
        self._arrived.put(None)

    def get(self) -> ShortJob | None:
        """Wait for a job, and return that of the caller whose turn it is, or None after :meth:`wake`."""
        is_waiting = not self._by_caller
        while is_waiting or not self._arrived.empty():
            job = self._arrived.get()
            is_waiting = False
            if job is not None:
                self._by_caller.setdefault(job[1].name, deque()).append(job)
        if not self._by_caller:
            return None
        name, jobs = self._by_caller.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self._by_caller[name] = jobs
        return job

    def __bool__(self) -> bool:
        return bool(self._by_caller) or not self._arrived.empty()

    def __len__(self) -> int:
        return self._arrived.qsize() + sum(map(len, list(self._by_caller.values())))
