"""``headway translate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli.text import input_lines, locating, one_line, output_file

if TYPE_CHECKING:
    from headway.predict import Translation

__all__ = ["translate"]


def translate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[
        Path | None, typer.Option("-i", "--input", help="Source text, one sentence a line; default: standard input.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; default: standard output.")
    ] = None,
    beam_size: Annotated[int, typer.Option("--beam-size", help="Hypotheses kept at each step; 1 is greedy.")] = 4,
    length_penalty: Annotated[
        float, typer.Option("--length-penalty", help="Exponent of the length penalty; 0: none.")
    ] = 0.6,
    n_best: Annotated[int, typer.Option("--n-best", help="Candidates for each line.")] = 1,
    form: Annotated[
        Literal["text", "json"],
        typer.Option(
            "--format",
            help="text: one line in, one line out (with --n-best: score, tab, text); json: one object a line.",
        ),
    ] = "text",
) -> None:
    """Translate text, one line in, one line out."""
    from headway.predict import load

    translator = load(model)
    with locating(source), output_file(output) as file:
        for translation in translator.translate_lines(
            input_lines(source), beam_size=beam_size, length_penalty=length_penalty, num_best=n_best
        ):
            file.write(_as_json(translation) if form == "json" else _as_text(translation, n_best))


def _as_text(translation: Translation, n_best: int) -> str:
    """The translation; with several candidates, one a line: score, tab, text. A line stays a line."""
    if n_best == 1:
        return one_line(translation.text) + "\n"
    return "".join(f"{candidate.score:.4f}\t{one_line(candidate.text)}\n" for candidate in translation.candidates)


def _as_json(translation: Translation) -> str:
    candidates = [
        {"text": c.text, "score": c.score, "log_probability": c.log_probability, "tokens": c.tokens}
        for c in translation.candidates
    ]
    return (
        json.dumps({"source": translation.source, **candidates[0], "candidates": candidates}, ensure_ascii=False) + "\n"
    )
