"""``headway evaluate``: score a model on a test set."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.decoding import DecodingCommand, decoding_options
from headway.cli.line_io import LineReport, convert_all, input_name, output_file, read_input_lines, show_progress
from headway.cli.loading import device_for_workers, load_ensemble, open_language_model
from headway.cli.text_documents import read_text_documents
from headway.cli.translations import count_met_terms, count_terms, summarize_terms, translate_file
from headway.corpus.labels import format_label_line, read_labeled_file
from headway.corpus.lines import one_line
from headway.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway.calls.evaluation import Evaluation
    from headway.kinds import Capability
    from headway.predict import LanguageModel
    from headway.predict.translation.options import TranslateKeywords

GROUP = CommandGroup.EVALUATE
COMMAND_CLASS = DecodingCommand


def evaluate(
    model: options.ModelArgument,
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
    glossary: Annotated[
        Path | None,
        typer.Option(
            help="For translation: use this glossary (TSV or CSV, see headway translate), and report how many of its "
            "entries are satisfied and how many translations are flagged as forced because an entry fits badly."
        ),
    ] = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "float32",
    shortlist: options.ShortlistOption = False,
    workers: options.WorkersOption = 1,
    pairs: Annotated[
        Path | None,
        typer.Option(
            help="For models that score texts: minimal pairs, .tsv, .csv or .jsonl. The model should assign the good "
            "text of each pair a higher probability than the bad one."
        ),
    ] = None,
    choices: Annotated[
        Path | None,
        typer.Option(
            help="For language models: multiple-choice questions, .jsonl with question, choices (a list of texts) and "
            "answer (its text, or its index from 0). The model should assign the answer the highest probability."
        ),
    ] = None,
    examples: Annotated[
        int,
        typer.Option(
            min=0,
            help="With --choices: number of other questions, with answers, that precede each question in the prompt.",
        ),
    ] = 0,
    documents: options.DocumentsOption = None,
    stride: options.StrideOption = None,
    format_: options.FormatOption = "text",
) -> None:
    """Score a model on a test set, with signatures and 95 % confidence intervals.

    A translation model is scored on --source and --reference; BLEU and TER are tokenized for its target language or the
    language of --to. A classifier is scored on --data: accuracy, macro F1, calibration error, a table of the classes
    and the confusion matrix.

    A language model is scored on the text in --data: loss, perplexity per token and per word, and bits per byte. Only
    bits per byte can be compared between models with different tokenizers, and only with the same context and stride.
    On --pairs, it is scored by its accuracy in each group: the share of pairs in which the good text has the greater
    sum of token log-probabilities. On --choices, two accuracies are reported along with chance: the share of questions
    for which the right answer has the greatest sum of token log-probabilities, and the share for which it has the
    greatest mean.
    """
    from headway.bundle import read_config
    from headway.calls.evaluation import score_translations
    from headway.predict import Glossary, load_translator
    from headway.predict.translation.quality import translation_flags
    from headway.tasks import load

    given: dict[str, object] = {
        "--source": source, "--reference": reference, "--metric": metric, "--to": to, "--from": from_,
        "--with": other_models, "--glossary": glossary, "--shortlist": shortlist, "--workers": workers > 1,
        "--data": data, "--fields": fields, "--confusion": confusion, "--output": output, "--pairs": pairs,
        "--documents": documents, "--stride": stride, "--choices": choices, "--examples": examples,
    }  # fmt: skip
    capability = read_config(model).capability
    wants = _refuse_wrong_options(model, capability, given, precision)
    if choices is not None:
        _evaluate_choices(open_language_model(model, device, precision), choices, fields, examples, format_)
        return
    if pairs is not None:
        continues = capability == "continues"
        opened = open_language_model(model, device, precision) if continues else load(model, device=device)
        _evaluate_pairs(opened, pairs, fields, format_)
        return
    if data is not None:
        if capability == "labels":
            _evaluate_classifier(model, device, data, fields, confusion, output, format_)
        else:
            _evaluate_language_model(
                open_language_model(model, device, precision), data, fields, documents or "file", stride, format_
            )
        return
    if source is None or reference is None:
        raise ConfigError(f"{model} is a model that translates; pass a test set with {wants}")
    terms = None if glossary is None else Glossary.load(glossary)
    device = device_for_workers(device, workers)
    first = partial(load_translator, model, device=device, precision=precision, shortlist=shortlist)
    open_translator = partial(load_ensemble, first, other_models, device, precision)
    languages: TranslateKeywords = {"target_language": to, "source_language": from_}
    sources, references = list(read_input_lines(source)), list(read_input_lines(reference))
    if len(sources) != len(references):
        raise DataError(
            f"{source} has {len(sources):,} lines and {reference} has {len(references):,}; "
            "expected a reference for each source"
        )
    translations, seconds = translate_file(open_translator, sources, source, workers, languages, "translating", terms)
    report = LineReport(input_name(source), "stop", translation_flags, "headway translate --format json")
    report.add_results(translations)
    language = to or read_config(model).target_language
    evaluation = score_translations(translations, references, metrics=metric or ("bleu", "chrf"), language=language)
    if output is not None:
        with output_file(output) as file:
            file.writelines(one_line(text) + "\n" for text in evaluation.outputs)
    _print_translation_scores(evaluation, seconds, format_, with_terms=terms is not None)
    report.finish()


def _refuse_wrong_options(
    model: Path, capability: Capability, given: Mapping[str, object], precision: options.Precision
) -> str:
    """Reject options that do not fit the model or each other. Return the options that select the model's test set."""
    from headway.decode.request import DecodingOptions

    of_text = {"--data", "--fields", "--pairs", "--documents", "--stride", "--choices", "--examples"}
    of_labels = {"--data", "--fields", "--confusion", "--output"}
    of_translation = given.keys() - (of_text | of_labels) | {"--output"}
    does, wants, accepted = {
        "translates": ("translates", "--source F --reference F", of_translation),
        "labels": ("classifies texts", "--data F.tsv", of_labels),
        "continues": ("continues texts", "--data F, --pairs F for minimal pairs, or --choices F.jsonl", of_text),
        "fills": ("fills in hidden words", "--pairs F for minimal pairs", {"--pairs", "--fields"}),
    }[capability]
    if wrong := [name for name, value in given.items() if value and name not in accepted]:
        raise ConfigError(f"{wrong[0]} does not apply: {model} is a model that {does}; evaluate it with {wants}")
    search, test_sets = decoding_options(), [name for name in ("--choices", "--pairs", "--data") if given[name]]
    if capability != "translates":
        if search != DecodingOptions() or (precision != "float32" and capability != "continues"):
            raise ConfigError(f"{model} is a model that {does}, without a search; leave out search options")
        if not test_sets:
            raise ConfigError(f"{model} is a model that {does}; evaluate it with {wants}")
    if given["--examples"] and not given["--choices"]:
        raise ConfigError("--examples has no effect without --choices; add --choices, or leave it out")
    with_texts = [*test_sets[1:], *(name for name in ("--documents", "--stride") if given[name])]
    if test_sets and test_sets[0] != "--data" and with_texts:
        raise ConfigError(f"{with_texts[0]} does not apply to {test_sets[0]}; leave one out")
    return wants


def _print_translation_scores(evaluation: Evaluation, seconds: float, format_: str, *, with_terms: bool) -> None:
    """Print the scores and, with a glossary, the number of entries that are satisfied."""
    translations = evaluation.translations
    used = count_terms(term for translation in translations for term in translation.glossary or ())
    forced = sum("forced" in translation.flags for translation in translations)
    if format_ == "json":
        scores = [asdict(score) for score in evaluation.scores]
        whole: dict[str, object] = {"sentences": len(translations), "seconds": seconds, "scores": scores}
        if with_terms:
            whole["glossary"] = {"terms": used.total(), "met": count_met_terms(used), "forced_translations": forced}
        print(json.dumps(whole))
        return
    print(*evaluation.scores, sep="\n")
    if with_terms:
        print(f"{summarize_terms(used)}\ntranslations flagged forced: {forced:,} of {len(translations):,}")
    typer.echo(f"{len(translations):,} sentences translated in {seconds:.1f} s", err=True)


def _evaluate_classifier(
    model: Path,
    device: options.Device,
    data: Path,
    fields: str | None,
    confusion: Path | None,
    output: Path | None,
    format_: str,
) -> None:
    from headway.calls.measurements import classify_texts, score_classifications
    from headway.evaluation import class_table, confusion_table
    from headway.predict import load_classifier

    if confusion is not None:
        from headway.inspection.picture_files import picture_format

        picture_format(confusion)  # reject an unknown format before classifying
    classifier = load_classifier(model, device=device)
    texts, truth = read_labeled_file(data, fields, classifier.labels)
    begin = time.perf_counter()
    convert = partial(convert_all, job="classifying", source=data, unit="example")
    results = classify_texts(classifier, texts, convert)
    seconds = time.perf_counter() - begin
    report = score_classifications(results, truth, classifier.labels)
    truncated = sum(result.truncated for result in results)
    if format_ == "json":
        counts = {"texts": len(results), "truncated": truncated, "seconds": seconds}
        print(json.dumps({**counts, **asdict(report)}, ensure_ascii=False))
    else:
        print(*report.scores, sep="\n")
        print(f"\n{class_table(report)}\n\n{confusion_table(report)}")
        cut = f"; {truncated:,} were truncated to the model's maximum length" if truncated else ""
        typer.echo(f"{len(results):,} texts classified in {seconds:.1f} s{cut}", err=True)
    if output is not None:  # write files last, so that the scores are printed even if a file cannot be written
        with output_file(output) as file:
            file.writelines(map(format_label_line, results))
    if confusion is not None:
        from headway.inspection.confusion_matrix import plot_confusion_matrix
        from headway.inspection.picture_files import save_picture

        save_picture(plot_confusion_matrix(report), confusion)


def _evaluate_language_model(
    model: LanguageModel, data: Path, fields: str | None, documents: str, stride: int | None, format_: str
) -> None:
    result = model.perplexity(read_text_documents(data, fields, documents), stride=stride, precision="auto")
    if format_ == "json":
        print(json.dumps(asdict(result)))
        return
    print(f"loss {result.loss:.4f} nats per token")
    print(f"perplexity {result.perplexity:.4g} per token, {result.word_perplexity:.4g} per word")
    print(f"bits per byte {result.bits_per_byte:.4f} (comparable between tokenizers)")
    if result.num_unknown:
        typer.echo(
            f"{result.num_unknown:,} tokens are unknown to the model. No bits are counted for the text that they "
            "replace, so the reported numbers are too low",
            err=True,
        )
    print(result.signature)
    counts = f"{result.num_texts:,} documents, {result.num_tokens:,} tokens, {result.num_words:,} words"
    typer.echo(f"{counts}, {result.num_bytes:,} bytes", err=True)


def _evaluate_pairs(model: Any, pairs: Path, fields: str | None, format_: str) -> None:
    from headway.calls.measurements import read_minimal_pairs, score_minimal_pairs

    report = score_minimal_pairs(
        model, read_minimal_pairs(pairs, fields), partial(convert_all, job="scoring", source=pairs)
    )
    if format_ == "json":
        print(json.dumps(asdict(report), ensure_ascii=False))
        return
    rows = {**report.groups, "all pairs": report.overall}
    width = max(map(len, rows))
    for name, accuracy in rows.items():
        print(f"{name:<{width}}  {accuracy}")


def _evaluate_choices(model: LanguageModel, path: Path, fields: str | None, num_examples: int, format_: str) -> None:
    from headway.calls.measurements import evaluate_multiple_choice
    from headway.data.multiple_choice import DEFAULT_FIELDS, read_questions

    questions = read_questions(path, fields.split(",") if fields else DEFAULT_FIELDS)
    with show_progress("answering", path) as count_lines:
        report = evaluate_multiple_choice(
            model, questions, num_examples, origin=str(path), count=lambda number: count_lines(number, 0)
        )
    if format_ == "json":
        print(json.dumps(asdict(report)))
        return
    print(report.by_sum, report.by_mean, f"chance {report.chance:.1f}", sep="\n")
