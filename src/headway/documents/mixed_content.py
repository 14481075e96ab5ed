"""XML elements with mixed content (text between child elements): read as text with inline tags, then filled."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from headway.documents.inline_spaces import InlinePart
from headway.documents.inline_tags import InlineText
from headway.documents.safe_xml import remove_invalid_characters

if TYPE_CHECKING:
    from lxml.etree import _Element

InlineRole = Literal["pair", "object", "keep", "start", "end", "break", "space"]
_LINE_BREAKS = re.compile(r"((?<![ \t])[ \t]*+(?:\r\n|\r|\n)\s*+)")


@dataclass(frozen=True)
class InlineElement:
    """The role of an element inside a text.

    Attributes:
        role: "pair" encloses text to translate. "object" and "keep" do not, but the text of "keep" is part of the
            sentence. "space" is an object that a reader sees as white space. "start" and "end" mark the two ends of a
            range. "break" separates texts; so does a pair that contains a break.
        key: Identifies the range that an element starts or ends.
    """

    role: InlineRole
    key: Hashable = None


@dataclass(frozen=True)
class _ElementRange:
    """Two elements that mark a range."""

    start: _Element
    end: _Element


class MixedContent:
    """The texts of an element, separated by breaks.

    Args:
        element: The element to read and fill.
        classify: Returns the role of a child element.
        has_layout: Whether spaces may align words in columns; see :class:`InlineText`.
        has_lines: Whether line breaks in the text separate texts.
    """

    def __init__(
        self,
        element: _Element,
        classify: Callable[[_Element], InlineElement],
        *,
        has_layout: bool = False,
        has_lines: bool = False,
    ) -> None:
        self._element, self._classify = element, classify
        self._has_layout, self._has_lines = has_layout, has_lines
        self._pieces: list[InlineText | InlinePart] = [self._new_text()]
        self._with_breaks: set[_Element] = set()
        self._kinds: dict[_Element, InlineElement] = {}
        self._find_breaks(element)
        self._read(element)

    @property
    def texts(self) -> list[InlineText]:
        """The texts that contain something to translate."""
        return [piece for piece in self._pieces if isinstance(piece, InlineText) and piece.is_translatable]

    def fill(self, translations: Iterator[str]) -> None:
        """Replace the texts with their translations.

        Elements are moved, not copied, so that texts inside them can be translated separately.
        """
        if not self.texts:
            return
        pieces = [
            piece.parse_translation(next(translations) if piece.is_translatable else piece.source.text)
            if isinstance(piece, InlineText)
            else [piece]
            for piece in self._pieces
        ]
        stack = [_emptied(self._element)]
        for part in (part for parts in pieces for part in parts):
            _append_part(stack, part)

    def _read(self, parent: _Element) -> None:
        self._add_text(parent.text)
        children = list(parent)
        kinds = [self._kinds[child] for child in children]
        num_breaks = [0, *accumulate(map(self._is_break, children, kinds))]
        # A range that contains a break is not treated as a range: its start and its end are added as objects.
        ranges = {
            start: end
            for start, end in match_range_ends([(kind.role, kind.key) for kind in kinds]).items()
            if num_breaks[start] == num_breaks[end]
        }
        ends = set(ranges.values())
        for index, (child, kind) in enumerate(zip(children, kinds, strict=True)):
            if kind.role == "break":
                self._pieces += [InlinePart("object", payload=child), self._new_text()]
            elif kind.role == "space":
                self._text.add_space(child)
            elif kind.role == "pair" and child in self._with_breaks:
                self._pieces += [InlinePart("open", payload=child), self._new_text()]
                self._read(child)
                self._pieces += [InlinePart("close", payload=child), self._new_text()]
            elif kind.role == "pair":
                self._text.add_opening_tag(child)
                self._read(child)
                self._text.add_closing_tag()
            elif index in ranges:
                self._text.add_opening_tag(_ElementRange(child, children[ranges[index]]))
            elif index in ends:
                self._text.add_closing_tag()
            else:
                self._text.add_object(child, "".join(child.itertext()) if kind.role == "keep" else "")
            self._add_text(child.tail)

    def _add_text(self, text: str | None) -> None:
        lines = _LINE_BREAKS.split(text or "") if self._has_lines else [text or ""]
        self._text.add_text(lines[0])
        for line_break, line in zip(lines[1::2], lines[2::2], strict=True):
            self._pieces += [InlinePart("text", line_break), self._new_text()]
            self._text.add_text(line)

    def _new_text(self) -> InlineText:
        return InlineText(has_layout=self._has_layout)

    def _find_breaks(self, element: _Element) -> bool:
        """Classify the children, and collect the elements that contain a break.

        Return whether ``element`` contains a break.
        """
        has_break = self._has_line_break(element.text)
        for child in element:
            kind = self._kinds[child] = self._classify(child)
            inside = kind.role == "pair" and self._find_breaks(child)
            has_break |= inside or self._is_break(child, kind)
        if has_break:
            self._with_breaks.add(element)
        return has_break

    def _is_break(self, child: _Element, kind: InlineElement) -> bool:
        """Return whether a child is a break, contains one, or is followed by one."""
        return kind.role == "break" or child in self._with_breaks or self._has_line_break(child.tail)

    def _has_line_break(self, text: str | None) -> bool:
        return self._has_lines and text is not None and _LINE_BREAKS.search(text) is not None

    @property
    def _text(self) -> InlineText:
        last = self._pieces[-1]
        assert isinstance(last, InlineText)
        return last


def match_range_ends(marks: Sequence[tuple[str, Hashable]]) -> dict[int, int]:
    """Map the index of each range's start to the index of its end, for ranges that do not overlap.

    Args:
        marks: For each item, its role ("start", "end" or any other) and the key of its range.
    """
    ranges: dict[int, int] = {}
    opened: list[int] = []
    depths: dict[Hashable, list[int]] = defaultdict(list)  # for each key, the indices of its open ranges in ``opened``
    for index, (role, key) in enumerate(marks):
        if role == "start":
            depths[key].append(len(opened))
            opened.append(index)
        elif role == "end" and depths[key]:
            depth = depths[key][-1]
            ranges[opened[depth]] = index
            while len(opened) > depth:
                depths[marks[opened.pop()][1]].pop()
    return ranges


def _append_part(stack: list[_Element], part: InlinePart) -> None:
    match part.kind, part.payload:
        case "text", _:
            _append_text(stack[-1], remove_invalid_characters(part.text))
        case "open", _ElementRange():
            _append(stack[-1], part.payload.start)
        case "close", _ElementRange():
            _append(stack[-1], part.payload.end)
        case "open", child:
            _append(stack[-1], child)
            stack.append(_emptied(child))
        case "close", _:
            stack.pop()
        case _, child:
            _append(stack[-1], child)


def _emptied(element: _Element) -> _Element:
    element.text = None
    for child in list(element):
        element.remove(child)
    return element


def _append(parent: _Element, child: _Element) -> None:
    child.tail = None
    parent.append(child)


def _append_text(parent: _Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def fill_all(contents: Iterable[MixedContent], translations: Sequence[str]) -> None:
    """Replace the texts of several elements, which may be nested."""
    remaining = iter(translations)
    for content in contents:
        content.fill(remaining)
