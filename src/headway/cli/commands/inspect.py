"""``headway inspect``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.line_io import output_file, read_text_or_stdin

GROUP = CommandGroup.UNDERSTAND


def inspect(
    model: options.ModelArgument,
    source: Annotated[
        str | None,
        typer.Argument(
            help="The source text, the prompt of a language model, or a text with or without [MASK]. Default: standard "
            "input."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(
            help="The translation, the continuation of the prompt, or the label to explain. Default: the model's own."
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="Output file: .html (a page), .png, .svg, .pdf (a picture), .txt (the decoding step by step) or "
            ".json. - prints JSON to standard output.",
        ),
    ] = Path("inspection.html"),
    kind: Annotated[
        Literal["encoder", "decoder", "cross", "pooling"] | None,
        typer.Option(help="Kind of attention to show first in a page, draw in a picture, or write as JSON."),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Layer to show: 1 is the first, -1 the last.")] = None,
    head: Annotated[
        int | None, typer.Option(help="Head to show. Default: the mean of all heads or, in JSON, all heads.")
    ] = None,
    alternatives: Annotated[
        int | None, typer.Option(min=0, help="Number of most probable tokens to list at each position. Default: 5.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="For a language model: maximum length of its own continuation, in which it takes the most probable "
            "token at each step; 0 inspects only the prompt. Default: 20.",
        ),
    ] = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    device: options.DeviceOption = "auto",
) -> None:
    """Show a model's attention in all layers and heads, the alignment and the probabilities for a text.

    A page is a single file that needs no network. A picture shows all heads of one kind of attention or, with --layer
    or --head, a single map enlarged. The model may be a translation model of any architecture, a classifier, a language
    model or a masked language model. For a language model, a page also shows where the model was unsure.
    """
    from headway.inspection.inspect_text import check_output_format, write_inspection
    from headway.inspection.inspect_text import inspect as inspect_text
    from headway.tasks import load

    to_stdout = output == Path("-")
    if not to_stdout:
        check_output_format(output)
    seen = inspect_text(
        load(model, device=device),
        read_text_or_stdin(source),
        target,
        name=str(model),
        alternatives=alternatives,
        target_language=to,
        source_language=from_,
        max_new_tokens=max_new_tokens,
    )
    if to_stdout:
        with output_file(None) as file:
            file.write(seen.filter_maps(kind, layer, head).as_json() + "\n")
        return
    write_inspection(seen, output, kind=kind, layer=layer, head=head)
    print(f"written: {output}", file=sys.stderr)
