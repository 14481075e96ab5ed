"""``headway classify``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli.line_io import (
    LineReader,
    Report,
    input_name,
    merge_errors,
    one_line,
    output_file,
    read_line_batches,
    show_progress,
)

if TYPE_CHECKING:
    from headway.predict.attribution import Explanation
    from headway.predict.classifier import Classification

__all__ = ["classify", "label_line"]

_MAX_WORDS = 5  # of an explanation in text output


def classify(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[str | None, typer.Argument(help="A text. Default: the lines of the input.")] = None,
    source: Annotated[
        Path | None, typer.Option("-i", "--input", help="Texts, one per line. Default: standard input.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Output file. Default: standard output.")
    ] = None,
    form: Annotated[
        Literal["text", "json"],
        typer.Option("--format", help="text: label and probability, separated by a tab; json: one object per line."),
    ] = "text",
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Also show which words speak for the label (+) or against it (-), by gradient x input: the 5 "
            "strongest words in text, all words and tokens in json. Slower.",
        ),
    ] = False,
    on_error: Annotated[
        Literal["stop", "mark"],
        typer.Option(help="mark: a line that cannot be classified becomes an empty line and is reported."),
    ] = "stop",
) -> None:
    """Classify a text, or each line of a file: one line in, one line out.

    A file is read about two thousand lines at a time, so that texts of similar length are classified together. Lines
    from a pipe are classified as they arrive.
    """
    from headway.errors import ConfigError, HeadwayError
    from headway.predict.classifier import load_classifier

    if text is not None and source is not None:
        raise ConfigError("TEXT and --input exclude each other; give one of them")
    classifier = load_classifier(model)
    name = "TEXT" if text is not None else input_name(source)
    reader = LineReader(name, "text")
    report = Report(name, on_error)

    batches = [[text.encode(errors="surrogateescape")]] if text is not None else read_line_batches(source)
    with show_progress("classifying", source, prints=output is None) as advance, output_file(output) as file:
        for batch in batches:
            texts = reader.sources(batch, report.lines + 1)
            readable = [each.text for each in texts if not isinstance(each, HeadwayError)]
            found = merge_errors(texts, classifier.classify_each(readable))
            report.add(found)
            for each, line in zip(found, texts, strict=True):
                if isinstance(each, HeadwayError) or isinstance(line, HeadwayError):
                    file.write(json.dumps({"error": str(each)}, ensure_ascii=False) + "\n" if form == "json" else "\n")
                    continue
                why = classifier.explain(line.text, each.label) if explain else None
                file.write(_as_json(line.text, each, why) if form == "json" else label_line(each, why))
            file.flush()
            advance(len(batch), sum(map(len, batch)) + len(batch))
    report.finish()


def label_line(found: Classification, why: Explanation | None = None) -> str:
    """Return label and probability, and the strongest words of an explanation, separated by tabs."""
    cells = [one_line(found.label).replace("\t", " "), f"{found.probability:.4f}"]
    if why is not None:
        strongest = sorted(why.words, key=lambda word: -abs(word.value))[:_MAX_WORDS]
        cells.append(" ".join(f"{word.text}:{word.value:+.2f}" for word in strongest))
    return "\t".join(cells) + "\n"


def _as_json(text: str, found: Classification, why: Explanation | None) -> str:
    whole = {"text": text, **asdict(found)}
    if why is not None:
        whole["explanation"] = asdict(why)
    return json.dumps(whole, ensure_ascii=False) + "\n"
