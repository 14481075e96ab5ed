"""Measure models on texts in memory or from files, for the Python functions and the commands evaluate and compare.

Commands pass a ``convert`` function, which shows the progress and names the file and the line of a text that has an
error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from headway.data.multiple_choice import Question, few_shot_prompts
from headway.data.readers import Corpus, read_examples
from headway.errors import DataError, HeadwayError
from headway.evaluation import (
    ChoiceReport,
    ClassificationReport,
    ComparisonTable,
    PairReport,
    compare_language_models,
    compare_translations,
    evaluate_choices,
    evaluate_classes,
    evaluate_pairs,
    tokenization_for,
)
from headway.evaluation.translation import are_too_short_for_bleu
from headway.predict import (
    Classification,
    Classifier,
    Glossary,
    LanguageModel,
    TranslateOptions,
    Translation,
    Translator,
    TranslatorPool,
    score_answers,
)
from headway.predict.results import raise_first_error
from headway.predict.translation.text_translator import TextTranslator
from headway.text.normalization import normalize

_QUESTIONS_AT_ONCE = 256


# A function that applies another function to all texts, perhaps in batches, and returns the results or raises the first
# error.
Convert = Callable[[Sequence[str], Callable[[Sequence[str]], Iterable[Any]]], list[Any]]


def convert_or_raise(texts: Sequence[str], convert: Callable[[Sequence[str]], Iterable[Any]]) -> list[Any]:
    """Return the result for each text. An error names the number of the text, counted from 1."""
    return raise_first_error(list(convert(texts)), "text", 1)


def translate_texts(
    load: Callable[[], Translator],
    texts: Sequence[str],
    options: TranslateOptions,
    *,
    glossary: Glossary | None = None,
    workers: int = 1,
    convert: Convert = convert_or_raise,
) -> list[Translation]:
    """Translate texts with the translator that ``load`` returns, or with one translator per process."""
    with TranslatorPool(load, workers) if workers > 1 else nullcontext(load()) as translator:
        return translate_with(translator, texts, options, glossary=glossary, convert=convert)


def translate_with(
    translator: TextTranslator,
    texts: Sequence[str],
    options: TranslateOptions,
    *,
    glossary: Glossary | None = None,
    convert: Convert = convert_or_raise,
) -> list[Translation]:
    """Translate texts with a translator or a pool of translators."""
    return convert(texts, partial(translator.translate_each, options=options, glossary=glossary))


def classify_texts(
    classifier: Classifier, texts: Sequence[str], convert: Convert = convert_or_raise
) -> list[Classification]:
    """Classify texts."""
    return convert(texts, classifier.classify_each)


def predict_labels(classifier: Classifier, texts: Sequence[str], convert: Convert = convert_or_raise) -> list[str]:
    """Return the predicted label of each text, normalized for comparison."""
    return [normalize(result.label) for result in classify_texts(classifier, texts, convert)]


def read_labels(lines: Iterable[str]) -> list[str]:
    """Return the normalized labels in a system's output: the first column of each line."""
    return [normalize(line.partition("\t")[0]) for line in lines]


def score_classifications(
    results: Sequence[Classification], truth: Sequence[str], labels: Sequence[str], bootstrap: int = 1000
) -> ClassificationReport:
    """Score classifications against the true labels."""
    predicted, confidences = [result.label for result in results], [result.probability for result in results]
    return evaluate_classes(predicted, truth, labels, confidences=confidences, bootstrap=bootstrap)


def score_minimal_pairs(model: Any, pairs: Sequence[Sequence[str]], convert: Convert = convert_or_raise) -> PairReport:
    """Return how often a model assigns the good text of a pair a higher probability than the bad one.

    Args:
        model: A language model, or a masked language model.
        pairs: For each pair, the good text, the bad text and optionally the name of its group. Either all pairs have a
            group or none.
        convert: Function that scores all texts, for example in batches.

    Raises:
        DataError: There are no pairs.
    """
    if not pairs:
        raise DataError("no pairs; expected at least one")
    good, bad, *groups = zip(*pairs, strict=True)
    continues = model.bundle.capability == "continues"
    score = partial(model.score, precision="auto") if continues else model.score

    def total(texts: Sequence[str]) -> list[float]:
        return [math.fsum(scored.token_log_probabilities) for scored in score(texts)]

    # A good and a bad text of equal length share a batch.
    scores = convert([text for pair in zip(good, bad, strict=True) for text in pair], total)
    return evaluate_pairs(scores[::2], scores[1::2], *groups, precision=model.precision if continues else "float32")


def read_minimal_pairs(path: Path, fields: str | None) -> list[tuple[str, ...]]:
    """Return the minimal pairs in a file. ``fields`` is the value of the option --fields.

    Raises:
        DataError: The file has no pairs, or cannot be read.
    """
    corpus = Corpus.parse({"files": [str(path)], "fields": fields and fields.split(",")}, "--pairs")
    pairs = list(read_examples(corpus, Path(), ("good", "bad", "group")[: max(len(corpus.fields or ()), 2)]))
    if not pairs:
        raise DataError(f"{path}: no pairs; expected at least one")
    return pairs


def evaluate_multiple_choice(
    model: LanguageModel,
    questions: Sequence[Question],
    num_examples: int = 0,
    *,
    origin: str = "questions",
    count: Callable[[int], None] = lambda number: None,
) -> ChoiceReport:
    """Return how often a language model assigns the right answer to a multiple-choice question the highest probability.

    Args:
        model: The language model to test.
        questions: The multiple-choice questions.
        num_examples: Number of other questions, with their answers, that precede each question in the prompt.
        origin: Name of the file or argument with the questions, for messages.
        count: Called with the number of questions that have been answered since the last call.
    """
    prompts, scores = few_shot_prompts(questions, num_examples), list[Sequence[Sequence[float]]]()
    for start in range(0, len(questions), _QUESTIONS_AT_ONCE):
        batch = questions[start : start + _QUESTIONS_AT_ONCE]
        answers = [question.answers for question in batch]
        results = score_answers(model, prompts[start : start + _QUESTIONS_AT_ONCE], answers, precision="auto")
        for question, result in zip(batch, results, strict=True):
            if isinstance(result, HeadwayError):
                raise result.with_location(f"{origin}, line {question.line}")
            scores.append(result)
        count(len(batch))
    truth = [question.right for question in questions]
    return evaluate_choices(scores, truth, num_examples=num_examples, precision=model.precision)


def compare_outputs(
    outputs: Mapping[str, Sequence[str]], references: Sequence[str], language: str, **settings: Any
) -> ComparisonTable:
    """Compare the translations of several systems.

    Args:
        outputs: The name and the translations of each system, the baseline first.
        references: One reference for each sentence.
        language: The target language, which selects the tokenization of BLEU and TER.
        settings: Keyword arguments of :func:`headway.evaluation.compare_translations`.
    """
    return compare_translations(outputs, references, tokenization=tokenization_for(language), **settings)


def find_unsuitable_tokenization(references: Sequence[str], language: str) -> str | None:
    """Return BLEU's tokenization if it splits hardly any reference into at least four tokens, otherwise None."""
    tokenization = tokenization_for(language)
    return tokenization if are_too_short_for_bleu(references, tokenization) else None


def compare_bits_per_byte(
    models: Mapping[str, Callable[[], LanguageModel]],
    texts: Sequence[str],
    *,
    stride: int | None = None,
    convert: Callable[[str], Convert] = lambda name: convert_or_raise,
    **tests: int,
) -> ComparisonTable:
    """Compare language models by bits per byte.

    Args:
        models: For each model, its name and a function that loads it. Only one model is in memory at a time.
        texts: The texts to score.
        stride: Number of tokens between windows; see :meth:`headway.predict.LanguageModel.score`.
        convert: Function that returns the ``convert`` function for the model of a given name.
        tests: Keyword arguments of :func:`headway.evaluation.compare_language_models`.
    """
    log_probabilities, signatures = dict[str, list[float]](), dict[str, str]()
    for name, load in models.items():
        model = load()
        signatures[name] = model.signature(stride, "auto")

        def total(batch: Sequence[str], model: LanguageModel = model) -> list[float]:
            return [scored.log_probability for scored in model.score(batch, stride=stride, precision="auto")]

        log_probabilities[name] = convert(name)(texts, total)
    return compare_language_models(log_probabilities, [len(text.encode()) for text in texts], signatures, **tests)
