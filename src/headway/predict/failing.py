"""Lists in which a text that failed has its error in its place: what is made of them where errors are raised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from headway.errors import HeadwayError

__all__ = ["without_errors"]

Result = TypeVar("Result")


def without_errors(found: Sequence[Result | HeadwayError], what: str | None, first: int) -> list[Result]:
    """The results; the first error is raised, with the number of its text where there may be several."""
    for number, each in enumerate(found, start=first):
        if isinstance(each, HeadwayError):
            raise each if what is None else each.at(f"{what} {number}")
    return [each for each in found if not isinstance(each, HeadwayError)]
