"""Shared by the tests of texts with marks: fill a document with given translations."""

from __future__ import annotations

from headway.predict.markup.document import Document, Segment
from headway.predict.markup.mark_placement import AlignedText, render_document, split_into_spans


def aligned(segment: Segment, target: str, links: frozenset[tuple[int, int]] = frozenset()) -> AlignedText | None:
    """Return a translation of a segment with given links, or None if it lacks a placeholder."""
    placeholders = segment.find_placeholders(target)
    return None if placeholders is None else AlignedText(target, placeholders, links)


def copy_of(segment: Segment) -> AlignedText | None:
    """Return a segment's own text as its translation, word aligned to word."""
    words = split_into_spans(segment.text, [(each.start, each.end) for each in segment.placeholders])
    return aligned(segment, segment.text, frozenset((i, i) for i in range(len(words))))


def copied(document: Document) -> str:
    """Fill a document with its own segments."""
    return render_document(document, [copy_of(segment) for segment in document.segments])


def translated(document: Document, target: str, pairs: dict[str, str]) -> str:
    """Fill a document of one segment. ``pairs`` maps source words to their translations."""
    (segment,) = document.segments
    kept = segment.find_placeholders(target)
    here = split_into_spans(segment.text, [(each.start, each.end) for each in segment.placeholders])
    there = split_into_spans(target, kept or ())
    rows = {segment.text[start:end]: index for index, (start, end) in enumerate(here)}
    columns = {target[start:end]: index for index, (start, end) in enumerate(there)}
    links = frozenset((rows[one], columns[each]) for one, own in pairs.items() for each in own.split())
    return render_document(document, [None if kept is None else AlignedText(target, kept, links)])
