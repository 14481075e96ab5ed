"""``headway inspect``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli import options
from headway.cli.line_io import output_file


def inspect(
    model: options.ModelFolder,
    source: Annotated[str, typer.Argument(help="The source text.")],
    target: Annotated[
        str | None,
        typer.Argument(help="Its translation, or for a classifier the label to explain. Default: the model's own."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="Output file: .html (a page), .png, .svg, .pdf (a picture) or .json; -: print JSON.",
        ),
    ] = Path("inspection.html"),
    kind: Annotated[
        Literal["encoder", "decoder", "cross", "pooling"] | None,
        typer.Option(help="The attention that a page shows first, a picture draws, and JSON contains."),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Its layer, counted from 1, or from -1 at the end.")] = None,
    head: Annotated[int | None, typer.Option(help="Its head. Default: the mean of all; in JSON all.")] = None,
    alternatives: Annotated[
        int | None,
        typer.Option(min=0, help="Number of most probable tokens to list at each position. Default: 5."),
    ] = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
) -> None:
    """Show a model's attention in all layers and heads, the alignment and the probabilities for a text.

    A page needs no network and no other file. A picture shows all heads of one kind of attention, or one of them
    enlarged with --layer or --head. Works with translators of every architecture and with classifiers.
    """
    from headway.inspection.inspect_text import check_output, write
    from headway.inspection.inspect_text import inspect as inspect_text
    from headway.tasks import load

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
