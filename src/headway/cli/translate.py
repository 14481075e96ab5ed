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
    text: Annotated[str | None, typer.Argument(help="A text; default: the lines of the input.")] = None,
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
    to: Annotated[
        str | None, typer.Option("--to", help="The language to translate into, for a model that knows several.")
    ] = None,
    form: Annotated[
        Literal["text", "json"],
        typer.Option(
            "--format",
            help="text: a line in, a line out (with --n-best: line number, score, text); json: an object a line.",
        ),
    ] = "text",
) -> None:
    """Translate a text, or a file line by line: one line in, one line out.

    Lines are read some thousands at a time, so that sentences of like length are translated together.
    """
    from headway.errors import ConfigError
    from headway.predict import load

    if text is not None and source is not None:
        raise ConfigError("a TEXT and --input: give one of them")
    translator = load(model)
    lines = [text] if text is not None else input_lines(source)
    with locating(source), output_file(output) as file:
        found = translator.translate_lines(
            lines, beam_size=beam_size, length_penalty=length_penalty, n_best=n_best, target_language=to
        )
        for number, translation in enumerate(found, start=1):
            file.write(_as_json(translation) if form == "json" else _as_text(translation, number, n_best))


def _as_text(translation: Translation, number: int, n_best: int) -> str:
    """The translation; with several candidates, one a line: number of the source line, score, text."""
    if n_best == 1:
        return one_line(translation.text) + "\n"
    return "".join(f"{number}\t{found.score:.4f}\t{one_line(found.text)}\n" for found in translation.candidates)


def _as_json(translation: Translation) -> str:
    candidates = [
        {"text": c.text, "score": c.score, "log_probability": c.log_probability, "tokens": c.tokens}
        for c in translation.candidates
    ]
    return (
        json.dumps({"source": translation.source, **candidates[0], "candidates": candidates}, ensure_ascii=False) + "\n"
    )
