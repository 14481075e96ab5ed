"""``headway rerank``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer

from headway.cli import options
from headway.cli.line_io import input_lines, output_file
from headway.errors import ConfigError, DataError


def rerank(
    candidates: Annotated[
        Path, typer.Option(help="Output of translate --n-best: line number, score and text, separated by tabs.")
    ],
    models: Annotated[list[Path] | None, typer.Argument(metavar="[MODEL]...", help="Model folders.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="Source text, one sentence per line; required with models.")
    ] = None,
    output: options.OutputOption = None,
    weight: Annotated[
        list[float] | None, typer.Option(help="Weight of a model; give one per model, in order. Default: 1.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0, help="Exponent of the length penalty; 0 ranks by probability. Default: 0.6.")
    ] = None,
    mbr: Annotated[
        bool, typer.Option("--mbr", help="Rank by agreement with the other candidates (chrF), not by models.")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="Write only the best candidate of each line, without number and score.")
    ] = False,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    format_: Annotated[
        options.OutputFormat, typer.Option("--format", help="text: like the input; json: one object per line.")
    ] = "text",
) -> None:
    """Reorder candidate translations, best first, by one or more models or by their agreement with each other.

    With models, the score is the weighted sum of their log-probabilities, each divided by the length penalty. With
    --mbr (minimum Bayes risk), the score is the mean chrF against all candidates, weighted by exp(score).
    """
    if mbr == bool(models):
        raise ConfigError("give either one or more model folders, or --mbr")
    if best and format_ == "json":
        raise ConfigError("--best writes lines of text; leave it out with --format json, which lists the best first")
    from headway.decode import DecodingOptions
    from headway.predict import load_translator, rank_by_agreement, rank_by_models

    lists = list(_lists(candidates, every_line=best))
    if mbr:
        for_models = {"--weight": weight or None, "--source": source, "--length-penalty": length_penalty}
        if given := [name for name, value in {**for_models, "--to": to, "--from": from_}.items() if value is not None]:
            raise ConfigError(
                f"{given[0]} applies to models, but --mbr compares the candidates with each other; leave it out"
            )
        ranked = [rank_by_agreement(texts, scores) for _, scores, texts in lists]
    elif source is None:
        raise ConfigError("models need the source text; give its file with --source")
    else:
        sources, folders = list(input_lines(source)), models or []
        for number, _, _ in lists:
            if not 1 <= number <= len(sources):
                raise DataError(f"a candidate is for line {number}, but {source} has {len(sources):,} lines")
        ranked = rank_by_models(
            [load_translator(model) for model in folders],
            [sources[number - 1] for number, _, _ in lists],
            [texts for _, _, texts in lists],
            weights=weight or [1.0] * len(folders),
            alpha=DecodingOptions().length_penalty if length_penalty is None else length_penalty,
            target_language=to,
            source_language=from_,
        )
    with output_file(output) as file:
        for (number, _, _), found in zip(lists, ranked, strict=True):
            if format_ == "json":
                rows = [{"text": each.text, "score": each.score} for each in found]
                file.write(json.dumps({"line": number, **rows[0], "candidates": rows}, ensure_ascii=False) + "\n")
            elif best:
                file.write(found[0].text + "\n")
            else:
                file.writelines(f"{number}\t{each.score:.4f}\t{each.text}\n" for each in found)


def _lists(path: Path, *, every_line: bool) -> Iterator[tuple[int, list[float], list[str]]]:
    """Yield the number of each source line, and the scores and texts of its candidates.

    If ``every_line`` is True, every source line must have candidates.
    """
    before: int | None = None
    for expected, (number, rows) in enumerate(groupby(_rows(path), key=itemgetter(0)), start=1):
        if before is not None and number < before:
            raise DataError(f"{path}: candidates for line {number} follow those for line {before}; sort -n -s -k 1,1")
        if every_line and number != expected:
            raise DataError(
                f"{path}: expected candidates for line {expected}, got candidates for line {number}; --best writes one "
                "line for each source line, counted from 1"
            )
        before = number
        _, scores, texts = zip(*rows, strict=True)
        yield number, list(scores), list(texts)


def _rows(path: Path) -> Iterator[tuple[int, float, str]]:
    for place, line in enumerate(input_lines(path), start=1):
        cells = line.split("\t")
        try:
            number, score, text = int(cells[0]), float(cells[1] or "-inf"), cells[2]
            if math.isnan(score) or score == math.inf:
                raise ValueError(score)
        except (ValueError, IndexError):
            raise DataError(
                f"{path}, line {place}: expected line number, score and text, separated by tabs, as translate "
                f"--n-best writes them; got {line[:40]!r}"
            ) from None
        yield number, score, text
