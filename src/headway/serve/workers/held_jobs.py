"""The jobs of a worker that wait while another job prepares the glossary that they need."""

from __future__ import annotations

from threading import Lock

from headway.decode import Caller
from headway.serve.glossaries import GlossaryDigest
from headway.serve.model_info import PivotModels
from headway.serve.workers.messages import StartJob

HeldKey = tuple[str | PivotModels, GlossaryDigest]
"""What identifies the preparation of a glossary for a model."""

HeldJob = tuple[StartJob, Caller]


class HeldJobs:
    """The jobs that wait for glossaries. Any thread may call the methods."""

    def __init__(self) -> None:
        self._jobs: dict[HeldKey, list[HeldJob]] = {}
        self._lock = Lock()

    def hold(self, key: HeldKey, job: HeldJob) -> bool:
        """Keep a job if another one prepares the glossary. Otherwise return False: this job must prepare it."""
        with self._lock:
            if key not in self._jobs:
                self._jobs[key] = []
                return False
            self._jobs[key].append(job)
            return True

    def release(self, key: HeldKey) -> list[HeldJob]:
        """Return the jobs that have waited for a glossary, when the job that prepared it has ended."""
        with self._lock:
            return self._jobs.pop(key)

    def remove(self, number: int) -> bool:
        """Remove a job if it waits, and return whether it did."""
        with self._lock:
            for jobs in self._jobs.values():
                for job in jobs:
                    if job[0].number == number:
                        jobs.remove(job)
                        return True
        return False
