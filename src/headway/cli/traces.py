"""The option ``--trace``: show searches step by step, as text or JSON."""

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
        help="Show the search step by step: the whole decoder input, the token chosen and the five most probable "
        "tokens, for each hypothesis of the beam.",
    ),
]


def refuse_options_with_trace(given: Mapping[str, bool]) -> None:
    """Raise :class:`ConfigError` for the first option that is set although ``--trace`` cannot show its effect."""
    if names := [name for name, is_given in given.items() if is_given]:
        raise ConfigError(f"--trace and {names[0]} cannot be combined; leave one of them out")


def format_traces(searches: Sequence[DecodingTrace], texts: Mapping[str, str]) -> str:
    """Return the searches as lines of text, followed by the ``texts`` that resulted from them, each after its name."""
    return "".join(f"{line}\n" for line in _lines(searches, texts))


def _lines(searches: Sequence[DecodingTrace], texts: Mapping[str, str]) -> Iterator[str]:
    for number, search in enumerate(searches, start=1):
        if len(searches) > 1:
            yield f"Search {number} of {len(searches)}"
        yield str(search)
    for name, text in texts.items():
        yield f"{name}: {one_line(text)}"


def traces_as_json(searches: Sequence[DecodingTrace]) -> list[dict[str, Any]]:
    """Return searches as JSON values."""
    return [asdict(search) for search in searches]
