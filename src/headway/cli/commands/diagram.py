"""``headway diagram``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli.command_groups import CommandGroup
from headway.cli.line_io import output_file

GROUP = CommandGroup.UNDERSTAND


def diagram(
    what: Annotated[
        str,
        typer.Argument(help="A model folder, a recipe (.toml), or a preset, preceded by its kind (transformer:base)."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="Output file, whose name ends in .svg. - prints the SVG to standard output."
        ),
    ] = Path("diagram.svg"),
    level: Annotated[
        Literal["model", "block", "cell", "attention"],
        typer.Option(
            help="model: the blocks, as in figure 1 of the paper. block: each step of a block. cell: the equations of "
            "a recurrent layer. attention: the steps and heads of attention, as in figure 2, with inputs and masks."
        ),
    ] = "model",
    shapes: Annotated[
        bool,
        typer.Option("--shapes", help="Write tensor shapes beside the arrows, and numbers of weights into the boxes."),
    ] = False,
    text: Annotated[
        str | None,
        typer.Option(
            help="For a model folder: draw the model over the tokens of this text, or with --level attention a head's "
            "numbers."
        ),
    ] = None,
) -> None:
    """Draw the architecture of a model from its own configuration."""
    from headway.inspection.diagram import check_output_format
    from headway.inspection.diagram import diagram as draw_diagram

    to_stdout = output == Path("-")
    if not to_stdout:
        check_output_format(output)
    drawn = draw_diagram(what, level=level, shapes=shapes, text=text)
    with output_file(output) as file:
        file.write(drawn.svg)
    if not to_stdout:
        print(f"written: {output}", file=sys.stderr)
