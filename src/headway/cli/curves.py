"""``headway curves``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["curves"]


def curves(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, to compare them.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The picture to write: .png, .svg or .pdf.")] = Path(
        "curves.png"
    ),
    x: Annotated[
        Literal["step", "minutes", "tokens"],
        typer.Option("--x", help="What the curves are drawn against; minutes are of training alone."),
    ] = "step",
) -> None:
    """Draw the learning curves of one or more runs: loss, BLEU, learning rate and speed."""
    from headway.inspection.curves import draw

    draw(runs, output, x=x)
    print(f"drawn: {output}", file=sys.stderr)
