"""Calls of several greenlets and threads share batches, and each gets what it would get alone."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headway.decode import (
    Caller,
    DecodingOptions,
    Hypothesis,
    Request,
    Sampling,
    SearchVocabulary,
    give_way,
    search_all,
    search_steps,
    use_caller,
)
from headway.decode.beam import BeamSearch
from headway.errors import ConfigError
from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.serve.workers.shared_search import SharedSearch

PATIENCE_S = 60.0  # also on a busy machine
BOS, EOS, VOCAB = 1, 2, 40
VOCABULARY = SearchVocabulary(BOS, EOS)
WITHOUT_PAD = SearchVocabulary(BOS, EOS, banned=(0,))
ENDLESS = SearchVocabulary(BOS, EOS, banned=(EOS,))
LIMITS: dict[str, Any] = {"max_batch_tokens": 4096, "max_sequences": 64}


@pytest.fixture(scope="module")
def model() -> Transformer:
    torch.manual_seed(3)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
    return build_model(TransformerConfig.parse(sizes, "test"), VOCAB, VOCAB).eval()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as found:
        yield found


@contextmanager
def loop_thread(**options: Any) -> Iterator[SharedSearch]:
    """Give a search whose loop has a thread of its own."""
    made, called = SimpleQueue[SharedSearch](), SimpleQueue[bool]()

    def loop() -> None:
        search = SharedSearch(on_call=lambda: called.put(True), **options)
        made.put(search)
        while search.has_work or called.get():
            with suppress(KeyboardInterrupt):
                search.advance()

    thread = threading.Thread(target=loop)
    thread.start()
    yield made.get()
    called.put(False)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.fixture
def new_shared() -> Iterator[Callable[..., SharedSearch]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(loop_thread(**options))


@pytest.fixture
def shared(new_shared: Callable[..., SharedSearch]) -> SharedSearch:
    return new_shared(max_rows=24, max_batch_tokens=120)


@pytest.fixture
def slow(model: Transformer, new_shared: Callable[..., SharedSearch], pool: ThreadPoolExecutor) -> Iterator[Slow]:
    found = Slow(model)
    yield found
    found.run()  # so that the threads of a failed test end


def run_jobs(search: SharedSearch, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run functions in greenlets of the search's loop until all have ended, and return their results or exceptions."""
    results: list[Any] = [None] * len(jobs)

    def run(at: int) -> None:
        try:
            results[at] = jobs[at]()
        except Exception as error:
            results[at] = error

    for at in range(len(jobs)):
        search.start(run, at)
    while search.has_work:
        search.advance()
    return results


def request(number: int, limit: int = 12) -> Request:
    generator = torch.Generator().manual_seed(number)
    length = int(torch.randint(1, 12, (), generator=generator))
    source = torch.randint(3, VOCAB, (length,), generator=generator).tolist()
    return Request(source=(*source, EOS), limit=limit, seed=number)


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(),
        DecodingOptions(beam_size=1),
        DecodingOptions(n_best=3, coverage_penalty=0.2, no_repeat_ngram=2),
        DecodingOptions(sampling=Sampling(temperature=0.7), n_best=2),
        DecodingOptions(groups=2),
    ],
    ids=["beam", "greedy", "coverage", "sampling", "groups"],
)
@pytest.mark.parametrize("kind", ["greenlets", "threads"])
def test_many_calls_get_what_they_get_alone(
    model: Transformer, pool: ThreadPoolExecutor, options: DecodingOptions, kind: str
) -> None:
    calls = [[request(10 * call + at) for at in range(1 + call % 4)] for call in range(20)]

    def one(search: SharedSearch, requests: Sequence[Request]) -> Any:
        with use_caller(Caller(name=str(len(requests)))):
            return search(model, requests, options, WITHOUT_PAD)

    if kind == "greenlets":
        shared = SharedSearch(max_rows=24, max_batch_tokens=120)
        found = run_jobs(shared, [partial(one, shared, requests) for requests in calls])
    else:
        with loop_thread(max_rows=24, max_batch_tokens=120) as shared:
            found = list(pool.map(partial(one, shared), calls))
    for requests, results in zip(calls, found, strict=True):
        expected = search_all(model, requests, options, WITHOUT_PAD, **LIMITS)
        assert [[each.tokens for each in own] for own in results] == [[one.tokens for one in own] for own in expected]
        for ours, theirs in zip(results, expected, strict=True):
            assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-4)


class Slow:
    """A model whose steps wait for permission, and that remembers the sources it was given, in order."""

    max_length = None

    def __init__(self, model: Transformer) -> None:
        self.model, self.permitted, self.sources = model, threading.Semaphore(0), list[tuple[int, ...]]()
        self.begun = self.steps = 0  # steps that wait or waited for permission, and those that have it
        self.batches = list[set[tuple[int, ...]]]()  # the sources of each step
        self.poison: int | None = None

    @property
    def device(self) -> torch.device:
        return self.model.device

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> Any:
        self.sources += map(tuple, sources)
        return self.model.start(sources, beams=beams), [*map(tuple, sources)]

    def admit(self, state: Any, sources: Sequence[Sequence[int]]) -> None:
        self.sources += map(tuple, sources)
        state[1].extend(map(tuple, sources))
        self.model.admit(state[0], sources)

    def step(self, state: Any, tokens: torch.Tensor, *, attention: bool = False) -> Any:
        self.begun += 1
        self.permitted.acquire()
        self.steps += 1
        self.batches.append(set(state[1]))
        if any(self.poison in source for source in state[1]):
            raise RuntimeError("poison")
        return self.model.step(state[0], tokens, attention=attention)

    def reorder_rows(self, state: Any, rows: torch.Tensor, sequences: torch.Tensor | None = None) -> None:
        if sequences is not None:
            state[1][:] = [state[1][at] for at in sequences.tolist()]
        self.model.reorder_rows(state[0], rows, sequences)

    def run(self, steps: int = 100_000) -> None:
        self.permitted.release(steps)


GREEDY = DecodingOptions(beam_size=1, min_length=5)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened for {PATIENCE_S:.0f} seconds"
        time.sleep(0.002)


def test_a_canceled_call_leaves_before_the_next_step_and_the_others_stay(
    model: Transformer, shared: SharedSearch, slow: Slow, pool: ThreadPoolExecutor
) -> None:
    caller = Caller()
    others = [request(number) for number in range(3)]

    def canceled() -> Any:
        with use_caller(caller):
            return shared(slow, [request(50, 100_000), request(51, 100_000)], GREEDY, ENDLESS)

    first = pool.submit(canceled)
    second = pool.submit(lambda: shared(slow, others, GREEDY, ENDLESS))
    wait_until(lambda: shared.num_sequences + shared.num_waiting == 5)
    slow.run(3)
    wait_until(lambda: slow.begun == 4 and shared.num_sequences == 5)
    caller.cancel_event.set()
    slow.run(1)  # the step that had already begun
    wait_until(lambda: shared.num_sequences == 3)
    slow.run()
    with pytest.raises(CancelledError):
        first.result(PATIENCE_S)
    found = second.result(PATIENCE_S)
    expected = search_all(model, others, GREEDY, ENDLESS, **LIMITS)
    assert [own[0].tokens for own in found] == [own[0].tokens for own in expected]


def test_a_call_that_is_canceled_while_another_one_is_removed_ends(
    slow: Slow, new_shared: Callable[..., SharedSearch], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, removed, waiting = new_shared(max_rows=2), Caller(), Caller()

    def call(caller: Caller, number: int) -> Any:
        with use_caller(caller):
            return shared(slow, [request(number, 100_000 if caller is removed else 12)], GREEDY, VOCABULARY)

    def reorder_rows(state: Any, rows: torch.Tensor, sequences: torch.Tensor | None = None) -> None:
        waiting.cancel_event.set()
        Slow.reorder_rows(slow, state, rows, sequences)

    futures = []
    for caller, number in ((removed, 1), (Caller(), 2), (waiting, 3)):
        futures.append(pool.submit(call, caller, number))
        wait_until(lambda: shared.num_sequences + shared.num_waiting == len(futures))
    slow.run(1)
    wait_until(lambda: slow.begun == 2 and shared.num_sequences == 2)
    monkeypatch.setattr(slow, "reorder_rows", reorder_rows)
    removed.cancel_event.set()
    slow.run()
    for future in (futures[0], futures[2]):
        with pytest.raises(CancelledError):
            future.result(PATIENCE_S)
    assert len(futures[1].result(PATIENCE_S)) == 1


def test_callers_get_equal_shares_and_priorities_come_first(
    slow: Slow, new_shared: Callable[..., SharedSearch], pool: ThreadPoolExecutor
) -> None:
    shared = new_shared(max_rows=1)

    def call(name: str, priority: int, numbers: Sequence[int]) -> Any:
        with use_caller(Caller(name, priority)):
            return shared(slow, [request(number) for number in numbers], GREEDY, VOCABULARY)

    futures = [pool.submit(call, "first", 1, [100])]
    wait_until(lambda: shared.num_sequences == 1)
    futures.append(pool.submit(call, "bulk", 1, range(200, 206)))
    wait_until(lambda: shared.num_waiting == 6)
    futures.append(pool.submit(call, "small", 1, [300]))
    wait_until(lambda: shared.num_waiting == 7)
    futures.append(pool.submit(call, "urgent", 0, [400]))
    wait_until(lambda: shared.num_waiting == 8)
    slow.run()
    for future in futures:
        future.result(PATIENCE_S)
    order = [
        next(n for n in (100, *range(200, 206), 300, 400) if request(n).source == source) for source in slow.sources
    ]
    assert order[:2] == [100, 400]
    assert order.index(300) <= 3  # one with the same share as the bulk caller, which has five more


@pytest.mark.parametrize("other_options", [False, True])
def test_a_short_request_does_not_pay_for_the_many_requests_of_another_caller(
    slow: Slow, new_shared: Callable[..., SharedSearch], pool: ThreadPoolExecutor, other_options: bool
) -> None:
    """With the same options or with many different ones: the other caller gets half of the steps."""
    shared = new_shared(max_rows=64, clock=lambda: float(slow.steps))  # all steps take the same time

    def call(name: str, numbers: Sequence[int], penalty: float) -> Any:
        with use_caller(Caller(name)):
            options = DecodingOptions(beam_size=1, length_penalty=penalty)
            return shared(slow, [request(number, 20) for number in numbers], options, ENDLESS)

    many = [pool.submit(call, "many", range(5 * n, 5 * n + 5), 0.1 * n * other_options) for n in range(8)]
    wait_until(lambda: shared.num_sequences + shared.num_waiting == 40)
    few = pool.submit(call, "few", [100], 0.0)
    wait_until(lambda: shared.num_sequences + shared.num_waiting == 41)
    slow.run()
    for future in (*many, few):
        future.result(PATIENCE_S)
    steps = [index for index, batch in enumerate(slow.batches) if request(100).source in batch]
    assert len(steps) == 21  # EOS is the last one
    assert steps[-1] - steps[0] <= 2 * 21
    assert other_options or all(len(slow.batches[index]) == 1 for index in steps)


def test_a_caller_that_comes_again_and_again_gets_no_more_than_its_share(
    slow: Slow, new_shared: Callable[..., SharedSearch], pool: ThreadPoolExecutor
) -> None:
    shared = new_shared(max_rows=64, clock=lambda: float(slow.steps))

    def call(name: str, requests: Sequence[Request], times: int) -> None:
        with use_caller(Caller(name)):
            for _ in range(times):
                shared(slow, requests, GREEDY, ENDLESS)

    steady = pool.submit(call, "steady", [request(number, 60) for number in range(40)], 1)
    wait_until(lambda: shared.num_sequences + shared.num_waiting == 40)
    again = pool.submit(call, "again", [request(100, 10)], 10)
    wait_until(lambda: shared.num_sequences + shared.num_waiting == 41)
    slow.run()
    steady.result(PATIENCE_S)
    again.result(PATIENCE_S)
    steps = [request(0).source in batch for batch in slow.batches]
    assert steps[:120].count(True) >= 55


@pytest.mark.parametrize(("count", "max_rows", "steps"), [(1, 24, 2), (2, 24, 0), (4, 9, 2), (4, 12, 0)])
def test_few_requests_wait_for_others_for_two_steps(
    slow: Slow, new_shared: Callable[..., SharedSearch], pool: ThreadPoolExecutor, count: int, max_rows: int, steps: int
) -> None:
    """Beside 8 sequences, two enter together; fewer wait, also if the batch has no room for more of them."""
    shared = new_shared(max_rows=max_rows)

    def call(numbers: Sequence[int]) -> Any:
        requests = [request(number, 30) for number in numbers]
        return shared(slow, requests, GREEDY, ENDLESS)

    futures = [pool.submit(call, range(8))]
    wait_until(lambda: slow.begun == 1)
    futures.append(pool.submit(call, range(10, 10 + count)))
    wait_until(lambda: shared.num_waiting == count)
    slow.run()
    for future in futures:
        future.result(PATIENCE_S)
    entered = next(at for at, batch in enumerate(slow.batches) if request(10).source in batch)
    assert entered == 1 + steps


def test_low_priority_waits_for_others(
    model: Transformer, slow: Slow, new_shared: Callable[..., SharedSearch], pool: ThreadPoolExecutor
) -> None:
    """Sentences of low priority stand still while others are decoded, except for a tenth of the time."""
    shared = new_shared(max_rows=8, clock=lambda: float(slow.steps))  # all steps take the same time

    def call(priority: int, numbers: Sequence[int]) -> Any:
        with use_caller(Caller(str(priority), priority)):
            requests = [request(number, 100) for number in numbers]
            return shared(slow, requests, GREEDY, ENDLESS)

    bulk = pool.submit(call, 1, range(12))
    slow.run(2)
    wait_until(lambda: slow.begun == 3 and shared.num_waiting == 8)
    assert shared.num_sequences == 4  # half of a batch
    urgent = pool.submit(call, 0, range(20, 26))
    wait_until(lambda: shared.num_waiting == 14)
    slow.run()
    found = urgent.result(PATIENCE_S)
    found = [*bulk.result(PATIENCE_S), *found]
    source = request(20).source
    urgent_steps = [at for at, batch in enumerate(slow.batches) if source in batch]
    assert len(urgent_steps) == 101  # EOS is the last one
    assert urgent_steps[-1] - urgent_steps[0] in (109, 110, 111)
    assert urgent_steps[-1] < len(slow.batches) - 100
    requests = [request(number, 100) for number in (*range(12), *range(20, 26))]
    expected = search_all(model, requests, GREEDY, ENDLESS, **LIMITS)
    assert [own[0].tokens for own in found] == [own[0].tokens for own in expected]


def test_low_priority_advances_even_while_there_are_always_others(
    model: Transformer, shared: SharedSearch, pool: ThreadPoolExecutor
) -> None:
    over = threading.Event()

    def call(priority: int, number: int, limit: int) -> Any:
        with use_caller(Caller(str(priority), priority)):
            return shared(model, [request(number, limit)], GREEDY, ENDLESS)

    def others() -> None:
        while not over.is_set():
            call(0, 1, 50)

    busy = [pool.submit(others) for _ in range(2)]
    try:
        ((found,),) = call(1, 2, 20)
    finally:
        over.set()
    for each in busy:
        each.result(PATIENCE_S)
    assert len(found.tokens) == 20


def test_only_the_request_that_raises_fails(
    model: Transformer, shared: SharedSearch, slow: Slow, pool: ThreadPoolExecutor
) -> None:
    bad = Request(source=(*request(7).source[:-1], 39, EOS), limit=9)
    slow.poison = 39
    good = [each for each in map(request, range(40)) if 39 not in each.source][:12]
    slow.run()
    futures = [pool.submit(shared, slow, [each], GREEDY, VOCABULARY) for each in [*good[:6], bad, *good[6:]]]
    failed = futures.pop(6)
    with pytest.raises(RuntimeError, match="poison"):
        failed.result(PATIENCE_S)
    found = [future.result(PATIENCE_S) for future in futures]
    expected = search_all(model, good, GREEDY, VOCABULARY, **LIMITS)
    assert [own[0][0].tokens for own in found] == [own[0].tokens for own in expected]


def test_a_call_with_several_requests_beside_one_that_raises(
    model: Transformer, shared: SharedSearch, slow: Slow, pool: ThreadPoolExecutor
) -> None:
    slow.poison = 39
    bad = Request(source=(5, 39, EOS), limit=9)
    good = [each for each in map(request, range(40)) if 39 not in each.source][:4]
    found = pool.submit(shared, slow, good, GREEDY, VOCABULARY)
    failed = pool.submit(shared, slow, [bad, good[0]], GREEDY, VOCABULARY)
    wait_until(lambda: shared.num_sequences + shared.num_waiting == 6)
    slow.run()
    with pytest.raises(RuntimeError, match="poison"):
        failed.result(PATIENCE_S)
    results = found.result(PATIENCE_S)
    expected = search_all(model, good, GREEDY, VOCABULARY, **LIMITS)
    assert [own[0].tokens for own in results] == [own[0].tokens for own in expected]


def test_steps_are_those_of_one_search_alone(
    model: Transformer, shared: SharedSearch, pool: ThreadPoolExecutor
) -> None:
    other = pool.submit(shared, model, [request(1), request(2)], GREEDY, VOCABULARY)
    found, (last,) = walk(shared.steps(model, request(3), GREEDY, VOCABULARY))
    other.result(PATIENCE_S)
    expected, (own,) = walk(search_steps(model, request(3), GREEDY, VOCABULARY))
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert last.tokens == own.tokens
    assert [each.tokens for each in found] == [last.tokens[:length] for length in range(1, len(last.tokens) + 1)]
    for each in found:
        assert each.token_log_probabilities == pytest.approx(last.token_log_probabilities[: len(each.tokens)], abs=1e-5)


def walk(steps: Generator[list[Hypothesis], None, list[Hypothesis]]) -> tuple[list[Hypothesis], list[Hypothesis]]:
    """Return what a generator yields, and its return value."""
    found: list[Hypothesis] = []
    while True:
        try:
            found += next(steps)
        except StopIteration as end:
            return found, end.value


def test_closing_the_steps_ends_the_search(model: Transformer) -> None:
    shared, found = SharedSearch(), list[int]()

    def stream() -> None:
        steps = shared.steps(model, request(50, 100_000), GREEDY, ENDLESS)
        found.extend(len(next(steps)[0].tokens) for _ in range(3))
        steps.close()

    run_jobs(shared, [stream])
    assert found == [1, 2, 3]
    assert (shared.num_steps, shared.num_sequences, shared.num_waiting) == (3, 0, 0)


def test_a_greenlet_gets_each_step_before_the_next_one_begins(model: Transformer) -> None:
    shared, seen = SharedSearch(), list[tuple[str, int, int]]()

    def stream(name: str, limit: int) -> None:
        for (found,) in shared.steps(model, request(1, limit), GREEDY, ENDLESS):
            seen.append((name, len(found.tokens), shared.num_steps))

    def search() -> Any:
        return shared(model, [request(2)], GREEDY, ENDLESS)

    run_jobs(shared, [partial(stream, "a", 6), partial(stream, "b", 8), search])
    assert seen == [(name, step, step) for step in range(1, 9) for name in ("a", "b") if name == "b" or step <= 6]


def test_a_job_that_computes_something_else_gives_way(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, steps, turns = SharedSearch(), list[int](), list[float | None]()
    clock = [0.0]
    monkeypatch.setattr("headway.serve.workers.shared_search.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def compute() -> None:
        with use_caller(Caller(give_way=shared.give_way)):
            for _ in range(5):
                give_way()  # it goes on at once
                clock[0] += 0.01
                give_way()
                steps.append(shared.num_steps)
                turns.append(shared.turn_started)

    def search() -> Any:
        return shared(model, [request(1, 10)], GREEDY, ENDLESS)

    _, ((found,),) = run_jobs(shared, [compute, search])
    assert steps == [1, 2, 3, 4, 5]
    assert None not in turns
    assert shared.turn_started is None
    assert len(found.tokens) == 10


def test_a_greenlet_is_not_suspended_in_inference_mode(model: Transformer) -> None:
    """PyTorch would compute the other greenlets in inference mode, too."""
    shared = SharedSearch()

    def search() -> Any:
        with torch.inference_mode():
            return shared(model, [request(1)], GREEDY, VOCABULARY)

    (error,) = run_jobs(shared, [search])
    assert isinstance(error, AssertionError)
    assert not torch.is_inference_mode_enabled()


def test_steps_that_nobody_asks_for_are_kept(model: Transformer, shared: SharedSearch) -> None:
    steps = shared.steps(model, request(1, 20), GREEDY, ENDLESS)
    next(steps)
    ((other,),) = shared(model, [request(2, 30)], GREEDY, ENDLESS)
    assert len(other.tokens) == 30
    assert shared.num_sequences == 0  # both are done
    rest, (last,) = walk(steps)
    assert [len(each.tokens) for each in rest] == [*range(2, 21)]
    assert len(last.tokens) == 20
    assert shared.num_waiting == 0


def test_after_a_failed_step_others_are_decoded_one_by_one_and_stream_no_step_twice(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, seen, count, step = SharedSearch(), list[tuple[int, int]](), itertools.count(1), slow.step

    def fail_once(state: Any, tokens: torch.Tensor, *, attention: bool = False) -> Any:
        if next(count) == 4:
            raise RuntimeError("defect")
        return step(state, tokens, attention=attention)

    monkeypatch.setattr(slow, "step", fail_once)
    slow.run()

    def stream() -> None:
        for (found,) in shared.steps(slow, request(1, 6), GREEDY, ENDLESS):
            seen.append((len(found.tokens), shared.num_steps))

    def search() -> Any:
        return shared(slow, [request(2, 6)], GREEDY, ENDLESS)

    _, ((found,),) = run_jobs(shared, [stream, search])
    assert len(found.tokens) == 6
    assert [length for length, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert [steps for _, steps in seen] == [
        1,
        2,
        3,
        8,
        9,
        10,
    ]  # the fourth has failed, and the first three are repeated


def test_a_search_that_cannot_be_made_fails_alone(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, made = SharedSearch(), BeamSearch.__init__

    def refuse(self: Any, model: Any, options: DecodingOptions, vocabulary: SearchVocabulary) -> None:
        if options.beam_size == 2:
            raise RuntimeError("defect")
        made(self, model, options, vocabulary)

    monkeypatch.setattr(BeamSearch, "__init__", refuse)

    def search(options: DecodingOptions) -> Any:
        return shared(model, [request(1)], options, VOCABULARY)

    error, ((found,),) = run_jobs(shared, [partial(search, DecodingOptions(beam_size=2)), partial(search, GREEDY)])
    assert isinstance(error, RuntimeError)
    assert found.tokens


@pytest.mark.parametrize("defect", [AssertionError, KeyboardInterrupt])
def test_an_error_beside_a_step_ends_every_call(
    slow: Slow,
    new_shared: Callable[..., SharedSearch],
    pool: ThreadPoolExecutor,
    defect: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also those whose requests wait, and those in the batch of other options. None waits for ever."""
    shared, other = new_shared(max_rows=2), DecodingOptions(beam_size=2)
    calls = [pool.submit(shared, slow, [request(number)], GREEDY, VOCABULARY) for number in range(5)]
    calls += [pool.submit(shared, slow, [request(number)], other, VOCABULARY) for number in range(3)]
    wait_until(lambda: shared.num_sequences + shared.num_waiting == 8)

    def fail(*_: object) -> None:
        raise defect

    monkeypatch.setattr(BeamSearch, "step", fail)
    for batch in shared._batches:
        batch.make = fail  # type: ignore[assignment]
    slow.run()
    for call in calls:
        with pytest.raises((defect, CancelledError)):
            call.result(PATIENCE_S)
    assert (shared.num_sequences, shared.num_waiting) == (0, 0)
    monkeypatch.undo()
    assert shared(slow, [request(1)], GREEDY, VOCABULARY)[0]


def test_a_generator_may_be_closed_by_any_thread(
    model: Transformer, shared: SharedSearch, pool: ThreadPoolExecutor
) -> None:
    """As the garbage collector does, at any time."""
    steps = shared.steps(model, request(1, 100_000), GREEDY, ENDLESS)
    pool.submit(next, steps).result(PATIENCE_S)
    steps.close()
    assert shared(model, [request(2)], GREEDY, VOCABULARY)[0]
    wait_until(lambda: shared.num_sequences == 0)


def test_a_canceled_call_of_a_failed_step_ends(shared: SharedSearch, slow: Slow, pool: ThreadPoolExecutor) -> None:
    caller, slow.poison = Caller(), 39

    def canceled() -> Any:
        with use_caller(caller):
            return shared(slow, [Request(source=(5, 6, EOS), limit=100_000)], GREEDY, ENDLESS)

    first = pool.submit(canceled)
    bad = pool.submit(shared, slow, [Request(source=(5, 39, EOS), limit=9)], GREEDY, ENDLESS)
    wait_until(lambda: shared.num_sequences + shared.num_waiting == 2)
    slow.run(5)
    wait_until(lambda: slow.steps == 5)
    caller.cancel_event.set()
    slow.run()
    with pytest.raises(CancelledError):
        first.result(PATIENCE_S)
    with pytest.raises(RuntimeError, match="poison"):
        bad.result(PATIENCE_S)


def test_an_impossible_request_is_refused_at_once(model: Transformer, shared: SharedSearch) -> None:
    with pytest.raises(ConfigError, match="min_length = 20"):
        shared(model, [request(1)], DecodingOptions(min_length=20), VOCABULARY)
    assert shared(model, [], GREEDY, VOCABULARY) == []
