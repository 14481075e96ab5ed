"""``headway fill``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.line_io import input_lines, input_name, one_line, output_file, show_progress

if TYPE_CHECKING:
    from headway.predict import Filling

GROUP = CommandGroup.RUN


def fill(
    model: options.ModelFolder,
    text: Annotated[
        str | None, typer.Argument(help="A text with [MASK] in place of words. Default: the lines of --input.")
    ] = None,
    source: options.TextInputOption = None,
    output: options.OutputOption = None,
    format_: Annotated[
        options.OutputFormat,
        typer.Option(
            "--format", help="text: probability, words and text, separated by tabs; json: one object per text."
        ),
    ] = "text",
    top: Annotated[int, typer.Option(min=1, help="Number of fillings of each text.")] = 5,
    candidates: Annotated[
        list[str] | None,
        typer.Option("--candidate", help="A word or phrase to choose from, of any number of tokens; may be repeated."),
    ] = None,
    device: options.DeviceOption = "auto",
) -> None:
    """Fill in the [MASK]s of a text with a masked language model: the best fillings and their probabilities.

    Without --candidate, each [MASK] is one token. With --input, a blank line follows the fillings of each line.
    """
    from headway.errors import ConfigError, HeadwayError
    from headway.predict import load_masked_language_model

    if text is not None and source is not None:
        raise ConfigError("TEXT and --input cannot be combined; give one of them")
    loaded = load_masked_language_model(model, device=device)
    if text is not None:
        with output_file(output) as file:
            file.write(_format(text, loaded.fill(text, top, candidates), format_))
        return
    with show_progress("filling", source, to_stdout=output is None) as count_lines, output_file(output) as file:
        for number, line in enumerate(input_lines(source), start=1):
            try:
                fillings = loaded.fill(line, top, candidates)
            except HeadwayError as error:
                raise error.with_location(f"{input_name(source)}, line {number}") from None
            file.write(_format(line, fillings, format_) + "\n" * (format_ == "text"))
            count_lines(1, len(line.encode()) + 1)


def _format(text: str, found: Sequence[Filling], format_: options.OutputFormat) -> str:
    if format_ == "json":
        return json.dumps({"text": text, "fillings": [asdict(one) for one in found]}, ensure_ascii=False) + "\n"
    return "".join(f"{one.probability:.4f}\t{one_line(' '.join(one.words))}\t{one_line(one.text)}\n" for one in found)
