"""Refusing a request one of whose texts has failed, in APIs that have no errors of single texts.

If there are several texts, the message begins with ``text N``, counted from 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headway.errors import HeadwayError
from headway.predict.results import raise_first_error


def refuse_failed_texts(results: Sequence[Any]) -> None:
    """Raise the first error among the results of a request. Its class, from which an API chooses the status, stays."""
    raise_first_error(results, "text" if len(results) > 1 else None, 1)


@contextmanager
def naming_text(index: int, num_texts: int) -> Iterator[None]:
    """Name the text in an error that it causes."""
    try:
        yield
    except HeadwayError as error:
        raise error if num_texts == 1 else error.with_location(f"text {index + 1}") from None
