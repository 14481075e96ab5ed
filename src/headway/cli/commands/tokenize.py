"""``headway tokenize``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.line_io import LineReport, process_lines, read_text_batches
from headway.corpus.lines import LineReader
from headway.errors import HeadwayError
from headway.text.visible_tokens import make_visible

if TYPE_CHECKING:
    from headway.predict import Source
    from headway.text.base import MergeStep

GROUP = CommandGroup.UNDERSTAND


def tokenize(
    model: options.ModelArgument,
    text: Annotated[str | None, typer.Argument(help="A text. Default: the lines of standard input.")] = None,
    side: Annotated[Literal["source", "target"], typer.Option(help="The vocabulary to use.")] = "source",
    merges: Annotated[
        bool, typer.Option("--merges", help="Also show the merges, in the order in which they are applied.")
    ] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Show the token ids.")] = False,
) -> None:
    """Show how a text is tokenized.

    Tokens are separated by bars. A space that belongs to a token is shown as ␣, a newline as ↵, and a control character
    as its code point. Byte-pair encoding starts from the bytes of each word. Every byte is a token, so no text is out
    of vocabulary. Neighboring tokens are then merged; in each step, the pair that was learned first is merged.
    """
    from headway.bundle import load_bundle
    from headway.calls.looking import tokenize_side

    bundle = load_bundle(model)
    tokenize_side(bundle, "", side, str(model))  # raises an error if the model does not have this side

    def shown(line: str) -> Iterator[str]:
        """Yield the lines of the output for a line of the input."""
        result = tokenize_side(bundle, line, side, str(model))
        if merges:
            for _, steps in groupby(result.merges, key=lambda step: step.word_index):
                yield from _merge_lines(list(steps))
        yield _bars(result.tokens)
        if ids:
            yield " ".join(map(str, result.ids))

    def write(_: int, line: Source | HeadwayError, __: object) -> str:
        assert not isinstance(line, HeadwayError)  # the line report raises errors before this is called
        return "".join(f"{row}\n" for row in shown(line.text))

    name, batches = read_text_batches(text, None)
    report, reader = LineReport(name, "stop", lambda _: ()), LineReader(name, "text")
    lines = process_lines(batches, reader.parse, report, write, job="tokenizing", source=None, output=None)
    with closing(lines):
        for sources, results in lines:
            results += sources


def _merge_lines(steps: list[MergeStep]) -> Iterator[str]:
    """Yield a line with the bytes of a word, then a line for each of its merges."""
    first = steps[0]
    start = [
        part
        for piece in first.segmentation
        for part in ((first.left, first.right) if piece == first.merged else (piece,))
    ]
    rows = [("bytes", _bars(start))]
    rows += [
        (f"{step.rank + 1:,}: {make_visible(step.left)} + {make_visible(step.right)}", _bars(step.segmentation))
        for step in steps
    ]
    width = max(len(rule) for rule, _ in rows)
    for rule, segmentation in rows:
        yield f"    {rule:<{width}}  →  {segmentation}"


def _bars(tokens: Sequence[str]) -> str:
    return "|".join(make_visible(token) for token in tokens)
