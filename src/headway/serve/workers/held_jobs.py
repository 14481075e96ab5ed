"""A worker's jobs that wait until their glossary is prepared."""

from __future__ import annotations

from threading import Lock

from headway.decode import Caller
from headway.serve.glossaries import GlossaryDigest
from headway.serve.model_info import PivotModels
from headway.serve.workers.messages import StartJob

PreparationKey = tuple[str | PivotModels, GlossaryDigest]
"""Identifies a glossary that is being prepared for a model."""

HeldJob = tuple[StartJob, Caller, bool]
"""A job, its caller, and whether its message is small."""


class HeldJobs:
    """Jobs that wait for glossaries. The methods may be called from any thread."""

    def __init__(self) -> None:
        self._jobs: dict[PreparationKey, list[HeldJob]] = {}
        self._lock = Lock()

    def hold(self, key: PreparationKey, job: HeldJob) -> bool:
        """Add a waiting job. Return True if it is the first job for its glossary, which must then be prepared."""
        with self._lock:
            is_first = key not in self._jobs
            self._jobs.setdefault(key, []).append(job)
            return is_first

    def release(self, key: PreparationKey) -> list[HeldJob]:
        """Remove and return the jobs that wait for a glossary, after its preparation has succeeded or failed."""
        with self._lock:
            return self._jobs.pop(key)

    def remove(self, number: int) -> bool:
        """Remove a job if it is waiting. Return whether it was."""
        with self._lock:
            for jobs in self._jobs.values():
                for job in jobs:
                    if job[0].number == number:
                        jobs.remove(job)
                        return True
        return False
