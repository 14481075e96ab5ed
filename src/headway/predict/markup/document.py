"""Texts with tags or placeholders: the segments to translate, and the marks in them.

A :class:`Document` consists of text that is kept, and segments. A segment is plain text with marks. A mark is a pair of
tags that encloses words, or an object: anything between words that is kept unchanged, such as an empty tag or an emoji.
Marks are not part of the segment's text, so any model can translate the text, and the translation does not depend on
the marks. :mod:`headway.predict.markup.mark_placement` inserts the marks into the translation. Each mark occurs exactly
once in the result, except that emphasis may be omitted if the translation has no word for it.

Placeholders are treated differently, because most models copy them, and a sentence without them may lack its subject.
They are part of the segment's text at first. They become objects (:meth:`Segment.without_placeholders`) only if the
translation does not contain each of them exactly once.

This module does not depend on a model or a syntax. The parsers are in :mod:`headway.predict.markup.html` and
:mod:`headway.predict.markup.placeholders`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

from headway.text.words import word_spans

Pieces = tuple[str | int, ...]  # text, and indices of segments
Span = tuple[int, int]
ItemKind = Literal["text", "number", "placeholder", "object", "open", "close"]
WithoutWords = Literal["empty", "dropped", "source"]

_OPENING, _CLOSING = "([{„«¿¡‚", ".,;:!?)]}“”»…。、，！？；：）」』"
TAG_CHARACTER = "\ufffc"
"""Represents a tag in the visible text of a segment."""
_FIRST_STAND_IN, _LAST_STAND_IN = 0x100000, 0x10FFFD
STAND_IN_PATTERN = re.compile(f"[{chr(_FIRST_STAND_IN)}-{chr(_LAST_STAND_IN)}]")
"""Private-use characters that replace parts of a text while it is parsed; see :class:`DocumentBuilder`."""


@dataclass(frozen=True)
class Item:
    """A part of a parsed text.

    Attributes:
        kind: "text", "number" (with a unit), "placeholder", "object", or the "open" or "close" tag of a pair. Pairs
            must be nested.
        raw: The part as written in the source.
        text: The displayed text. Empty for tags.
        separates_words: Whether an object contains white space between its parts, which separates words.
        without_words: What to do with a pair if the translation has no word for it: "empty" keeps the pair without
            words, "dropped" omits the tags, and "source" encloses the words of the source.
    """

    kind: ItemKind
    raw: Pieces
    text: str = ""
    separates_words: bool = False
    without_words: WithoutWords = "empty"


@dataclass
class Mark:
    """A pair of tags or an object in a segment.

    Attributes:
        start: Start of the enclosed text in the segment's text.
        end: End of the enclosed text. Equal to ``start`` for an object.
        opening: The opening tag, or the object.
        closing: The closing tag. None for an object.
        visible: The text that an object displays, or :data:`TAG_CHARACTER`.
        left_character: The source character to the left of an object, "" at the edge of the segment.
        right_character: The source character to the right of an object.
        starts_with_space: Whether a pair encloses the space before its text.
        ends_with_space: Whether a pair encloses the space after its text.
        children: The marks inside a pair, in the order of the source.
        without_words: See :class:`Item`.
    """

    start: int
    end: int
    opening: Pieces
    closing: Pieces | None = None
    visible: str = TAG_CHARACTER
    left_character: str = ""
    right_character: str = ""
    starts_with_space: bool = False
    ends_with_space: bool = False
    children: list[Mark] = field(default_factory=list)
    without_words: WithoutWords = "empty"

    def has_pair_at(self, edge: int) -> bool:
        """Return whether a nested pair begins or ends at the position ``edge`` of the source."""
        return any(child.closing is not None and edge in (child.start, child.end) for child in self.children)


@dataclass(frozen=True)
class Placeholder:
    """A part of a segment's text that the translation must contain.

    Attributes:
        start: Start of the placeholder in the segment's text.
        end: End of the placeholder in the segment's text.
        raw: The placeholder as written in the source.
    """

    start: int
    end: int
    raw: Pieces


@dataclass(frozen=True)
class Segment:
    """A text that is translated separately, and its marks.

    Attributes:
        items: All parts of the segment.
        text: The text to translate. Empty if there is nothing to translate.
        marks: The outermost marks in the order of the source. Nested marks are their children.
        placeholders: The placeholders in the text.
        before: Items that are kept before the text: white space, tags and objects at the start of the segment.
        after: Items that are kept after the text.
        escape: A function that converts translated text to the document's syntax.
    """

    items: tuple[Item, ...]
    text: str
    marks: tuple[Mark, ...] = ()
    placeholders: tuple[Placeholder, ...] = ()
    before: tuple[Item, ...] = ()
    after: tuple[Item, ...] = ()
    escape: Callable[[str], str] = str

    @property
    def has_placeholders(self) -> bool:
        """Whether the text to translate contains placeholders or numbers with units."""
        return any(item.kind in ("placeholder", "number") for item in self.items)

    def visible_objects(self) -> list[str]:
        """Return the text that each object in the segment displays."""
        visible = [item.text for item in (*self.before, *self.after)]
        waiting = list(self.marks)
        while waiting:
            mark = waiting.pop()
            visible.append(mark.visible)
            waiting += mark.children
        return visible

    def find_placeholders(self, translation: str) -> tuple[Span, ...] | None:
        """Return the start and end of each placeholder in a translation, in the order of :attr:`placeholders`.

        Returns None if the text and the translation do not contain each placeholder equally often, as whole words.
        Equal placeholders are matched in the order of the translation.
        """
        if not self.placeholders:
            return ()
        texts = [self.text[placeholder.start : placeholder.end] for placeholder in self.placeholders]
        pattern = re.compile("|".join(map(re.escape, sorted(set(texts), key=len, reverse=True))))
        if _whole_words(pattern, self.text) != [
            (placeholder.start, placeholder.end) for placeholder in self.placeholders
        ]:
            return None
        spans_by_text: dict[str, list[Span]] = {text: [] for text in texts}
        for start, end in _whole_words(pattern, translation):
            spans_by_text[translation[start:end]].append((start, end))
        if {text: len(spans) for text, spans in spans_by_text.items()} != Counter(texts):
            return None
        spans = {text: iter(text_spans) for text, text_spans in spans_by_text.items()}
        return tuple(next(spans[text]) for text in texts)

    def without_placeholders(self) -> Segment:
        """Return the segment with objects in place of placeholders and numbers with units."""
        items = [
            replace(item, kind="object") if item.kind in ("placeholder", "number") else item for item in self.items
        ]
        return make_segment(items, self.escape)


def _whole_words(pattern: re.Pattern[str], text: str) -> list[Span]:
    """Return the matches of a pattern that neither begin nor end inside a word."""
    inside = {position for start, end in word_spans(text) for position in range(start + 1, end)}
    return [match.span() for match in pattern.finditer(text) if inside.isdisjoint(match.span())]


@dataclass(frozen=True)
class Document:
    """A text with tags or placeholders.

    Attributes:
        pieces: The kept text and the indices of segments, in order.
        segments: The segments to translate. Segments that are not in ``pieces`` belong to tags (translated attributes).
    """

    pieces: Pieces
    segments: tuple[Segment, ...]

    def without_placeholders(self) -> Document:
        """Return the document with objects in place of placeholders and numbers with units."""
        return replace(self, segments=tuple(segment.without_placeholders() for segment in self.segments))


def raw_pieces(items: Iterable[Item]) -> Pieces:
    """Return the source of items as pieces."""
    return tuple(piece for item in items for piece in item.raw)


def text_as_seen(items: Iterable[Item]) -> str:
    """Return the displayed text of items, with :data:`TAG_CHARACTER` for each tag."""
    return "".join(item.text or TAG_CHARACTER for item in items)


class DocumentBuilder:
    """Collects the segments of a document.

    Args:
        keeps_icu_messages: Whether the branches of ICU messages are not parsed, because a later step parses the
            segments again.
    """

    def __init__(self, *, keeps_icu_messages: bool = False) -> None:
        self.segments: list[Segment] = []
        self.keeps_icu_messages = keeps_icu_messages
        self._stand_ins: list[Item] = []
        self._write: Callable[[str], str] = str

    def nested(self, write: Callable[[str], str]) -> DocumentBuilder:
        """Return a builder for a nested text, which shares the segments but has its own stand-ins.

        ``write`` converts text to the syntax of the outer text.
        """
        builder = DocumentBuilder(keeps_icu_messages=self.keeps_icu_messages)
        builder.segments, builder._write = self.segments, write
        return builder

    def add_stand_in(self, item: Item) -> str:
        """Return a character that :meth:`restore` replaces with ``item``, or the item's text if none is free."""
        character = _FIRST_STAND_IN + len(self._stand_ins)
        if character > _LAST_STAND_IN:
            return item.text
        self._stand_ins.append(item)
        return chr(character)

    def restore(self, pieces: Pieces) -> Pieces:
        """Replace the stand-ins in pieces with the items that they represent."""
        return tuple(
            part for piece in pieces for part in (self._restored(piece) if isinstance(piece, str) else (piece,))
        )

    def _restored(self, raw: str) -> Pieces:
        pieces: list[str | int] = []
        position = 0
        for match in STAND_IN_PATTERN.finditer(raw) if self._stand_ins else ():
            pieces += (raw[position : match.start()], *self._item(match.group()).raw)
            position = match.end()
        return (*pieces, raw[position:])

    def _item(self, stand_in: str) -> Item:
        return self._stand_ins[ord(stand_in) - _FIRST_STAND_IN]

    def _restored_item(self, item: Item) -> Item:
        if STAND_IN_PATTERN.fullmatch(item.text):
            return self._item(item.text)
        raw = tuple(self._write(piece) if isinstance(piece, str) else piece for piece in item.raw)
        return replace(
            item,
            raw=self.restore(raw if item.kind == "text" else item.raw),
            text=STAND_IN_PATTERN.sub(lambda match: self._item(match.group()).text, item.text),
        )

    def add_segment(self, items: Sequence[Item], escape: Callable[[str], str] = str) -> Pieces:
        """Add a segment, and return the pieces that represent it.

        If there is no text to translate, the items themselves are returned as pieces.
        """
        write = self._write
        if self._stand_ins or write is not str:
            items = list(map(self._restored_item, items))
        segment = make_segment(items, escape if write is str else lambda text: escape(write(text)))
        if not segment.text:
            return raw_pieces(items)
        self.segments.append(segment)
        return (len(self.segments) - 1,)


def make_segment(items: Sequence[Item], escape: Callable[[str], str] = str) -> Segment:
    """Return the segment that consists of ``items``.

    White space, objects and pairs of tags around the whole segment are kept. If nothing else contains a letter or a
    number with a unit, there is nothing to translate.
    """
    inner = _simplify(items)
    start, end = 0, len(inner)
    while start < end:
        if _is_blank(inner[start]):
            start += 1
        elif _is_blank(inner[end - 1]):
            end -= 1
        elif inner[start].kind == "open" and _closing_index(inner, start) == end - 1:
            start, end = start + 1, end - 1
        else:
            break
    before, inner, after = tuple(inner[:start]), inner[start:end], tuple(inner[end:])
    if not any(item.kind == "number" or (item.kind == "text" and _has_letter(item.text)) for item in inner):
        return Segment(tuple(items), "", before=tuple(items), escape=escape)
    text, marks, placeholders = _separate_marks(inner)
    return Segment(tuple(items), text, marks, placeholders, before, after, escape)


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def _is_blank(item: Item) -> bool:
    return item.kind == "object" or (item.kind == "text" and not item.text.strip())


def _closing_index(items: Sequence[Item], at: int) -> int:
    """Return the index of the closing tag that belongs to the opening tag ``items[at]``."""
    depth = 0
    for index in range(at, len(items)):
        depth += {"open": 1, "close": -1}.get(items[index].kind, 0)
        if not depth:
            return index
    raise AssertionError("pairs are nested")


def _simplify(items: Iterable[Item]) -> list[Item]:
    """Replace pairs without text with objects, and merge adjacent objects and the space between them."""
    result: list[Item] = []
    opened: list[int] = []
    for item in items:
        result.append(item)
        if item.kind == "open":
            opened.append(len(result) - 1)
        elif item.kind == "close":
            start = opened.pop()
            if all(_is_blank(result[index]) for index in range(start + 1, len(result) - 1)):
                result[start:] = [_merge_objects(result[start:])]
    merged: list[Item] = []
    for is_blank, group in groupby(result, _is_blank):
        run = list(group)
        objects = [index for index, item in enumerate(run) if item.kind == "object"]
        if is_blank and objects:
            run[objects[0] : objects[-1] + 1] = [_merge_objects(run[objects[0] : objects[-1] + 1])]
        merged += run
    return merged


def _merge_objects(items: Sequence[Item]) -> Item:
    if len(items) == 1:
        return items[0]
    visible = text_as_seen(items)
    separates = any(item.separates_words or item.kind == "text" for item in items)
    return Item("object", raw_pieces(items), visible, separates)


def _separate_marks(items: Sequence[Item]) -> tuple[str, tuple[Mark, ...], tuple[Placeholder, ...]]:
    """Return the text, marks and placeholders of items, which begin and end with text or with tags of pairs."""
    builder = _TextBuilder()
    objects: list[Mark] = []
    for is_mark, run in groupby(items, lambda item: item.kind in ("open", "close", "object")):
        if is_mark:
            objects = builder.add_marks(run)
            continue
        for number, item in enumerate(run):
            if number == 0:
                builder.add_text_after_marks(item, objects)
            else:
                builder.add_text(item)
        objects = []
    return builder.text, tuple(builder.marks), tuple(builder.placeholders)


class _TextBuilder:
    """Builds the text of a segment, and its marks and placeholders with their positions in the text.

    White space on both sides of a mark becomes one space.

    Attributes:
        text: The text so far, without trailing white space.
        gap: The white space after the text. It becomes part of the text when more text is added.
        marks: The marks so far that are not inside a pair.
        placeholders: The placeholders so far.
    """

    def __init__(self) -> None:
        self.text = self.gap = ""
        self.marks: list[Mark] = []
        self.placeholders: list[Placeholder] = []
        self._open_pairs: list[Mark] = []

    def add_marks(self, items: Iterable[Item]) -> list[Mark]:
        """Add adjacent marks, and return the objects among them."""
        objects: list[Mark] = []
        for item in items:
            if item.kind == "close":
                pair = self._open_pairs.pop()
                pair.end, pair.closing = len(self.text), item.raw
                pair.ends_with_space = bool(self.gap) and not objects
                continue
            mark = Mark(len(self.text), len(self.text), item.raw, without_words=item.without_words)
            siblings = self._open_pairs[-1].children if self._open_pairs else self.marks
            siblings.append(mark)
            if item.kind == "open":
                self._open_pairs.append(mark)
            else:
                mark.visible, mark.left_character = item.text or TAG_CHARACTER, self.gap[-1:] or self.text[-1:]
                objects.append(mark)
                if item.separates_words or item.text.strip(TAG_CHARACTER):
                    self.gap = self.gap or " "
        return objects

    def add_text_after_marks(self, item: Item, objects: Sequence[Mark]) -> None:
        """Add text after adjacent marks. ``objects`` are the objects among these marks."""
        content = item.text
        for mark in objects:
            mark.right_character = content[:1]
        if objects and content.startswith(tuple(_CLOSING)):
            self.gap = ""  # an object leaves no space before punctuation
        if self.gap or (objects and self.text.endswith(tuple(_OPENING))):
            content = content.lstrip(" ")  # tags and objects leave no double space
        self._append(item, content if objects else self._with_space_in_pairs(content))

    def add_text(self, item: Item) -> None:
        """Add text that follows text."""
        self._append(item, self._with_space_in_pairs(item.text))

    def _with_space_in_pairs(self, content: str) -> str:
        """Record which pairs enclose the space before ``content``. Remove the space if it is at the segment's start."""
        if content.startswith(" "):
            for pair in self._open_pairs:
                pair.starts_with_space |= pair.start == len(self.text)
        return content if self.text else content.lstrip(" ")

    def _append(self, item: Item, content: str) -> None:
        core = content.rstrip(" ")
        if core:
            self.text += self.gap if self.text else ""
            if item.kind == "placeholder":
                self.placeholders.append(Placeholder(len(self.text), len(self.text) + len(core), item.raw))
            self.text += core
            self.gap = ""
        self.gap += content[len(core) :]
