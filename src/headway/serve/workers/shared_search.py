"""Continuous batching: the searches of all jobs in a worker share batches.

All sequences in a batch advance by one token per step. Before each step, finished sequences leave the batch and waiting
requests enter it, no matter which calls they belong to. Calls with different models or options cannot share a batch.
The next batch to advance is the batch of the caller that has used the least time so far (fair queueing). A caller with
many sequences has separate batches, so that its long steps do not delay other callers. Callers with few rows share a
batch.

One thread computes all steps, in a loop that calls :meth:`SharedSearch.advance`. The jobs of this thread run in
greenlets: a job that calls the search is suspended until it has its results. Greenlets need no locks, and switching
between them takes microseconds, much less than switching between threads. Calls from other threads wait for the loop.

Waiting requests enter by priority. Within a priority, requests of the caller with the fewest sequences in the batch
enter first, so that a caller with one sentence does not wait for all sentences of another caller. If only a few
requests could enter a large batch, they wait for more requests for up to two steps. Requests whose priority is lower
than 0 have separate batches. These batches are small, so that their steps are short, and get a tenth of the time while
other requests are waiting. Canceling a call takes effect before the next step. If a step fails, its sequences are
decoded again one by one, so that only the sequences that cause the error fail.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from greenlet import getcurrent, greenlet

from headway.decode.beam import BeamSearch
from headway.decode.caller import Caller, current_caller
from headway.decode.protocol import SearchModel
from headway.decode.request import DecodingOptions, Hypothesis, Request, SearchVocabulary, check_request

# Fractions of a batch's rows and tokens that requests of low priority may fill. The batches are small because other
# requests must wait until the step ends.
_LOW_PRIORITY_ROWS, _LOW_PRIORITY_TOKENS = 0.5, 0.125
_LOW_PRIORITY_TIME = 0.1  # fraction of the time for requests of low priority while others wait

# Encoding several sources together takes hardly longer than encoding one. If the requests that could enter are less
# than this fraction of the batch, they wait for more requests, but at most for this number of steps.
_MIN_ENTERING_FRACTION = 0.25
_MAX_DELAYED_STEPS = 2

_FEW_ROWS = 32  # callers with at most this number of rows share a batch
_CREDIT_S = 0.05  # time that a new caller may use before it has to take turns with the others

_MAX_TURN_S = 0.005  # a greenlet that has run for this time pauses before its next batch or text


@dataclass(eq=False)
class _Call:
    """A call of the search: its waiting requests, and its results so far."""

    caller: Caller
    key: Any  # calls with the same key can share a batch
    make_search: Callable[[], BeamSearch[Any]]
    waiting: deque[tuple[int, Request]]  # waiting requests, with their indices in ``results``
    results: list[list[Hypothesis]]
    missing: int  # number of missing results
    progress: deque[list[Hypothesis]] | None  # open hypotheses after each step, if the call is a generator
    suspend: Callable[[], object]  # suspends the greenlet or thread of the call
    resume: Callable[[], object]  # resumes it
    num_progress: int = 0  # number of steps whose hypotheses the call has received
    error: BaseException | None = None
    has_ended: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the call has ended or was canceled."""
        return self.has_ended or self.caller.cancel_event.is_set()

    @property
    def name(self) -> str:
        """The name of the caller."""
        return self.caller.name

    @property
    def can_return(self) -> bool:
        """Whether the call has ended or has progress to yield, so that the caller can stop waiting."""
        return self.has_ended or bool(self.progress)

    def fail(self, error: BaseException) -> None:
        """Make the call raise ``error``."""
        self.error = self.error or error
        self._end()

    def finish(self, at: int, hypotheses: list[Hypothesis]) -> None:
        """Store the result of the request with index ``at``."""
        self.results[at] = hypotheses
        self.missing -= 1
        if not self.missing:
            self._end()

    def add_progress(self, hypotheses: list[Hypothesis]) -> None:
        """Store the open hypotheses after a step, for a call that is a generator."""
        assert self.progress is not None
        self.progress.append(hypotheses)
        self.num_progress += 1
        self.resume()

    def wait(self) -> None:
        """Wait until the call can return."""
        while not self.can_return:
            self.suspend()

    def _end(self) -> None:
        self.has_ended = True
        self.resume()


@dataclass(eq=False)
class _Sequence:
    """A request of a call that is being decoded."""

    call: _Call
    at: int
    request: Request
    is_alone: bool = False  # decode without other requests, because a step with this and other requests has failed
    num_steps: int = 0


class _Batch:
    """Sequences that are decoded together, and calls with requests that wait to join them."""

    def __init__(self, key: Any, make: Callable[[], BeamSearch[Any]], has_low_priority: bool) -> None:
        self.key, self.make, self.has_low_priority = key, make, has_low_priority
        self.search = make()
        self.active: dict[int, _Sequence] = {}  # by the sequences' keys in the search
        self.waiting: list[_Call] = []  # in order of arrival
        self.failed: list[_Sequence] = []  # sequences of a failed step, which are decoded again one by one
        self.longest = 0  # length of the longest source since the batch was last empty
        self.delayed_steps = 0  # number of steps for which the waiting requests have been delayed
        # Number of sequences and waiting calls of each caller, before the last step.
        self.callers: Counter[str] = Counter()
        self.last_step = 0  # global number of this batch's last step

    @property
    def calls(self) -> list[_Call]:
        """The calls of all sequences (one item per sequence), followed by the waiting calls."""
        return [*(sequence.call for sequence in (*self.active.values(), *self.failed)), *self.waiting]

    @property
    def num_waiting(self) -> int:
        """The number of waiting requests. This may be read from any thread."""
        return sum(len(call.waiting) for call in list(self.waiting))

    def count_sequences(self) -> Counter[str]:
        """Return the number of sequences of each caller, including waiting requests."""
        counts = Counter(sequence.call.name for sequence in (*self.active.values(), *self.failed))
        for call in self.waiting:
            counts[call.name] += len(call.waiting)
        return counts

    def delay_entry(self, capacity: int) -> bool:
        """Return whether waiting requests should not enter in the next step because only a few could enter.

        Counts the delayed steps. ``capacity`` is the maximum number of sequences in the batch.
        """
        num_entering = min(self.num_waiting, capacity - len(self.active))
        are_few = self.waiting and num_entering < _MIN_ENTERING_FRACTION * len(self.active)
        self.delayed_steps = self.delayed_steps + 1 if are_few and self.delayed_steps < _MAX_DELAYED_STEPS else 0
        return self.delayed_steps > 0

    def drop_ended_calls(self) -> None:
        """Remove the requests of calls that have ended."""
        over = {number for number, sequence in self.active.items() if sequence.call.has_ended}
        self.search.remove(over)
        self.active = {number: sequence for number, sequence in self.active.items() if number not in over}
        self.waiting = [call for call in self.waiting if not call.has_ended]
        self.failed = [sequence for sequence in self.failed if not sequence.call.has_ended]


class _JobGreenlet(greenlet):  # type: ignore[misc]  # it has no types
    """A job in the loop's thread. Its time is charged to a caller."""

    def __init__(self, run: Callable[..., None], caller: str) -> None:
        super().__init__(run)
        self.caller = caller


class SharedSearch:
    """A replacement for :func:`headway.decode.search_all` whose calls share batches.

    The greenlet that creates this object owns the loop: it must start the jobs of its thread with :meth:`start`, and
    call :meth:`advance` while :attr:`has_work` is true and after ``on_call``.

    Args:
        on_call: Called in other threads after they have queued a call.
        max_rows: Maximum number of rows in a batch: ``beam_size`` rows per sequence, or ``n_best`` when sampling. With
            more rows than the default, a single thread computes hardly more tokens per second, but each step takes
            longer, and keys and values need more memory.
        max_batch_tokens: Maximum number of source tokens in a batch, including padding.
        clock: Returns the time of a monotonic clock in seconds, for sharing the time among callers and priorities.
    """

    def __init__(
        self,
        on_call: Callable[[], object] = lambda: None,
        *,
        max_rows: int = 128,
        max_batch_tokens: int = 8192,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_call, self.max_rows, self.max_batch_tokens, self._clock = on_call, max_rows, max_batch_tokens, clock
        self._loop, self._thread = getcurrent(), threading.get_ident()
        self._arrived = deque[_Call]()  # calls that have no batch yet
        self._ready: dict[greenlet, None] = {}  # greenlets that can continue, in order
        self._batches: list[_Batch] = []
        self._served: dict[str, float] = {}  # seconds used by each caller; new callers start near the lowest value
        self._keys = itertools.count()  # keys of sequences in the search
        self._low_priority_s = 0.0  # time that steps of low priority may take while other requests are waiting
        self.num_steps = 0
        self.turn_started: float | None = None  # time.monotonic() when the current step or greenlet's turn began

    def __call__(
        self,
        model: SearchModel[Any],
        requests: Sequence[Request],
        options: DecodingOptions,
        vocabulary: SearchVocabulary,
        *,
        max_batch_tokens: int | None = None,
        max_sequences: int | None = None,
    ) -> list[list[Hypothesis]]:
        """Decode all requests, and return the hypotheses for each request, best first.

        The limits of this object apply to batches; ``max_batch_tokens`` and ``max_sequences`` are ignored.

        Raises:
            ConfigError: A request is impossible, or incompatible with the options.
            BundleError: The model's probabilities are NaN.
            CancelledError: The caller was canceled.
        """
        if not requests:
            return []
        with self._queued(None, model, requests, options, vocabulary) as call:
            call.wait()
        if call.error is not None:
            raise call.error
        return call.results

    def steps(
        self,
        model: SearchModel[Any],
        request: Request,
        options: DecodingOptions,
        vocabulary: SearchVocabulary,
    ) -> Generator[list[Hypothesis], None, list[Hypothesis]]:
        """Decode one request like :func:`headway.decode.search_steps`. Closing the generator cancels the request.

        A greenlet receives the hypotheses of a step before the next step begins. Another thread may receive them later.
        """
        progress = deque[list[Hypothesis]]()
        with self._queued(progress, model, [request], options, vocabulary) as call:
            call.wait()
            while progress:
                yield progress.popleft()
                call.wait()
        if call.error is not None:
            raise call.error
        return call.results[0]

    @contextlib.contextmanager
    def _queued(
        self,
        progress: deque[list[Hypothesis]] | None,
        model: SearchModel[Any],
        requests: Sequence[Request],
        options: DecodingOptions,
        vocabulary: SearchVocabulary,
    ) -> Iterator[_Call]:
        """Context manager that queues a call for a batch with its model and options, and cancels it on exit."""
        for request in requests:
            check_request(request, options, vocabulary.eos)
        caller = current_caller()

        key = id(model), options, vocabulary, caller.priority > 0
        make_search = partial(BeamSearch, model, options, vocabulary)
        waiting, results = deque(enumerate(requests)), [list[Hypothesis]() for _ in requests]
        call = _Call(caller, key, make_search, waiting, results, len(requests), progress, *self._suspension())
        self._arrived.append(call)
        if not self._is_in_greenlet():
            self.on_call()
        try:
            yield call
        finally:
            if not call.has_ended:
                call.fail(CancelledError())  # its requests leave the batch before the next step

    def _suspension(self) -> tuple[Callable[[], object], Callable[[], object]]:
        """Return a function that suspends the current greenlet or thread, and a function that resumes it.

        Both functions may be called more often than necessary.
        """
        if self._is_in_greenlet():
            return self._suspend, partial(self._ready.setdefault, getcurrent())
        event = threading.Event()

        def wait() -> None:
            event.wait()
            event.clear()

        return wait, event.set

    def _is_in_greenlet(self) -> bool:
        """Return whether the current code runs in a greenlet that this loop has started, and not in another thread."""
        if threading.get_ident() != self._thread:
            return False
        assert getcurrent().parent is self._loop, "a call from the loop itself would wait forever"
        return True

    def _suspend(self) -> None:
        # PyTorch's modes belong to the thread, so the other greenlets would also be in inference mode.
        assert not torch.is_inference_mode_enabled()
        self._loop.switch()

    def start(self, job: Callable[..., None], *arguments: Any, caller: str = "") -> None:
        """Call a function in a greenlet, and return when it has ended or waits. Its time is charged to a caller."""
        self._resume(_JobGreenlet(job, caller), *arguments)

    def give_way(self) -> None:
        """If the current greenlet has run for some time, pause it so that the loop and other greenlets can run."""
        assert self.turn_started is not None
        if time.monotonic() - self.turn_started > _MAX_TURN_S:
            self._ready[getcurrent()] = None
            self._suspend()

    def _resume(self, job: greenlet, *arguments: Any) -> None:
        self.turn_started, started = time.monotonic(), self._clock()
        try:
            job.switch(*arguments)
        finally:
            self.turn_started = None
            if isinstance(job, _JobGreenlet) and job.caller in self._served:
                self._served[job.caller] += self._clock() - started

    @property
    def has_work(self) -> bool:
        """Whether :meth:`advance` has work to do: calls to advance or greenlets to resume."""
        return bool(self._arrived or self._batches or self._ready)

    @property
    def num_sequences(self) -> int:
        """The number of sequences that are being decoded. This may be read from any thread."""
        return sum(len(batch.active) + len(batch.failed) for batch in list(self._batches))

    @property
    def num_waiting(self) -> int:
        """The number of waiting requests. This may be read from any thread."""
        arrived = sum(len(call.waiting) for call in list(self._arrived))
        return arrived + sum(batch.num_waiting for batch in list(self._batches))

    def advance(self) -> None:
        """Admit waiting requests to the next batch, advance it by one step, and resume the greenlets that can continue.

        If a step raises an exception that no single request has caused, all calls raise it. KeyboardInterrupt and other
        exceptions that do not derive from :class:`Exception` are raised here, and all calls are canceled.
        """
        self.turn_started = time.monotonic()
        try:
            self._advance_next_batch()
        finally:
            self.turn_started = None
            ready = list(self._ready)
            self._ready.clear()
            for greenlet_ in ready:
                if not greenlet_.dead:
                    self._resume(greenlet_)

    def _advance_next_batch(self) -> None:
        while self._arrived:
            call = self._arrived.popleft()
            try:
                self._find_batch(call)
            except Exception as error:
                call.fail(error)
        self._drop_ended_calls()
        due = self._due_batches()
        if not due:
            return
        batch = due[0] if len(due) == 1 else min(due, key=lambda one: (self._least_served(one), one.last_step))
        started = self._clock()
        entering = dict[int, _Sequence]()
        try:
            entering = self._choose(batch)
            callers = self._callers_in_step(batch, entering)
            self._advance(batch, entering)
        except BaseException as error:  # no batch can continue from the middle of a step
            self._fail_all(error)
            if not isinstance(error, Exception):
                raise
            return
        self.num_steps += 1
        batch.last_step = self.num_steps
        seconds = self._clock() - started
        total = sum(callers.values())
        for name, count in callers.items():
            self._served[name] += seconds * count / total
        self._low_priority_s += -seconds if batch.has_low_priority else _LOW_PRIORITY_TIME * seconds

    def _callers_in_step(self, batch: _Batch, entering: Mapping[int, _Sequence]) -> Mapping[str, int]:
        """Return the number of sequences of each caller in the next step of a batch."""
        if len(batch.callers) == 1:
            return batch.callers
        sequences = (*batch.active.values(), *entering.values())
        return Counter(sequence.call.name for sequence in sequences)

    def _least_served(self, batch: _Batch) -> float:
        """Return the lowest time used so far by a caller in the batch."""
        return min(self._served[name] for name in batch.callers)

    def _find_batch(self, call: _Call) -> None:
        """Put a call into a batch for its key."""
        name = call.name
        batch = self._batch_of_its_own(call) or self._shared_batch(call)
        if batch is None:
            batch = _Batch(call.key, call.make_search, call.caller.priority > 0)
            self._batches.append(batch)
        # A new caller gets no credit for the time before its first call, except a small one for a short request.
        earliest = min((self._served[other] for one in self._batches for other in one.callers), default=0.0) - _CREDIT_S
        self._served[name] = max(self._served.get(name, earliest), earliest)
        batch.waiting.append(call)
        batch.callers[name] += 1

    def _batch_of_its_own(self, call: _Call) -> _Batch | None:
        """Return a batch for the call's key that contains no other callers, or None."""
        fitting = (one for one in self._batches if one.key == call.key and not one.callers.keys() - {call.name})
        return next(fitting, None)

    def _shared_batch(self, call: _Call) -> _Batch | None:
        """Return a batch for the call's key that is shared by callers with few rows, including this one, or None."""
        for batch in self._batches:
            if batch.key == call.key:
                counts = batch.count_sequences()
                counts[call.name] += len(call.waiting)
                if max(counts.values()) * batch.search.rows_per_sequence <= _FEW_ROWS:
                    return batch
        return None

    def _fail_all(self, error: BaseException) -> None:
        """Make all calls raise ``error``.

        KeyboardInterrupt and similar exceptions are raised only in the loop; the calls are then canceled.
        """
        shared = error if isinstance(error, Exception) else CancelledError()
        for batch in self._batches:
            for call in batch.calls:
                call.fail(shared)
        self._batches = []

    def _due_batches(self) -> list[_Batch]:
        """Return the batches that may advance now.

        Batches of low priority may advance if there are no other batches, or if their share of time is due.
        """
        low = [batch for batch in self._batches if batch.has_low_priority]
        if not low or len(low) == len(self._batches):
            self._low_priority_s = 0.0
            return self._batches
        return low if self._low_priority_s > 0 else [batch for batch in self._batches if not batch.has_low_priority]

    def _drop_ended_calls(self) -> None:
        """Remove the requests of canceled calls, batches without requests, and callers without calls."""
        left: list[_Batch] = []
        for batch in self._batches:
            calls = batch.calls
            if over := [call for call in calls if call.is_over]:  # rarely true, although this runs before every step
                for call in over:
                    if not call.has_ended:  # the call was canceled
                        call.fail(CancelledError())
                batch.drop_ended_calls()
                calls = batch.calls
            if calls:
                left.append(batch)
                batch.callers = Counter(call.name for call in calls)
        self._batches = left
        present = {name for batch in left for name in batch.callers}
        if len(present) < len(self._served):
            # Keep the times of callers that have left recently, so that they gain nothing by returning.
            earliest = min((self._served[name] for name in present), default=math.inf) - _CREDIT_S
            self._served = {
                name: seconds for name, seconds in self._served.items() if name in present or seconds > earliest
            }

    def _choose(self, batch: _Batch) -> dict[int, _Sequence]:
        """Choose the waiting requests that enter now, or the next failed sequence. They are removed from the queue."""
        if not (batch.waiting or batch.failed) or any(sequence.is_alone for sequence in batch.active.values()):
            return {}
        if batch.failed:
            return {next(self._keys): batch.failed.pop(0)}
        max_rows, max_tokens = self.max_rows, float(self.max_batch_tokens)
        if batch.has_low_priority:
            max_rows, max_tokens = int(_LOW_PRIORITY_ROWS * max_rows), _LOW_PRIORITY_TOKENS * max_tokens
        capacity = max(1, max_rows // batch.search.rows_per_sequence)
        if batch.delay_entry(capacity):
            return {}
        if not batch.active:
            batch.longest = 0
        chosen: dict[int, _Sequence] = {}
        counts = Counter(sequence.call.name for sequence in batch.active.values())
        while batch.waiting and (count := len(batch.active) + len(chosen)) < capacity:
            call = min(batch.waiting, key=lambda one: (one.caller.priority, counts[one.name], self._served[one.name]))
            index, request = call.waiting[0]
            longest = max(batch.longest, len(request.source))
            if count and (count + 1) * longest > max_tokens:
                break
            batch.longest = longest
            call.waiting.popleft()
            if not call.waiting:
                batch.waiting.remove(call)
            counts[call.name] += 1
            chosen[next(self._keys)] = _Sequence(call, index, request)
        return chosen

    def _advance(self, batch: _Batch, entering: Mapping[int, _Sequence]) -> None:
        """Add the entering requests to a batch and advance it by one step."""
        batch.active |= entering
        try:
            if entering:
                batch.search.add_requests([(key, sequence.request) for key, sequence in entering.items()])
            finished = batch.search.step()
        except Exception as error:
            sequences, batch.active, batch.search = list(batch.active.values()), {}, batch.make()
            if len(sequences) == 1:
                sequences[0].call.fail(error)
            else:
                batch.failed = [
                    _Sequence(sequence.call, sequence.at, sequence.request, is_alone=True) for sequence in sequences
                ]
            return
        for key, hypotheses in finished:
            sequence = batch.active.pop(key)
            sequence.call.finish(sequence.at, hypotheses)
        for key, sequence in batch.active.items():
            sequence.num_steps += 1
            if sequence.call.progress is not None and sequence.num_steps > sequence.call.num_progress:
                sequence.call.add_progress(batch.search.open_hypotheses(key))
