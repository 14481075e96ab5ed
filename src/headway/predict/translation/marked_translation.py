"""Translate texts with markup or placeholders: their segments are translated like separate texts.

Texts without markup and placeholders are passed on unchanged, so their translations do not depend on this module. The
steps for other texts are:

1. All segments are translated. Placeholders are part of their texts, so that no sentence lacks a word. Segments with
   marks are aligned.
2. A segment is translated again without its placeholders if its translation does not contain each placeholder exactly
   once, or changes a number with a unit. The placeholders are then placed by alignment.
3. The marks are placed, and the segments are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headway.errors import ConfigError, DataError, HeadwayError
from headway.predict.markup.document import Document, Segment
from headway.predict.markup.html import parse_markup
from headway.predict.markup.mark_placement import AlignedText, link_words, render_document, visible_text
from headway.predict.markup.placeholders import (
    count_placeholders,
    keeps_placeholders,
    parse_plain_text,
    remove_placeholders,
)
from headway.predict.results import Alignment, Candidate, Source, Translation
from headway.predict.translation.options import TranslateOptions
from headway.predict.translation.plan import TranslationPlan, merge_parts
from headway.predict.translation.segment import TextPart
from headway.text.base import check_no_surrogates

_EMPTY = Candidate("", 0.0, 0.0, (), (), alignment=Alignment((), (), ()))  # the translation of a segment without text


@dataclass
class TranslationUnit:
    """A unit of translation: a segment, or a whole text without markup and placeholders.

    Attributes:
        source: The text to translate.
        needs_alignment: Whether the candidates need an alignment.
        segment: The segment. None for a whole text.
        result: The translation or an error. None before the unit has been translated.
    """

    source: Source
    needs_alignment: bool
    segment: Segment | None = None
    result: Translation | HeadwayError | None = None


class MarkedTexts:
    """Divides the texts in one call into units to translate, and merges the translations of the units.

        marked = MarkedTexts(texts, options, can_align=True)
        marked.store(marked.units, translate(marked.units))
        if retries := marked.prepare_retries():
            marked.store(retries, translate(retries))
        translations = marked.merge()

    Args:
        texts: The texts, which may contain markup and placeholders.
        options: The options of the translation. Only ``markup``, ``protect`` and ``alignment`` are used.
        can_align: Whether the model can compute alignments. Otherwise, marks keep their relative positions.

    Attributes:
        units: All units that contain text.
    """

    def __init__(self, texts: Sequence[str | Source], options: TranslateOptions, *, can_align: bool) -> None:
        self._options, self._can_align = options, can_align
        self._sources = [Source(text) if isinstance(text, str) else text for text in texts]
        self._documents = [self.parse(source.text) for source in self._sources]
        self._units_of_texts = [
            self._units(source, document) for source, document in zip(self._sources, self._documents, strict=True)
        ]
        self.units = _without_empty(
            unit for units in self._units_of_texts if not isinstance(units, HeadwayError) for unit in units
        )

    @staticmethod
    def store(units: Sequence[TranslationUnit], results: Sequence[Translation | HeadwayError]) -> None:
        """Store the result of each unit."""
        for unit, result in zip(units, results, strict=True):
            unit.result = result

    def prepare_retries(self) -> list[TranslationUnit]:
        """Remove the placeholders from units whose translations did not keep them, and return these units."""
        units = [unit for unit in self.units if not self._keeps_placeholders(unit)]
        for unit in units:
            assert unit.segment is not None
            unit.segment = unit.segment.without_placeholders()
            unit.source = replace(unit.source, text=unit.segment.text)
            unit.needs_alignment = self._needs_alignment(unit.segment)
        return _without_empty(units)

    def merge(self) -> list[Translation | HeadwayError]:
        """Return the translation of each text, or an error if the text cannot be translated."""
        results: list[Translation | HeadwayError] = []
        for source, document, units in zip(self._sources, self._documents, self._units_of_texts, strict=True):
            if isinstance(units, HeadwayError):
                results.append(units)
            elif document is None:
                assert units[0].result is not None
                results.append(units[0].result)
            else:
                results.append(self._merge(source, document, units))
        return results

    def parse(self, text: str) -> Document | None:
        """Return the document of a text, or None if the text contains no part that must be kept."""
        if self._options.markup is not None:
            return parse_markup(text, self._options.markup, protect=self._options.protect) if text.strip() else None
        return parse_plain_text(text) if self._options.protect else None

    def _units(self, source: Source, document: Document | None) -> list[TranslationUnit] | HeadwayError:
        if document is None:
            return [TranslationUnit(source, self._options.alignment)]
        try:
            check_no_surrogates(source.text, 1)
        except DataError as error:
            return DataError(str(error).removeprefix("text 1, "))
        if source.include and len(document.segments) > 1:
            return ConfigError(
                f"include: the text is translated in {len(document.segments)} parts, and it is unknown which part must "
                "contain the phrases; translate its lines or paragraphs one by one"
            )
        first = next((piece for piece in document.pieces if isinstance(piece, int)), 0)
        return [
            TranslationUnit(
                replace(source, text=segment.text, prefix=source.prefix if number == first else ""),
                self._needs_alignment(segment),
                segment,
            )
            for number, segment in enumerate(document.segments)
        ]

    def _needs_alignment(self, segment: Segment) -> bool:
        return self._options.alignment or (self._can_align and bool(segment.marks))

    def _keeps_placeholders(self, unit: TranslationUnit) -> bool:
        """Return whether all candidates contain the segment's placeholders. True for errors, which are not retried."""
        segment, result = unit.segment, unit.result
        if segment is None or not segment.has_placeholders or not isinstance(result, Translation):
            return True
        return all(
            segment.find_placeholders(candidate.text) is not None
            and (not self._options.protect or keeps_placeholders(segment.text, candidate.text))
            for candidate in result.candidates
        )

    def _merge(
        self, source: Source, document: Document, units: Sequence[TranslationUnit]
    ) -> Translation | HeadwayError:
        """Merge the translations of a document's segments; see :func:`headway.predict.translation.plan.merge_parts`."""
        parts: list[Translation] = []
        for unit in units:
            if isinstance(unit.result, HeadwayError):
                return unit.result
            assert unit.result is not None
            parts.append(unit.result)
        segments = [unit.segment for unit in units if unit.segment is not None]
        document = replace(document, segments=tuple(segments))
        spaces = [TextPart(segment.text, " " if number else "") for number, segment in enumerate(segments)]
        judged = [part.unlikely for part in parts if part.unlikely is not None]
        keeps_alignments = self._options.alignment
        merged = merge_parts(
            TranslationPlan(source, tuple(spaces)),
            [part.candidates if keeps_alignments else _without_alignments(part.candidates) for part in parts],
            any(judged) if judged else None,
        )
        if isinstance(merged, HeadwayError):
            return merged
        protected = self._options.protect and bool(count_placeholders(source.text))
        candidates: list[Candidate] = []
        for rank, candidate in enumerate(merged.candidates):
            chosen = [part.candidates[min(rank, len(part.candidates) - 1)] for part in parts]
            aligned = [self._aligned(*pair, protected) for pair in zip(segments, chosen, strict=True)]
            flags = candidate.flags
            if None in aligned and "copied" not in flags:
                flags = (*flags, "copied")
            candidates.append(replace(candidate, text=render_document(document, aligned), flags=flags))
        return replace(merged, candidates=tuple(candidates))

    def _aligned(self, segment: Segment, candidate: Candidate, protected: bool) -> AlignedText | None:
        """Return a segment's translation for :func:`render_document`, or None if the source must be kept.

        The source is kept if the translation and an adjacent placeholder together look like another placeholder. If
        ``protected`` is set, the text has placeholders, so the translation must not add any placeholders.
        """
        text = remove_placeholders(segment.text, candidate.text) if protected else candidate.text
        placeholders = segment.find_placeholders(text)
        if placeholders is None:
            return None
        alignment = candidate.alignment if segment.marks else None
        links = (
            link_words(segment, text, placeholders, alignment.source_tokens, candidate.tokens, alignment.pairs)
            if alignment is not None
            else frozenset()
        )
        aligned = AlignedText(text, placeholders, links)
        if protected:
            expected = count_placeholders("\n".join(segment.visible_objects()))
            counts = count_placeholders(visible_text(segment, aligned))
            if any(counts[placeholder] != count for placeholder, count in expected.items()):
                return None
        return aligned


def _without_empty(units: Iterable[TranslationUnit]) -> list[TranslationUnit]:
    """Return the units that contain text. All others are segments without text and get an empty translation."""
    with_text: list[TranslationUnit] = []
    for unit in units:
        if unit.segment is None or unit.segment.text:
            with_text.append(unit)
        else:
            unit.result = Translation(unit.source.text, (_EMPTY,))
    return with_text


def _without_alignments(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [replace(candidate, alignment=None) for candidate in candidates]
