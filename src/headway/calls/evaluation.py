"""Score a model on a test set, or compare two systems, from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from headway.calls.measurements import (
    classify_texts,
    compare_bits_per_byte,
    compare_outputs,
    evaluate_multiple_choice,
    predict_labels,
    score_classifications,
    score_minimal_pairs,
    translate_with,
)
from headway.calls.run import resolve_model
from headway.config import spelling_hint
from headway.data.multiple_choice import parse_questions
from headway.decode.request import PAPER_OPTIONS, DecodingOptions
from headway.errors import ConfigError, DataError
from headway.evaluation import (
    ComparisonTable,
    Score,
    compare_labels,
    tokenization_for,
)
from headway.evaluation import evaluate as score_texts
from headway.evaluation.bootstrap import scores_table
from headway.notebook_html import join_fragments, paragraph
from headway.predict import Glossary, LanguageModel, TranslateOptions, Translation

_METRICS = ("bleu", "chrf")  # metrics of evaluate; compare also reports TER


@dataclass(frozen=True)
class Evaluation:
    """The scores of translations.

    Attributes:
        scores: One score for each metric, with its signature and 95 % confidence interval.
        outputs: The translations, one for each source, as text.
        translations: The translations with their flags, glossary terms and scores. Empty if the outputs were passed as
            text.
    """

    scores: tuple[Score, ...]
    outputs: tuple[str, ...]
    translations: tuple[Translation, ...] = ()

    def __getitem__(self, metric: str) -> Score:
        """Return the score of a metric. Its name may be in upper or lower case: ``evaluation["BLEU"]``.

        Raises:
            ConfigError: There is no such metric.
        """
        names = {score.name.lower(): score for score in self.scores}
        names |= {"chrf": names["chrf2"]} if "chrf2" in names else {}
        if metric.lower() not in names:
            raise ConfigError(f"no metric {metric!r}; {spelling_hint(metric, names)}")
        return names[metric.lower()]

    def __repr__(self) -> str:
        shown = ", ".join(f"{score.name} {score.value:.1f}" for score in self.scores)
        return f"<Evaluation: {shown}; {len(self.outputs):,} sentences>"

    def _repr_html_(self) -> str:
        return join_fragments(scores_table(self.scores), paragraph(f"{len(self.outputs):,} sentences", note=True))


def evaluate(
    model: Any,
    sources: Iterable[Any] | None = None,
    references: Iterable[Any] | None = None,
    *,
    metrics: Sequence[str] = _METRICS,
    options: DecodingOptions = PAPER_OPTIONS,
    target_language: str | None = None,
    source_language: str | None = None,
    glossary: Glossary | None = None,
    pairs: Iterable[Sequence[str]] | None = None,
    questions: Iterable[Mapping[str, Any]] | None = None,
    num_examples: int = 0,
    bootstrap: int = 1000,
    device: str = "auto",
) -> Any:
    """Score a model on a test set, with signatures and 95 % confidence intervals.

    Args:
        model: A run or its folder, a model folder, a model that :func:`headway.load` returned, or the translations of
            any system as a list.
        sources: The texts to translate, to classify, or to measure a language model on. None for a list of
            translations.
        references: For translations: one reference for each source. For a classifier: the true label of each text.
            None for language models.
        metrics: For translations: names from :data:`headway.evaluation.METRICS`.
        options: For translations: the search options.
        target_language: The language to translate into, which also selects the tokenization of BLEU and TER. Default:
            the target language of the model. For a list of translations, the default tokenization is sacreBLEU's
            default.
        source_language: The language of the sources, for imported models that need it.
        glossary: For translations: terms that the translations must use.
        pairs: For language models and masked language models, instead of texts: minimal pairs (good text, bad text) or
            (good text, bad text, group). The model should assign the good text the higher probability.
        questions: For language models, instead of texts: multiple-choice questions, with the keys ``question``,
            ``choices`` (a list of texts) and ``answer`` (its text, or its index from 0).
        num_examples: Number of other questions, with their answers, that precede each question in the prompt.
        bootstrap: Number of bootstrap samples for the confidence intervals; 0 for no interval.
        device: The device for a model that is passed as a folder.

    Returns:
        An :class:`Evaluation` of translations, a :class:`~headway.evaluation.ClassificationReport` of a classifier, or
        the :class:`~headway.predict.Perplexity` of a language model, in nats, and bits per byte. With ``pairs``, a
        :class:`~headway.evaluation.PairReport`; with ``questions``, a :class:`~headway.evaluation.ChoiceReport`.

    Raises:
        ConfigError: An argument does not fit the model, or a metric is unknown.
        DataError: There is no sentence, or the numbers of sources and references differ.
        HeadwayError: A text cannot be translated or classified; the message contains its number.
    """
    system = _opened(model, device)
    capability = "translates" if isinstance(system, list) else system.bundle.capability
    if pairs is not None or questions is not None:
        _refuse(sources=sources, references=references, glossary=glossary, pairs=None if questions is None else pairs)
        if capability not in ("continues", "fills") or (questions is not None and capability != "continues"):
            raise ConfigError(f"{'pairs' if questions is None else 'questions'} does not apply to this model")
        if questions is None:
            return score_minimal_pairs(system, list(pairs or ()))
        return evaluate_multiple_choice(system, parse_questions(questions), num_examples)
    if capability == "continues":
        _refuse(references=references, glossary=glossary)
        return cast("LanguageModel", system).perplexity(_texts(sources, "sources"))
    truth = _texts(references, "references")
    if capability == "labels":
        _refuse(glossary=glossary, target_language=target_language, source_language=source_language)
        texts = _texts(sources, "sources")
        _check_lengths(texts, truth)
        return score_classifications(classify_texts(system, texts), truth, system.labels, bootstrap)
    if capability != "translates":
        raise ConfigError("a masked language model has no scores on texts; its method score compares texts")
    if isinstance(system, list):
        _refuse(sources=sources, glossary=glossary, source_language=source_language)
        return score_outputs(system, truth, metrics=metrics, language=target_language, bootstrap=bootstrap)
    texts = _texts(sources, "sources")
    _check_lengths(texts, truth)
    settings = _translate_options(options, target_language, source_language)
    translations = translate_with(system, texts, settings, glossary=glossary)
    language = target_language or system.bundle.target_language
    return score_translations(translations, truth, metrics=metrics, language=language, bootstrap=bootstrap)


def score_outputs(
    outputs: Sequence[str],
    references: Sequence[str],
    *,
    metrics: Sequence[str] = _METRICS,
    language: str | None,
    bootstrap: int = 1000,
) -> Evaluation:
    """Score translations as texts. The target language ``language`` selects the tokenization of BLEU and TER.

    Raises:
        ConfigError: A metric is unknown.
        DataError: There are no sentences, or the numbers of outputs and references differ.
    """
    tokenization = tokenization_for(language or "")
    scores = score_texts(outputs, references, metrics=metrics, tokenization=tokenization, bootstrap=bootstrap)
    return Evaluation(tuple(scores), tuple(outputs))


def score_translations(
    translations: Sequence[Translation],
    references: Sequence[str],
    *,
    metrics: Sequence[str] = _METRICS,
    language: str | None,
    bootstrap: int = 1000,
) -> Evaluation:
    """Score a model's translations as :func:`score_outputs` does, and store them in the result."""
    outputs = [translation.text for translation in translations]
    scored = score_outputs(outputs, references, metrics=metrics, language=language, bootstrap=bootstrap)
    return replace(scored, translations=tuple(translations))


def compare(
    a: Any,
    b: Any,
    references: Iterable[Any],
    *,
    sources: Iterable[Any] | None = None,
    names: tuple[str, str] = ("a", "b"),
    metrics: Sequence[str] = (*_METRICS, "ter"),
    options: DecodingOptions = PAPER_OPTIONS,
    target_language: str | None = None,
    source_language: str | None = None,
    samples: int = 1000,
    trials: int = 10_000,
    max_differences: int = 5,
    device: str = "auto",
) -> ComparisonTable:
    """Test whether system ``b`` is better than the baseline ``a`` or the difference may be due to chance.

    Args:
        a: The baseline: a run or its folder, a model folder, a model that :func:`headway.load` returned, or outputs as
            a list.
        b: The other system, in any of these forms.
        references: One reference for each sentence; for classifiers, the true labels; for two language models, the
            texts on which their bits per byte are measured.
        sources: The texts to translate or to classify, if a system is a model.
        names: The names of the systems in the table.
        metrics: For translations: names from :data:`headway.evaluation.METRICS`.
        options: For translations: the models' search options.
        target_language: The language to translate into, which also selects the tokenization of BLEU and TER.
        source_language: The language of the sources, for imported models that need it.
        samples: Number of samples of the paired bootstrap.
        trials: Number of trials of approximate randomization.
        max_differences: Maximum number of sentences to show in the table: the sentences with the largest differences.
        device: The device for models that are passed as folders.

    Raises:
        ConfigError: The systems are of different kinds, or an argument does not fit them.
        DataError: The numbers of sentences differ.
        HeadwayError: A text cannot be translated or classified.
    """
    if names[0] == names[1]:
        raise ConfigError(f"names = {names!r}: expected two different names")
    systems = [_opened(system, device) for system in (a, b)]
    truth, kinds = _texts(references, "references"), {part.bundle.capability for part in systems if _is_model(part)}
    if len(kinds) > 1 or ("continues" in kinds and not all(map(_is_model, systems))):
        raise ConfigError("the two systems do different things; expected two that translate, label or continue texts")
    if "continues" in kinds:
        models: Any = {name: lambda system=system: system for name, system in zip(names, systems, strict=True)}
        return compare_bits_per_byte(models, truth, samples=samples, trials=trials)
    texts = _texts(sources, "sources") if kinds else []
    if kinds:
        _check_lengths(texts, truth)
    if "labels" in kinds:
        labels = [predict_labels(part, texts) if _is_model(part) else part for part in systems]
        predicted = dict(zip(names, labels, strict=True))
        return compare_labels(predicted, truth, samples=samples, max_differences=max_differences)
    if kinds - {"translates"}:
        raise ConfigError("masked language models have no outputs to compare")
    settings = _translate_options(options, target_language, source_language)
    outputs = [
        [translation.text for translation in translate_with(part, texts, settings)] if _is_model(part) else part
        for part in systems
    ]
    models = [part for part in systems if _is_model(part)]
    language = target_language or (models[0].bundle.target_language if models else "")
    return compare_outputs(
        dict(zip(names, outputs, strict=True)),
        truth,
        language,
        metrics=metrics,
        samples=samples,
        trials=trials,
        max_differences=max_differences,
    )


def _opened(model: Any, device: str) -> Any:
    """Return a model, or the outputs of a system as a list."""
    system = resolve_model(model, device)
    return system if _is_model(system) else _texts(system, "outputs")


def _is_model(system: Any) -> bool:
    return hasattr(system, "bundle")


def _texts(texts: Any, name: str) -> list[str]:
    """Return texts as a list. Messages refer to them as ``name``."""
    if texts is None or isinstance(texts, str):
        raise DataError(f"got {'none' if texts is None else 'one string'}", where=name, accepted="a list of strings")
    try:
        listed = list(texts)
    except TypeError:
        raise DataError(f"got {type(texts).__name__}", where=name, accepted="a list of strings") from None
    for index, text in enumerate(listed):
        if not isinstance(text, str):
            raise DataError(f"got {text!r:.40}", where=f"{name}[{index}]", accepted="a string")
    return listed


def _check_lengths(sources: Sequence[str], references: Sequence[str]) -> None:
    if len(sources) != len(references):
        raise DataError(
            f"{len(sources):,} sources but {len(references):,} references; expected one reference for each source"
        )


def _refuse(**given: object) -> None:
    """Raise ConfigError for the first argument that is not None, because none of them applies."""
    if wrong := [name for name, value in given.items() if value is not None]:
        raise ConfigError(f"{wrong[0]} does not apply to this model; leave it out")


def _translate_options(
    options: DecodingOptions, target_language: str | None, source_language: str | None
) -> TranslateOptions:
    return TranslateOptions.of(options, {"target_language": target_language, "source_language": source_language})
