"""Refuse a request if one of its texts has failed, in APIs that cannot report errors of individual texts.

If the request has several texts, the message begins with ``text N``, counted from 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headway.errors import HeadwayError
from headway.predict.results import raise_first_error


def refuse_failed_texts(results: Sequence[Any]) -> None:
    """Raise the first error among the results of a request.

    The error keeps its class, which determines the HTTP status of the reply.
    """
    raise_first_error(results, "text" if len(results) > 1 else None, 1)


@contextmanager
def add_text_number_to_errors(index: int, num_texts: int) -> Iterator[None]:
    """Context manager that adds the number of the text to an error that the text causes."""
    try:
        yield
    except HeadwayError as error:
        raise error if num_texts == 1 else error.with_location(f"text {index + 1}") from None
