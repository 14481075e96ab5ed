"""``headway evaluate``: scores of a translation model or of a classifier on a test set."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli.classify import label_line
from headway.cli.decoding import chosen_options
from headway.cli.line_io import Report, input_lines, input_name, one_line, output_file, show_progress
from headway.cli.translate import (
    EnsembleOption,
    Precision,
    PrecisionOption,
    ShortlistOption,
    SourceLanguageOption,
    TargetLanguageOption,
    WorkersOption,
    load_translator_or_ensemble,
    open_translator,
)

if TYPE_CHECKING:
    from headway.predict import Translation
    from headway.predict.classifier import Classification

__all__ = ["evaluate"]

Form = Literal["text", "json"]
_BATCH_LINES = 2048  # sentences of similar length among them are translated together


def evaluate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[Path | None, typer.Option(help="Translation: source text, one sentence per line.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Translation: one reference per line.")] = None,
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
    confusion: Annotated[
        Path | None, typer.Option(help="With --data: also draw the confusion matrix to this .png, .svg or .pdf file.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the translations, or the labels, to this file.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Translation: bleu, chrf, ter, exact_match or token_accuracy; may be repeated."),
    ] = None,
    to: TargetLanguageOption = None,
    from_: SourceLanguageOption = None,
    more: EnsembleOption = None,
    precision: PrecisionOption = "float32",
    shortlist: ShortlistOption = False,
    workers: WorkersOption = 1,
    form: Annotated[Form, typer.Option("--format", help="How to print the scores.")] = "text",
) -> None:
    """Score a model on a test set, with signatures and 95 % confidence intervals.

    A translation model is scored on --source and --reference. A classifier is scored on --data: accuracy, macro F1,
    calibration error, a table of the classes and the confusion matrix.
    """
    from headway.bundle import read_task
    from headway.decode.options import DecodingOptions
    from headway.errors import ConfigError

    classifies = read_task(model).kind == "classification"
    of_translation = {"--source": source, "--reference": reference, "--metric": metric, "--to": to, "--from": from_,
                      "--with": more, "--shortlist": shortlist, "--workers": workers > 1}  # fmt: skip
    of_classification = {"--data": data, "--fields": fields, "--confusion": confusion}
    wrong = [name for name, value in (of_translation if classifies else of_classification).items() if value]
    if wrong:
        does, wants = ("classifies texts", "--data F.tsv") if classifies else ("translates", "--source F --reference F")
        raise ConfigError(f"{wrong[0]} does not apply: {model} is a model that {does}; evaluate it with {wants}")
    if classifies:
        if data is None:
            raise ConfigError(f"{model} is a model that classifies texts; give labeled texts with --data F.tsv")
        if chosen_options() != DecodingOptions() or precision != "float32":
            raise ConfigError(f"{model} is a model that classifies texts, without a search; leave its options out")
        _evaluate_classifier(model, data, fields, confusion, output, form)
    else:
        if source is None or reference is None:
            raise ConfigError(f"{model} is a model that translates; give a test set with --source F --reference F")
        _evaluate_translator(
            model, source, reference, output, metric, to, from_, more, precision, shortlist, workers, form
        )


def _evaluate_translator(
    model: Path,
    source: Path,
    reference: Path,
    output: Path | None,
    metric: list[str] | None,
    to: str | None,
    from_: str | None,
    more: list[Path] | None,
    precision: Precision,
    shortlist: bool,
    workers: int,
    form: Form,
) -> None:
    from headway.errors import DataError, HeadwayError
    from headway.evaluate import evaluate as score

    options = chosen_options()
    sources, references = list(input_lines(source)), list(input_lines(reference))
    if len(sources) != len(references):
        raise DataError(
            f"{source} has {len(sources):,} lines and {reference} has {len(references):,}; "
            "expected a reference for each source"
        )
    load = partial(load_translator_or_ensemble, model, more, precision=precision, shortlist=shortlist)
    size = _BATCH_LINES * workers
    found: list[Translation | HeadwayError] = []
    with (
        open_translator(load, workers) as translator,
        show_progress("translating", source) as advance,
    ):
        begin = time.perf_counter()
        for start in range(0, len(sources), size):
            batch = sources[start : start + size]
            found += translator.translate_each(batch, options, target_language=to, source_language=from_)
            advance(len(batch), sum(len(text.encode()) + 1 for text in batch))
        seconds = time.perf_counter() - begin
    report = Report(input_name(source), "stop", details="headway translate --format json")
    report.add(found)
    hypotheses = [each.text for each in found if not isinstance(each, HeadwayError)]
    if output is not None:
        with output_file(output) as file:
            file.writelines(one_line(text) + "\n" for text in hypotheses)
    scores = score(hypotheses, references, metrics=metric or ("bleu", "chrf"))
    if form == "json":
        print(json.dumps({"sentences": len(sources), "seconds": seconds, "scores": [asdict(s) for s in scores]}))
    else:
        print(*scores, sep="\n")
        typer.echo(f"{len(sources):,} sentences translated in {seconds:.1f} s", err=True)
    report.finish()


def _evaluate_classifier(
    model: Path, data: Path, fields: str | None, confusion: Path | None, output: Path | None, form: Form
) -> None:
    from headway.data.labels import read_labeled
    from headway.data.readers import Corpus
    from headway.errors import HeadwayError
    from headway.evaluate import class_table, confusion_table, evaluate_classes
    from headway.predict.classifier import load_classifier

    if confusion is not None:
        from headway.inspection.picture_files import picture_format

        picture_format(confusion)  # refuse an unknown format before the work
    classifier = load_classifier(model)
    corpus = Corpus.parse({"files": [str(data)], "fields": fields.split(",") if fields else None}, "--data")
    examples = list(read_labeled(corpus, Path(), classifier.labels))
    begin = time.perf_counter()
    found: list[Classification] = []
    with show_progress("classifying", data) as advance:
        for start in range(0, len(examples), _BATCH_LINES):
            texts = [text for text, _ in examples[start : start + _BATCH_LINES]]
            for number, each in enumerate(classifier.classify_each(texts), start=start + 1):
                if isinstance(each, HeadwayError):
                    raise each.at(f"{data}, example {number:,}")
                found.append(each)
            advance(len(texts), sum(len(text.encode()) + 1 for text in texts))
    seconds = time.perf_counter() - begin
    report = evaluate_classes(
        [each.label for each in found],
        [label for _, label in examples],
        classifier.labels,
        confidences=[each.probability for each in found],
    )
    truncated = sum(each.truncated for each in found)
    if form == "json":
        counts = {"texts": len(found), "truncated": truncated, "seconds": seconds}
        print(json.dumps({**counts, **asdict(report)}, ensure_ascii=False))
    else:
        print(*report.scores, sep="\n")
        print(f"\n{class_table(report)}\n\n{confusion_table(report)}")
        cut = f"; {truncated:,} were truncated to the model's maximum length" if truncated else ""
        typer.echo(f"{len(found):,} texts classified in {seconds:.1f} s{cut}", err=True)
    if output is not None:  # files come last: the scores are printed even if a file cannot be written
        with output_file(output) as file:
            file.writelines(map(label_line, found))
    if confusion is not None:
        from headway.inspection.confusion_matrix import draw

        draw(report, confusion)
