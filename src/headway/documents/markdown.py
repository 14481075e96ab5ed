"""Markdown (CommonMark with tables and strikethrough), parsed by markdown-it.

Everything that is not text is kept unchanged: code, link destinations, HTML tags, front matter, heading and list
markers, and the layout. Emphasis and links enclose the translations of the words that they enclose in the source.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from headway.documents.content import DocumentContent, DocumentText, ReadingOptions, read_text
from headway.documents.html_file import extract_html_texts
from headway.documents.inline_spaces import InlinePart
from headway.documents.inline_tags import InlineText, SourceTag
from headway.documents.line_breaks import break_like_source, detect_wrap_width, wrap
from headway.errors import MissingPackageError
from headway.predict.markup.document import STAND_IN_PATTERN
from headway.predict.markup.html import BLOCK_TAGS, is_plain_formatting, is_untranslated_element
from headway.predict.markup.icu_messages import may_have_branches
from headway.predict.markup.markdown_dialects import find_constructs

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n.*?^\1[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_HIDDEN = re.compile(rf"({STAND_IN_PATTERN.pattern})\1*")
_OBJECT = re.compile(rf"\[\^[^\[\]\s]+\]:?|{_HIDDEN.pattern}")  # a footnote marker, or a hidden construct
_HTML_TAG = re.compile(r"<(?P<closing>/?)(?P<name>[A-Za-z][\w-]*)")
_BREAK = re.compile(r"(?<![ \t])[ \t]*\n[ \t]*")
_FIRST_HIDDEN, _LAST_HIDDEN = 0x100000, 0x10FFFD  # the range of STAND_IN_PATTERN
_PUNCTUATION = frozenset(string.punctuation)  # characters that a backslash escapes
_ITEM = re.compile(r"\s*(?:(?:[-*+•]|\d{1,3}[.)])\s+)?(?:\[[ xX]\]\s+)?")  # the optional list item marker in a cell
_CELL_SEPARATORS = frozenset(f"<{name}" for name in BLOCK_TAGS)
_SPECIAL = "\\`*_[]<>~"
_SPECIAL_CHARACTER = re.compile(f"[{re.escape(_SPECIAL)}]")
_CONTAINERS = re.compile(r"(?:[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=[ \t])))*+[ \t]*")
_ROW_LEVEL = 2  # markdown-it's nesting level of a table row outside quotes and lists
_TASK = re.compile(r"\[[ xX]\][ \t]+")
_LIST_MARK = re.compile(r"(?:[-+*]|\d{1,9}[.)])[ \t]+\Z")
_VOID_TAGS = {"br", "hr", "img", "input", "wbr"}
_OPENINGS = {"link": "[", "image": "!["}
_BLOCK_MARK = re.compile(r"[-+*>]|#{1,6}|\d{1,9}[.)]|[-=]+|(?:```|~~~).*")
_EMPHASIS = {"em_open", "em_close", "strong_open", "strong_close", "s_open", "s_close"}

_EventKind = Literal["open", "close", "object", "text", "break"]


@dataclass(frozen=True)
class _Event:
    """A construct that markdown-it recognized in a range of characters.

    Attributes:
        start: Index of the first character.
        end: Index after the last character.
        kind: The "open" or "close" tag of a pair, an "object", "text" whose source differs from the displayed text, or
            a visible line "break".
        raw: The source to write in the translation.
        text: The displayed text of an object or of "text", or the short form of a reference's closing part.
        name: The name of an HTML tag or of an inline rule.
    """

    start: int
    end: int
    kind: _EventKind
    raw: str = ""
    text: str = ""
    name: str = ""


@dataclass(frozen=True)
class _MarkdownTag(SourceTag):
    """A Markdown construct or an HTML tag.

    Attributes:
        short_closing: The short form of a reference's closing part, or empty.
    """

    short_closing: str = ""


@dataclass(frozen=True)
class _MarkdownParagraph:
    """A paragraph, a heading or a table cell, or a part of one that ends with a visible line break.

    Attributes:
        lines: The lines of the source, without their prefixes and suffixes.
        prefixes: For each line, the source that precedes its text, such as "> ".
        suffixes: The source after each line, including the line break.
        inline: The text to translate.
        written: The source of each character that the text contains in escaped form, such as ``&amp;``.
        bare: The characters that the text contains unescaped.
        hidden: The constructs that are hidden in ``lines`` and ``inline``.
        is_cell: Whether the paragraph is a table cell.
    """

    lines: Sequence[str]
    prefixes: Sequence[str]
    suffixes: Sequence[str]
    inline: InlineText
    written: Mapping[str, str]
    bare: frozenset[str]
    hidden: _HiddenText
    is_cell: bool = False

    @property
    def texts(self) -> list[DocumentText]:
        return [self.inline.source]

    def render(self, translations: Iterator[str]) -> str:
        text = _BREAK.sub(" ", self._joined(self.inline.parse_translation(next(translations)))).strip()
        if self.is_cell:
            text = text.replace("|", "\\|")
        first = text.partition(" ")[0]
        if not _may_begin_line(first) and _may_begin_line(self.lines[0].partition(" ")[0]):
            text = f"{first[:-1]}\\{text[len(first) - 1 :]}"
        if len(self.lines) < 2:
            return self.prefixes[0] + self.hidden.restore(text) + self.suffixes[0]
        width = None
        if len(set(self.prefixes[1:])) == 1:
            width = detect_wrap_width(self.lines, self.prefixes[0], self.prefixes[1], _may_begin_line)
        if width is None:
            lines = break_like_source(self.lines, text)
            prefixes = self.prefixes[: len(lines)]
        else:
            lines = wrap(text, width, self.prefixes[0], self.prefixes[1], _may_begin_line)
            prefixes = [self.prefixes[0], *[self.prefixes[1]] * (len(lines) - 1)]
        ends = [*[self.suffixes[0]] * (len(lines) - 1), self.suffixes[-1]]
        for number, line in enumerate(lines[:-1]):
            # A literal backslash at the end of a line would be parsed as a line break.
            if (len(line) - len(line.rstrip("\\"))) % 2 and ends[number].startswith(("\r", "\n")):
                lines[number] += "\\"
        lines = list(map(self.hidden.restore, lines))
        return "".join(part for line_parts in zip(prefixes, lines, ends, strict=True) for part in line_parts)

    def _joined(self, parts: Sequence[InlinePart]) -> str:
        """Write the parts as Markdown. A reference keeps its short form if its words have not changed."""
        out: list[str] = []
        opened: list[int] = []
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            if part.kind == "text":
                out.append(self._escaped(part.text, _first_character(following)))
                continue
            opening, closing = part.payload.opening, part.payload.closing
            if part.kind == "open":
                opened.append(len(out))
            elif part.kind == "close":
                start = opened.pop()
                if not any(map(str.strip, out[start + 1 :])):
                    if set(closing) <= set("*_~") or is_plain_formatting(opening):
                        out[start] = ""  # emphasis without words would be displayed as literal marks
                        continue
                    out.append(part.payload.words)
                if set(closing) == {"_"} and (
                    "".join(out[:start])[-1:].isalnum() or (following is not None and following.text[:1].isalnum())
                ):
                    out[start] = closing = "*" * len(closing)  # inside a word, _ is not emphasis
                words = "".join(out[start + 1 :])
                short = part.payload.short_closing
                out.append(short if short and closing == f"][{words}]" else closing)
                continue
            elif opening.startswith("`") and out and out[-1].endswith("`"):
                out.append(" ")  # adjacent code spans would merge into one
            out.append(opening)
        return "".join(out)

    def _escaped(self, text: str, next_character: str) -> str:
        """Escape special characters as the source does, or with a backslash if the source does not contain them.

        A character that the source contains both escaped and unescaped is escaped, which is never ambiguous. A
        backslash that would escape the next character is also escaped.
        """
        if not self.written and not _SPECIAL_CHARACTER.search(text):
            return text
        return "".join(
            self.written.get(character)
            or (
                f"\\{character}"
                if character in _SPECIAL
                and (character not in self.bare or (character == "\\" and following in _PUNCTUATION))
                else character
            )
            for character, following in zip(text, [*text[1:], next_character], strict=bool(text))
        )


@dataclass(frozen=True)
class _HtmlBlock:
    """An HTML block between paragraphs."""

    texts: Sequence[DocumentText]
    fill: Callable[[Sequence[str]], str]

    def render(self, translations: Iterator[str]) -> str:
        return self.fill([next(translations) for _ in self.texts])


_Part = str | _MarkdownParagraph | _HtmlBlock


def _first_character(part: InlinePart | None) -> str:
    """Return the first character of a part's source, or an empty string if there is no part."""
    if part is None:
        return ""
    source = (
        part.text if part.kind == "text" else part.payload.closing if part.kind == "close" else part.payload.opening
    )
    return source[:1]


class _HiddenText:
    """A text in which constructs from Markdown dialects are hidden from the parser.

    Each construct is replaced by the same number of other characters: a construct inside a line by private-use
    characters, and whole lines by spaces. The marker before a title is replaced by a heading marker. The marker of a
    container is replaced by a list item marker and a heading marker, so that the parser treats the indented content as
    part of the list item.

    Attributes:
        text: The text with hidden constructs.
    """

    def __init__(self, text: str) -> None:
        out: list[str] = []
        self._sources: list[str] = []
        self._is_formula: list[bool] = []
        position = 0
        for construct in () if STAND_IN_PATTERN.search(text) else find_constructs(text):
            source = text[construct.start : construct.end]
            out.append(text[position : construct.start])
            position = construct.end
            if construct.kind in ("formula", "object") and len(self._sources) <= _LAST_HIDDEN - _FIRST_HIDDEN:
                out.append(chr(_FIRST_HIDDEN + len(self._sources)) * len(source))
                self._sources.append(source)
                self._is_formula.append(construct.kind == "formula")
            else:
                mark = {"title": "#", "container": "-  #"}.get(construct.kind, "")
                out.append(mark + re.sub(r"[^\r\n]", " ", source[len(mark) :]))
        self.text = "".join([*out, text[position:]])

    def restore(self, text: str) -> str:
        """Return a part of the text with its constructs restored."""
        return _HIDDEN.sub(self._source, text) if self._sources else text

    def _source(self, match: re.Match[str]) -> str:
        return self._sources[ord(match[1]) - _FIRST_HIDDEN]

    def visible(self, hidden: str) -> str:
        """Return the displayed text of a hidden construct. Empty unless the construct is a formula or template."""
        number = ord(hidden[0]) - _FIRST_HIDDEN
        return self._sources[number] if number < len(self._sources) and self._is_formula[number] else ""


class _MarkdownLine(NamedTuple):
    """A line of the document as written, the same line with hidden constructs, and its line break."""

    source: str
    hidden: str
    end: str


def _source(lines: Iterable[_MarkdownLine]) -> str:
    return "".join(line.source + line.end for line in lines)


def read_markdown(path: Path, options: ReadingOptions) -> DocumentContent:
    """Read a Markdown file.

    Raises:
        DocumentError: The file is not a text file.
        MissingPackageError: markdown-it is not installed.
    """
    encoded = read_text(path, options.encoding)
    front = _FRONT_MATTER.match(encoded.text)
    start = front.end() if front else 0
    parts: list[_Part] = [encoded.text[:start], *_parts(encoded.text[start:])]

    def write(translations: Sequence[str], target: Path) -> None:
        remaining = iter(translations)
        encoded.write("".join(part if isinstance(part, str) else part.render(remaining) for part in parts), target)

    return DocumentContent([text for part in parts if not isinstance(part, str) for text in part.texts], write)


def _parts(text: str) -> Iterator[_Part]:
    hidden = _HiddenText(text)
    lines = [_MarkdownLine(text[slice(*match.span(1))], match[1], match[2]) for match in _LINE.finditer(hidden.text)]
    parser = _InlineParser(hidden)
    position = 0  # index of the next line
    tokens = parser.blocks(hidden.text)
    for index, token in enumerate(tokens):
        if token.map is None or token.type not in ("inline", "html_block", "tr_open"):
            continue
        first, last = token.map
        if first < position:
            continue  # cells are handled with their row
        yield _source(lines[position:first])
        position = last
        token_lines = lines[first:last]
        if token.type == "tr_open":
            row = token_lines[0].hidden + token_lines[0].end
            # The marker of an enclosing quote or list comes before the row and is not a cell.
            before = _CONTAINERS.match(row) if token.level > _ROW_LEVEL else None
            content_start = before.end() if before else 0
            yield hidden.restore(row[:content_start])
            yield from _row(row[content_start:], _cells(tokens, index), parser)
        elif token.type == "html_block":
            if token.level == 0:
                yield _HtmlBlock(*extract_html_texts(_source(token_lines)))
            else:
                yield _source(token_lines)
        else:
            yield from _paragraphs(token.content, token_lines, parser)
    yield _source(lines[position:])


def _cells(tokens: Sequence[Token], row: int) -> Iterator[str]:
    for token in tokens[row + 1 :]:
        if token.type == "tr_close":
            return
        if token.type == "inline":
            yield token.content


def _row(line: str, cells: Iterator[str], parser: _InlineParser) -> Iterator[_Part]:
    pieces = re.split(r"((?<!\\)\|)", line)
    is_first = not pieces[0].strip()  # text before the first "|" is not a cell if it is blank
    for number, piece in enumerate(pieces):
        core = piece.strip()
        if number % 2 or (number == 0 and is_first) or (content := next(cells, None)) is None or not core:
            yield parser.hidden.restore(piece)
        else:
            lead = piece[: len(piece) - len(piece.lstrip())]
            yield lead
            yield from _cell(content, parser)
            yield piece[len(lead) + len(core) :]


def _cell(content: str, parser: _InlineParser) -> Iterator[_Part]:
    """Yield the parts of a table cell, which are separated by block tags, line breaks and list items."""
    events = parser.events(content)
    separators = [(event.start, event.end) for event in events if event.name in _CELL_SEPARATORS]
    edges = [(0, 0), *separators, (len(content), len(content))]
    for (_, start), (stop, after) in pairwise(edges):
        text = content[start:stop]
        mark = _ITEM.match(text)
        assert mark is not None
        begin, end = start + mark.end(), start + max(mark.end(), len(text.rstrip()))
        parsed = _inline(content, events, begin, end, parser.hidden)
        before, suffix = content[start:begin].replace("|", "\\|"), content[end:after].replace("|", "\\|")
        if parsed[0].is_translatable:
            before, suffix = parser.hidden.restore(before), parser.hidden.restore(suffix)
            yield _MarkdownParagraph([content[begin:end]], [before], [suffix], *parsed, parser.hidden, is_cell=True)
        else:
            middle = content[begin:end].replace("|", "\\|")
            yield parser.hidden.restore(before + middle + suffix)


def _paragraphs(content: str, source: Sequence[_MarkdownLine], parser: _InlineParser) -> Iterator[_Part]:
    """Yield the parts of a paragraph or heading. ``source`` contains its complete lines.

    Visible line breaks separate the parts, except in an ICU message.
    """
    events = parser.events(content)
    if may_have_branches(content):
        events = [
            replace(event, kind="object", name="<br", raw=" ") if event.kind == "break" else event for event in events
        ]
    breaks = [event for event in events if event.kind == "break"]
    task = _TASK.match(content)
    if task and not _LIST_MARK.search(source[0].source.partition(task.group())[0]):
        task = None
    starts = [task.end() if task else 0, *(event.end for event in breaks)]
    ends = [*(event.start for event in breaks), len(content)]
    number = 0  # index of the line
    for start, end in zip(starts, ends, strict=True):
        cores = [line.strip() for line in content[start:end].split("\n")]
        source_lines = source[number : number + len(cores)]
        number += len(cores)
        offsets = [line.hidden.rfind(core) for line, core in zip(source_lines, cores, strict=True)]
        text = content[start:end]
        start += len(text) - len(text.lstrip())
        parsed = _inline(content, events, start, start + len(text.strip()), parser.hidden)
        if min(offsets) < 0 or not parsed[0].is_translatable:
            yield _source(source_lines)
            continue
        prefixes = [line.source[:offset] for line, offset in zip(source_lines, offsets, strict=True)]
        suffixes = [
            line.source[offset + len(core) :] + line.end
            for line, offset, core in zip(source_lines, offsets, cores, strict=True)
        ]
        if len(cores) > 1 and not cores[-1]:  # a line break at the start of a line
            suffixes[-2:] = [suffixes[-2] + prefixes.pop() + suffixes[-1]]
            cores.pop()
        yield _MarkdownParagraph(cores, prefixes, suffixes, *parsed, parser.hidden)
    yield _source(source[number:])  # the underline of a heading


def _inline(
    content: str, events: Sequence[_Event], start: int, end: int, hidden: _HiddenText
) -> tuple[InlineText, dict[str, str], frozenset[str]]:
    """Return the text between two positions, the source of each escaped character, and the unescaped characters.

    The payload of a tag is a :class:`_MarkdownTag`.
    """
    inline, written, bare = InlineText(), dict[str, str](), set[str]()
    inner_events = [event for event in events if start <= event.start and event.end <= end and event.kind != "break"]
    partners = _pairs(inner_events)
    closing = set(partners.values())

    def add_text(raw: str) -> None:
        position = 0
        for match in _OBJECT.finditer(raw):
            add_words(raw[position : match.start()])
            visible = hidden.visible(match.group()) if match[1] else ""
            inline.add_object(_MarkdownTag(match.group()), visible)
            position = match.end()
        add_words(raw[position:])

    def add_words(raw: str) -> None:
        bare.update(raw)
        inline.add_text(_BREAK.sub(" ", raw))

    position = start
    for index, event in enumerate(inner_events):
        if event.start < position:
            continue  # inside an element that is not translated
        add_text(content[position : event.start])
        position = event.end
        if event.kind == "text":
            inline.add_text(event.text)
            written.setdefault(event.text, event.raw)
        elif index in partners:
            partner = inner_events[partners[index]]
            if event.name.startswith("<") and is_untranslated_element(event.name[1:], event.raw):
                inline.add_object(_MarkdownTag(content[event.start : partner.end]), content[event.end : partner.start])
                position = partner.end
                continue
            words = _BREAK.sub(" ", content[event.end : partner.start])
            inline.add_opening_tag(_MarkdownTag(event.raw, partner.raw, words, partner.text))
        elif index in closing:
            inline.add_closing_tag()
        elif event.raw:
            tag = _MarkdownTag(event.raw)
            if event.name == "<br":
                inline.add_space(tag)
            else:
                inline.add_object(tag, hidden.restore(event.text))
    add_text(content[position:end])
    return inline, written, frozenset(bare)


def _pairs(events: Sequence[_Event]) -> dict[int, int]:
    """Map the index of each opening tag to its closing tag's index. HTML tags are paired only on the same level."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for index, event in enumerate(events):
        if event.kind == "open":
            opened.append(index)
        elif event.kind == "close":
            while opened and event.name != events[opened[-1]].name and events[opened[-1]].name.startswith("<"):
                if event.name.startswith("<"):
                    break
                opened.pop()
            if opened and events[opened[-1]].name == event.name:
                pairs[opened.pop()] = index
    return pairs


def _may_begin_line(word: str) -> bool:
    """Return whether a word at the start of a line is text, and not, for example, a list or heading marker."""
    return _BLOCK_MARK.fullmatch(word) is None


class _InlineParser:
    """Finds the positions of inline constructs, which markdown-it does not return.

    Args:
        hidden: The document, in which the constructs that markdown-it does not support are hidden.
    """

    def __init__(self, hidden: _HiddenText) -> None:
        self.hidden = hidden
        try:
            from markdown_it import MarkdownIt
        except ImportError:
            raise MissingPackageError("translating Markdown", "markdown-it-py") from None
        self._events: list[_Event] = []
        self._environment: dict[str, Any] = {}
        self._parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
        self._parser.inline.ruler2.disable("fragments_join")
        _record(self._parser, self._events)

    def blocks(self, text: str) -> list[Token]:
        """Return the block tokens of a document, and store its link definitions for :meth:`events`."""
        self._parser.core.ruler.disable("inline")
        return self._parser.parse(text, self._environment)

    def events(self, content: str) -> list[_Event]:
        """Return the constructs in a text, sorted by their start."""
        self._events.clear()
        tokens: list[Token] = []
        self._parser.inline.parse(content, self._parser, self._environment, tokens)
        for token in tokens:
            if "start" not in token.meta:
                continue
            start = token.meta["start"]
            if token.type in _EMPHASIS:
                kind: Literal["open", "close"] = "open" if token.nesting > 0 else "close"
                # A two-character delimiter has two tokens, one of which has no text.
                self._events.append(
                    _Event(start, start + token.meta["length"], kind, token.markup, name=token.type.partition("_")[0])
                )
            elif not token.content:
                self._events.append(_Event(start, start + token.meta["length"], "text"))
        return sorted(self._events, key=lambda event: event.start)


def _record(parser: MarkdownIt, events: list[_Event]) -> None:
    """Wrap the rules of a parser so that they record the constructs that they recognize."""

    offsets = [0]  # offset of the current text: an image's description is parsed as a separate text

    def recording(name: str, rule: Callable[..., bool]) -> Callable[..., bool]:
        def recorded(state: Any, silent: bool) -> bool:
            offset = offsets[-1]
            start, num_tokens = state.pos, len(state.tokens)
            # Text before the construct gets its own token; a line break removes the spaces at the end of this text.
            is_pending = bool(state.pending.rstrip(" ") if name == "newline" else state.pending)
            label = (
                parser.helpers.parseLinkLabel(state, start + (name == "image"), name == "link")
                if name in ("link", "image") and not silent and state.src.startswith(_OPENINGS[name], start)
                else -1
            )
            if name == "image":
                offsets.append(offset + start + len(_OPENINGS["image"]))
            try:
                if not rule(state, silent):
                    return False
            finally:
                if name == "image":
                    offsets.pop()
            new = state.tokens[num_tokens + is_pending :]
            if silent or not new:
                return True
            source, end = state.src, state.pos

            def add(begin: int, stop: int, kind: _EventKind, raw: str, text: str = "", name: str = "") -> None:
                events.append(_Event(offset + begin, offset + stop, kind, raw, text, name))

            if name in ("emphasis", "strikethrough"):
                for token in new:
                    token.meta = {"start": start, "length": len(token.content)}
                    start += len(token.content)
            elif name == "link" or (name == "image" and any(map(str.isalpha, source[start + 2 : label]))):
                opening = _OPENINGS[name]
                closing, words = source[label:end], source[start + len(opening) : label]
                # Without an explicit label, the words are the reference's label.
                named = f"][{_BREAK.sub(' ', words)}]" if closing in ("]", "][]") else closing
                add(start, start + len(opening), "open", opening, name=name)
                add(label, end, "close", named, closing if named != closing else "", name)
            elif name == "html_inline" and (tag := _HTML_TAG.match(source, start)):
                name_of_tag = tag["name"].lower()
                kind: Literal["open", "close", "object"] = "close" if tag["closing"] else "open"
                if name_of_tag in _VOID_TAGS or source[end - 2] == "/":
                    kind = "object"
                add(start, end, kind, source[start:end], name=f"<{name_of_tag}")
            elif new[-1].type == "hardbreak":
                if offset:  # in an image's description, a line break is displayed as a space
                    add(start, end, "text", " ", " ")
                else:
                    add(start, end, "break" if state.level == 0 else "object", source[start:end])
            elif new[-1].type == "text_special":
                if new[-1].content != source[start:end]:  # otherwise, the backslash escapes nothing
                    add(start, end, "text", source[start:end], new[-1].content)
            elif name not in ("newline", "text"):
                visible = new[-1].content if name == "backticks" else ""
                add(start, end, "object", source[start:end], visible)
            return True

        return recorded

    for rule in parser.inline.ruler.__rules__:
        rule.fn = recording(rule.name, rule.fn)
    parser.inline.ruler.__cache__ = None
