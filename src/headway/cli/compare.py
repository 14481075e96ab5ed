"""``headway compare``: whether one system is better than another, or the difference could be chance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli.decoding import chosen_options
from headway.cli.line_io import input_lines, output_file, show_progress
from headway.cli.translate import (
    Precision,
    PrecisionOption,
    SourceLanguageOption,
    TargetLanguageOption,
    WorkersOption,
    load_translator_or_ensemble,
    open_translator,
)
from headway.errors import ConfigError, DataError, HeadwayError

if TYPE_CHECKING:
    from headway.evaluate import ComparisonTable

__all__ = ["compare"]

_BATCH_LINES = 2048  # sentences of similar length among them are translated together


def compare(
    systems: Annotated[
        list[Path],
        typer.Argument(
            metavar="SYSTEM SYSTEM...",
            help="Model folders, or files with one translation (or label) per line. The first is the baseline.",
        ),
    ],
    reference: Annotated[Path | None, typer.Option(help="Translation: one reference per line.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="Translation: source text for the model folders, one sentence per line.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Classification: labeled texts, .tsv (label first), .csv or .jsonl.")
    ] = None,
    fields: Annotated[
        str | None,
        typer.Option(
            help="With --data: numbers or names of the columns of label and text. Default: 1,2 in .tsv, otherwise "
            "label,text."
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Translation: bleu, chrf, ter, exact_match or token_accuracy; may be repeated. Default: the first 3."
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=100, help="Samples of the paired bootstrap.")] = 1000,
    trials: Annotated[int, typer.Option(min=100, help="Trials of approximate randomization.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Random seed of both tests.")] = 12345,
    differences: Annotated[
        int, typer.Option(min=0, help="How many of the sentences with the largest differences to show.")
    ] = 5,
    to: TargetLanguageOption = None,
    from_: SourceLanguageOption = None,
    precision: PrecisionOption = "float32",
    workers: WorkersOption = 1,
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="How to print the comparison.")] = "text",
) -> None:
    """Compare systems on one test set, and test whether the differences are significant.

    Translations are scored against --reference and compared by paired bootstrap and approximate randomization; labels
    are compared with those of --data by paired bootstrap and McNemar's test. Each system is compared with the first.
    """
    from headway.evaluate import compare_labels, compare_translations

    if (reference is None) == (data is None):
        raise ConfigError("give the references with --reference F, or for classifiers labeled texts with --data F.tsv")
    names = [str(system) for system in systems]
    if len(set(names)) < max(len(names), 2):
        raise ConfigError("expected two or more different systems to compare")
    if data is not None:
        given = {"--source": source, "--metric": metric, "--to": to, "--from": from_, "--workers": workers > 1}
        if wrong := [name for name, value in given.items() if value]:
            raise ConfigError(f"{wrong[0]} is for translations; leave it out with --data")
        texts, truth = _labeled_texts(data, fields)
        labels = [_labels_of(system, texts) for system in systems]
        table = compare_labels(
            dict(zip(names, labels, strict=True)), truth, samples=samples, seed=seed, differences=differences
        )
    else:
        if fields is not None:
            raise ConfigError("--fields is for --data; leave it out with --reference")
        translate = partial(_translations_of, source=source, to=to, from_=from_, precision=precision, workers=workers)
        outputs = [translate(system) for system in systems]
        references = list(input_lines(reference))
        table = compare_translations(
            dict(zip(names, outputs, strict=True)),
            references,
            metrics=metric or ("bleu", "chrf", "ter"),
            samples=samples,
            trials=trials,
            seed=seed,
            differences=differences,
        )
    with output_file(None) as file:
        file.write(json.dumps(asdict(table), ensure_ascii=False) + "\n" if form == "json" else _as_text(table))


def _translations_of(
    system: Path, *, source: Path | None, to: str | None, from_: str | None, precision: Precision, workers: int
) -> list[str]:
    """Return the lines of a file, or the translations of ``source`` by a model."""
    if not system.is_dir():
        return list(input_lines(system))
    if source is None:
        raise ConfigError(f"{system} is a model folder, which needs the source text; give it with --source F")
    sources = list(input_lines(source))
    load = partial(load_translator_or_ensemble, system, None, precision=precision)
    found: list[str] = []
    with open_translator(load, workers) as translator, show_progress(f"translating with {system}", source) as advance:
        for start in range(0, len(sources), _BATCH_LINES * workers):
            batch = sources[start : start + _BATCH_LINES * workers]
            results = translator.translate_each(batch, chosen_options(), target_language=to, source_language=from_)
            for number, each in enumerate(results, start=start + 1):
                if isinstance(each, HeadwayError):
                    raise each.at(f"{source}, line {number}")
                found.append(each.text)
            advance(len(batch), sum(len(text.encode()) + 1 for text in batch))
    return found


def _labeled_texts(data: Path, fields: str | None) -> tuple[list[str], list[str]]:
    from headway.data.labels import read_labeled
    from headway.data.readers import Corpus

    corpus = Corpus.parse({"files": [str(data)], "fields": fields.split(",") if fields else None}, "--data")
    examples = list(read_labeled(corpus, Path()))
    return [text for text, _ in examples], [label for _, label in examples]


def _labels_of(system: Path, texts: Sequence[str]) -> list[str]:
    """Return the labels in a file (the first column of each line), or those that a model predicts."""
    from headway.predict.classifier import load_classifier

    if not system.is_dir():
        labels = [line.partition("\t")[0] for line in input_lines(system)]
        if len(labels) != len(texts):
            raise DataError(f"{system} has {len(labels):,} lines; expected a label for each of {len(texts):,} texts")
        return labels
    found = load_classifier(system).classify_each(list(texts))
    for number, each in enumerate(found, start=1):
        if isinstance(each, HeadwayError):
            raise each.at(f"example {number:,}")
    return [each.label for each in found if not isinstance(each, HeadwayError)]


def _as_text(table: ComparisonTable) -> str:
    """Return the table with its signatures, then the sentences that differ most."""
    tests = list(next(row.p_values for row in table.rows if row.p_values is not None))
    header = ["system", "metric", "score", "difference [95 %]", *(f"p ({test})" for test in tests)]
    cells = [header]
    for row in table.rows:
        difference = "baseline" if row.delta is None else f"{row.delta:+.2f} [{row.low:+.2f}, {row.high:+.2f}]"
        p_values = [f"{row.p_values[test]:.4f}" if row.p_values else "" for test in tests]
        cells.append([row.system, row.metric, f"{row.value:.2f}", difference, *p_values])
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    rows = ["  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    signatures = dict.fromkeys(f"{row.metric}: {row.signature}" for row in table.rows if row.delta is not None)
    shown: list[str] = []
    for each in table.differences:
        shown += ["", f"line {each.number:,}  reference  {each.reference}"]
        shown += [
            f"    {score:6.1f}  {name}  {output}"
            for name, score, output in zip(table.systems, each.scores, each.outputs, strict=True)
        ]
    return "\n".join([*rows, "", *signatures, *shown]) + "\n"
