"""Many requests: batches of sentences of like length, several at once where a model computes on one thread.

Kernels that spread a product over threads make them wait for each other at its end, some hundred times a step. Where a
model's do not (``model.one_thread``), each thread here has a batch of its own instead, and as many batches are decoded
at a time as PyTorch has threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Event
from typing import Any

import torch

from headway.decode.options import DecodingOptions
from headway.decode.protocol import Hypothesis, SearchModel
from headway.decode.request import Request
from headway.decode.search import search

__all__ = ["length_batches", "search_all"]

_LEAST_TOKENS = 512  # of a batch, below which reading the weights takes longer than computing with them
_Find = Callable[[list[int], Event], list[list[Hypothesis]]]


def search_all(
    model: SearchModel[Any],
    requests: Sequence[Request],
    options: DecodingOptions,
    *,
    begin: int,
    end: int,
    forbidden: Sequence[int] = (),
    max_tokens: int,
    max_sentences: int,
) -> list[list[Hypothesis]]:
    """What :func:`search` finds for each request, in batches of like length.

    At most ``max_sentences`` sentences are in decoding at a time, and about ``max_tokens`` source tokens with their
    padding: no batch has more, nor are batches cut below 512 for the sake of threads. What is found does not depend on
    the batches but for rounding.
    """
    threads = torch.get_num_threads() if getattr(model, "one_thread", False) else 1
    threads = max(1, min(threads, len(requests), max_sentences))
    each = min(max_tokens, max(_LEAST_TOKENS, max_tokens // threads))
    most = max(1, min(max_sentences // threads, -(-len(requests) // threads)))
    batches = list(length_batches([request.source for request in requests], each, most))

    def find(batch: list[int], stop: Event) -> list[list[Hypothesis]]:
        asked = [requests[index] for index in batch]
        return search(model, asked, options, begin=begin, end=end, forbidden=forbidden, stop=stop)

    results: list[list[Hypothesis]] = [[] for _ in requests]
    for batch, found in zip(batches, _found(find, batches, min(threads, len(batches))), strict=True):
        for index, hypotheses in zip(batch, found, strict=True):
            results[index] = hypotheses
    return results


def _found(find: _Find, batches: Sequence[list[int]], threads: int) -> Iterator[list[list[Hypothesis]]]:
    """What is found in each batch; an error, or an interruption, stops the others."""
    stop = Event()
    if threads < 2:
        for batch in batches:
            yield find(batch, stop)
        return
    before, started = torch.get_num_threads(), Barrier(threads + 1)

    def start() -> None:
        torch.get_num_threads()  # which sets what this thread has to what new threads get, the first time
        torch.set_num_threads(1)
        with suppress(BrokenBarrierError):  # an initializer that fails takes from the queue what ends the other threads
            started.wait()

    with ThreadPoolExecutor(threads, thread_name_prefix="search", initializer=start) as pool:
        # The longest come first, so that threads end together.
        futures = [pool.submit(find, batch, stop) for batch in reversed(batches)]
        try:
            started.wait()
            torch.set_num_threads(before)  # for other new threads: what workers set for them became the default, too
            for future in reversed(futures):
                yield future.result()
        except BaseException:
            started.abort()
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def length_batches(sources: Sequence[Sequence[int]], max_tokens: int, most: int) -> Iterator[list[int]]:
    """The sources' indices in batches that rise in length: at most ``most``, ``max_tokens`` with their padding."""
    batch: list[int] = []
    for index in sorted(range(len(sources)), key=lambda index: len(sources[index])):
        if batch and (len(batch) == most or (len(batch) + 1) * len(sources[index]) > max_tokens):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
