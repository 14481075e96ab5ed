"""A translator into upper case, which shows which texts were translated, and how often."""

from __future__ import annotations

from collections.abc import Sequence

from headway.errors import HeadwayError
from headway.predict import (
    Candidate,
    Glossary,
    Source,
    TextTranslator,
    TranslateOptions,
    Translation,
    WordAlignment,
)
from headway.predict.translation.marked_translation import MarkedTexts, TranslationUnit
from headway.predict.translation.options import DEFAULT_OPTIONS


class UpperCaseTranslator(TextTranslator):
    """Translates words by writing them in upper case, except for placeholders and words that begin with "kee".

    Args:
        identity: Whether to leave words as they are instead.

    Attributes:
        texts: The texts that a model would have read.
    """

    def __init__(self, *, identity: bool = False) -> None:
        self._identity = identity
        self.texts: list[str] = []

    def translate_each(
        self,
        texts: Sequence[str | Source],
        options: TranslateOptions = DEFAULT_OPTIONS,
        glossary: Glossary | None = None,
    ) -> list[Translation | HeadwayError]:
        marked = MarkedTexts(texts, options, can_align=False)
        marked.store(marked.units, self._translate(marked.units))
        if retries := marked.prepare_retries():
            marked.store(retries, self._translate(retries))
        return marked.merge()

    def _translate(self, units: Sequence[TranslationUnit]) -> list[Translation]:
        texts = [unit.source.text for unit in units]
        self.texts += texts
        return [Translation(text, (Candidate(self._word(text), 0.0, 0.0, ()),)) for text in texts]

    def _word(self, text: str) -> str:
        if self._identity:
            return text
        keeps = ("kee", "{", "%", "https:")
        return " ".join(word if word.startswith(keeps) else word.upper() for word in text.split(" "))

    def word_alignment(self, candidate: Candidate) -> WordAlignment:
        raise NotImplementedError
