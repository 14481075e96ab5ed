"""Jobs for bulk texts, whose results clients fetch later.

The texts of a job are sent to the workers in small groups, and a group starts only while the queue is short. Jobs thus
use the workers' idle time and do not delay requests. Each key gets the same number of tokens, and the jobs of a key are
processed in order of arrival. Jobs are kept in memory, and are lost when the service stops.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from headway.errors import HeadwayError
from headway.serve.admission import Admission, estimated_tokens
from headway.serve.config import LimitsConfig
from headway.serve.errors import JobNotDoneError, JobsFullError, RetryLaterError, UnknownJobError

_log = logging.getLogger("headway.serve")
_GROUP_TOKENS = 512  # maximum number of tokens in a group, unless a single text is longer
_GROUP_TEXTS = 64
_RETRY_S = 60  # Retry-After for a key whose jobs are all unfinished
_TIME_LIMIT_FACTOR = 20  # the time limit of a group is this many times limits.request_seconds
_RETRIES = 5  # number of retries for texts whose model cannot be loaded

BulkWork = Callable[[Sequence[str]], Awaitable[Sequence[bytes]]]
"""Processes texts, and returns the result of each text as JSON."""


@dataclass(eq=False)
class BulkJob:
    """A job for bulk texts.

    Attributes:
        id: Unique id of the job.
        owner: Name of the key that created the job. Only this key can use it.
        work: The operation to apply to the texts.
        limits: The limits at the time when the job was created.
        items: For each text, the text itself until its result arrives, then the result as JSON.
        num_bytes: Memory used by ``items``, in bytes.
        num_texts: Number of texts.
        scale: Estimated time of each text, relative to the time with the default options.
        num_started: Number of texts that have been sent to workers.
        num_done: Number of texts with a result.
        created: Time of creation, in seconds since 1970.
        ended: Time at which the job ended, or None.
        error: The reason for the failure, or None.
        finished: Set when the job has ended or has been removed.
        running: The tasks that process groups of texts.
        expiry: The timer that removes the job some time after its end.
    """

    id: str
    owner: str
    work: BulkWork
    limits: LimitsConfig
    items: list[str | bytes]
    num_bytes: int
    num_texts: int
    scale: float = 1.0
    num_started: int = 0
    num_done: int = 0
    created: float = field(default_factory=time.time)
    ended: float | None = None
    error: str | None = None
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    running: set[asyncio.Task[None]] = field(default_factory=set)
    expiry: asyncio.TimerHandle | None = None

    @property
    def status(self) -> str:
        """The status of the job: waiting, running, done or failed."""
        if self.ended is not None:
            return "done" if self.error is None else "failed"
        return "running" if self.num_started else "waiting"

    @property
    def expires(self) -> float | None:
        """The time at which the job is removed, in seconds since 1970, or None before its end."""
        return None if self.ended is None else self.ended + self.limits.job_seconds

    @property
    def has_waiting_texts(self) -> bool:
        """Whether some texts have not been sent to a worker yet."""
        return self.ended is None and self.num_started < self.num_texts

    def results(self) -> list[bytes]:
        """Return the result of each text, as JSON.

        Raises:
            JobNotDoneError: The job is not done.
        """
        if self.status != "done":
            raise JobNotDoneError(self.status if self.error is None else f"{self.status}: {self.error}")
        return [item for item in self.items if isinstance(item, bytes)]

    def take_group(self) -> tuple[int, list[str], float]:
        """Return the next texts to process: the index of the first text, the texts, and their estimated tokens."""
        start, texts, tokens = self.num_started, list[str](), 0.0
        for text in self.items[start : start + _GROUP_TEXTS]:
            assert isinstance(text, str)
            text_tokens = self.scale * estimated_tokens(text)
            if texts and tokens + text_tokens > _GROUP_TOKENS:
                break
            texts.append(text)
            tokens += text_tokens
        self.num_started += len(texts)
        return start, texts, tokens

    def store(self, start: int, results: Sequence[bytes]) -> None:
        """Replace texts with their results."""
        for index, result in enumerate(results, start):
            self.num_bytes += sys.getsizeof(result) - sys.getsizeof(self.items[index])
            self.items[index] = result
        self.num_done += len(results)

    def cancel(self) -> None:
        """Cancel the running work, and drop the texts and results."""
        for task in self.running - {asyncio.current_task()}:
            task.cancel()
        self.items, self.num_bytes = [], 0


class BulkJobs:
    """The bulk jobs of a service.

    Args:
        admission: The queue of interactive and bulk requests.
        max_groups: Maximum number of groups of texts that are with the workers at a time.
    """

    def __init__(self, admission: Admission, max_groups: int) -> None:
        self._admission, self._max_groups = admission, max_groups
        self._jobs: dict[str, BulkJob] = {}  # in order of arrival
        self._served: dict[str, float] = {}  # number of tokens processed for each key with waiting texts
        self._num_runners = 0
        self._runners: set[asyncio.Task[None]] = set()

    @property
    def num_unfinished(self) -> int:
        """The number of jobs that have not ended."""
        return sum(job.ended is None for job in self._jobs.values())

    @property
    def num_bytes(self) -> int:
        """Memory used by all texts and results, in bytes."""
        return sum(job.num_bytes for job in self._jobs.values())

    def add(
        self, owner: str, texts: Sequence[str], work: BulkWork, limits: LimitsConfig, scale: float = 1.0
    ) -> BulkJob:
        """Add a job. Each of its texts takes ``scale`` times as long as with the default options.

        Raises:
            JobsFullError: The owner has too many jobs, or they are too large.
        """
        size = sum(map(sys.getsizeof, texts))
        jobs = [job for job in self._jobs.values() if job.owner == owner]
        if len(jobs) >= limits.jobs or sum(job.num_bytes for job in jobs) + size > limits.job_mb * 1e6:
            ends = [job.expires - time.time() for job in jobs if job.expires is not None]
            raise JobsFullError(max(1, math.ceil(min(ends, default=_RETRY_S))))
        job = BulkJob(str(uuid.uuid4()), owner, work, limits, list(texts), size, len(texts), scale)
        self._jobs[job.id] = job
        if not texts:
            self._end(job)
        while self._num_runners < self._max_groups:
            self._num_runners += 1
            runner = asyncio.ensure_future(self._run())
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)
        return job

    def get(self, owner: str, identifier: str) -> BulkJob:
        """Return the job with this id.

        Raises:
            UnknownJobError: No job has this id, or the job has another owner.
        """
        job = self._jobs.get(identifier)
        if job is None or job.owner != owner:
            raise UnknownJobError(identifier)
        return job

    def remove(self, job: BulkJob) -> None:
        """Cancel a job and remove it."""
        self._jobs.pop(job.id, None)
        if job.expiry is not None:
            job.expiry.cancel()
        job.cancel()
        if job.ended is None:
            job.ended = time.time()
        job.finished.set()

    async def _run(self) -> None:
        """Send groups of texts to the workers, one group at a time, until no texts are left."""
        try:
            while True:
                await self._admission.wait_until_quiet()
                job = self._next()
                if job is None:
                    return
                start, texts, tokens = job.take_group()
                self._served[job.owner] += tokens
                task = asyncio.ensure_future(self._do(job, start, texts))
                job.running.add(task)
                await asyncio.wait([task])
                job.running.discard(task)
        finally:
            self._num_runners -= 1

    def _next(self) -> BulkJob | None:
        """Return the oldest job with waiting texts of the key that has been served the fewest tokens."""
        waiting = [job for job in self._jobs.values() if job.has_waiting_texts]
        owners = {job.owner for job in waiting}
        # A new key gets no credit for the time before its first job.
        least = min((tokens for owner, tokens in self._served.items() if owner in owners), default=0)
        self._served = {owner: self._served.get(owner, least) for owner in owners}
        return min(waiting, key=lambda job: self._served[job.owner], default=None)

    async def _do(self, job: BulkJob, start: int, texts: Sequence[str]) -> None:
        try:
            results = await self._results_when_possible(job, texts)
        except (HeadwayError, RetryLaterError) as error:
            self._end(job, str(error))
            return
        if job.ended is not None:
            return
        job.store(start, results)
        if sum(other.num_bytes for other in self._jobs.values() if other.owner == job.owner) > job.limits.job_mb * 1e6:
            self._end(job, f"the jobs of this key use more than {job.limits.job_mb:g} MB; delete finished jobs")
        elif job.num_done == job.num_texts:
            self._end(job)

    async def _results_when_possible(self, job: BulkJob, texts: Sequence[str]) -> list[bytes]:
        """Return the results of texts. If their model cannot be loaded at the moment, wait and retry."""
        for _ in range(_RETRIES):
            try:
                return await self._results(job, texts)
            except RetryLaterError as error:
                await asyncio.sleep(error.retry_after)
        return await self._results(job, texts)

    async def _results(self, job: BulkJob, texts: Sequence[str]) -> list[bytes]:
        """Return the results of texts. If they fail together, process each text separately."""
        try:
            async with asyncio.timeout(_TIME_LIMIT_FACTOR * job.limits.request_seconds):
                return list(await job.work(texts))
        except TimeoutError:
            return [json.dumps({"error": "This text took too long"}).encode()] * len(texts)
        except (HeadwayError, RetryLaterError):
            raise
        except Exception as error:
            if len(texts) == 1:
                _log.warning("a text of a job has failed: %s", type(error).__name__)
                return [json.dumps({"error": "This text could not be processed"}).encode()]
        return [result for text in texts for result in await self._results(job, [text])]

    def _end(self, job: BulkJob, error: str | None = None) -> None:
        if job.ended is not None:
            return
        job.ended, job.error = time.time(), error
        if error is not None:
            job.cancel()
        job.finished.set()
        job.expiry = asyncio.get_running_loop().call_later(job.limits.job_seconds, self.remove, job)
