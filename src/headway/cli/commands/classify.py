"""``headway classify``."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.line_io import LineReport, process_lines, read_text_batches
from headway.corpus.labels import format_label_line
from headway.corpus.lines import LineReader
from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.predict import Classification, Source

GROUP = CommandGroup.RUN


def classify(
    model: options.ModelArgument,
    text: options.TextArgument = None,
    source: options.TextInputOption = None,
    output: options.OutputOption = None,
    format_: Annotated[
        options.OutputFormat,
        typer.Option("--format", help="text: label and probability, separated by a tab; json: one object per line."),
    ] = "text",
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Also show how much each word supports (+) or opposes (-) the label: the decrease in the label's "
            "probability without the word. Text output shows the 5 strongest words, json all. Slower.",
        ),
    ] = False,
    device: options.DeviceOption = "auto",
    on_error: options.OnErrorOption = "stop",
) -> None:
    """Classify a text, or each line of a file: one line in, one line out.

    A file is read about two thousand lines at a time, so that texts of similar length are classified together. Lines
    from a pipe are classified as they arrive.
    """
    from headway.predict import load_classifier
    from headway.predict.classification.occlusion import occlude

    name, batches = read_text_batches(text, source)
    classifier = load_classifier(model, device=device)

    def write(_: int, line: Source | HeadwayError, result: Classification | HeadwayError) -> str:
        if isinstance(result, HeadwayError) or isinstance(line, HeadwayError):
            return json.dumps({"error": str(result)}, ensure_ascii=False) + "\n" if format_ == "json" else "\n"
        why = occlude(classifier, line.text, result.label) if explain else None
        if format_ == "text":
            return format_label_line(result, why)
        whole = {"text": line.text, **asdict(result)} | ({} if why is None else {"explanation": asdict(why)})
        return json.dumps(whole, ensure_ascii=False) + "\n"

    report = LineReport(name, on_error, lambda found: ["truncated"] * found.truncated)
    reader = LineReader(name, "text")
    lines = process_lines(batches, reader.parse, report, write, job="classifying", source=source, output=output)
    with closing(lines):
        for sources, results in lines:
            results += classifier.classify_each([item.text for item in sources])
