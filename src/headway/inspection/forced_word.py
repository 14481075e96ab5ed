"""Why not this word? Force a word at a position in a translation, and measure its cost.

Beam search is forced to begin with the words before the position and the given word, and then completes the
translation. Both translations are scored with teacher forcing. The cost is the difference between their
log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from headway.decode.request import PAPER_OPTIONS, DecodingOptions
from headway.errors import DataError
from headway.inspection.inspect_translator import inspect_translation
from headway.inspection.results import Inspection
from headway.predict import Source, Translator


@dataclass(frozen=True)
class ForcedWord:
    """A translation, and an alternative translation with a forced word.

    Attributes:
        original: The translation to compare with.
        with_word: The translation that contains the forced word.
    """

    original: Inspection
    with_word: Inspection

    @property
    def cost(self) -> float:
        """The decrease in log-probability due to the word, in nats. Negative if the search missed a better
        translation."""
        return self.original.log_probability - self.with_word.log_probability


def force_word(
    translator: Translator,
    source: str,
    prefix: str,
    word: str,
    *,
    translation: str | None = None,
    options: DecodingOptions = PAPER_OPTIONS,
    target_language: str | None = None,
    source_language: str | None = None,
) -> ForcedWord:
    """Force a word at a position in a translation.

    Args:
        translator: The translator whose search is forced.
        source: The source text. It must be short enough to be translated without splitting it.
        prefix: The translation before the position, including the white space before the word.
        word: The text to force: one or several words, or the beginning of a word.
        translation: The translation to compare with. None means the model's own.
        options: Options of both searches.
        target_language: The language to translate into, if the model has several.
        source_language: The language of the source, for imported models that need it.

    Raises:
        HeadwayError: A text is blank or too long, or the model cannot generate the word.
    """
    if not word.strip():
        raise DataError("the word is blank: there is nothing to force; pass a word")
    begun = Source(source, prefix=prefix + word)
    forced = translator.translate(
        begun, options, target_language=target_language, source_language=source_language, protect=False
    )
    read = partial(
        inspect_translation,
        translator,
        source,
        options=options,
        target_language=target_language,
        source_language=source_language,
    )
    return ForcedWord(read(translation), read(forced.text))
