"""``headway score``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli.text import input_lines, output_file
from headway.cli.translate import From, More, To, load_models
from headway.errors import DataError, HeadwayError

__all__ = ["score"]

_WINDOW_PAIRS = 2048  # read ahead, so that pairs of like length are scored together


def score(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[Path, typer.Option(help="Source text, one sentence a line.")],
    target: Annotated[Path, typer.Option(help="Translations to score, line by line.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; default: standard output.")
    ] = None,
    to: To = None,
    from_: From = None,
    more: More = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also each token with its log-probability.")] = False,
    form: Annotated[
        Literal["text", "json"],
        typer.Option("--format", help="text: log-probability and number of tokens; json: an object a line."),
    ] = "text",
) -> None:
    """How probable given translations are: log P(target | source) in nats, a line for each pair.

    Nothing is searched for and nothing is split. The end symbol's probability counts, and it is the last that --tokens
    shows.
    """
    translator = load_models(model, more)
    done, counted, total = 0, 0, 0.0
    pairs = _pairs(source, target)
    with output_file(output) as file:
        while window := list(islice(pairs, _WINDOW_PAIRS)):
            sources, targets = [pair[0] for pair in window], [pair[1] for pair in window]
            for each in translator.score_each(sources, targets, target_language=to, source_language=from_):
                done += 1
                if isinstance(each, HeadwayError):
                    raise each.at(f"{source} and {target}, line {done}")
                counted += len(each.token_log_probabilities)
                total += each.log_probability
                if form == "json":
                    file.write(json.dumps(asdict(each), ensure_ascii=False) + "\n")
                    continue
                shown = zip((*each.tokens, "<eos>"), each.token_log_probabilities, strict=True)
                detail = "\t" + " ".join(f"{json.dumps(name, ensure_ascii=False)}:{value:.4f}" for name, value in shown)
                file.write(f"{each.log_probability:.4f}\t{len(each.tokens)}{detail if tokens else ''}\n")
    perplexity = math.exp(min(-total / max(counted, 1), 700.0))
    print(f"{done:,} pairs, perplexity {perplexity:.4g} over {counted:,} tokens, end symbols included", file=sys.stderr)


def _pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    for number, (ours, theirs) in enumerate(zip_longest(input_lines(source), input_lines(target)), start=1):
        if ours is None or theirs is None:
            longer, shorter = (target, source) if ours is None else (source, target)
            raise DataError(f"{longer} has a line {number} and {shorter} has none; expected a target for each source")
        yield ours, theirs
