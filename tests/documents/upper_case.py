"""A translator into upper case, which shows which texts were translated, and how often."""

from __future__ import annotations

from collections.abc import Sequence

from headway.decode import DecodingOptions
from headway.errors import HeadwayError
from headway.predict import (
    Candidate,
    Glossary,
    MarkupKind,
    MarkupOptions,
    Source,
    TextTranslator,
    Translation,
    WordAlignment,
)
from headway.predict.translation.marked_translation import MarkedTranslation
from headway.predict.translation.text_translator import PAPER_OPTIONS


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
        options: DecodingOptions = PAPER_OPTIONS,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        alignment: bool = False,
        glossary: Glossary | None = None,
        markup: MarkupOptions | MarkupKind | None = None,
        protect: bool = True,
    ) -> list[Translation | HeadwayError]:
        marked = MarkedTranslation(
            self._translate,
            markup=MarkupOptions.of(markup),
            protect=protect,
            alignment=alignment,
            can_align=False,
        )
        return marked.translate_each([Source(text) if isinstance(text, str) else text for text in texts])

    def _translate(self, sources: Sequence[Source], _: Sequence[bool]) -> list[Translation | HeadwayError]:
        self.texts += [source.text for source in sources]
        return [Translation(each.text, (Candidate(self._word(each.text), 0.0, 0.0, ()),)) for each in sources]

    def _word(self, text: str) -> str:
        if self._identity:
            return text
        keeps = ("kee", "{", "%", "https:")
        return " ".join(word if word.startswith(keeps) else word.upper() for word in text.split(" "))

    def word_alignment(self, candidate: Candidate) -> WordAlignment:
        raise NotImplementedError
