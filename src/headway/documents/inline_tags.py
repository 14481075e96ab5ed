"""Text with inline tags: the common representation of formatted paragraphs, which is passed to translators.

Each tag represents formatting or an object in the document, identified by a number:

    ``<g id="0">words</g>``     formatting, or an element that contains words, such as a link
    ``<x id="1"/>``             an object between words, such as a picture or a footnote
    ``<x id="2"> </x>``         white space other than a single space: several spaces, or an object such as a tab
    ``<keep id="3">F5</keep>``  an object whose text is part of the sentence but is not translated

The tag names follow XLIFF. ``&``, ``<`` and ``>`` in the text are written as entities. The translation contains each
tag once, so no object is lost. :mod:`headway.documents.translation` defines the :class:`headway.predict.MarkupOptions`
for this syntax.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape, unescape
from typing import Any

from headway.documents.content import DocumentError, DocumentText
from headway.documents.inline_spaces import InlinePart, WhiteSpace, expand_white_space, place_spaces
from headway.predict.markup.html import is_plain_formatting
from headway.predict.markup.icu_messages import may_have_branches
from headway.predict.markup.placeholders import is_translatable

TAG_START_PATTERN = r"<(?P<closing>/?)(?P<name>[A-Za-z][\w:-]*+|\d++(?=/?>))"
TAG_END_PATTERN = r"(?:\s[^<>]*)?/?>"
"""Patterns for an HTML tag, or a numbered i18next tag such as ``<0>``, in a text that is otherwise not HTML."""
_TAG = re.compile(
    r'<(?:(?P<open>g) id="(?P<pair>\d+)"|(?P<close>/g)|x id="(?P<object>\d+)"/|keep id="(?P<kept>\d+)")>'
    r'|<x id="(?P<space>\d+)"> </x>'
)
_KEPT_END = "</keep>"
_WHITE_SPACE_TAG = re.compile(r"[\t\r\n\f\v]| (?:</?g[^<>]*+>)*+ ")  # white space that needs a tag
_TAG_WITH_SPACES = re.compile(r"((?:(?<! ) ++)?<[^<>]*+> *+)")
_SPACES = re.compile(r"([ \t\r\n\f\v]+)")  # without the no-break space, which the model processes as a character
_COLUMNS = re.compile(r"(?<=\S) {3,}(?=\S)")  # spaces that align words in columns


_SPACE = InlinePart("text", " ")


@dataclass(frozen=True)
class _Tag:
    """An inline tag as written."""

    source: str

    @property
    def is_of_pair(self) -> bool:
        return self.source.startswith(("<g", "</g"))


@dataclass(frozen=True)
class SourceTag:
    """A tag, or a pair of tags, as written in the source.

    Attributes:
        opening: The opening tag, or a single tag.
        closing: The closing tag. Empty for a single tag.
        words: The source text between the tags. It is kept if the translation has no words for the pair.
    """

    opening: str
    closing: str = ""
    words: str = ""


class InlineText:
    """A text with inline tags, built piece by piece.

    Args:
        has_layout: Whether spaces may align words in columns. Such spaces are kept even if the text has no other tags.

    Attributes:
        is_translatable: Whether the text contains words to translate.
    """

    def __init__(self, *, has_layout: bool = False) -> None:
        self._items: list[str | InlinePart | _Tag] = []  # text, objects that a reader sees as white space, and tags
        self._payloads: list[Any] = []
        self._has_layout = has_layout
        self.is_translatable = False

    def add_text(self, text: str) -> None:
        """Add text."""
        self.is_translatable = self.is_translatable or is_translatable(text)
        self._items.append(text)

    def add_space(self, payload: Any) -> None:
        """Add an object that a reader sees as white space, such as a tab or a line break."""
        self._items.append(InlinePart("object", payload=payload))

    def add_opening_tag(self, payload: Any) -> None:
        """Add the opening tag of a pair."""
        self._items.append(_Tag(f'<g id="{len(self._payloads)}">'))
        self._payloads.append(payload)

    def add_closing_tag(self) -> None:
        """Add the closing tag of the innermost open pair."""
        self._items.append(_Tag("</g>"))

    def add_object(self, payload: Any, visible: str = "") -> None:
        """Add an object, which is kept unchanged. ``visible`` is the text that the object displays."""
        number = len(self._payloads)
        self._payloads.append(payload)
        if visible.strip():
            self._items.append(_Tag(f'<keep id="{number}">{_escape(visible)}{_KEPT_END}'))
        else:
            self._items.append(_Tag(f'<x id="{number}"/>'))

    @cached_property
    def source(self) -> DocumentText:
        """The complete text to translate. Its syntax is "plain" if it has no tags."""
        text = "".join(item for item in self._items if isinstance(item, str))
        if all(isinstance(item, str) for item in self._items) and not (self._has_layout and _COLUMNS.search(text)):
            return DocumentText(text)
        items = [item for item in self._items if not isinstance(item, InlinePart)]
        if len(items) == len(self._items):
            whole = "".join(_escape(item) if isinstance(item, str) else item.source for item in items)
            if not _WHITE_SPACE_TAG.search(whole):
                return DocumentText(whole, "tagged")
        # The white space of ICU messages is part of their syntax.
        return DocumentText(
            "".join(self._tagged(self._items if may_have_branches(text) else self._separated())), "tagged"
        )

    def _tagged(self, items: Iterable[str | InlinePart | _Tag]) -> Iterator[str]:
        """Yield the text with its tags, including tags for white space."""
        between: list[str | list[InlinePart]] = []  # white space, and tags of pairs, since the last text or object
        for item in items:
            if isinstance(item, InlinePart):
                last = between[-1] if between else ""
                if isinstance(last, str):
                    between.append([item])
                else:
                    last.append(item)
            elif isinstance(item, _Tag) and item.is_of_pair:
                between.append(item.source)
            else:
                yield from self._between(between)
                between = []
                yield item.source if isinstance(item, _Tag) else _escape(item)
        yield from self._between(between)

    def _separated(self) -> Iterator[str | InlinePart | _Tag]:
        """Yield the items, with the white space in texts as separate parts."""
        for item in self._items:
            if not isinstance(item, str):
                yield item
                continue
            for number, piece in enumerate(_SPACES.split(item)):
                if piece:
                    yield InlinePart("text", piece) if number % 2 else piece

    def _between(self, parts: Sequence[str | list[InlinePart]]) -> Iterator[str]:
        """Yield white space and the tags of pairs. White space other than a single space is represented by tags.

        A model processes only one of two spaces with tags between them, so each of the spaces gets a tag.
        """
        spaces = [part for part in parts if not isinstance(part, str)]
        is_single = len(spaces) == 1 and spaces[0] == [_SPACE]
        for part in parts:
            if isinstance(part, str):
                yield part
            elif is_single:
                yield _SPACE.text
            else:
                self._payloads.append(WhiteSpace(tuple(part)))
                yield f'<x id="{len(self._payloads) - 1}"> </x>'

    def parse_translation(self, translation: str) -> list[InlinePart]:
        """Split a translation into text and tags, with spaces next to the tags as in the source.

        Raises:
            DocumentError: The translation does not contain each tag exactly once, or its pairs are not nested.
        """
        if self.source.syntax == "plain":
            return [InlinePart("text", translation)]
        parts = list(self._parse(translation))
        opened = [id(part.payload) for part in parts if part.kind in ("open", "object")]
        if sorted(opened) != sorted(map(id, self._payloads)):
            raise DocumentError("a translation does not contain each inline tag of its source once")
        if _shape(translation) == _shape(self.source.text):
            return expand_white_space(parts)
        return place_spaces(list(self._parse(self.source.text)), parts)

    def _parse(self, translation: str) -> Iterator[InlinePart]:
        position, pairs = 0, list[Any]()
        while match := _TAG.search(translation, position):
            if match.start() > position:
                yield InlinePart("text", unescape(translation[position : match.start()]))
            position = match.end()
            if match["open"]:
                pairs.append(self._payload(match["pair"]))
                yield InlinePart("open", payload=pairs[-1])
            elif match["close"]:
                if not pairs:
                    raise DocumentError("a translation has a closing inline tag without an opening one")
                yield InlinePart("close", payload=pairs.pop())
            else:
                if match["kept"]:
                    position = max(position, translation.find(_KEPT_END, position) + len(_KEPT_END))
                yield InlinePart("object", payload=self._payload(match["object"] or match["kept"] or match["space"]))
        if pairs:
            raise DocumentError("a translation has an inline tag that does not end")
        if position < len(translation):
            yield InlinePart("text", unescape(translation[position:]))

    def _payload(self, number: str) -> Any:
        if int(number) >= len(self._payloads):
            raise DocumentError("a translation has an inline tag that its source does not have")
        return self._payloads[int(number)]


def parse_tags(text: str, tags: re.Pattern[str], read: Callable[[str], str] = str) -> InlineText:
    """Parse a text that contains tags. The payload of a tag is a :class:`SourceTag`.

    Args:
        text: The text to parse.
        tags: Pattern of a tag. The groups ``name`` and ``closing`` identify pairs; all other tags are objects. The
            group ``word`` marks tags that a reader sees as a word.
        read: Converts the source between two tags to the text that a reader sees.
    """
    inline, matches = InlineText(), list(tags.finditer(text))
    partners: dict[int, int] = {}
    opened: list[int] = []
    for index, tag in enumerate(matches):
        if tag["name"] and not tag["closing"]:
            opened.append(index)
        elif tag["name"] and opened and matches[opened[-1]]["name"] == tag["name"]:
            partners[opened.pop()] = index
    closing = set(partners.values())
    position = 0
    for index, tag in enumerate(matches):
        inline.add_text(read(text[position : tag.start()]))
        if index in partners:
            partner = matches[partners[index]]
            inline.add_opening_tag(
                SourceTag(tag.group(), partner.group(), tags.sub("", text[tag.end() : partner.start()]))
            )
        elif index in closing:
            inline.add_closing_tag()
        else:
            inline.add_object(SourceTag(tag.group()), tag.group() if tag.lastgroup == "word" else "")
        position = tag.end()
    inline.add_text(read(text[position:]))
    return inline


def write_tags(inline: InlineText, translation: str, write: Callable[[str], str] = str) -> str:
    """Return a translation with its inline tags replaced by the original tags.

    ``write`` is the inverse of the argument ``read`` of :func:`parse_tags`.

    Raises:
        DocumentError: The translation does not contain each tag exactly once, or its pairs are not nested.
    """
    out: list[str] = []
    opened: list[int] = []
    for part in inline.parse_translation(translation):
        if part.kind == "open":
            opened.append(len(out))
        if part.kind != "close":
            out.append(write(part.text) if part.kind == "text" else part.payload.opening)
        elif any(map(str.strip, out[(start := opened.pop()) + 1 :])):
            out.append(part.payload.closing)
        elif is_plain_formatting(part.payload.opening):
            out[start] = ""
        else:
            out += (part.payload.words, part.payload.closing)
    return "".join(out)


def _shape(text: str) -> list[str | bool]:
    """Return the tags of a text with the spaces next to them, and whether there is text between the tags."""
    parts = _TAG_WITH_SPACES.split(text)
    return [part if number % 2 else bool(part) for number, part in enumerate(parts)]


def _escape(text: str) -> str:
    return escape(text, quote=False)
