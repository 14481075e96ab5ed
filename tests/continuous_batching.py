"""Decode requests as the service does: finished sequences leave the batch, and waiting ones enter it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.decode import DecodingOptions, Hypothesis, Request, SearchModel, SearchVocabulary
from headway.serve.workers.shared_search import SharedSearch


def decode_continuously(
    model: SearchModel[Any],
    requests: Sequence[Request],
    options: DecodingOptions,
    vocabulary: SearchVocabulary,
    *,
    max_rows: int,
    max_batch_tokens: int,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each request, decoded by one call of a :class:`SharedSearch`."""
    search, results = SharedSearch(max_rows=max_rows, max_batch_tokens=max_batch_tokens), list[list[Hypothesis]]()
    search.start(lambda: results.extend(search(model, requests, options, vocabulary)))
    while search.has_work:
        search.advance()
    return results
