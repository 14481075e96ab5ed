"""``headway evaluate``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

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
    beam_size: Annotated[int, typer.Option("--beam-size", help="Hypotheses kept at each step; 1 is greedy.")] = 4,
    length_penalty: Annotated[
        float, typer.Option("--length-penalty", help="Exponent of the length penalty; 0: none.")
    ] = 0.6,
    to: Annotated[
        str | None, typer.Option("--to", help="The language to translate into, for a model that knows several.")
    ] = None,
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print the scores.")] = "text",
) -> None:
    """Translate a test set and score it, with signatures and 95 % confidence intervals."""
    from headway.cli.text import input_lines, locating, one_line, output_file
    from headway.errors import DataError
    from headway.evaluate import evaluate as score
    from headway.predict import load

    sources, references = list(input_lines(source)), list(input_lines(reference))
    if len(sources) != len(references):
        raise DataError(
            f"{source} has {len(sources):,} lines and {reference} has {len(references):,}; "
            "expected a reference for each source"
        )
    translator = load(model)
    begin = time.perf_counter()
    with locating(source):
        translations = translator.translate_lines(
            sources, beam_size=beam_size, length_penalty=length_penalty, target_language=to
        )
        found = list(translations)
    seconds = time.perf_counter() - begin
    hypotheses = [translation.text for translation in found]
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
