"""``headway fill``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.line_io import LineReport, process_lines, read_text_batches
from headway.corpus.lines import LineReader, one_line
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.predict import Filling, Source

GROUP = CommandGroup.RUN


def fill(
    model: options.ModelArgument,
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
    top: Annotated[int, typer.Option(min=1, help="Number of fillings to show for each text.")] = 5,
    candidates: Annotated[
        list[str] | None,
        typer.Option(
            "--candidate", help="A word or phrase that may be filled in, of any number of tokens; may be repeated."
        ),
    ] = None,
    device: options.DeviceOption = "auto",
) -> None:
    """Fill in the [MASK]s of a text with a masked language model, and show the best fillings and their probabilities.

    Without --candidate, each [MASK] is one token. With --input, a blank line follows the fillings of each line.
    """
    from headway.predict import load_masked_language_model

    name, batches = read_text_batches(text, source, batch_lines=1)  # the model fills one text at a time
    loaded = load_masked_language_model(model, device=device)
    end = "\n" if format_ == "text" and text is None else ""

    def write(_: int, line: Source | HeadwayError, fillings: Sequence[Filling]) -> str:
        assert not isinstance(line, HeadwayError)  # the line report raises errors before this is called
        return _format(line.text, fillings, format_) + end

    def fill_text(line: str) -> list[Filling] | HeadwayError:
        try:
            return loaded.fill(line, top, candidates)
        except HeadwayError as error:
            return error

    report, reader = LineReport(name, "stop", lambda _: ()), LineReader(name, "text")
    lines = process_lines(batches, reader.parse, report, write, job="filling", source=source, output=output)
    with closing(lines):
        for sources, results in lines:
            results += [fill_text(line.text) for line in sources]


def _format(text: str, fillings: Sequence[Filling], format_: options.OutputFormat) -> str:
    if format_ == "json":
        return json.dumps({"text": text, "fillings": [asdict(one) for one in fillings]}, ensure_ascii=False) + "\n"
    return "".join(
        f"{one.probability:.4f}\t{one_line(' '.join(one.words))}\t{one_line(one.text)}\n" for one in fillings
    )
