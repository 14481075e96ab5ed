"""``headway tokenize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["tokenize"]


def tokenize(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[str | None, typer.Argument(help="A text; default: the lines of standard input.")] = None,
    side: Annotated[Literal["source", "target"], typer.Option(help="Whose vocabulary.")] = "source",
    merges: Annotated[bool, typer.Option("--merges", help="Show the merges in the order in which they apply.")] = False,
    ids: Annotated[bool, typer.Option("--ids", help="Show the numbers of the tokens.")] = False,
) -> None:
    """Show how a text is cut into tokens. Tokens stand between bars; a space that belongs to a token is shown as ␣."""
    from headway.bundle import Bundle
    from headway.cli.text import input_lines

    bundle = Bundle.load(model)
    tokenizer = bundle.source_tokenizer if side == "source" else bundle.target_tokenizer
    for line in [text] if text is not None else input_lines(None):
        if merges:
            for step in tokenizer.merges_applied(line):
                joined = _bars(step.segmentation)
                print(f"merge {step.rank + 1:>6,}  {_visible(step.left)} + {_visible(step.right)}  →  {joined}")
        print(_bars(tokenizer.tokens(line)))
        if ids:
            print(" ".join(map(str, tokenizer.encode(line))))


def _bars(tokens: list[str] | tuple[str, ...]) -> str:
    return "|".join(_visible(token) for token in tokens)


def _visible(token: str) -> str:
    return token.replace(" ", "␣").replace("\t", "⇥")
