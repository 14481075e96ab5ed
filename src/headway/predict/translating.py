"""What translates texts: the ways to ask, whoever answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

from headway.decode import DecodingOptions
from headway.errors import HeadwayError
from headway.predict.failing import without_errors
from headway.predict.results import Candidate, Source, Translation, WordAlignment

__all__ = ["PAPER", "TextTranslator"]

PAPER = DecodingOptions()  # section 6.1


class TextTranslator(ABC):
    """Translates one text, a list, or a stream."""

    lines_ahead = 2048  # of a stream, to be sorted by length

    @abstractmethod
    def translate_each(
        self,
        texts: Sequence[str | Source],
        options: DecodingOptions = PAPER,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        alignment: bool = False,
    ) -> list[Translation | HeadwayError]:
        """Translate a list of texts; one that cannot be translated has the error in its place and stops no other.

        The arguments are those of :meth:`translate`.
        """

    @abstractmethod
    def words(self, candidate: Candidate) -> WordAlignment:
        """A candidate's alignment from word to word, where it has one."""

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is a Sequence[str] too; the first signature wins
        self,
        text: str | Source,
        options: DecodingOptions = ...,
        *,
        target_language: str | None = ...,
        source_language: str | None = ...,
        alignment: bool = ...,
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
    ) -> list[Translation]: ...
    def translate(
        self,
        text: str | Source | Sequence[str | Source],
        options: DecodingOptions = PAPER,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        alignment: bool = False,
    ) -> Translation | list[Translation]:
        """Translate one text, or a list of them in one go.

        Args:
            text: The source or sources. A blank one translates to an empty text.
            options: How to search.
            target_language: Which of its ``target_languages`` a model with several translates into.
            source_language: The language of the sources, for imported models that are told it.
            alignment: Whether to find out which target token comes from which source token.

        Raises:
            HeadwayError: A text cannot be translated; the message has its number, counted from 1, in a list.
        """
        single = isinstance(text, (str, Source))
        texts = [text] if isinstance(text, (str, Source)) else text
        found = self.translate_each(
            texts, options, target_language=target_language, source_language=source_language, alignment=alignment
        )
        results = without_errors(found, None if single else "text", 1)
        return results[0] if single else results

    def translate_lines(
        self,
        lines: Iterable[str | Source],
        options: DecodingOptions = PAPER,
        *,
        target_language: str | None = None,
        source_language: str | None = None,
        alignment: bool = False,
    ) -> Iterator[Translation]:
        """Translate a stream in its order, reading some lines ahead so that sentences of like length meet.

        The arguments are those of :meth:`translate`. Memory does not grow with the number of lines.

        Raises:
            HeadwayError: A line cannot be translated; the message has its number.
        """
        lines = iter(lines)
        first = 1
        while chunk := list(islice(lines, self.lines_ahead)):
            found = self.translate_each(
                chunk, options, target_language=target_language, source_language=source_language, alignment=alignment
            )
            yield from without_errors(found, "line", first)
            first += len(chunk)
