"""The entry points of search: for one batch, for one request (step by step or traced), or for many batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any

import torch

from headway.decode.beam import BeamSearch
from headway.decode.caller import give_way
from headway.decode.protocol import SearchModel
from headway.decode.request import DecodingOptions, Hypothesis, Request, SearchVocabulary
from headway.decode.trace import SearchTrace, StepRecorder
from headway.hardware import set_num_threads_of_this_thread

SearchFunction = Callable[..., list[list[Hypothesis]]]
"""A function with the arguments and the result of :func:`search_all`."""

SearchStepsFunction = Callable[..., Generator[list[Hypothesis], None, list[Hypothesis]]]
"""A function with the arguments and the result of :func:`search_steps`."""

_MAX_ROWS_TOGETHER = 16  # up to this many rows form one batch
_MIN_TOKENS = 512  # minimum per batch; with fewer tokens, reading the weights takes longer than computing with them


def search(
    model: SearchModel[Any],
    requests: Sequence[Request],
    options: DecodingOptions,
    vocabulary: SearchVocabulary,
    *,
    stop_event: Event | None = None,
) -> list[list[Hypothesis]]:
    """Decode all requests as one batch and return the hypotheses of each request, best first.

    A request gets at least ``options.n_best`` hypotheses if the search finds that many, and no hypothesis if the rules
    forbid every target. Another thread may set ``stop_event`` to cancel the search.

    Raises:
        ConfigError: A request is impossible, or incompatible with the options.
        BundleError: The model's probabilities are NaN.
        CancelledError: ``stop_event`` was set.
    """
    beam = BeamSearch(model, options, vocabulary)
    beam.add_requests(enumerate(requests))
    results: list[list[Hypothesis]] = [[] for _ in requests]
    while beam.beams:
        for position, hypotheses in beam.step():
            results[position] = hypotheses
        if stop_event is not None and stop_event.is_set():
            raise CancelledError
    return results


def search_steps(
    model: SearchModel[Any],
    request: Request,
    options: DecodingOptions,
    vocabulary: SearchVocabulary,
) -> Generator[list[Hypothesis], None, list[Hypothesis]]:
    """Decode one request and yield its unfinished hypotheses, best first, after each step except the last.

    The generator returns the finished hypotheses, best first. Raises the same exceptions as :func:`search`.
    """
    beam = BeamSearch(model, options, vocabulary)
    beam.add_requests([(0, request)])
    while not (finished := beam.step()):
        yield beam.open_hypotheses(0)
    return finished[0][1]


def trace_search(
    model: SearchModel[Any],
    request: Request,
    options: DecodingOptions,
    vocabulary: SearchVocabulary,
    *,
    num_tokens: int,
) -> SearchTrace:
    """Decode one request, and record each step with the ``num_tokens`` most probable tokens of each hypothesis.

    The result contains the same hypotheses as :func:`search`. Raises the same exceptions as :func:`search`.
    """
    beam = BeamSearch(model, options, vocabulary)
    recorder = beam.recorder = StepRecorder(num_tokens, vocabulary.eos, beam.width)
    beam.add_requests([(0, request)])
    while not (finished := beam.step()):
        give_way()
    return SearchTrace(request, tuple(recorder.steps), tuple(finished[0][1]))


def search_all(
    model: SearchModel[Any],
    requests: Sequence[Request],
    options: DecodingOptions,
    vocabulary: SearchVocabulary,
    *,
    max_batch_tokens: int,
    max_sequences: int,
) -> list[list[Hypothesis]]:
    """Decode any number of requests like :func:`search`, in batches of similar length.

    At most ``max_sequences`` sequences are decoded at a time, with about ``max_batch_tokens`` source tokens including
    padding. The same limits apply to each batch. Batches are made smaller to use all threads, but not smaller than 512
    tokens. The division into batches changes results only by rounding.

    When kernels distribute each matrix product over several threads, the threads wait for each other hundreds of times
    per step. With a model that sets ``batch_per_thread``, each batch uses one thread instead, and one batch per PyTorch
    thread is decoded at a time. But if all sequences fit in one batch of at most 16 rows, they form one batch: each
    batch reads all weights, which takes longer than multiplying so few rows by them.
    """
    rows = len(requests) * options.rows_per_sequence
    padded_tokens = len(requests) * max((len(request.source) for request in requests), default=0)
    is_small = rows <= _MAX_ROWS_TOGETHER and len(requests) <= max_sequences and padded_tokens <= max_batch_tokens
    in_threads = getattr(model, "batch_per_thread", False) and not is_small
    threads = torch.get_num_threads() if in_threads else 1
    threads = max(1, min(threads, len(requests), max_sequences))
    tokens = min(max_batch_tokens, max(_MIN_TOKENS, max_batch_tokens // threads))
    sequences = max(1, min(max_sequences // threads, -(-len(requests) // threads)))
    batches = list(length_batches([request.source for request in requests], tokens, sequences))
    one_batch = partial(search, model, options=options, vocabulary=vocabulary)
    parts = [[requests[index] for index in batch] for batch in batches]
    threads = min(threads, len(batches))
    batch_results = (
        _search_sequentially(one_batch, parts) if threads < 2 else _search_in_threads(one_batch, parts, threads)
    )
    results: list[list[Hypothesis]] = [[] for _ in requests]
    for batch, hypotheses in zip(batches, batch_results, strict=True):
        for index, request_hypotheses in zip(batch, hypotheses, strict=True):
            results[index] = request_hypotheses
    return results


_Results = list[list[Hypothesis]]


def _search_sequentially(
    one_batch: Callable[..., _Results], batches: Sequence[Sequence[Request]]
) -> Iterator[_Results]:
    """Yield the results of each batch, computed in the calling thread."""
    for batch in batches:
        give_way()
        yield one_batch(batch)


def _search_in_threads(
    one_batch: Callable[..., _Results], batches: Sequence[Sequence[Request]], threads: int
) -> Iterator[_Results]:
    """Yield the results of each batch. An error or an interruption stops the other threads."""
    stop_event = Event()
    with ThreadPoolExecutor(threads, "search", set_num_threads_of_this_thread, initargs=(1,)) as pool:
        # Submit the longest batches first, so that all threads finish at about the same time.
        try:
            futures = [pool.submit(one_batch, batch, stop_event=stop_event) for batch in reversed(batches)]
            for future in reversed(futures):
                give_way()
                yield future.result()
        except BaseException:
            stop_event.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def length_batches(sources: Sequence[Sequence[int]], max_batch_tokens: int, max_sequences: int) -> Iterator[list[int]]:
    """Yield batches of indices of ``sources``, in order of increasing length.

    A batch has at most ``max_sequences`` sources and ``max_batch_tokens`` tokens including padding. If the caller was
    canceled, :class:`concurrent.futures.CancelledError` is raised before the next batch.
    """
    batch: list[int] = []
    for index in sorted(range(len(sources)), key=lambda index: len(sources[index])):
        if batch and (len(batch) == max_sequences or (len(batch) + 1) * len(sources[index]) > max_batch_tokens):
            give_way()
            yield batch
            batch = []
        batch.append(index)
    if batch:
        give_way()
        yield batch
