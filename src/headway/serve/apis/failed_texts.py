"""Refusing a request one of whose texts has failed, in APIs that have no errors of single texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.predict.results import raise_first_error


def refuse_failed_texts(results: Sequence[Any]) -> None:
    """Raise the first error among the results of a request. Its class, from which an API chooses the status, stays.

    If there are several texts, the message begins with ``text N``, counted from 1.
    """
    raise_first_error(results, "text" if len(results) > 1 else None, 1)
