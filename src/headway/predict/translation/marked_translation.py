"""Translate texts with markup or placeholders: their segments are translated like separate texts.

Texts that contain nothing to keep are passed on unchanged, so their translations do not depend on this module. The
steps for the others:

1. All segments are translated. Placeholders are part of their texts, so that no sentence lacks a word. Segments with
   marks are aligned.
2. A segment whose translation does not contain each placeholder exactly once, or that changes a number with a unit, is
   translated again without its placeholders, which are then placed by alignment.
3. The marks are placed, and the text is put together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headway.errors import ConfigError, DataError, HeadwayError
from headway.predict.markup.html import MarkupKind, MarkupOptions, parse_markup
from headway.predict.markup.marked_text import AlignedText, Document, Segment, link_words, visible_text
from headway.predict.markup.placeholders import (
    is_plain,
    keeps_placeholders,
    parse_plain_text,
    placeholder_counts,
    remove_placeholders,
)
from headway.predict.results import Alignment, Candidate, Source, Translation
from headway.predict.translation.plan import TranslationPlan, merge_parts
from headway.predict.translation.segment import TextPart
from headway.text.base import refuse_surrogates

# Translates texts. The second list says for each text whether its candidates need an alignment.
Translate = Callable[[Sequence[Source], Sequence[bool]], Sequence[Translation | HeadwayError]]


_EMPTY = Candidate("", 0.0, 0.0, (), (), alignment=Alignment((), (), ()))  # the translation of a segment without text


@dataclass
class _Unit:
    """A text that is translated at once: a text without anything to keep, or a segment.

    Attributes:
        source: The text.
        needs_alignment: Whether its candidates need an alignment.
        segment: The segment. None for a text without anything to keep.
        result: The translation.
    """

    source: Source
    needs_alignment: bool
    segment: Segment | None = None
    result: Translation | HeadwayError | None = None


def translate_marked(
    texts: Sequence[str | Source],
    translate: Translate,
    *,
    markup: MarkupOptions | MarkupKind | None,
    protect: bool,
    alignment: bool,
    can_align: bool,
) -> list[Translation | HeadwayError]:
    """Translate texts that may contain something to keep. A text that cannot be translated is represented by its error.

    For ``markup``, ``protect`` and ``alignment`` see
    :meth:`headway.predict.translation.text_translator.TextTranslator.translate`, for the others
    :class:`MarkedTranslation`.
    """
    sources = [Source(text) if isinstance(text, str) else text for text in texts]
    if markup is None and (not protect or all(is_plain(source.text) for source in sources)):
        return list(translate(sources, [alignment] * len(sources)))
    marked = MarkedTranslation(
        translate, markup=MarkupOptions.of(markup), protect=protect, alignment=alignment, can_align=can_align
    )
    return marked.translate_each(sources)


class MarkedTranslation:
    """Translates the texts of one call.

    Args:
        translate: Function that translates texts without markup and placeholders.
        markup: How tags are treated. None means that the texts are plain text.
        protect: Whether placeholders are kept.
        alignment: Whether the candidates of all texts need an alignment.
        can_align: Whether the model can align. Otherwise marks keep their relative positions.
    """

    def __init__(
        self, translate: Translate, *, markup: MarkupOptions | None, protect: bool, alignment: bool, can_align: bool
    ) -> None:
        self._translate, self._markup, self._protect = translate, markup, protect
        self._alignment, self._can_align = alignment, can_align

    def translate_each(self, sources: Sequence[Source]) -> list[Translation | HeadwayError]:
        """Translate texts. A text that cannot be translated is represented by its error."""
        documents = [self.parse(source.text) for source in sources]
        units = [self._units(*pair) for pair in zip(sources, documents, strict=True)]
        flat = [unit for own in units if not isinstance(own, HeadwayError) for unit in own]
        self._translate_units(flat)
        if again := [unit for unit in flat if not self._keeps_placeholders(unit)]:
            for unit in again:
                assert unit.segment is not None
                unit.segment = unit.segment.without_placeholders()
                unit.source = replace(unit.source, text=unit.segment.text)
                unit.needs_alignment = self._needs_alignment(unit.segment)
            self._translate_units(again)
        results: list[Translation | HeadwayError] = []
        for source, document, own in zip(sources, documents, units, strict=True):
            if isinstance(own, HeadwayError):
                results.append(own)
            elif document is None:
                assert own[0].result is not None
                results.append(own[0].result)
            else:
                results.append(self._merge(source, document, own))
        return results

    def parse(self, text: str) -> Document | None:
        """Return the document of a text, or None if there is nothing to keep."""
        if not text.strip():
            return None
        if self._markup is not None:
            return parse_markup(text, self._markup, protect=self._protect)
        return parse_plain_text(text) if self._protect else None

    def _units(self, source: Source, document: Document | None) -> list[_Unit] | HeadwayError:
        try:
            refuse_surrogates(source.text, 1)
        except DataError as error:
            return DataError(str(error).removeprefix("text 1, "))
        if document is None:
            return [_Unit(source, self._alignment)]
        if source.include and len(document.segments) > 1:
            return ConfigError(
                f"include: the text is translated in {len(document.segments)} parts, and it is unknown which part must "
                "contain the phrases; translate its lines or paragraphs one by one"
            )
        first = next((piece for piece in document.pieces if isinstance(piece, int)), 0)
        return [
            _Unit(
                replace(source, text=segment.text, prefix=source.prefix if number == first else ""),
                self._needs_alignment(segment),
                segment,
            )
            for number, segment in enumerate(document.segments)
        ]

    def _needs_alignment(self, segment: Segment) -> bool:
        return self._alignment or (self._can_align and bool(segment.marks))

    def _translate_units(self, units: Sequence[_Unit]) -> None:
        chosen = [unit for unit in units if unit.segment is None or unit.segment.text]
        found = self._translate([unit.source for unit in chosen], [unit.needs_alignment for unit in chosen])
        for unit in units:
            unit.result = Translation(unit.source.text, (_EMPTY,))
        for unit, result in zip(chosen, found, strict=True):
            unit.result = result

    def _keeps_placeholders(self, unit: _Unit) -> bool:
        """Return whether all candidates contain the segment's placeholders. True for errors, which stay errors."""
        segment, result = unit.segment, unit.result
        if segment is None or not segment.has_placeholders or not isinstance(result, Translation):
            return True
        return all(
            segment.find_placeholders(candidate.text) is not None
            and (not self._protect or keeps_placeholders(segment.text, candidate.text))
            for candidate in result.candidates
        )

    def _merge(self, source: Source, document: Document, units: Sequence[_Unit]) -> Translation | HeadwayError:
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
        merged = merge_parts(
            TranslationPlan(source, tuple(spaces)),
            [part.candidates if self._alignment else _without_alignments(part.candidates) for part in parts],
            any(judged) if judged else None,
        )
        if isinstance(merged, HeadwayError):
            return merged
        protected = self._protect and bool(placeholder_counts(source.text))
        candidates: list[Candidate] = []
        for rank, candidate in enumerate(merged.candidates):
            chosen = [part.candidates[min(rank, len(part.candidates) - 1)] for part in parts]
            aligned = [self._aligned(*pair, protected) for pair in zip(segments, chosen, strict=True)]
            flags = candidate.flags
            if None in aligned and "copied" not in flags:
                flags = (*flags, "copied")
            candidates.append(replace(candidate, text=document.fill(aligned), flags=flags))
        return replace(merged, candidates=tuple(candidates))

    def _aligned(self, segment: Segment, candidate: Candidate, protected: bool) -> AlignedText | None:
        """Return a segment's translation for :meth:`Document.fill`, or None if the segment must stay as it is.

        It stays as it is if the translation and a placeholder beside it look like another placeholder. ``protected``
        tells whether the text has placeholders, so that none may be added.
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
            expected = placeholder_counts("\n".join(segment.visible_points()))
            found = placeholder_counts(visible_text(segment, aligned))
            if any(found[each] != count for each, count in expected.items()):
                return None
        return aligned


def _without_alignments(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [replace(candidate, alignment=None) for candidate in candidates]
