"""Many requests: batches of sentences of like length, several at once where a model computes on one thread.

Kernels that spread a product over threads make them wait for each other at its end, some hundred times a step. Where a
model's do not (``model.one_thread``), each thread here has a batch of its own instead, and as many batches are decoded
at a time as PyTorch has threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from headway.decode.options import DecodingOptions
from headway.decode.protocol import Hypothesis, SearchModel
from headway.decode.request import Request
from headway.decode.search import search

__all__ = ["length_batches", "search_all"]

_LEAST_TOKENS = 512  # of a batch, below which reading the weights takes longer than computing with them


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

    Those in decoding at a time have at most ``max_tokens`` source tokens with their padding (but never fewer than 512
    each) and ``max_sentences`` sentences. What is found does not depend on the batches but for rounding.
    """
    threads = torch.get_num_threads() if getattr(model, "one_thread", False) else 1
    each = max(min(_LEAST_TOKENS, max_tokens), max_tokens // threads)
    most = max(1, min(max_sentences // threads, -(-len(requests) // threads)))
    batches = list(length_batches([request.source for request in requests], each, most))

    def found_in(batch: list[int]) -> list[list[Hypothesis]]:
        asked = [requests[index] for index in batch]
        return search(model, asked, options, begin=begin, end=end, forbidden=forbidden)

    results: list[list[Hypothesis]] = [[] for _ in requests]
    for batch, found in zip(batches, _in_threads(found_in, batches, threads), strict=True):
        for index, hypotheses in zip(batch, found, strict=True):
            results[index] = hypotheses
    return results


def _in_threads(
    function: Callable[[list[int]], list[list[Hypothesis]]], batches: Sequence[list[int]], threads: int
) -> Iterator[list[list[Hypothesis]]]:
    """What ``function`` finds for each, the longest first so that threads end together.

    The first error stops what has not begun.
    """
    if threads == 1 or len(batches) < 2:
        yield from map(function, batches)
        return

    def alone(batch: list[int]) -> list[list[Hypothesis]]:
        torch.set_num_threads(1)  # of this thread
        try:
            return function(batch)
        finally:
            torch.set_num_threads(threads)  # which is also what threads that are yet to come begin with

    with ThreadPoolExecutor(threads, thread_name_prefix="search") as pool:
        futures = [pool.submit(alone, batch) for batch in reversed(batches)]
        try:
            for future in reversed(futures):
                yield future.result()
        except BaseException:
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
