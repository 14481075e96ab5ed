"""``headway evaluate``: score a model on a test set."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.decoding import DecodingCommand, decoding_options
from headway.cli.line_io import LineReport, convert_all, input_lines, input_name, output_file, show_progress
from headway.cli.loading import device_for_workers, load_ensemble, open_language_model
from headway.cli.text_documents import read_text_documents
from headway.cli.translations import count_terms, num_met, terms_summary, translate_file
from headway.corpus.labels import format_label_line, read_labeled_file
from headway.corpus.lines import one_line
from headway.errors import ConfigError, DataError, HeadwayError

if TYPE_CHECKING:
    from headway.predict import LanguageModel, ScoredText
    from headway.predict.translation.options import TranslateKeywords

GROUP = CommandGroup.EVALUATE
COMMAND_CLASS = DecodingCommand
_QUESTIONS_AT_ONCE = 256


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
    glossary: Annotated[
        Path | None,
        typer.Option(
            help="For translation: translate with this glossary (TSV or CSV, see headway translate), and report how "
            "many entries are met, and how many translations are forced by entries that hardly fit."
        ),
    ] = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "float32",
    shortlist: options.ShortlistOption = False,
    workers: options.WorkersOption = 1,
    pairs: Annotated[
        Path | None,
        typer.Option(
            help="For models that score texts: minimal pairs, .tsv, .csv or .jsonl, of which the model should find the "
            "good text more probable than the bad one."
        ),
    ] = None,
    choices: Annotated[
        Path | None,
        typer.Option(
            help="For language models: multiple-choice questions, .jsonl with question, choices (a list of texts) and "
            "answer (its text, or its index from 0), of which the model should find the right one most probable."
        ),
    ] = None,
    examples: Annotated[
        int,
        typer.Option(
            min=0, help="With --choices: other questions of the file that are read before each, with their answers."
        ),
    ] = 0,
    documents: options.DocumentsOption = None,
    stride: options.StrideOption = None,
    format_: options.FormatOption = "text",
) -> None:
    """Score a model on a test set, with signatures and 95 % confidence intervals.

    A translation model is scored on --source and --reference; BLEU and TER are tokenized for its target language or
    that of --to. A classifier is scored on --data: accuracy, macro F1, calibration error, a table of the classes and
    the confusion matrix.

    A language model is scored on the text in --data: loss, perplexity per token and per word, and bits per byte. Only
    bits per byte can be compared between models with different tokenizers, and only with the same context and stride.
    On --pairs, it is scored by accuracy in each group: the share of pairs in which the sum of the log-probabilities of
    the good text's tokens is greater. On --choices, it is scored by two accuracies, beside chance: the share of
    questions in which the sum of the log-probabilities of the right answer's tokens is greatest, and the share in which
    their mean is.
    """
    from headway.bundle import read_config
    from headway.calls.evaluation import score_translations
    from headway.decode.request import DecodingOptions
    from headway.predict import Glossary, load_translator
    from headway.predict.translation.quality import translation_flags
    from headway.tasks import load

    given: dict[str, object] = {
        "--source": source, "--reference": reference, "--metric": metric, "--to": to, "--from": from_,
        "--with": other_models, "--glossary": glossary, "--shortlist": shortlist, "--workers": workers > 1,
        "--data": data, "--fields": fields, "--confusion": confusion, "--output": output, "--pairs": pairs,
        "--documents": documents, "--stride": stride, "--choices": choices, "--examples": examples,
    }  # fmt: skip
    of_text = {"--data", "--fields", "--pairs", "--documents", "--stride", "--choices", "--examples"}
    of_labels = {"--data", "--fields", "--confusion", "--output"}
    of_translation = given.keys() - (of_text | of_labels) | {"--output"}
    capability = read_config(model).capability
    does, wants, accepted = {
        "translates": ("translates", "--source F --reference F", of_translation),
        "labels": ("classifies texts", "--data F.tsv", of_labels),
        "continues": ("continues texts", "--data F, --pairs F for minimal pairs, or --choices F.jsonl", of_text),
        "fills": ("fills in hidden words", "--pairs F for minimal pairs", {"--pairs", "--fields"}),
    }[capability]
    if wrong := [name for name, value in given.items() if value and name not in accepted]:
        raise ConfigError(f"{wrong[0]} does not apply: {model} is a model that {does}; evaluate it with {wants}")
    search = decoding_options()  # refuses invalid options before a model is loaded
    if capability != "translates":
        if search != DecodingOptions() or (precision != "float32" and capability != "continues"):
            raise ConfigError(f"{model} is a model that {does}, without a search; leave out search options")
        if data is None and pairs is None and choices is None:
            raise ConfigError(f"{model} is a model that {does}; evaluate it with {wants}")
    if examples and choices is None:
        raise ConfigError("--examples has no effect without --choices; add --choices, or leave it out")
    if choices is not None:
        if other := [name for name in ("--data", "--pairs", "--documents", "--stride") if given[name]]:
            raise ConfigError(f"{other[0]} does not apply to --choices; leave one out")
        _evaluate_choices(open_language_model(model, device, precision), choices, fields, examples, format_)
        return
    if pairs is not None:
        if other := [name for name in ("--data", "--documents", "--stride") if given[name]]:
            raise ConfigError(f"{other[0]} does not apply to --pairs; leave one out")
        if capability == "continues":
            opened = open_language_model(model, device, precision)
            _evaluate_pairs(partial(opened.score, precision="auto"), opened.precision, pairs, fields, format_)
        else:
            _evaluate_pairs(load(model, device=device).score, "float32", pairs, fields, format_)
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
        raise ConfigError(f"{model} is a model that {does}; give a test set with {wants}")
    terms = None if glossary is None else Glossary.load(glossary)
    device = device_for_workers(device, workers)
    first = partial(load_translator, model, device=device, precision=precision, shortlist=shortlist)
    open_translator = partial(load_ensemble, first, other_models, device, precision)
    languages: TranslateKeywords = {"target_language": to, "source_language": from_}
    sources, references = list(input_lines(source)), list(input_lines(reference))
    if len(sources) != len(references):
        raise DataError(
            f"{source} has {len(sources):,} lines and {reference} has {len(references):,}; "
            "expected a reference for each source"
        )
    translations, seconds = translate_file(open_translator, sources, source, workers, languages, "translating", terms)
    report = LineReport(input_name(source), "stop", translation_flags, "headway translate --format json")
    report.add_results(translations)
    hypotheses = [translation.text for translation in translations]
    if output is not None:
        with output_file(output) as file:
            file.writelines(one_line(text) + "\n" for text in hypotheses)
    language = to or read_config(model).target_language
    scores = score_translations(hypotheses, references, metrics=metric or ("bleu", "chrf"), language=language).scores
    used = count_terms(term for translation in translations for term in translation.glossary or ())
    forced = sum("forced" in translation.flags for translation in translations)
    if format_ == "json":
        whole = {
            "sentences": len(sources),
            "seconds": seconds,
            "scores": [asdict(metric_score) for metric_score in scores],
        }
        if terms is not None:
            whole["glossary"] = {"terms": used.total(), "met": num_met(used), "forced_translations": forced}
        print(json.dumps(whole))
    else:
        print(*scores, sep="\n")
        if terms is not None:
            print(f"{terms_summary(used)}\ntranslations flagged forced: {forced:,} of {len(sources):,}")
        typer.echo(f"{len(sources):,} sentences translated in {seconds:.1f} s", err=True)
    report.finish()


def _evaluate_classifier(
    model: Path,
    device: options.Device,
    data: Path,
    fields: str | None,
    confusion: Path | None,
    output: Path | None,
    format_: str,
) -> None:
    from headway.evaluation import class_table, confusion_table, evaluate_classes
    from headway.predict import load_classifier

    if confusion is not None:
        from headway.inspection.picture_files import picture_format

        picture_format(confusion)  # refuse an unknown format before classifying
    classifier = load_classifier(model, device=device)
    texts, truth = read_labeled_file(data, fields, classifier.labels)
    begin = time.perf_counter()
    results = convert_all(texts, classifier.classify_each, job="classifying", source=data, unit="example")
    seconds = time.perf_counter() - begin
    predicted, confidences = [result.label for result in results], [result.probability for result in results]
    report = evaluate_classes(predicted, truth, classifier.labels, confidences=confidences)
    truncated = sum(result.truncated for result in results)
    if format_ == "json":
        counts = {"texts": len(results), "truncated": truncated, "seconds": seconds}
        print(json.dumps({**counts, **asdict(report)}, ensure_ascii=False))
    else:
        print(*report.scores, sep="\n")
        print(f"\n{class_table(report)}\n\n{confusion_table(report)}")
        cut = f"; {truncated:,} were truncated to the model's maximum length" if truncated else ""
        typer.echo(f"{len(results):,} texts classified in {seconds:.1f} s{cut}", err=True)
    if output is not None:  # files are written last, so that the scores are printed even if a file cannot be written
        with output_file(output) as file:
            file.writelines(map(format_label_line, results))
    if confusion is not None:
        from headway.inspection.confusion_matrix import figure
        from headway.inspection.picture_files import save_picture

        save_picture(figure(report), confusion)


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
            f"{result.num_unknown:,} tokens are unknown to the model's vocabulary; no bits are counted for what they "
            "stand for, so the numbers are too low",
            err=True,
        )
    print(result.signature)
    counts = f"{result.num_texts:,} documents, {result.num_tokens:,} tokens, {result.num_words:,} words"
    typer.echo(f"{counts}, {result.num_bytes:,} bytes", err=True)


def _evaluate_pairs(
    score: Callable[[Sequence[str]], list[ScoredText]], precision: str, pairs: Path, fields: str | None, format_: str
) -> None:
    from headway.data.readers import Corpus, read_examples
    from headway.evaluation import evaluate_pairs

    corpus = Corpus.parse({"files": [str(pairs)], "fields": fields and fields.split(",")}, "--pairs")
    names = ("good", "bad", "group")[: max(len(corpus.fields or ()), 2)]
    examples = list(read_examples(corpus, Path(), names))
    if not examples:
        raise DataError(f"{pairs}: no pairs; expected at least one")
    good, bad, *groups = zip(*examples, strict=True)

    def total(texts: Sequence[str]) -> list[float]:
        return [math.fsum(scored.token_log_probabilities) for scored in score(texts)]

    # A good and a bad text of equal length are computed in one batch.
    texts = [text for pair in zip(good, bad, strict=True) for text in pair]
    scores = convert_all(texts, total, job="scoring", source=pairs)
    report = evaluate_pairs(scores[::2], scores[1::2], *groups, precision=precision)
    if format_ == "json":
        print(json.dumps(asdict(report), ensure_ascii=False))
        return
    rows = {**report.groups, "all pairs": report.overall}
    width = max(map(len, rows))
    for name, accuracy in rows.items():
        print(f"{name:<{width}}  {accuracy}")


def _evaluate_choices(model: LanguageModel, path: Path, fields: str | None, num_examples: int, format_: str) -> None:
    from headway.data.multiple_choice import DEFAULT_FIELDS, prompts_with_examples, read_questions
    from headway.evaluation import evaluate_choices
    from headway.predict import score_answers

    questions = read_questions(path, fields.split(",") if fields else DEFAULT_FIELDS)
    prompts = prompts_with_examples(questions, num_examples)
    scores: list[Sequence[Sequence[float]]] = []
    with show_progress("answering", path) as count_lines:
        for start in range(0, len(questions), _QUESTIONS_AT_ONCE):
            batch = slice(start, start + _QUESTIONS_AT_ONCE)
            answers = [question.answers for question in questions[batch]]
            for question, result in zip(
                questions[batch], score_answers(model, prompts[batch], answers, precision="auto"), strict=True
            ):
                if isinstance(result, HeadwayError):
                    raise result.with_location(f"{path}, line {question.line}")
                scores.append(result)
            count_lines(len(answers), 0)
    truth = [question.right for question in questions]
    report = evaluate_choices(scores, truth, num_examples=num_examples, precision=model.precision)
    if format_ == "json":
        print(json.dumps(asdict(report)))
        return
    print(report.by_sum, report.by_mean, f"chance {report.chance:.1f}", sep="\n")
