"""Many requests in batches, in one thread and in several."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from table_models import BEGIN, END, PAD, Prefix, TableModel, random_distribution
from torch import Tensor

from headway.decode import DecodingOptions, Ensemble, Hypothesis, Request, SearchVocabulary, length_batches, search_all
from headway.errors import BundleError

VOCABULARY = 6


class OneThread(TableModel):
    """A model that computes on the thread that calls it, and records these threads and their settings."""

    batch_per_thread = True

    def __init__(self, nan_for: int = -1) -> None:
        distribution = random_distribution(1, VOCABULARY)

        def with_nan(sentence: int, prefix: Prefix) -> Any:
            return [float("nan")] * VOCABULARY if sentence == nan_for else distribution(sentence, prefix)

        super().__init__(with_nan)
        self.threads: set[tuple[int, int]] = set()
        self.batches: list[list[int]] = []

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> Any:
        self.threads.add((threading.get_ident(), torch.get_num_threads()))
        self.batches.append([source[0] for source in sources])
        return super().start(sources, beams=beams)


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)


def found(model: Any, sentences: int = 10, **limits: Any) -> list[list[Hypothesis]]:
    requests = [Request(source=(number, *[5] * (number % 4)), limit=6) for number in range(sentences)]
    limits = {"max_batch_tokens": 1000, "max_sequences": 100, **limits}
    options = DecodingOptions(beam_size=3, n_best=2)
    return search_all(model, requests, options, SearchVocabulary(BEGIN, END, banned=(PAD, BEGIN)), **limits)


def test_threads_find_what_one_finds() -> None:
    shared, alone = OneThread(), TableModel(random_distribution(1, VOCABULARY))
    assert found(shared) == found(alone)
    assert {setting for _, setting in shared.threads} == {1}
    assert threading.get_ident() not in {thread for thread, _ in shared.threads}
    assert len(shared.batches) == 3, "as many as there are threads"


def test_one_batch_needs_no_thread() -> None:
    model = OneThread()
    found(model, sentences=1)
    assert model.threads == {(threading.get_ident(), 3)}


def test_a_model_that_uses_threads_itself_is_called_from_one_thread() -> None:
    model = OneThread()
    model.batch_per_thread = False
    found(model, max_sequences=4)
    assert {thread for thread, _ in model.threads} == {threading.get_ident()}
    assert [len(batch) for batch in model.batches] == [4, 4, 2]


def test_few_rows_are_one_batch_in_the_calling_thread_which_keeps_all_threads() -> None:
    model = OneThread()
    found(model, sentences=5)  # 15 rows
    assert model.threads == {(threading.get_ident(), 3)}
    assert [len(batch) for batch in model.batches] == [5]
    model = OneThread()
    found(model, sentences=5, max_batch_tokens=9)
    assert threading.get_ident() not in {thread for thread, _ in model.threads}, "they are several batches anyway"
    model = OneThread()
    found(model, sentences=6)
    assert threading.get_ident() not in {thread for thread, _ in model.threads}
    assert [len(batch) for batch in model.batches] == [2, 2, 2]


def test_an_ensemble_computes_on_one_thread_where_all_its_members_do() -> None:
    assert Ensemble([OneThread(), OneThread()]).batch_per_thread
    assert not Ensemble([OneThread(), TableModel(random_distribution(1, VOCABULARY))]).batch_per_thread


def test_nothing_to_search_for_is_nothing() -> None:
    assert found(OneThread(), sentences=0) == []


@pytest.mark.parametrize("damaged", [0, 3, 9])
def test_an_error_in_one_thread_is_the_callers(damaged: int) -> None:
    with pytest.raises(BundleError):
        found(OneThread(nan_for=damaged))


def test_no_more_sentences_are_in_decoding_than_may_be() -> None:
    model = OneThread()
    found(model, max_sequences=2)
    assert {len(batch) for batch in model.batches} == {1}
    assert len({thread for thread, _ in model.threads}) <= 2
    narrow = OneThread()
    found(narrow, max_batch_tokens=4)
    assert all(len(batch) * (1 + batch[-1] % 4) <= 4 or len(batch) == 1 for batch in narrow.batches)


def test_threads_that_begin_meanwhile_have_the_setting_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever they begin: PyTorch's default, which its own function would change, is never touched."""
    seen: list[int] = []

    class Bystander(OneThread):
        def logits(self, state: Any, tokens: Tensor) -> Tensor:
            if not seen:
                thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
                thread.start()
                thread.join()
            return super().logits(state, tokens)

    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("the default of new threads is changed"))
    model = Bystander()
    found(model)
    monkeypatch.undo()
    assert set(seen) == {3}
    assert {setting for _, setting in model.threads} == {1}


def test_an_interruption_stops_all_threads_at_their_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    running, interrupted = threading.Event(), threading.Event()

    class Endless(OneThread):
        def logits(self, state: Any, tokens: Tensor) -> Tensor:
            running.set()
            assert interrupted.wait(60)
            return super().logits(state, tokens)

    def result(self: Future[Any]) -> Any:
        assert running.wait(60)
        raise KeyboardInterrupt

    def noted_shutdown(self: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False) -> None:
        interrupted.set()  # by now the threads have been told to stop
        shutdown(self, wait, cancel_futures=cancel_futures)

    shutdown = ThreadPoolExecutor.shutdown
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", noted_shutdown)
    monkeypatch.setattr(Future, "result", result)
    model = Endless()
    with pytest.raises(KeyboardInterrupt):
        found(model)
    assert len(model.rows_seen) <= 3 < len(found_rows()), "one step of each thread"


def found_rows() -> list[int]:
    """Return the rows of all steps without interruptions."""
    model = TableModel(random_distribution(1, VOCABULARY))
    found(model)
    return model.rows_seen


def test_batches_rise_in_length_and_keep_to_their_limits() -> None:
    sources = [[0] * length for length in (5, 1, 9, 3, 3, 20, 2)]
    batches = list(length_batches(sources, 9, 3))
    assert batches == [[1, 6, 3], [4], [0], [2], [5]], "one that is over the limit alone comes alone"
    assert list(length_batches([[0] * 3] * 3, 9, 2)) == [[0, 1], [2]]
    assert list(length_batches([], 9, 3)) == []
