"""Search for all jobs of a worker at once: the requests of all calls share batches (continuous batching).

All requests advance by one token per step: at every step, finished sequences leave and waiting ones enter, regardless
of their calls. Calls with another model or other options cannot share a batch. The batch that advances next is that of
the caller that has got the least time (fair queueing), whatever its options are. A caller with many sequences has
separate batches, so that its long steps do not delay the others. Callers with few rows share a batch.

One thread computes all steps, in a loop that calls :meth:`SharedSearch.advance`. The jobs of this thread run in
greenlets: functions that a call of the search suspends until it has its results. They need no lock, and switching
between them takes microseconds, much less than between threads. Calls of other threads wait for the loop.

Waiting requests enter by priority. Within a priority, requests of the caller with the fewest sequences in the batch
come first, so that a caller with one sentence does not wait for all sentences of another caller. If only a few can
enter a large batch, they wait for others for up to two steps. Requests of a lower priority than 0 have separate
batches. These are small, so that their steps are short, and get a tenth of the time while there are others. A call can
be canceled, which takes effect before the next step. If a step fails, its sequences are decoded again one by one, so
that only the sequences that cause the error fail.
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

# Fractions of a batch's rows and tokens that requests of low priority may fill: other requests must wait until the step
# ends.
_LOW_PRIORITY_ROWS, _LOW_PRIORITY_TOKENS = 0.5, 0.125
_LOW_PRIORITY_TIME = 0.1  # fraction of the time for requests of low priority while others wait

# Encoding several sources together takes hardly longer than encoding one. If the requests that could enter are less
# than this fraction of the batch, they wait until there are more, but at most for this number of steps.
_MIN_ENTERING_FRACTION = 0.25
_MAX_DELAYED_STEPS = 2

_FEW_ROWS = 32  # callers with at most this number of rows share a batch
_CREDIT_S = 0.05  # a new caller may use this much more time than the others before they take turns

_MAX_TURN_S = 0.005  # after this time, a greenlet pauses before its next batch or text


@dataclass(eq=False)
class _Call:
    """One call: the requests that wait, and the results so far."""

    caller: Caller
    key: Any  # calls with the same key can share a batch
    make_search: Callable[[], BeamSearch[Any]]
    waiting: deque[tuple[int, Request]]  # requests with their positions in the results
    results: list[list[Hypothesis]]
    missing: int  # number of results
    progress: deque[list[Hypothesis]] | None  # the open hypotheses after each step, if the call asked for them
    suspend: Callable[[], object]  # suspends the greenlet or thread of the call
    resume: Callable[[], object]  # resumes it
    num_progress: int = 0  # number of steps whose hypotheses the call has received
    error: BaseException | None = None
    has_ended: bool = False

    @property
    def is_over(self) -> bool:
        """Whether its results are complete, or no longer wanted."""
        return self.has_ended or self.caller.cancel_event.is_set()

    @property
    def name(self) -> str:
        """The name of its caller."""
        return self.caller.name

    @property
    def can_return(self) -> bool:
        """Whether the caller can stop waiting, because the call has ended or has progress to yield."""
        return self.has_ended or bool(self.progress)

    def fail(self, error: BaseException) -> None:
        """Make the call raise ``error``."""
        self.error = self.error or error
        self._end()

    def finish(self, at: int, hypotheses: list[Hypothesis]) -> None:
        """Store the result of the request at position ``at``."""
        self.results[at] = hypotheses
        self.missing -= 1
        if not self.missing:
            self._end()

    def add_progress(self, hypotheses: list[Hypothesis]) -> None:
        """Store the open hypotheses after a step, for a call that asked for them."""
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
    is_alone: bool = False  # decode this request alone, because a step with this and other requests has failed
    num_steps: int = 0


class _Batch:
    """The sequences that are decoded together, and the calls with requests that wait to join them."""

    def __init__(self, key: Any, make: Callable[[], BeamSearch[Any]], has_low_priority: bool) -> None:
        self.key, self.make, self.has_low_priority = key, make, has_low_priority
        self.search = make()
        self.active: dict[int, _Sequence] = {}  # keys: the sequences' keys in the search
        self.waiting: list[_Call] = []  # in the order of their arrival
        self.failed: list[_Sequence] = []  # sequences of a failed step, which are decoded again one by one
        self.longest = 0  # length of the longest source since the batch was last empty
        self.delayed_steps = 0  # number of steps for which the waiting requests have been delayed
        # Number of sequences and waiting calls of each caller, before the last step.
        self.callers: Counter[str] = Counter()
        self.last_step = 0  # number of the last step of this batch

    @property
    def calls(self) -> list[_Call]:
        """The calls of all sequences, once for each sequence, and the waiting calls."""
        return [*(sequence.call for sequence in (*self.active.values(), *self.failed)), *self.waiting]

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait. Any thread may ask for it."""
        return sum(len(call.waiting) for call in list(self.waiting))

    def count_sequences(self) -> Counter[str]:
        """Return the number of sequences of each caller, including the waiting ones."""
        counts = Counter(sequence.call.name for sequence in (*self.active.values(), *self.failed))
        for call in self.waiting:
            counts[call.name] += len(call.waiting)
        return counts

    def delay_entry(self, capacity: int) -> bool:
        """Decide whether waiting requests stay out of the next step because only a few could enter, and count the step.

        ``capacity`` is the largest number of sequences that the batch may have.
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
    """A job of the loop's thread, whose time is that of a caller."""

    def __init__(self, run: Callable[..., None], caller: str) -> None:
        super().__init__(run)
        self.caller = caller


class SharedSearch:
    """A replacement for :func:`headway.decode.search_all` whose calls share batches.

    The greenlet that creates this object owns the loop: it must start the jobs of its thread with :meth:`start`, and
    call :meth:`advance` while :attr:`has_work` is true and after ``on_call``.

    Args:
        on_call: Called in other threads when they have queued a call.
        max_rows: Maximum number of rows of a batch: ``beam_size`` for each sequence, or ``n_best`` when sampling. With
            more rows than the default, a single thread computes hardly more tokens a second, but each step takes
            longer, and keys and values take more memory.
        max_batch_tokens: Maximum number of source tokens of a batch, padding included.
        clock: A monotonic clock in seconds, for sharing the time among callers and priorities.
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
        self._ready: dict[greenlet, None] = {}  # the greenlets that can continue, in order
        self._batches: list[_Batch] = []
        self._served: dict[str, float] = {}  # seconds used by each caller; new ones start near the lowest
        self._keys = itertools.count()  # keys of the sequences in their search
        self._low_priority_s = 0.0  # time that steps of low priority may take while other requests are waiting
        self.num_steps = 0
        self.turn_started: float | None = None  # when the present step, or turn of a greenlet, began (time.monotonic)

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
        """Decode all requests and return the hypotheses of each, best first.

        The size of batches is that of this object; ``max_batch_tokens`` and ``max_sequences`` are ignored.

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
        """Decode one request like :func:`headway.decode.search_steps`. Closing the generator cancels it.

        A greenlet gets the hypotheses of a step before the next step begins. Another thread may get them later.
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
        """Queue a call for the batch of its model and options. On exit, cancel whatever is unfinished."""
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
                call.fail(CancelledError())  # its requests leave before the next step

    def _suspension(self) -> tuple[Callable[[], object], Callable[[], object]]:
        """Return a function that suspends the calling greenlet or thread, and one that resumes it.

        Both may be called more often than necessary.
        """
        if self._is_in_greenlet():
            return self._suspend, partial(self._ready.setdefault, getcurrent())
        event = threading.Event()

        def wait() -> None:
            event.wait()
            event.clear()

        return wait, event.set

    def _is_in_greenlet(self) -> bool:
        """Return whether the caller runs in a greenlet that this loop has started, and not in another thread."""
        if threading.get_ident() != self._thread:
            return False
        assert getcurrent().parent is self._loop, "a call from the loop itself would wait forever"
        return True

    def _suspend(self) -> None:
        # PyTorch's modes belong to the thread, so the other greenlets would be in inference mode, too.
        assert not torch.is_inference_mode_enabled()
        self._loop.switch()

    def start(self, job: Callable[..., None], *arguments: Any, caller: str = "") -> None:
        """Call a function in a greenlet, and return when it has ended or waits. Its time is that of a caller."""
        self._resume(_JobGreenlet(job, caller), *arguments)

    def give_way(self) -> None:
        """If the current greenlet has computed for some time, pause it so that the loop and other greenlets can run."""
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
        """The number of sequences that are decoded at the moment. Any thread may ask for it."""
        return sum(len(batch.active) + len(batch.failed) for batch in list(self._batches))

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait. Any thread may ask for it."""
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
        """Return the time of that caller of a batch which has got the least."""
        return min(self._served[name] for name in batch.callers)

    def _find_batch(self, call: _Call) -> None:
        """Put a call into a batch for its key."""
        name = call.name
        batch = self._batch_of_its_own(call) or self._shared_batch(call)
        if batch is None:
            batch = _Batch(call.key, call.make_search, call.caller.priority > 0)
            self._batches.append(batch)
        # A caller has no claim on the time before it came, but a credit for a short request.
        earliest = min((self._served[other] for one in self._batches for other in one.callers), default=0.0) - _CREDIT_S
        self._served[name] = max(self._served.get(name, earliest), earliest)
        batch.waiting.append(call)
        batch.callers[name] += 1

    def _batch_of_its_own(self, call: _Call) -> _Batch | None:
        """Return the batch for a call's key that contains no other callers, or None."""
        fitting = (one for one in self._batches if one.key == call.key and not one.callers.keys() - {call.name})
        return next(fitting, None)

    def _shared_batch(self, call: _Call) -> _Batch | None:
        """Return the batch for a call's key that callers with few rows share, if this caller is one of them."""
        for batch in self._batches:
            if batch.key == call.key:
                counts = batch.count_sequences()
                counts[call.name] += len(call.waiting)
                if max(counts.values()) * batch.search.rows_per_sequence <= _FEW_ROWS:
                    return batch
        return None

    def _fail_all(self, error: BaseException) -> None:
        """Make all calls raise ``error``. KeyboardInterrupt and similar exceptions are for the loop only and cancel the
        calls.
        """
        shared = error if isinstance(error, Exception) else CancelledError()
        for batch in self._batches:
            for call in batch.calls:
                call.fail(shared)
        self._batches = []

    def _due_batches(self) -> list[_Batch]:
        """Return the batches that may advance now.

        Batches of low priority may advance if there are no others or their time has come.
        """
        low = [batch for batch in self._batches if batch.has_low_priority]
        if not low or len(low) == len(self._batches):
            self._low_priority_s = 0.0
            return self._batches
        return low if self._low_priority_s > 0 else [batch for batch in self._batches if not batch.has_low_priority]

    def _drop_ended_calls(self) -> None:
        """Remove the requests of canceled calls, batches without requests, and callers that are gone."""
        left: list[_Batch] = []
        for batch in self._batches:
            calls = batch.calls
            if over := [call for call in calls if call.is_over]:  # rare, and this runs before every step
                for call in over:
                    if not call.has_ended:  # it was canceled
                        call.fail(CancelledError())
                batch.drop_ended_calls()
                calls = batch.calls
            if calls:
                left.append(batch)
                batch.callers = Counter(call.name for call in calls)
        self._batches = left
        present = {name for batch in left for name in batch.callers}
        if len(present) < len(self._served):
            # Keep the time of callers that left recently, so that they gain nothing by coming back.
            earliest = min((self._served[name] for name in present), default=math.inf) - _CREDIT_S
            self._served = {
                name: seconds for name, seconds in self._served.items() if name in present or seconds > earliest
            }

    def _choose(self, batch: _Batch) -> dict[int, _Sequence]:
        """Take the requests that enter now from the waiting ones, or the next one of the failed ones."""
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
