"""HTML in the texts of an XLIFF file: with escaped tags (``&lt;b&gt;``) or in CDATA sections.

The text of a unit is treated as HTML in two cases:

- The unit or an enclosing element declares HTML (``datatype="html"``), and the text contains a tag or an entity.
- The text contains only HTML tags, all of them paired, and the same is true of at least three quarters of the texts in
  the file in which a ``<`` begins something like a tag. (Many programs declare ``datatype="plaintext"`` for all texts.)

A text such as ``a < b`` or ``Open <file>`` is therefore plain text. If a text also contains inline elements, its HTML
tags are represented by elements with the same roles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal

from headway.documents.html_file import extract_html_texts
from headway.documents.mixed_content import InlineElement, InlineRole
from headway.documents.safe_xml import local_name, remove_invalid_characters
from headway.predict.markup.html import BLOCK_TAGS, is_html_text, is_untranslated_element, tokenize_markup

if TYPE_CHECKING:
    from lxml.etree import _Element

_HTML_TYPES = ("html", "htmlbody", "x-html", "xhtml", "cdata", "x-cdata")
_MARKUP = re.compile(r"</?[A-Za-z][^<>]*>|&(?:\w+|#\w+);")
_TAG_START = re.compile("<[A-Za-z/!?]")
_LINE_BREAK = re.compile("(\r\n|\r|\n)")
_DETECTED_SHARE = 0.75
_TAG = "{headway}tag"  # name of the elements that represent HTML tags
_PAIRS = ("g", "pc", "mrk")  # inline elements with text

HtmlPredicate = Callable[["_Element", "_Element"], bool]


def make_html_detector(root: _Element, text_syntax: Literal["plain", "html"] | None) -> HtmlPredicate:
    """Return a function that takes a unit and its new target, and returns whether the target's text is HTML.

    Args:
        root: The root element of the file.
        text_syntax: The syntax of all texts. None means that the syntax is declared in the file or detected.
    """
    if text_syntax is not None:
        return lambda _, target: text_syntax == "html" and (not len(target) or "<" in _visible(target))
    texts = (_visible(element) for element in root.iter("{*}source"))
    tagged = [text for text in texts if "<" in text and _TAG_START.search(text)]
    is_detected = bool(tagged) and sum(map(is_html_text, tagged)) >= _DETECTED_SHARE * len(tagged)

    def has_html(unit: _Element, target: _Element) -> bool:
        text = _visible(target)
        if "<" not in text and "&" not in text:
            return False
        return (is_detected and is_html_text(text)) or (_MARKUP.search(text) is not None and _declares_html(unit))

    return has_html


def _declares_html(unit: _Element) -> bool:
    declaring = next((node for node in (unit, *unit.iterancestors()) if node.get("datatype")), None)
    return declaring is not None and declaring.get("datatype", "").lower() in _HTML_TYPES


def _visible(element: _Element) -> str:
    """Return the text of an element, with a space for each inline code."""
    if not len(element):
        return element.text or ""
    parts = [element.text or ""]
    for child in element:
        parts += (_visible(child) if local_name(child) in _PAIRS else " ", child.tail or "")
    return "".join(parts)


class HtmlTarget:
    """The content of a target without inline elements, whose text is HTML.

    Args:
        target: The element to read and fill.
        keeps_space: Whether line breaks are kept. Lines are separate texts if no HTML element spans several lines.

    Attributes:
        texts: The texts to translate.
    """

    def __init__(self, target: _Element, *, keeps_space: bool) -> None:
        self._target = target
        lines = _LINE_BREAK.split(target.text or "") if keeps_space else []
        if not all("<" not in line or is_html_text(line) for line in lines):
            lines = []
        self._lines = list(map(extract_html_texts, lines or [target.text or ""]))
        self.texts = [text for texts, _ in self._lines for text in texts]

    def fill(self, translations: Iterator[str]) -> None:
        """Replace the texts with their translations."""
        if self.texts:
            filled = "".join(fill(list(islice(translations, len(texts)))) for texts, fill in self._lines)
            self._target.text = remove_invalid_characters(filled)


def contains_cdata(target: _Element) -> bool:
    """Return whether an element without children contains a CDATA section."""
    from lxml import etree

    return not len(target) and b"<![CDATA[" in etree.tostring(target)


def write_as_cdata(target: _Element) -> None:
    """Put the text of an element into a CDATA section, unless the text contains ``]]>``."""
    from lxml import etree

    if target.text and "]]>" not in target.text:
        target.text = etree.CDATA(target.text)


def tags_to_elements(target: _Element) -> None:
    """Replace the tags in the text of an element and its inline elements with elements that represent the tags."""
    for node in [target, *(node for node in target.iter() if local_name(node) in _PAIRS)]:
        following = list(node)
        node.text = _insert_elements(node, 0, node.text)
        for child in following:
            child.tail = _insert_elements(node, node.index(child) + 1, child.tail)


def _insert_elements(parent: _Element, position: int, text: str | None) -> str | None:
    """Insert elements for the tags in a text, and return the text before the first tag."""
    from lxml import etree

    if not text or "<" not in text:
        return text
    before, tokens = "", tokenize_markup(text, is_html=True)
    last: _Element | None = None
    index = 0
    while index < len(tokens):
        token, end = tokens[index], index
        if token.kind == "text":
            if last is None:
                before = token.raw
            else:
                last.tail = token.raw
        else:
            role: InlineRole = "object"
            if token.kind == "tag" and token.name in BLOCK_TAGS:
                role = "break"
            elif token.kind == "tag":
                role = "end" if token.closing else "start"
                if token.partner is not None and not token.closing and is_untranslated_element(token.name, token.raw):
                    role, end = "keep", token.partner
            raw = "".join(token.raw for token in tokens[index : end + 1])
            last = etree.Element(_TAG, role=role, name=token.name, raw=raw)
            last.text = "".join(token.raw for token in tokens[index:end] if token.kind == "text")
            parent.insert(position, last)
            position += 1
        index = end + 1
    return before


def role_of_tag(element: _Element) -> InlineElement | None:
    """Return the role of an element that represents a tag, or None for other elements."""
    if element.tag != _TAG:
        return None
    role: InlineRole = element.get("role", "object")
    return InlineElement(role, ("tag", element.get("name")))


def elements_to_tags(target: _Element) -> None:
    """Replace the elements that represent tags with the tags."""
    elements: Sequence[_Element] = list(target.iter(_TAG)) if len(target) else ()
    for element in elements:
        parent, previous = element.getparent(), element.getprevious()
        assert parent is not None
        text = element.get("raw", "") + (element.tail or "")
        if previous is None:
            parent.text = (parent.text or "") + text
        else:
            previous.tail = (previous.tail or "") + text
        parent.remove(element)
