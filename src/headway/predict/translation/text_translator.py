"""The interface of all translators: they translate one text, a list or a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import overload

from headway.decode import DecodingOptions
from headway.errors import HeadwayError
from headway.predict.markup.html import MarkupKind, MarkupOptions
from headway.predict.results import Candidate, Source, Translation, WordAlignment, process_lines, raise_first_error
from headway.predict.translation.glossary import Glossary

PAPER_OPTIONS = DecodingOptions()  # section 6.1


class TextTranslator(ABC):
    """Translates one text, a list, or a stream. Several threads may call it at the same time."""

    lines_ahead = 2048  # lines of a stream that are read at a time, to be batched by length

    @abstractmethod
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
        """Translate a list of texts. A text that cannot be translated is represented by its error.

        For the arguments see :meth:`translate`.
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
        target_language: str | None = ...,
        source_language: str | None = ...,
        alignment: bool = ...,
        glossary: Glossary | None = ...,
        markup: MarkupOptions | MarkupKind | None = ...,
        protect: bool = ...,
    ) -> Translation: ...
    @overload
    def translate(
        self,
        text: Sequence[str | Source],
        options: DecodingOptions = ...,
        *,
        target_language: str | None = ...,
        source_language: str | None = ...,
        alignment: bool = ...,
        glossary: Glossary | None = ...,
        markup: MarkupOptions | MarkupKind | None = ...,
        protect: bool = ...,
    ) -> list[Translation]: ...
    def translate(
        self,
        text: str | Source | Sequence[str | Source],
        options: DecodingOptions = PAPER_OPTIONS,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        alignment: bool = False,
        glossary: Glossary | None = None,
        markup: MarkupOptions | MarkupKind | None = None,
        protect: bool = True,
    ) -> Translation | list[Translation]:
        """Translate one text or a list of texts.

        Args:
            text: The source or sources. The translation of a blank text is empty.
            options: The options of the search.
            target_language: The language to translate into, for models with several target languages.
            source_language: The language of the sources, for imported models that need it.
            alignment: Whether to align each target token to a source token.
            glossary: Required translations of certain source phrases.
            markup: The syntax of the sources: "html" or "xml", or options. Tags are kept, and inline tags enclose the
                translations of the words that they enclose in the source. None means that the sources are plain text.
            protect: Whether placeholders, URLs, e-mail addresses, numbers with units, emoji, Markdown and line breaks
                are kept; see :mod:`headway.predict.markup.placeholders`. A source that contains none of them is
                translated as if this were False.

        Raises:
            HeadwayError: A text cannot be translated. For a list, the message contains the number of the text, counted
                from 1.
        """
        single = isinstance(text, (str, Source))
        texts = [text] if isinstance(text, (str, Source)) else text
        found = self.translate_each(
            texts,
            options,
            target_language=target_language,
            source_language=source_language,
            alignment=alignment,
            glossary=glossary,
            markup=markup,
            protect=protect,
        )
        results = raise_first_error(found, None if single else "text", 1)
        return results[0] if single else results

    def translate_lines(
        self,
        lines: Iterable[str | Source],
        options: DecodingOptions = PAPER_OPTIONS,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        alignment: bool = False,
        glossary: Glossary | None = None,
        markup: MarkupOptions | MarkupKind | None = None,
        protect: bool = True,
    ) -> Iterator[Translation]:
        """Translate a stream in order, reading ahead to batch sentences of similar length.

        For the arguments see :meth:`translate`. Memory use does not grow with the number of lines.

        Raises:
            HeadwayError: A line cannot be translated. The message contains the line number.
        """
        translate = partial(
            self.translate_each,
            options=options,
            target_language=target_language,
            source_language=source_language,
            alignment=alignment,
            glossary=glossary,
            markup=markup,
            protect=protect,
        )
        return process_lines(lines, self.lines_ahead, translate)
