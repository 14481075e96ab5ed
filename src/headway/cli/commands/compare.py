"""``headway compare``: test whether one system is better than another or the difference may be due to chance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.decoding import DecodingCommand, decoding_options
from headway.cli.line_io import convert_all, output_file, read_input_lines
from headway.cli.loading import device_for_workers, language_from_extension, open_language_model
from headway.cli.model_folders import MODEL
from headway.cli.text_documents import read_text_documents
from headway.cli.translations import translate_file
from headway.corpus.labels import read_labeled_file
from headway.errors import ConfigError, DataError

if TYPE_CHECKING:
    from headway.calls.measurements import Convert
    from headway.evaluation import ComparisonTable
    from headway.predict.translation.options import TranslateKeywords

GROUP = CommandGroup.EVALUATE
COMMAND_CLASS = DecodingCommand


def compare(
    systems: Annotated[
        list[Path],
        typer.Argument(
            metavar="SYSTEM SYSTEM...",
            help="Model folders, or files with one translation (or label) per line. The first system is the baseline.",
        ),
        MODEL,
    ],
    reference: options.ReferenceOption = None,
    source: Annotated[
        Path | None,
        typer.Option(help="For translation models: file with the source text to translate, one sentence per line."),
    ] = None,
    data: options.LabeledDataOption = None,
    fields: options.FieldsOption = None,
    metric: options.MetricOption = None,
    samples: Annotated[int, typer.Option(min=100, help="Number of samples of the paired bootstrap.")] = 1000,
    trials: Annotated[int, typer.Option(min=100, help="Number of trials of approximate randomization.")] = 10_000,
    test_seed: Annotated[int, typer.Option(help="Random seed of both tests.")] = 12345,
    differences: Annotated[
        int, typer.Option(min=0, help="Number of sentences to show: the sentences with the largest differences.")
    ] = 5,
    documents: options.DocumentsOption = None,
    stride: options.StrideOption = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "float32",
    workers: options.WorkersOption = 1,
    format_: options.FormatOption = "text",
) -> None:
    """Compare systems on one test set, and test whether the differences are significant.

    Translations are scored against --reference (BLEU, chrF and TER unless --metric is given) and compared by paired
    bootstrap and approximate randomization. BLEU and TER are tokenized for the target language, which is given by --to,
    the first model, or the extension of the --reference file (ref.zh). Predicted labels are scored against the labels
    in --data (accuracy) and compared by paired bootstrap and McNemar's test. Language models are compared by bits per
    byte on the text in --data, by paired bootstrap and approximate randomization over documents. Each system is
    compared with the first.
    """
    from headway.bundle import read_config
    from headway.decode.request import DecodingOptions
    from headway.evaluation import compare_labels

    if (reference is None) == (data is None):
        raise ConfigError(
            "pass references with --reference F or, for classifiers and language models, texts with --data F"
        )
    names = [str(system) for system in systems]
    if len(set(names)) < max(len(names), 2):
        raise ConfigError("expected two or more different systems to compare")
    of_models = {"--source": source, "--from": from_, "--precision": precision != "float32",
                 "--workers": workers > 1, "a search option": decoding_options() != DecodingOptions()}  # fmt: skip
    tests = {"samples": samples, "seed": test_seed}
    given = [name for name, value in of_models.items() if value]
    folders = [system for system in systems if (system / "config.json").exists()]
    capabilities = {folder: read_config(folder).capability for folder in folders}
    kinds = set(capabilities.values())
    of_documents = {"--documents": documents, "--stride": stride}
    if "continues" not in kinds and (wrong := [name for name, value in of_documents.items() if value is not None]):
        raise ConfigError(f"{wrong[0]} is for language models; leave it out")
    if "continues" in kinds:
        if others := [system for system in systems if capabilities.get(system) != "continues"]:
            raise ConfigError(f"{others[0]}: not a language model; language models are compared only with each other")
        if data is None:
            raise ConfigError("language models are compared on text; pass a text with --data F")
        of_translations = [*["--to"] * (to is not None), *["--metric"] * bool(metric)]
        if wrong := [*(name for name in given if name != "--precision"), *of_translations]:
            raise ConfigError(f"{wrong[0]} is for translations; leave it out with language models")
        tests["trials"] = trials
        table = _compare_language_models(systems, device, data, fields, documents or "file", stride, precision, tests)
    elif data is not None:
        if wrong := [*given, *["--to"] * (to is not None), *["--metric"] * bool(metric)]:
            raise ConfigError(f"{wrong[0]} is for translations; leave it out with --data")
        texts, truth = read_labeled_file(data, fields)
        labels = {str(system): _labels_of(system, device, texts, data) for system in systems}
        table = compare_labels(labels, truth, **tests, max_differences=differences)
    else:
        if fields is not None:
            raise ConfigError("--fields is for --data; leave it out with --reference")
        models = [system for system in systems if system.is_dir()]
        if given and not models:
            raise ConfigError(f"{given[0]} is for model folders, but every system is a file; leave it out")
        if models and source is None:
            raise ConfigError(f"{models[0]} is a model folder, which needs the source text; pass it with --source F")
        assert reference is not None
        tests["trials"] = trials
        table = _compare_translations(
            systems,
            reference,
            source,
            {"target_language": to, "source_language": from_},
            metric or ("bleu", "chrf", "ter"),
            {**tests, "max_differences": differences},
            device=device,
            precision=precision,
            workers=workers,
        )
    with output_file(None) as file:
        file.write(json.dumps(asdict(table), ensure_ascii=False) + "\n" if format_ == "json" else _as_text(table))


def _compare_translations(
    systems: Sequence[Path],
    reference: Path,
    source: Path | None,
    languages: TranslateKeywords,
    metrics: Sequence[str],
    tests: dict[str, int],
    *,
    device: options.Device,
    precision: options.Precision,
    workers: int,
) -> ComparisonTable:
    """Compare files of translations, and model folders, which translate ``source``."""
    from headway.bundle import read_config
    from headway.calls.measurements import compare_outputs, find_unsuitable_tokenization
    from headway.predict import load_translator

    models = [system for system in systems if system.is_dir()]
    references = list(read_input_lines(reference))
    read = {str(path): list(read_input_lines(path)) for path in [*systems, source] if path and path not in models}
    for name, lines in read.items():  # check before translating, which may take a long time
        if len(lines) != len(references):
            raise DataError(
                f"{name} has {len(lines):,} lines and {reference} has {len(references):,}; expected a reference "
                "for each line"
            )
    device = device_for_workers(device, workers) if models else device
    for system in models:
        assert source is not None
        load = partial(load_translator, system, device=device, precision=precision)
        job = f"translating with {system}"
        translations, _ = translate_file(load, read[str(source)], source, workers, languages, job)
        read[str(system)] = [translation.text for translation in translations]
    language = languages["target_language"]
    language = language or (read_config(models[0]).target_language if models else language_from_extension(reference))
    outputs = {str(system): read[str(system)] for system in systems}
    table = compare_outputs(outputs, references, language, metrics=metrics, **tests)
    if "bleu" in metrics and (tokenization := find_unsuitable_tokenization(references, language)):
        typer.echo(
            f"hardly any line of {reference} has four or more tokens, which BLEU needs (tokenization {tokenization}). "
            "If its language is written without spaces between words, specify it with --to (--to zh)",
            err=True,
        )
    return table


def _compare_language_models(
    systems: Sequence[Path],
    device: options.Device,
    data: Path,
    fields: str | None,
    documents: str,
    stride: int | None,
    precision: options.Precision,
    tests: dict[str, int],
) -> ComparisonTable:
    from headway.calls.measurements import compare_bits_per_byte

    texts = list(read_text_documents(data, fields, documents))
    loaders = {str(system): partial(open_language_model, system, device, precision) for system in systems}

    def convert(name: str) -> Convert:
        return partial(convert_all, job=f"scoring with {name}", source=data, unit="document")

    return compare_bits_per_byte(loaders, texts, stride=stride, convert=convert, **tests)


def _labels_of(system: Path, device: options.Device, texts: Sequence[str], data: Path) -> list[str]:
    """Return the labels in a file (the first column of each line), or the predictions of a model folder's model."""
    from headway.calls.measurements import predict_labels, read_labels
    from headway.predict import load_classifier

    if not system.is_dir():
        labels = read_labels(read_input_lines(system))
        if len(labels) != len(texts):
            raise DataError(f"{system} has {len(labels):,} lines; expected a label for each of {len(texts):,} texts")
        return labels
    convert = partial(convert_all, job=f"classifying with {system}", source=data, unit="example")
    return predict_labels(load_classifier(system, device=device), texts, convert)


def _as_text(table: ComparisonTable) -> str:
    """Format the table, its metrics' signatures, and the sentences that differ most."""
    cells = table.cells()
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    signatures = dict.fromkeys(f"{row.metric}: {row.signature}" for row in table.rows if row.delta is not None)
    shown: list[str] = []
    for difference in table.differences:
        shown += ["", f"line {difference.number:,}  reference  {difference.reference}"]
        shown += [
            f"    {score:6.1f}  {name}  {output}"
            for name, score, output in zip(table.systems, difference.scores, difference.outputs, strict=True)
        ]
    note = [f"no intervals and no tests: {table.no_tests_reason}"] if table.no_tests_reason else []
    return "\n".join([*rows, "", *note, *signatures, *shown]) + "\n"
