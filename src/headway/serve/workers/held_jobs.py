"""The jobs of a worker that wait until the glossary that they need is prepared."""

from __future__ import annotations

from threading import Lock

from headway.decode import Caller
from headway.serve.glossaries import GlossaryDigest
from headway.serve.model_info import PivotModels
from headway.serve.workers.messages import StartJob

HeldKey = tuple[str | PivotModels, GlossaryDigest]
"""What identifies the preparation of a glossary for a model."""

HeldJob = tuple[StartJob, Caller, bool]
"""A job, its caller, and whether its message is small."""


class HeldJobs:
    """The jobs that wait for glossaries. Any thread may call the methods."""

    def __init__(self) -> None:
        self._jobs: dict[HeldKey, list[HeldJob]] = {}
        self._lock = Lock()

    def hold(self, key: HeldKey, job: HeldJob) -> bool:
        """Keep a job. Return whether it is the first one for its glossary, which must then be prepared."""
        with self._lock:
            is_first = key not in self._jobs
            self._jobs.setdefault(key, []).append(job)
            return is_first

    def release(self, key: HeldKey) -> list[HeldJob]:
        """Return the jobs that have waited for a glossary, when it is prepared or cannot be."""
        with self._lock:
            return self._jobs.pop(key)

    def remove(self, number: int) -> bool:
        """Remove a job if it is waiting, and return whether it was."""
        with self._lock:
            for jobs in self._jobs.values():
                for job in jobs:
                    if job[0].number == number:
                        jobs.remove(job)
                        return True
        return False
