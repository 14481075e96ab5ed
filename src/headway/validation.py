"""Scores a model on a recipe's development set by using it: what training calls without knowing how to decode."""

from __future__ import annotations

from pathlib import Path

from headway.bundle import Bundle, ClassifierBundle
from headway.data.labels import read_labelled
from headway.data.readers import Corpus, read_examples
from headway.decode.options import DecodingOptions
from headway.errors import DataError
from headway.evaluate import Score, bleu, evaluate_classes
from headway.predict import Classifier, Translator
from headway.train.judge import Validate
from headway.train.recipe import Recipe

__all__ = ["validator"]


def validator(recipe: Recipe) -> Validate | None:
    """A function from a model to its scores on the development set; None where there is no such set or no need."""
    dev = recipe.data.dev
    if dev is None or recipe.validation.metric == "loss":
        return None
    return _classifying(recipe, dev) if recipe.task.kind == "classification" else _translating(recipe, dev)


def _translating(recipe: Recipe, dev: Corpus) -> Validate:
    examples = list(read_examples(dev, Path(recipe.data.folder)))
    options = DecodingOptions(beam_size=recipe.validation.beam_size)
    sources, references = [source for source, _ in examples], [target for _, target in examples]

    def validate(bundle: Bundle | ClassifierBundle) -> list[Score]:
        assert isinstance(bundle, Bundle)
        translations = Translator(bundle).translate(
            sources, options, source_language=dev.source_language, target_language=dev.target_language
        )
        return [bleu([translation.text for translation in translations], references)]

    return validate


def _classifying(recipe: Recipe, dev: Corpus) -> Validate:
    examples = list(read_labelled(dev, Path(recipe.data.folder)))
    blank = next((number for number, (text, _) in enumerate(examples, start=1) if not text.strip()), None)
    if blank is not None:
        raise DataError(f"{' + '.join(dev.files)}, example {blank:,}: the text is empty; a development set has none")
    texts, truth = [text for text, _ in examples], [label for _, label in examples]

    def validate(bundle: Bundle | ClassifierBundle) -> list[Score]:
        assert isinstance(bundle, ClassifierBundle)
        found = Classifier(bundle).classify(texts)
        report = evaluate_classes(
            [each.label for each in found],
            truth,
            bundle.labels,
            confidences=[each.probability for each in found],
            bootstrap=0,
        )
        return list(report.scores)

    return validate
