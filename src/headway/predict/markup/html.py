"""HTML and XML: find the segments to translate, and keep everything else unchanged.

Block tags, such as ``<p>``, separate segments. Inline tags, such as ``<b>``, are placed into the translation. An
element that contains a separating tag also separates segments. Elements with ``translate="no"`` or the class
``notranslate``, code, ignored elements, comments, processing instructions and CDATA sections are kept unchanged.

Invalid markup is also kept unchanged. Tags without a partner, unknown entities, and each ``<`` that does not begin a
complete tag are treated as objects. The parsers of the standard library and of lxml would repair or refuse such input.

White space between words becomes one space, as in a browser. Known entities are replaced by their characters for
translation. In the result, characters with a special meaning in markup are written as entities.

The detection of separating tags in XML follows the DeepL API (``outline_detection``): a tag is an inline tag if at
least one element with this tag is next to text.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from pydantic import Field

from headway.config import Config
from headway.predict.markup.document import (
    TAG_CHARACTER,
    Document,
    DocumentBuilder,
    Item,
    ItemKind,
    Pieces,
    WithoutWords,
)
from headway.predict.markup.entities import ENTITY_PATTERN, is_known_entity
from headway.predict.markup.icu_messages import MessageReader, may_have_branches
from headway.predict.markup.placeholders import split_protected_parts

MarkupKind = Literal["html", "xml"]

_VOID = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track",
    "wbr",
})  # fmt: skip
BLOCK_TAGS = frozenset({
    "address", "article", "aside", "audio", "blockquote", "body", "br", "button", "canvas", "caption", "center",
    "col", "colgroup", "dd", "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure",
    "footer", "form", "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hgroup", "hr",
    "html", "iframe", "legend", "li", "link", "main", "menu", "menuitem", "meta", "nav", "noframes", "noscript",
    "object", "ol", "optgroup", "option", "p", "pre", "script", "section", "select", "style", "summary",
    "table", "tbody", "td", "template", "textarea", "tfoot", "th", "thead", "title", "tr", "ul", "video",
})  # fmt: skip
"""Names of the HTML elements that separate segments."""
_KEPT = frozenset({
    "code", "kbd", "math", "pre", "samp", "script", "style", "svg", "var",
})  # fmt: skip
_INLINE = frozenset({
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "ins", "label",
    "map", "mark", "nobr", "output", "picture", "q", "rp", "rt", "ruby", "s", "small", "span", "strike", "strong",
    "sub", "sup", "time", "tt", "u",
})  # fmt: skip
_NAMES = _VOID | BLOCK_TAGS | _KEPT | _INLINE
_RAW_TEXT = ("script", "style")  # HTML elements whose content is not markup
_FORMATTING = re.compile(
    r"<(?:b|big|del|em|font|i|ins|mark|q|s|small|span|strike|strong|sub|sup|tt|u)\s*>", re.IGNORECASE
)  # tags that have no effect if they contain no words
_MAX_DEPTH = 50  # maximum nesting depth of inline tags; more deeply nested ones are treated as segment borders

_NAME = r"[A-Za-z_:][^\s/>\"'=<]*"
_TAG = re.compile(rf"""<(?P<closing>/?)(?P<name>{_NAME})(?P<attributes>(?:[^<>"']++|"[^"]*+"|'[^']*+')*+)>""", re.ASCII)
_ATTRIBUTE = re.compile(rf"""(?<=[\s"'])({_NAME})(\s*=\s*)("[^"]*"|'[^']*')""")
_NOT_TRANSLATED = re.compile(
    r"""\s(?:(?:its:)?translate\s*=\s*["']?no(?![\w-])|class\s*=\s*(["'])(?:(?!\1).)*\bnotranslate\b)""",
    re.IGNORECASE | re.DOTALL,
)
_KEPT_SECTIONS = (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>"), ("<!", ">"))
_READABLE = 60  # maximum number of characters of an untranslated element that is passed to the model
_SPACE = " \t\r\n\f"
_STRAY = re.compile(r"<[A-Za-z_/!?:][^\s<>&]*")


class MarkupOptions(Config):
    """Options for translating texts with markup. They have the same names and effects as in the DeepL API."""

    kind: MarkupKind = Field(description="The syntax of the texts.")
    splitting_tags: tuple[str, ...] = Field(
        (), fail_fast=True, description="Tags that separate segments, in addition to the usual ones."
    )
    non_splitting_tags: tuple[str, ...] = Field((), fail_fast=True, description="Tags that do not separate segments.")
    ignore_tags: tuple[str, ...] = Field((), fail_fast=True, description="Tags whose content is not translated.")
    outline_detection: bool = Field(
        True,
        description="XML: detect the tags that separate segments. If false, only splitting_tags separate segments.",
    )
    attributes: tuple[str, ...] = Field(
        (), fail_fast=True, description="Attributes whose values are translated, such as title and alt."
    )

    @classmethod
    def of(cls, markup: MarkupOptions | str | None) -> MarkupOptions | None:
        """Return the options for a kind of markup, or the given options.

        Raises:
            ConfigError: There is no such kind of markup.
        """
        return cls.parse({"kind": markup}, "markup") if isinstance(markup, str) else markup


@dataclass
class MarkupToken:
    """A token of a text with markup: text, a tag, or a part that is kept unchanged.

    Attributes:
        kind: The kind of token. "kept" is a comment or a similar part, "stray" a ``<`` that looks like a tag.
        raw: The token as written.
        name: The name of the tag, in lower case in HTML.
        closing: Whether the tag is a closing tag.
        partner: The index of the element's other tag. None if there is no other tag.
    """

    kind: Literal["text", "tag", "kept", "stray"]
    raw: str
    name: str = ""
    closing: bool = False
    partner: int | None = None


def is_untranslated_element(name: str, opening_tag: str, kept_names: frozenset[str] = _KEPT) -> bool:
    """Return whether an element's name, or an attribute such as ``translate="no"``, excludes it from translation."""
    return name in kept_names or _NOT_TRANSLATED.search(opening_tag) is not None


def is_plain_formatting(opening_tag: str) -> bool:
    """Return whether an element only formats words and has no attributes, so that it has no effect if it is empty."""
    return _FORMATTING.fullmatch(opening_tag) is not None


def parse_markup(
    text: str, options: MarkupOptions, *, protect: bool = True, keeps_icu_messages: bool = False
) -> Document:
    """Return the document of a text with markup.

    Args:
        text: The text with markup.
        options: The syntax, and the roles of tags.
        protect: Whether placeholders in the text are kept; see :mod:`headway.predict.markup.placeholders`.
        keeps_icu_messages: Whether ICU messages with branches are treated as text, because the segments are parsed
            again.
    """
    builder = DocumentBuilder(keeps_icu_messages=keeps_icu_messages)
    pieces = _MarkupParser(options, protect).pieces(text, builder)
    return Document(pieces, tuple(builder.segments))


class _MarkupParser:
    """Parses texts with markup. For the arguments, see :func:`parse_markup`."""

    def __init__(self, options: MarkupOptions, protect: bool) -> None:
        self._options, self._protect = options, protect
        self._is_html = options.kind == "html"
        names = options.ignore_tags
        self._kept_names = _KEPT.union(names) if self._is_html else frozenset(names)

    def pieces(self, text: str, builder: DocumentBuilder) -> Pieces:
        """Return the pieces of a text, which may contain ICU messages."""
        if not (self._protect and may_have_branches(text)):
            return self._pieces(text, builder)
        # In HTML, messages are only parts of the text.
        reader = MessageReader(text, self._pieces, hide_tags=self._hide_tags, is_message=not self._is_html)
        return reader.pieces(builder)

    def _hide_tags(self, text: str) -> str:
        """Replace tags and untranslated elements with other characters of the same length."""
        tokens = tokenize_markup(text, is_html=self._is_html)
        hidden: list[str] = []
        end = -1  # index of the last token of an element that is not translated
        for index, token in enumerate(tokens):
            if index > end and self._is_kept(token) and token.partner is not None:
                end = token.partner
            hidden.append(token.raw if token.kind == "text" and index > end else TAG_CHARACTER * len(token.raw))
        return "".join(hidden)

    def _is_kept(self, token: MarkupToken) -> bool:
        return (
            token.kind == "tag"
            and not token.closing
            and is_untranslated_element(token.name, token.raw, self._kept_names)
        )

    def _pieces(self, text: str, builder: DocumentBuilder) -> Pieces:
        tokens = tokenize_markup(text, is_html=self._is_html)
        splits = _splitting(tokens, self._options)
        has_unfinished_tag = any(token.kind == "stray" for token in tokens)
        pieces: list[str | int] = []
        items: list[Item] = []

        def end_segment() -> None:
            pieces.extend(builder.add_segment(items, _escape_function(items, ends_tag=has_unfinished_tag)))
            items.clear()

        index = 0
        while index < len(tokens):
            token, end = tokens[index], index
            if token.kind == "text":
                items += _text_items(token.raw, self._is_html, self._protect)
            elif token.kind != "tag" and splits[index]:
                end_segment()
                pieces.append(token.raw)
            elif token.kind != "tag":
                items.append(Item("object", (token.raw,)))
            else:
                if self._is_kept(token) and token.partner is not None:
                    end = token.partner
                if splits[index]:
                    end_segment()
                if end > index:
                    kept = _kept_element(tokens[index : end + 1])
                    if splits[index]:
                        pieces += kept.raw
                    else:
                        items.append(kept)
                elif splits[index]:
                    pieces += self._tag_pieces(token.raw, builder)
                else:
                    kind: ItemKind = "object" if token.partner is None else "close" if token.closing else "open"
                    raw = self._tag_pieces(token.raw, builder)
                    items.append(Item(kind, raw, without_words=self._without_words(token)))
            index = end + 1
        end_segment()
        return tuple(pieces)

    def _without_words(self, token: MarkupToken) -> WithoutWords:
        if not self._is_html:
            return "empty"
        return "dropped" if is_plain_formatting(token.raw) else "source"

    def _tag_pieces(self, tag: str, builder: DocumentBuilder) -> Pieces:
        """Return the pieces of a tag, whose attributes may be translated."""
        if not self._options.attributes:
            return (tag,)
        names = self._options.attributes
        wanted = {name.lower() for name in names} if self._is_html else set(names)
        pieces: list[str | int] = []
        position = 0
        for match in _ATTRIBUTE.finditer(tag):
            if (match[1].lower() if self._is_html else match[1]) in wanted:
                start, end = match.start(3) + 1, match.end(3) - 1

                def parse(text: str, inner: DocumentBuilder, quote: str = tag[end]) -> Pieces:
                    items = list(_text_items(text, self._is_html, self._protect))
                    return inner.add_segment(items, _escape_function(items, quote))

                value = tag[start:end]
                reader = MessageReader(value, parse, is_message=not self._is_html)
                pieces += (
                    tag[position:start],
                    *(reader.pieces(builder) if self._protect else parse(value, builder)),
                )
                position = end
        return (*pieces, tag[position:])


def translatable_text(text: str, options: MarkupOptions) -> str:
    """Return the text that would be translated, for example to detect its language."""
    return "\n".join(segment.text for segment in parse_markup(text, options).segments)


def _kept_element(tokens: Sequence[MarkupToken]) -> Item:
    """Return the item for an element that is not translated.

    If its text is short, it is passed to the model, because it may be the subject of a sentence, as in
    "<code>ls</code> lists files".
    """
    raw = "".join(token.raw for token in tokens)
    text = " ".join(_decode("".join(token.raw for token in tokens if token.kind == "text"))[0].split())
    is_readable = len(text) <= _READABLE and any(map(str.isalnum, text))
    return Item("placeholder", (raw,), text) if is_readable else Item("object", (raw,))


def tokenize_markup(text: str, *, is_html: bool) -> list[MarkupToken]:
    """Split a text with markup into tokens, and find the partner of each tag. The tokens concatenate to the text."""
    return _paired(list(_tokenize(text, is_html)), is_html)


def is_html_text(text: str) -> bool:
    """Return whether a text contains only known, paired HTML tags, and at least one. ``a < b`` has no tag."""
    tokens = tokenize_markup(text, is_html=True)
    tags = [token for token in tokens if token.kind == "tag"]
    return (
        bool(tags)
        and all(token.kind != "stray" for token in tokens)
        and all(token.name in _NAMES and (token.partner is not None or _is_alone(token)) for token in tags)
    )


def _is_alone(tag: MarkupToken) -> bool:
    """Return whether a tag needs no partner. Without attributes, ``<input>`` is more likely a word than a tag."""
    return tag.name in ("br", "hr", "wbr") or (tag.name in _VOID and "=" in tag.raw)


def _tokenize(text: str, is_html: bool) -> Iterator[MarkupToken]:
    """Yield tokens that concatenate to the text."""
    position, start = 0, text.find("<")
    missing: set[str] = set()  # end markers that do not occur in the rest of the text

    def kept_end(start: int) -> int | None:
        for opening, closing in _KEPT_SECTIONS:
            if text.startswith(opening, start):
                if opening == "<!" and not text[start + 2 : start + 3].isalpha():
                    return None
                end = -1 if closing in missing else text.find(closing, start + len(opening))
                if end >= 0:
                    return end + len(closing)
                missing.add(closing)
                return None
        return None

    while start >= 0:
        token: MarkupToken | None = None
        if (end := kept_end(start)) is not None:
            token = MarkupToken("kept", text[start:end])
        elif tag := _TAG.match(text, start):
            name = tag["name"].lower() if is_html else tag["name"]
            token = MarkupToken("tag", tag.group(), name, closing=bool(tag["closing"]))
        elif stray := _STRAY.match(text, start):
            token = MarkupToken("stray", stray.group())
        if token is None:
            start = text.find("<", start + 1)
            continue
        if position < start:
            yield MarkupToken("text", text[position:start])
        yield token
        position = start + len(token.raw)
        if is_html and token.name in _RAW_TEXT and not token.closing:
            closing = re.compile(rf"</{token.name}(?=[\s/>])", re.IGNORECASE).search(text, position)
            end = closing.start() if closing else len(text)
            if position < end:
                yield MarkupToken("kept", text[position:end])
            position = end
        start = text.find("<", position)
    if position < len(text):
        yield MarkupToken("text", text[position:])


def _paired(tokens: list[MarkupToken], is_html: bool) -> list[MarkupToken]:
    """Set the partner of each tag. A closing tag belongs to the last open tag of the same name."""
    opened: list[int] = []
    waiting: Counter[str] = Counter()
    for index, token in enumerate(tokens):
        if token.kind != "tag" or (is_html and token.name in _VOID):
            continue
        if not token.closing:
            if not token.raw.endswith("/>") or (is_html and token.name in _RAW_TEXT):
                opened.append(index)
                waiting[token.name] += 1
        elif waiting[token.name]:
            while tokens[opened[-1]].name != token.name:
                waiting[tokens[opened.pop()].name] -= 1
            token.partner = opened.pop()
            tokens[token.partner].partner = index
            waiting[token.name] -= 1
    return tokens


def _splitting(tokens: Sequence[MarkupToken], options: MarkupOptions) -> list[bool]:
    """Return, for each token, whether it separates segments."""
    detected = _outline(tokens) if options.outline_detection else set()
    names = set(BLOCK_TAGS) if options.kind == "html" else detected
    names = (names | set(options.splitting_tags)) - set(options.non_splitting_tags)
    splits: list[bool] = []
    depth = 0
    for token in tokens:
        paired = token.kind == "tag" and token.partner is not None
        depth -= paired and token.closing
        # If a comment moved behind an unclosed <!--, everything between them would become a comment.
        is_open_section = token.kind == "stray" and token.raw.startswith(("<!", "<?"))
        is_split = token.kind == "tag" and (token.name in names or (paired and depth >= _MAX_DEPTH))
        splits.append(is_split or is_open_section)
        depth += paired and not token.closing
    before = [0, *accumulate(splits)]
    for index, token in enumerate(tokens):
        if token.partner is not None and token.partner > index and before[token.partner + 1] > before[index]:
            splits[index] = splits[token.partner] = True
    return splits


def _outline(tokens: Sequence[MarkupToken]) -> set[str]:
    """Return the names of all tags that never occur next to text."""
    names: set[str] = set()
    inline: set[str] = set()
    children: list[set[str]] = [set()]  # for each open element, the names of the tags directly inside
    texts = [False]
    for token in tokens:
        if token.kind == "text":
            texts[-1] |= bool(token.raw.strip())
        elif token.kind == "tag":
            names.add(token.name)
            if token.closing and token.partner is not None:
                child_names = children.pop()
                inline |= child_names if texts.pop() else set()
            else:
                children[-1].add(token.name)
                if token.partner is not None:
                    children.append(set())
                    texts.append(False)
    return names - inline - (children[0] if texts[0] else set())


def _text_items(raw: str, is_html: bool, protect: bool) -> Iterator[Item]:
    """Yield the items of the text between two tags."""
    position = 0
    for match in ENTITY_PATTERN.finditer(raw):
        if not is_known_entity(match.group(), is_html=is_html):
            yield from _decoded_items(raw[position : match.start()], protect)
            yield Item("object", (match.group(),))
            position = match.end()
    yield from _decoded_items(raw[position:], protect)


def _decoded_items(raw: str, protect: bool) -> Iterator[Item]:
    """Yield the items of a text whose entities are all known."""
    text, starts = _decode(raw)
    everything: list[tuple[ItemKind, int, int]] = [("text", 0, len(text))]
    for kind, start, end in split_protected_parts(text) if protect else everything:
        if kind == "text":
            content = text[start:end]
            lead = end - len(content.lstrip(_SPACE))
            trail = max(lead, start + len(content.rstrip(_SPACE)))
            for before, after in ((start, lead), (lead, trail), (trail, end)):
                if before < after:
                    collapsed = re.sub(f"[{_SPACE}]+", " ", text[before:after])
                    yield Item("text", (raw[starts[before] : starts[after]],), collapsed)
        else:
            yield Item(kind, (raw[starts[start] : starts[end]],), text[start:end])


def _decode(raw: str) -> tuple[str, list[int]]:
    """Replace entities with their characters. Also return the start of each character in ``raw``, and the length."""
    text: list[str] = []
    starts: list[int] = []
    position = 0
    for match in ENTITY_PATTERN.finditer(raw):
        characters = html.unescape(match.group())
        text += (raw[position : match.start()], characters)
        starts += (*range(position, match.start()), *[match.start()] * len(characters))
        position = match.end()
    return "".join([*text, raw[position:]]), [*starts, *range(position, len(raw) + 1)]


def _escape_function(items: Iterable[Item], quote: str = "", *, ends_tag: bool = False) -> Callable[[str], str]:
    """Return a function that escapes translated text in the same way as the source text of a segment.

    ``&``, ``<`` and ``>`` are not escaped if the source contains them unescaped, unless they would begin an entity or a
    tag. With ``ends_tag``, an unescaped ``>`` would end an unfinished tag in the text, so it is always escaped.
    """
    raw = "".join(piece for item in items if item.kind == "text" for piece in item.raw if isinstance(piece, str))
    bare = ENTITY_PATTERN.sub("", raw)
    names = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
    if "&nbsp;" in raw:
        names["\u00a0"] = "&nbsp;"
    if quote:
        names[quote] = "&quot;" if quote == '"' else "&#39;"
    kept = {"&": rf"(?!{ENTITY_PATTERN.pattern})&", "<": r"<(?=[\s\d=])"} | ({} if ends_tag else {">": ">"})
    patterns = (
        [f"(?P<kept>{'|'.join(kept[character] for character in kept if character in bare)})"]
        if set(bare) & set(kept)
        else []
    )
    pattern = re.compile("|".join([*patterns, f"[{''.join(names)}]"]))

    def escape(text: str) -> str:
        return pattern.sub(lambda match: match.group() if match.lastgroup == "kept" else names[match.group()], text)

    return escape
