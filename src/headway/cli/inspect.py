"""``headway inspect``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli.line_io import output_file
from headway.cli.translate import SourceLanguageOption, TargetLanguageOption

__all__ = ["inspect"]


def inspect(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Argument(help="The text that the model reads.")],
    target: Annotated[
        str | None,
        typer.Argument(help="Its translation, or for a classifier the label to explain; default: the model's own."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="The file: .html (a page), .png, .svg, .pdf (a picture), .json; -: JSON to stdout."
        ),
    ] = Path("inspection.html"),
    kind: Annotated[
        Literal["encoder", "decoder", "cross", "pooling"] | None,
        typer.Option(help="The attention that a page shows first, a picture draws, JSON holds."),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="The same of a layer, counted from 1, or -1 from the end.")] = None,
    head: Annotated[int | None, typer.Option(help="The same of a head; default: the mean, in JSON all.")] = None,
    alternatives: Annotated[
        int | None,
        typer.Option(min=0, help="How many of the most probable tokens to tell at each position; default: 5."),
    ] = None,
    to: TargetLanguageOption = None,
    from_: SourceLanguageOption = None,
) -> None:
    """Show what a model sees in a text: attention of all layers and heads, alignment, probabilities.

    A page needs no network and no other file. A picture has all heads of one kind of attention, or with --layer or
    --head one of them large. Works with translators of every architecture and with classifiers.
    """
    from headway.inspection.inspect_text import check_output, write
    from headway.inspection.inspect_text import inspect as inspect_text
    from headway.predict import load

    to_stdout = output == Path("-")
    if not to_stdout:
        check_output(output)
    seen = inspect_text(
        load(model),
        source,
        target,
        name=str(model),
        alternatives=alternatives,
        target_language=to,
        source_language=from_,
    )
    if to_stdout:
        with output_file(None) as file:
            file.write(seen.only(kind, layer, head).as_json() + "\n")
        return
    write(seen, output, kind=kind, layer=layer, head=head)
    print(f"written: {output}", file=sys.stderr)
