"""Text with inline tags: the common representation of formatted paragraphs, which a translator can read.

Each tag represents formatting or an object of the document, identified by a number:

    ``<g id="0">words</g>``     formatting, or an element that contains words, such as a link
    ``<x id="1"/>``             an object between words, such as a picture or a footnote
    ``<keep id="2">F5</keep>``  an object whose text is read as part of the sentence but not translated

The names follow XLIFF. ``&``, ``<`` and ``>`` in the text are written as entities. The translation contains each tag
once, so no object is lost. The :class:`headway.predict.MarkupOptions` for this syntax are in
:mod:`headway.documents.translation`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import unescape
from typing import Any, Literal

from headway.documents.content import DocumentError, DocumentText
from headway.predict.markup.html import is_plain_formatting
from headway.predict.markup.placeholders import has_words

_TAG = re.compile(r'<(?:(?P<open>g) id="(?P<pair>\d+)"|(?P<close>/g)|x id="(?P<object>\d+)"/|keep id="(?P<kept>\d+)")>')
_KEPT_END = "</keep>"
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


@dataclass(frozen=True)
class InlinePart:
    """A part of a translation: a piece of text or an inline tag.

    Attributes:
        kind: "text", the "open" or "close" tag of a pair, or "object".
        text: The text, if ``kind`` is "text".
        payload: The formatting or object that the tag represents. Both tags of a pair have the same payload.
    """

    kind: Literal["text", "open", "close", "object"]
    text: str = ""
    payload: Any = None


@dataclass(frozen=True)
class SourceTag:
    """The source of a tag or pair of tags.

    Attributes:
        opening: The opening tag, or the only one.
        closing: The closing tag.
        words: The source of the words between the tags. They remain if the translation has no words for the pair.
    """

    opening: str
    closing: str = ""
    words: str = ""


class InlineText:
    """A text with inline tags, built piece by piece.

    Attributes:
        has_words: Whether the text contains anything to translate.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._payloads: list[Any] = []
        self.has_words = False

    def add_text(self, text: str) -> None:
        """Add text."""
        self.has_words = self.has_words or has_words(text)
        self._parts.append(_escape(text))

    def open(self, payload: Any) -> None:
        """Add the start of a pair."""
        self._parts.append(f'<g id="{len(self._payloads)}">')
        self._payloads.append(payload)

    def close(self) -> None:
        """Add the end of the pair that was opened last."""
        self._parts.append("</g>")

    def add_object(self, payload: Any, visible: str = "") -> None:
        """Add an object, which is kept. ``visible`` is the text that the object displays."""
        number = len(self._payloads)
        self._payloads.append(payload)
        if visible.strip():
            self._parts.append(f'<keep id="{number}">{_escape(visible)}{_KEPT_END}')
        else:
            self._parts.append(f'<x id="{number}"/>')

    @property
    def source(self) -> DocumentText:
        """The text to translate. Its syntax is "plain" if it has no tags."""
        whole = "".join(self._parts)
        return DocumentText(whole, "tagged") if self._payloads else DocumentText(unescape(whole))

    def translated_parts(self, translation: str) -> list[InlinePart]:
        """Return the parts of a translation.

        Raises:
            DocumentError: The translation does not contain each tag exactly once, or its pairs are not nested.
        """
        if not self._payloads:
            return [InlinePart("text", translation)]
        parts = list(self._parse(translation))
        opened = [id(part.payload) for part in parts if part.kind in ("open", "object")]
        if sorted(opened) != sorted(map(id, self._payloads)):
            raise DocumentError("a translation does not contain each inline tag of its source once")
        return parts

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
                    raise DocumentError("a translation has an inline tag that ends without having begun")
                yield InlinePart("close", payload=pairs.pop())
            else:
                if match["kept"]:
                    position = max(position, translation.find(_KEPT_END, position) + len(_KEPT_END))
                yield InlinePart("object", payload=self._payload(match["object"] or match["kept"]))
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
        text: The text.
        tags: Pattern of a tag. The groups ``name`` and ``closing`` identify pairs; all other tags are objects.
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
            inline.open(SourceTag(tag.group(), partner.group(), tags.sub("", text[tag.end() : partner.start()])))
        elif index in closing:
            inline.close()
        else:
            inline.add_object(SourceTag(tag.group()))
        position = tag.end()
    inline.add_text(read(text[position:]))
    return inline


def write_tags(inline: InlineText, translation: str, write: Callable[[str], str] = str) -> str:
    """Return a translation with its inline tags replaced by the tags' sources. ``write`` is the inverse of ``read``.

    Raises:
        DocumentError: The translation does not contain each tag exactly once, or its pairs are not nested.
    """
    out: list[str] = []
    opened: list[int] = []
    for part in inline.translated_parts(translation):
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


def _escape(text: str) -> str:
    return re.sub("[&<>]", lambda match: _ENTITIES[match.group()], text)
