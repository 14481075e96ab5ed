"""The short jobs of a worker that wait for their start, of which callers take turns."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

from headway.decode import Caller
from headway.serve.workers.messages import StartJob

ShortJob = tuple[StartJob, Caller]


class WaitingJobs:
    """A queue in which a caller with one job does not wait for all jobs of another one. Any thread may add jobs."""

    def __init__(self) -> None:
        self._by_caller: OrderedDict[str, deque[ShortJob]] = OrderedDict()
        self._changed = threading.Condition()
        self._was_called = False

    def put(self, job: ShortJob) -> None:
        """Add a job."""
        with self._changed:
            self._by_caller.setdefault(job[1].name, deque()).append(job)
            self._changed.notify()

    def wake(self) -> None:
        """Make the next :meth:`get` return None if there is no job."""
        with self._changed:
            self._was_called = True
            self._changed.notify()

    def get(self) -> ShortJob | None:
        """Wait for a job, and return that of the caller whose turn it is, or None after :meth:`wake`."""
        with self._changed:
            while not (self._by_caller or self._was_called):
                self._changed.wait()
            self._was_called = False
            if not self._by_caller:
                return None
            name, jobs = self._by_caller.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._by_caller[name] = jobs
            return job

    def __len__(self) -> int:
        return sum(map(len, list(self._by_caller.values())))
