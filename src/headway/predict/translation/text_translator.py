"""The interface of all translators: they translate one text, a list or a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Unpack, overload

from headway.decode.request import PAPER_OPTIONS, DecodingOptions
from headway.errors import HeadwayError
from headway.predict.results import Candidate, Source, Translation, WordAlignment, process_lines, raise_first_error
from headway.predict.translation.glossary import Glossary
from headway.predict.translation.options import DEFAULT_OPTIONS, TranslateKeywords, TranslateOptions


class TextTranslator(ABC):
    """Translates one text, a list, or a stream. Several threads may call it at the same time."""

    lines_ahead = 2048  # number of lines of a stream to read at a time, so that they can be batched by length

    @abstractmethod
    def translate_each(
        self,
        texts: Sequence[str | Source],
        options: TranslateOptions = DEFAULT_OPTIONS,
        glossary: Glossary | None = None,
    ) -> list[Translation | HeadwayError]:
        """Translate a list of texts. A text that cannot be translated is represented by its error.

        Args:
            texts: The texts to translate. The translation of a blank text is empty.
            options: The options of the translation.
            glossary: Required translations of certain source phrases.

        Raises:
            ConfigError: The options are not compatible with the model.
        """

    @abstractmethod
    def word_alignment(self, candidate: Candidate) -> WordAlignment:
        """Return the word alignment of a candidate that was translated with ``alignment=True``."""

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] too; the first signature wins
        self,
        text: str | Source,
        options: DecodingOptions = ...,
        *,
        glossary: Glossary | None = ...,
        **keywords: Unpack[TranslateKeywords],
    ) -> Translation: ...
    @overload
    def translate(
        self,
        text: Sequence[str | Source],
        options: DecodingOptions = ...,
        *,
        glossary: Glossary | None = ...,
        **keywords: Unpack[TranslateKeywords],
    ) -> list[Translation]: ...
    def translate(
        self,
        text: str | Source | Sequence[str | Source],
        options: DecodingOptions = PAPER_OPTIONS,
        *,
        glossary: Glossary | None = None,
        **keywords: Unpack[TranslateKeywords],
    ) -> Translation | list[Translation]:
        """Translate one text or a list of texts.

        Args:
            text: The text or texts to translate. The translation of a blank text is empty.
            options: The search options.
            glossary: Required translations of certain source phrases.
            keywords: ``target_language``, ``source_language``, ``alignment``, ``markup`` and ``protect``, the fields of
                :class:`headway.predict.TranslateOptions`.

        Raises:
            ConfigError: A keyword is unknown, or the options are not compatible with the model.
            HeadwayError: A text cannot be translated. For a list, the message contains the text's number, counted from
                1.
        """
        single = isinstance(text, (str, Source))
        texts = [text] if isinstance(text, (str, Source)) else text
        translations = self.translate_each(texts, TranslateOptions.of(options, keywords), glossary)
        results = raise_first_error(translations, None if single else "text", 1)
        return results[0] if single else results

    def translate_lines(
        self,
        lines: Iterable[str | Source],
        options: DecodingOptions = PAPER_OPTIONS,
        *,
        glossary: Glossary | None = None,
        **keywords: Unpack[TranslateKeywords],
    ) -> Iterator[Translation]:
        """Translate a stream in order, reading ahead to batch sentences of similar length.

        For the arguments, see :meth:`translate`. Memory use does not grow with the number of lines.

        Raises:
            ConfigError: A keyword is unknown, or the options are not compatible with the model.
            HeadwayError: A line cannot be translated. The message contains the line number.
        """
        chosen = TranslateOptions.of(options, keywords)
        return process_lines(lines, self.lines_ahead, lambda chunk: self.translate_each(chunk, chosen, glossary))
