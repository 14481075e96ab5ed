"""The two doors to decoding: a batch of sentences at once, or a stream of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from threading import Event
from typing import Any

from headway.decode.beam import BeamSearch
from headway.decode.options import DecodingOptions
from headway.decode.protocol import Hypothesis, SearchModel
from headway.decode.request import Request
from headway.errors import ConfigError

__all__ = ["search", "search_stream"]


def search(
    model: SearchModel[Any],
    requests: Sequence[Request],
    options: DecodingOptions,
    *,
    begin: int,
    end: int,
    forbidden: Sequence[int] = (),
    stop: Event | None = None,
) -> list[list[Hypothesis]]:
    """What is found for each request, best first: at least ``options.n_best`` hypotheses where there are so many.

    All requests are decoded as one batch. ``begin`` is what targets start from, ``end`` what they end in; ``forbidden``
    tokens are never chosen. A request for which no target has a finite probability (all are forbidden) gets none.
    Another thread may set ``stop``.

    Raises:
        ConfigError: A request asks for what is impossible, or for what its options exclude.
        BundleError: The model's probabilities are not numbers.
        CancelledError: It was stopped.
    """
    beam = BeamSearch(model, options, begin=begin, end=end, forbidden=forbidden)
    results: list[list[Hypothesis]] = [[] for _ in requests]
    finished = beam.add(list(enumerate(requests)))
    while finished or beam.num_sentences:
        for position, hypotheses in finished:
            results[position] = hypotheses
        if stop is not None and stop.is_set():
            raise CancelledError
        finished = beam.step()
    return results


def search_stream(
    model: SearchModel[Any],
    requests: Iterable[Request],
    options: DecodingOptions,
    *,
    begin: int,
    end: int,
    forbidden: Sequence[int] = (),
    max_rows: int,
    max_tokens: int,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Decode a stream: (position in ``requests``, what :func:`search` finds) as sentences finish, in any order.

    Sentences that finish leave the batch and new ones enter it (continuous batching). The batch holds at most
    ``max_rows`` rows (a sentence takes ``beam_size`` of them, or ``n_best`` when sampling) and ``max_tokens`` source
    tokens with their padding, but always one sentence. ``requests`` is read one request ahead of what is in the batch.

    New sentences wait until a quarter of the batch is free: to enter means to encode them, to take their first step
    apart, and to copy the caches of all others into wider ones, which is better done for several at once.
    """
    beam = BeamSearch(model, options, begin=begin, end=end, forbidden=forbidden)
    capacity = max_rows // beam.rows_each
    if capacity < 1 or max_tokens < 1:
        raise ConfigError(
            f"max_rows = {max_rows}, max_tokens = {max_tokens}: expected room for a sentence, which takes "
            f"{beam.rows_each} rows (beam_size, or n_best when sampling), and at least 1 token"
        )
    waiting = _Waiting(requests)
    width = 0  # of the memories, padded to the longest that entered since the batch was last empty
    while True:
        held = beam.num_sentences
        if not held:
            width = 0
        if not held or 4 * (capacity - held) >= capacity:
            entering: list[tuple[int, Request]] = []
            while held + len(entering) < capacity and (request := waiting.peek()) is not None:
                wider = max(width, len(request.source))
                if held + len(entering) and (held + len(entering) + 1) * wider > max_tokens:
                    break
                entering.append(waiting.take())
                width = wider
            yield from beam.add(entering)
            if not beam.num_sentences and waiting.peek() is None:
                return
        yield from beam.step()


class _Waiting:
    """A stream's numbered requests, the next of which can be looked at."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self._numbered = enumerate(requests)
        self._next: tuple[int, Request] | None = None

    def peek(self) -> Request | None:
        """The next request, None at the end."""
        if self._next is None:
            self._next = next(self._numbered, None)
        return self._next[1] if self._next else None

    def take(self) -> tuple[int, Request]:
        """The request just looked at, with its number."""
        assert self._next is not None, "peek comes first"
        taken, self._next = self._next, None
        return taken
