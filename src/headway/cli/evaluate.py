"""``headway evaluate``: score a translation model or a classifier on a test set."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import options
from headway.cli.classify import format_label_line, read_labeled_file
from headway.cli.decoding import decoding_options
from headway.cli.line_io import LineReport, convert_all, input_lines, input_name, one_line, output_file
from headway.cli.translate import load_ensemble, translation_flags
from headway.errors import ConfigError, DataError

if TYPE_CHECKING:
    from headway.predict import Translation, Translator


def evaluate(
    model: options.ModelFolder,
    source: Annotated[Path | None, typer.Option(help="For translation: source text, one sentence per line.")] = None,
    reference: options.ReferenceOption = None,
    data: options.LabeledDataOption = None,
    fields: options.FieldsOption = None,
    confusion: Annotated[
        Path | None, typer.Option(help="With --data: also draw the confusion matrix to this .png, .svg or .pdf file.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the translations or labels to this file.")
    ] = None,
    metric: options.MetricOption = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    other_models: options.EnsembleOption = None,
    precision: options.PrecisionOption = "float32",
    shortlist: options.ShortlistOption = False,
    workers: options.WorkersOption = 1,
    format_: options.FormatOption = "text",
) -> None:
    """Score a model on a test set, with signatures and 95 % confidence intervals.

    A translation model is scored on --source and --reference. A classifier is scored on --data: accuracy, macro F1,
    calibration error, a table of the classes and the confusion matrix.
    """
    from headway.bundle import read_config
    from headway.decode.request import DecodingOptions
    from headway.evaluate import evaluate as score
    from headway.models.registry import architecture_of
    from headway.predict import load_translator

    of_translation: dict[str, object] = {
        "--source": source, "--reference": reference, "--metric": metric, "--to": to, "--from": from_,
        "--with": other_models, "--shortlist": shortlist, "--workers": workers > 1,
    }  # fmt: skip
    of_classification: dict[str, object] = {"--data": data, "--fields": fields, "--confusion": confusion}
    predicts = architecture_of(read_config(model).model).output
    if predicts == "continuation":
        raise ConfigError(f"{model}: language models are measured in Python, by headway.load(FOLDER).perplexity(texts)")
    does, wants, other = {
        "tokens": ("translates", "--source F --reference F", of_classification),
        "label": ("classifies texts", "--data F.tsv", of_translation),
    }[predicts]
    if wrong := [name for name, value in other.items() if value]:
        raise ConfigError(f"{wrong[0]} does not apply: {model} is a model that {does}; evaluate it with {wants}")
    search = decoding_options()  # refuses invalid options before a model is loaded
    if predicts == "label":
        if data is None:
            raise ConfigError(f"{model} is a model that {does}; give labeled texts with {wants}")
        if search != DecodingOptions() or precision != "float32":
            raise ConfigError(f"{model} is a model that {does}, without a search; leave out search options")
        _evaluate_classifier(model, data, fields, confusion, output, format_)
        return
    if source is None or reference is None:
        raise ConfigError(f"{model} is a model that {does}; give a test set with {wants}")
    first = partial(load_translator, model, precision=precision, shortlist=shortlist)
    load = partial(load_ensemble, first, other_models, precision)
    languages = {"target_language": to, "source_language": from_}
    sources, references = list(input_lines(source)), list(input_lines(reference))
    if len(sources) != len(references):
        raise DataError(
            f"{source} has {len(sources):,} lines and {reference} has {len(references):,}; "
            "expected a reference for each source"
        )
    found, seconds = translate_file(load, sources, source, workers, languages, "translating")
    report = LineReport(input_name(source), "stop", translation_flags, "headway translate --format json")
    report.add_results(found)
    hypotheses = [each.text for each in found]
    if output is not None:
        with output_file(output) as file:
            file.writelines(one_line(text) + "\n" for text in hypotheses)
    scores = score(hypotheses, references, metrics=metric or ("bleu", "chrf"))
    if format_ == "json":
        print(json.dumps({"sentences": len(sources), "seconds": seconds, "scores": [asdict(s) for s in scores]}))
    else:
        print(*scores, sep="\n")
        typer.echo(f"{len(sources):,} sentences translated in {seconds:.1f} s", err=True)
    report.finish()


def translate_file(
    load: Callable[[], Translator], texts: list[str], source: Path, workers: int, languages: dict[str, Any], job: str
) -> tuple[list[Translation], float]:
    """Translate the ``texts`` of a file with the command's decoding options.

    ``languages`` are the language arguments of ``Translator.translate_each``. ``job`` is the label of the progress bar.
    Returns the translations and the time in seconds.
    """
    from headway.predict import TranslatorPool

    with TranslatorPool(load, workers) if workers > 1 else nullcontext(load()) as translator:
        begin = time.perf_counter()
        translate = partial(translator.translate_each, options=decoding_options(), **languages)
        return convert_all(texts, translate, job=job, source=source, workers=workers), time.perf_counter() - begin


def _evaluate_classifier(
    model: Path, data: Path, fields: str | None, confusion: Path | None, output: Path | None, format_: str
) -> None:
    from headway.evaluate import class_table, confusion_table, evaluate_classes
    from headway.predict import load_classifier

    if confusion is not None:
        from headway.inspection.picture_files import picture_format

        picture_format(confusion)  # refuse an unknown format before classifying
    classifier = load_classifier(model)
    texts, truth = read_labeled_file(data, fields, classifier.labels)
    begin = time.perf_counter()
    found = convert_all(texts, classifier.classify_each, job="classifying", source=data, unit="example")
    seconds = time.perf_counter() - begin
    predicted, confidences = [each.label for each in found], [each.probability for each in found]
    report = evaluate_classes(predicted, truth, classifier.labels, confidences=confidences)
    truncated = sum(each.truncated for each in found)
    if format_ == "json":
        counts = {"texts": len(found), "truncated": truncated, "seconds": seconds}
        print(json.dumps({**counts, **asdict(report)}, ensure_ascii=False))
    else:
        print(*report.scores, sep="\n")
        print(f"\n{class_table(report)}\n\n{confusion_table(report)}")
        cut = f"; {truncated:,} were truncated to the model's maximum length" if truncated else ""
        typer.echo(f"{len(found):,} texts classified in {seconds:.1f} s{cut}", err=True)
    if output is not None:  # files are written last, so that the scores are printed even if a file cannot be written
        with output_file(output) as file:
            file.writelines(map(format_label_line, found))
    if confusion is not None:
        from headway.inspection.confusion_matrix import figure
        from headway.inspection.picture_files import save_picture

        save_picture(figure(report), confusion)
