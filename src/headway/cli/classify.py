"""``headway classify``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli.lines import LineReader, Report, in_place
from headway.cli.text import byte_windows, one_line, output_file, place_of

if TYPE_CHECKING:
    from headway.errors import HeadwayError
    from headway.predict import Source
    from headway.predict.attribution import Explanation
    from headway.predict.classifier import Classification

__all__ = ["classify", "label_line"]

_MOST_WORDS = 5  # of an explanation in a line of text


def classify(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    text: Annotated[str | None, typer.Argument(help="A text; default: the lines of the input.")] = None,
    source: Annotated[
        Path | None, typer.Option("-i", "--input", help="Texts, one a line; default: standard input.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; default: standard output.")
    ] = None,
    form: Annotated[
        Literal["text", "json"],
        typer.Option("--format", help="text: label and probability, parted by a tab; json: an object a line."),
    ] = "text",
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Also which words speak for the label (+) and against it (-): gradient x input; text shows the 5 that "
            "count most, json all words and tokens. Slower.",
        ),
    ] = False,
    on_error: Annotated[
        Literal["stop", "mark"],
        typer.Option(help="mark: a line that cannot be classified becomes an empty one, and is told at the end."),
    ] = "stop",
) -> None:
    """Give a text a label, or each line of a file: one line in, one line out.

    Of a file some thousand lines are read at a time, so that texts of like length are classified together; what comes
    from a pipe is classified as it arrives.
    """
    from headway.errors import ConfigError, HeadwayError
    from headway.predict.classifier import load_classifier

    if text is not None and source is not None:
        raise ConfigError("a TEXT and --input: give one of them")
    classifier = load_classifier(model)
    place = "TEXT" if text is not None else place_of(source)
    reader = LineReader(place, "text")
    report = Report(place, on_error)

    def classified(sources: Sequence[Source]) -> list[Classification | HeadwayError]:
        return classifier.classify_each([each.text for each in sources])

    windows = [[text.encode(errors="surrogateescape")]] if text is not None else byte_windows(source)
    with output_file(output) as file:
        for window in windows:
            texts = reader.sources(window, report.lines + 1)
            found = in_place(texts, classified)
            report.add(found)
            for each, line in zip(found, texts, strict=True):
                if isinstance(each, HeadwayError) or isinstance(line, HeadwayError):
                    file.write(json.dumps({"error": str(each)}, ensure_ascii=False) + "\n" if form == "json" else "\n")
                    continue
                why = classifier.explain(line.text, each.label) if explain else None
                file.write(_as_json(line.text, each, why) if form == "json" else label_line(each, why))
            file.flush()
    report.finish()


def label_line(found: Classification, why: Explanation | None = None) -> str:
    """Label and probability, and the words that count most, parted by tabs."""
    cells = [one_line(found.label).replace("\t", " "), f"{found.probability:.4f}"]
    if why is not None:
        strongest = sorted(why.words, key=lambda word: -abs(word.value))[:_MOST_WORDS]
        cells.append(" ".join(f"{word.text}:{word.value:+.2f}" for word in strongest))
    return "\t".join(cells) + "\n"


def _as_json(text: str, found: Classification, why: Explanation | None) -> str:
    whole = {"text": text, **asdict(found)}
    if why is not None:
        whole["explanation"] = asdict(why)
    return json.dumps(whole, ensure_ascii=False) + "\n"
