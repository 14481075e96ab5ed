"""``headway evaluate``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli.decoding import chosen_options
from headway.cli.lines import located
from headway.cli.text import input_lines, one_line, output_file, place_of
from headway.cli.translate import From, More, PrecisionOption, To, load_models

__all__ = ["evaluate"]


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[Path, typer.Option(help="Source text, one sentence a line.")],
    reference: Annotated[Path, typer.Option(help="Reference translations, line by line.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the translations to this file.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="bleu, chrf, ter, exact_match or token_accuracy; may be repeated.")
    ] = None,
    to: To = None,
    from_: From = None,
    more: More = None,
    precision: PrecisionOption = "float32",
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print the scores.")] = "text",
) -> None:
    """Translate a test set and score it, with signatures and 95 % confidence intervals."""
    from headway.errors import DataError, HeadwayError
    from headway.evaluate import evaluate as score

    options = chosen_options()
    sources, references = list(input_lines(source)), list(input_lines(reference))
    if len(sources) != len(references):
        raise DataError(
            f"{source} has {len(sources):,} lines and {reference} has {len(references):,}; "
            "expected a reference for each source"
        )
    translator = load_models(model, more, precision=precision)
    begin = time.perf_counter()
    found = translator.translate_each(sources, options, target_language=to, source_language=from_)
    seconds = time.perf_counter() - begin
    for number, each in enumerate(found, start=1):
        if isinstance(each, HeadwayError):
            raise located(each, place_of(source), number)
    hypotheses = [each.text for each in found if not isinstance(each, HeadwayError)]
    if output is not None:
        with output_file(output) as file:
            file.writelines(one_line(text) + "\n" for text in hypotheses)
    scores = score(hypotheses, references, metrics=metric or ("bleu", "chrf"))
    if form == "json":
        print(json.dumps({"sentences": len(sources), "seconds": seconds, "scores": [asdict(s) for s in scores]}))
        return
    for one in scores:
        print(one)
    typer.echo(f"{len(sources):,} sentences translated in {seconds:.1f} s", err=True)
