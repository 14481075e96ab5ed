"""The option ``--trace``: searches step by step, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.corpus.lines import one_line
from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.predict import DecodingTrace

TraceOption = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="Show the search step by step: the whole input of the decoder, the token chosen and the five most "
        "probable tokens, for each hypothesis of the beam.",
    ),
]


def refuse_with_trace(given: Mapping[str, bool]) -> None:
    """Raise :class:`ConfigError` for the first option that is given although ``--trace`` does not show its effect."""
    if names := [name for name, is_given in given.items() if is_given]:
        raise ConfigError(f"--trace and {names[0]} cannot be combined; leave one of them out")


def trace_lines(searches: Sequence[DecodingTrace], texts: Mapping[str, str]) -> str:
    """Return the lines of searches, and after them the ``texts`` that they led to, with a name for each."""
    return "".join(f"{line}\n" for line in _lines(searches, texts))


def _lines(searches: Sequence[DecodingTrace], texts: Mapping[str, str]) -> Iterator[str]:
    for number, search in enumerate(searches, start=1):
        if len(searches) > 1:
            yield f"Search {number} of {len(searches)}"
        yield str(search)
    for name, text in texts.items():
        yield f"{name}: {one_line(text)}"


def trace_record(searches: Sequence[DecodingTrace]) -> list[dict[str, Any]]:
    """Return searches as values for JSON."""
    return [asdict(search) for search in searches]
