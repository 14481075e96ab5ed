"""``headway score``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated

import typer

from headway.cli import options
from headway.cli.line_io import input_lines, output_file, show_progress
from headway.cli.translate import load_ensemble
from headway.errors import DataError, HeadwayError

_BATCH_PAIRS = 2048  # number of pairs read at a time, so that pairs of similar length are scored together


def score(
    model: options.ModelFolder,
    source: Annotated[Path, typer.Option(help="Source text, one sentence per line.")],
    target: Annotated[Path, typer.Option(help="Translations to score, one per line.")],
    output: options.OutputOption = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    other_models: options.EnsembleOption = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also write each token with its log-probability.")] = False,
    format_: Annotated[
        options.OutputFormat,
        typer.Option("--format", help="text: log-probability and number of tokens; json: one object per line."),
    ] = "text",
) -> None:
    """Score given translations: log P(target | source) in nats, one line for each pair.

    Long texts are not split. The probability of the EOS token is included; --tokens shows EOS last.
    """
    from headway.predict import load_translator

    translator = load_ensemble(partial(load_translator, model, precision="float32"), other_models, "float32")
    done, counted, total = 0, 0, 0.0
    pairs = _pairs(source, target)
    with show_progress("scoring", source, to_stdout=output is None) as count_lines, output_file(output) as file:
        while batch := list(islice(pairs, _BATCH_PAIRS)):
            sources, targets = [pair[0] for pair in batch], [pair[1] for pair in batch]
            for each in translator.score_each(sources, targets, target_language=to, source_language=from_):
                done += 1
                if isinstance(each, HeadwayError):
                    raise each.with_location(f"{source} and {target}, line {done}")
                counted += len(each.token_log_probabilities)
                total += each.log_probability
                if format_ == "json":
                    file.write(json.dumps(asdict(each), ensure_ascii=False) + "\n")
                    continue
                shown = zip((*each.tokens, "<eos>"), each.token_log_probabilities, strict=True)
                detail = "\t" + " ".join(f"{json.dumps(name, ensure_ascii=False)}:{value:.4f}" for name, value in shown)
                file.write(f"{each.log_probability:.4f}\t{len(each.tokens)}{detail if tokens else ''}\n")
            count_lines(len(batch), sum(len(text.encode(errors="replace")) + 1 for text in sources))
    perplexity = math.exp(min(-total / max(counted, 1), 700.0))
    print(f"{done:,} pairs, perplexity {perplexity:.4g} over {counted:,} tokens, EOS included", file=sys.stderr)


def _pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    for number, (ours, theirs) in enumerate(zip_longest(input_lines(source), input_lines(target)), start=1):
        if ours is None or theirs is None:
            longer, shorter = (target, source) if ours is None else (source, target)
            raise DataError(f"{longer} has a line {number}, but {shorter} does not; expected a target for each source")
        yield ours, theirs
