"""Admission control: a request queue that is bounded in tokens and in seconds.

The size of a text is estimated from its number of characters, and the speed of the service from the work that it has
completed, so that a request is refused before any work is done. Work that fits into the workers' batches is never
refused because of its estimated time: a slow model takes long for a few texts, but hardly longer for a full batch. At
most ``slots`` jobs are with the workers at a time; the other jobs wait. Interactive requests enter before bulk
requests. Within a priority, each key gets the same number of tokens, so that a key with little work waits only briefly,
and is not refused because another key has much work. Work that no client waits for bypasses the queue, and starts when
the queue is short.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from headway.serve.errors import OverloadedError

_BYTES_PER_TOKEN = 4.0
EXTRA_TOKENS = 4  # tokens added to the estimate for each sentence that is translated separately
_SHORT_CHARACTERS = 200  # shorter texts are not split into sentences
_LINE_END, _SENTENCE_ENDS, _OTHER_SENTENCE_ENDS = "\n", (". ", "! ", "? "), ("\u3002", "\uff01", "\uff1f")
_WINDOW_S = 10.0  # time constant of the measured speed
_LEAST_BUSY_S = 1.0  # minimum busy time for a measurement; shorter measurements are too inaccurate
_HALF_LIFE_S = 20.0  # half-life of an earlier, higher speed
_QUIET_S = 0.5  # background work starts when the queue is shorter than this
_QUIET_CHECK_S = 0.05


def estimated_tokens(text: str) -> int:
    """Estimate the number of tokens of a text from its size in UTF-8 and its number of sentences."""
    return EXTRA_TOKENS * num_sentences(text) + math.ceil(_num_bytes(text) / _BYTES_PER_TOKEN)


def num_sentences(text: str) -> int:
    """Estimate the number of sentences of a text that are translated separately, at least 1. Lines also count."""
    count = 1 + text.count(_LINE_END)
    if len(text) > _SHORT_CHARACTERS:
        count += sum(map(text.count, _SENTENCE_ENDS))
        if not text.isascii():
            count += sum(map(text.count, _OTHER_SENTENCE_ENDS))
    return count


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


@dataclass(order=True)
class _Waiting:
    """A job that waits for a slot."""

    priority: int
    served: float
    arrival: int
    entered: asyncio.Future[None] = field(compare=False)


@dataclass
class _Caller:
    """A caller that has unfinished jobs.

    Attributes:
        priority: The priority of the caller's jobs.
        served: Total tokens of the caller's jobs, used for fair queueing: the next job of the caller with the smallest
            value enters first.
        num_jobs: Number of unfinished jobs.
        tokens: Size of the unfinished jobs, in estimated tokens.
    """

    priority: int
    served: float
    num_jobs: int = 0
    tokens: int = 0


class Admission:
    """The queue in front of the workers.

    Args:
        slots: Maximum number of jobs that the workers have at a time.
        max_tokens: Maximum size of all unfinished jobs, in estimated tokens.
        leaves_room: Whether a caller may use only as much of ``max_tokens`` as it leaves for the others, which is at
            most half.
        max_seconds: Maximum estimated remaining time of the jobs before a new job, in seconds. This limit does not
            apply while these jobs have at most ``batch_tokens``.
        batch_tokens: Size of the jobs that fit into the batches of all workers together, in estimated tokens.
        first_rate: Speed in estimated tokens per second that is assumed before the first measurement.
        clock: Returns the time of a monotonic clock, in seconds.
    """

    def __init__(
        self,
        *,
        slots: int,
        max_tokens: int,
        max_seconds: float,
        leaves_room: bool = False,
        batch_tokens: int = 0,
        first_rate: float = 500.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots, self._max_tokens, self._max_seconds, self._clock = slots, max_tokens, max_seconds, clock
        self._batch_tokens, self._leaves_room = batch_tokens, leaves_room
        self.unfinished_tokens = 0  # tokens of all unfinished jobs
        self.num_jobs = 0
        self._num_outside = 0  # running jobs that have bypassed the queue
        self._num_inside = 0
        self._queue: list[_Waiting] = []
        self._callers: dict[str, _Caller] = {}
        # For each priority, ``served`` of the caller whose job entered last, before that job. A new caller starts with
        # this value, so that it gets no credit for the time before its first job (start-time fair queueing).
        self._served_last: dict[int, float] = {}
        self._arrivals = itertools.count()
        # The time with running or waiting jobs, and the tokens completed in this time. Older values have less weight.
        self._busy_s, self._busy_tokens, self._measured_at = 0.0, 0.0, clock()
        self._earlier_rate = first_rate

    @property
    def tokens_per_second(self) -> float:
        """Estimated tokens per second at full load.

        This is the speed of the last busy seconds or an earlier, higher speed, which is halved every 20 busy seconds.
        The earlier speed is used because a few jobs do not use the whole machine.
        """
        self._measure()
        return max(self._busy_tokens / self._busy_s if self._busy_s >= _LEAST_BUSY_S else 0.0, self._earlier_rate)

    def _measure(self) -> None:
        """Update the decayed sums to the current time."""
        now = self._clock()
        passed, self._measured_at = now - self._measured_at, now
        if (self.num_jobs or self._num_outside) and passed > 0:
            if self._busy_s >= _LEAST_BUSY_S:
                self._earlier_rate = max(self._earlier_rate, self._busy_tokens / self._busy_s)
            self._earlier_rate *= 0.5 ** (passed / _HALF_LIFE_S)
            kept = math.exp(-passed / _WINDOW_S)
            self._busy_s, self._busy_tokens = self._busy_s * kept + passed, self._busy_tokens * kept

    @property
    def estimated_seconds(self) -> float:
        """The estimated time for all unfinished jobs, in seconds."""
        return self.unfinished_tokens / self.tokens_per_second

    def check_capacity(self, tokens: int = 0, caller: str | None = None, priority: int = 0) -> None:
        """Raise :class:`OverloadedError` if a job of this size would be refused now.

        Without a ``caller``, all unfinished work is treated as the work of a single caller.
        """
        before = self.unfinished_tokens if caller is None else self._tokens_before(caller, priority)
        allowed = max(self._batch_tokens, self._max_seconds * self.tokens_per_second)
        excess = max(before - allowed, self._tokens_beyond_maximum(tokens, caller)) / self.tokens_per_second
        if self.num_jobs and excess > 0:
            raise OverloadedError(max(1, math.ceil(excess)))

    def _tokens_before(self, caller: str, priority: int) -> int:
        """Return the number of tokens that are decoded before a new job of a caller.

        These are the caller's own tokens, all tokens of higher priority and, for each other caller, at most as many
        tokens as the caller itself has.
        """
        caller_tokens = self._tokens_of(caller)
        return sum(
            one.tokens if one.priority < priority else min(one.tokens, caller_tokens) for one in self._callers.values()
        )

    def _tokens_beyond_maximum(self, tokens: int, caller: str | None) -> int:
        """Return the number of tokens by which a new job of a caller would exceed the maximum of all jobs.

        An empty queue accepts a job of any size, so another caller's job may exceed its share. Such a job counts as
        half of the maximum.
        """
        if not self._leaves_room or caller is None:
            return self.unfinished_tokens + tokens - self._max_tokens
        largest = self._max_tokens // 2
        others = sum(min(one.tokens, largest) for name, one in self._callers.items() if name != caller)
        return others + 2 * (self._tokens_of(caller) + tokens) - self._max_tokens

    def _tokens_of(self, caller: str) -> int:
        return self._callers[caller].tokens if caller in self._callers else 0

    @contextlib.asynccontextmanager
    async def enter(self, tokens: int, caller: str, priority: int, *, has_room: bool = False) -> AsyncIterator[None]:
        """Context manager that waits for a slot and occupies it until the end of the block.

        Args:
            tokens: Size of the job, in estimated tokens.
            caller: Name of the caller. All jobs of a caller together get one share of the tokens.
            priority: Priority of the job; lower numbers come first.
            has_room: Whether :meth:`check_capacity` has already found room for the job.

        Raises:
            OverloadedError: The queue is full. An empty queue accepts a job of any size.
        """
        if not has_room:
            self.check_capacity(tokens, caller, priority)
        with self.reserve(tokens, caller, priority):
            await self._wait_for_slot(tokens, self._callers[caller], priority)
            try:
                yield
                self._measure()
                self._busy_tokens += tokens
            finally:
                self._num_inside -= 1
                self._admit()

    @contextlib.contextmanager
    def reserve(self, tokens: int, caller: str, priority: int) -> Iterator[Callable[[int], None]]:
        """Context manager that counts tokens as an unfinished job of a caller.

        This reserves room for a request whose jobs enter one after the other, with ``has_room``. It yields a function
        that releases the room for a number of tokens. Call it when the job that needs these tokens enters.
        """
        state = self._callers.setdefault(caller, _Caller(priority, self._served_last.get(priority, 0.0)))
        left = 0

        def add(count: int) -> None:
            nonlocal left
            self._measure()
            left += count
            self.unfinished_tokens += count
            state.tokens += count

        add(tokens)  # the time until now is first counted for the earlier jobs
        self.num_jobs += 1
        state.num_jobs += 1
        try:
            yield lambda given_back: add(-min(given_back, left))
        finally:
            add(-left)
            self.num_jobs -= 1
            state.num_jobs -= 1
            if not state.num_jobs:
                del self._callers[caller]

    async def wait_until_quiet(self) -> None:
        """Wait until the queue is so short that background work does not delay the jobs in it."""
        while self.estimated_seconds > _QUIET_S:
            await asyncio.sleep(_QUIET_CHECK_S)

    @contextlib.contextmanager
    def bypass_queue(self, tokens: int) -> Iterator[None]:
        """Context manager for work that bypasses the queue: it counts only for the measured speed."""
        self._measure()
        self._num_outside += 1
        try:
            yield
            self._measure()
            self._busy_tokens += tokens
        finally:
            self._measure()
            self._num_outside -= 1

    async def _wait_for_slot(self, tokens: int, caller: _Caller, priority: int) -> None:
        waiting = _Waiting(priority, caller.served, next(self._arrivals), asyncio.Future())
        caller.served += tokens
        heapq.heappush(self._queue, waiting)
        self._admit()
        try:
            await waiting.entered
        except asyncio.CancelledError:
            if waiting.entered.done() and not waiting.entered.cancelled():
                self._num_inside -= 1
                self._admit()
            else:
                waiting.entered.cancel()
            raise

    def _admit(self) -> None:
        while self._queue and self._num_inside < self._slots:
            waiting = heapq.heappop(self._queue)
            if not waiting.entered.done():
                self._num_inside += 1
                self._served_last[waiting.priority] = waiting.served
                waiting.entered.set_result(None)
