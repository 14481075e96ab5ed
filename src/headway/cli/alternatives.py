"""``headway alternatives``."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli.line_io import output_file
from headway.cli.translate import (
    EnsembleOption,
    SourceLanguageOption,
    TargetLanguageOption,
    load_translator_or_ensemble,
)

__all__ = ["alternatives"]


def alternatives(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[str, typer.Argument(help="The text to translate.")],
    prefix: Annotated[str, typer.Argument(help="The beginning of the translation; default: none yet.")] = "",
    count: Annotated[int, typer.Option("-n", "--count", help="How many tokens to tell.", min=1)] = 10,
    to: TargetLanguageOption = None,
    from_: SourceLanguageOption = None,
    more: EnsembleOption = None,
    form: Annotated[
        Literal["text", "json"],
        typer.Option("--format", help="text: a token and its probability a line; json: log-probabilities in nats."),
    ] = "text",
) -> None:
    """What may come next: the most probable tokens after the beginning of a translation.

    To find out why a word was not chosen, give what stands before it: the word is in the list, or its first token
    is less probable than all that are. "<eos>" ends the translation. Tokens are in quotation marks, as a space may
    belong to one.
    """
    found = load_translator_or_ensemble(model, more).alternatives(
        source, prefix, count=count, target_language=to, source_language=from_
    )
    with output_file(None) as file:
        for each in found:
            if form == "json":
                file.write(json.dumps(asdict(each), ensure_ascii=False) + "\n")
            else:
                token = json.dumps(each.token, ensure_ascii=False)
                file.write(f"{token}\t{math.exp(each.log_probability):.4f}\n")
