"""``headway tokenize``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from headway.text.tokenizer import MergeStep

__all__ = ["tokenize"]


def tokenize(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[str | None, typer.Argument(help="A text; default: the lines of standard input.")] = None,
    side: Annotated[Literal["source", "target"], typer.Option(help="Whose vocabulary.")] = "source",
    merges: Annotated[bool, typer.Option("--merges", help="Show the merges in the order in which they apply.")] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Show the numbers of the tokens.")] = False,
) -> None:
    """Show how a text is cut into tokens.

    Tokens stand between bars; a space that belongs to a token is shown as ␣. Byte-pair encoding starts from the bytes
    of each word, which are all tokens, so nothing is unknown; then it joins neighbours, always the pair learned first.
    """
    from headway.bundle import ClassifierBundle, load_bundle
    from headway.cli.line_io import input_lines

    bundle = load_bundle(model)
    if isinstance(bundle, ClassifierBundle):
        tokenizer = bundle.tokenizer
    else:
        tokenizer = bundle.source_tokenizer if side == "source" else bundle.target_tokenizer
    for line in [text] if text is not None else input_lines(None):
        if merges:
            for _, steps in groupby(tokenizer.merges_applied(line), key=lambda step: step.word):
                _print_merges(list(steps))
        print(_bars(tokenizer.tokens(line)))
        if ids:
            print(" ".join(map(str, tokenizer.encode(line))))


def _print_merges(steps: list[MergeStep]) -> None:
    """The merges of one word, below the bytes that it starts from."""
    first = steps[0]
    start = [
        part
        for piece in first.segmentation
        for part in ((first.left, first.right) if piece == first.result else (piece,))
    ]
    rows = [("bytes", _bars(start))]
    rows += [
        (f"{step.rank + 1:,}: {_visible(step.left)} + {_visible(step.right)}", _bars(step.segmentation))
        for step in steps
    ]
    width = max(len(rule) for rule, _ in rows)
    for rule, segmentation in rows:
        print(f"    {rule:<{width}}  →  {segmentation}")


def _bars(tokens: Sequence[str]) -> str:
    return "|".join(_visible(token) for token in tokens)


def _visible(token: str) -> str:
    return token.replace(" ", "␣").replace("\t", "⇥").replace("\n", "⏎").replace("\r", "␍")
