"""``headway curves``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli.command_groups import CommandGroup

GROUP = CommandGroup.TRAIN


def curves(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Output file: .png, .svg or .pdf.")] = Path(
        "curves.png"
    ),
    x: Annotated[
        Literal["step", "minutes", "tokens"],
        typer.Option("--x", help="Unit of the horizontal axis. minutes: training time without validation."),
    ] = "step",
) -> None:
    """Draw the learning curves of one or more runs: loss, BLEU, learning rate and speed."""
    from headway.inspection.curves import draw_curves

    for run in draw_curves(runs, output, x_axis=x):
        print(f"{run}: skipped, because no training step has been recorded yet", file=sys.stderr)
    print(f"written: {output}", file=sys.stderr)
