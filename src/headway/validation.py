"""Scores a model on a recipe's development set by translating it: what training calls without knowing how to decode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headway.bundle import Bundle
from headway.data.readers import read_examples
from headway.decode.options import DecodingOptions
from headway.evaluate import Score, bleu
from headway.predict import Translator
from headway.train.recipe import Recipe

__all__ = ["translation_validator"]


def translation_validator(recipe: Recipe) -> Callable[[Bundle], list[Score]] | None:
    """A function from a model to its BLEU on the development set; None where there is no such set or no need."""
    dev = recipe.data.dev
    if dev is None or recipe.validation.metric != "bleu":
        return None
    examples = list(read_examples(dev, Path(recipe.data.folder)))
    options = DecodingOptions(beam_size=recipe.validation.beam_size)
    sources, references = [source for source, _ in examples], [target for _, target in examples]

    def validate(bundle: Bundle) -> list[Score]:
        translations = Translator(bundle).translate(sources, options, target_language=dev.target_language)
        return [bleu([translation.text for translation in translations], references)]

    return validate
