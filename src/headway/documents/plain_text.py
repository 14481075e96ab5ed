"""Plain text. Each line is a separate text, except that the lines of a wrapped paragraph form one text.

In other lines, tabs or three or more spaces separate columns, which are translated as separate texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from headway.documents.content import DocumentContent, DocumentText, ReadingOptions, read_text
from headway.documents.line_breaks import detect_wrap_width, wrap
from headway.predict.markup.placeholders import is_translatable

_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_ITEM = re.compile(r"\A(?:[-*+•–]|\d+[.)])\s")
_COLUMNS = re.compile(r"( *\t[ \t]*| {3,})")  # separators between the columns of a line
_HEADING_LINES = 3  # maximum number of headings directly above a wrapped paragraph


@dataclass(frozen=True)
class _Line:
    """A line, split into leading white space, text, and trailing white space with the line break."""

    indent: str
    text: str
    end: str


@dataclass(frozen=True)
class _TextParagraph:
    """Lines that form one text. ``width`` is the width at which they were wrapped, or None for a single line."""

    lines: Sequence[_Line]
    width: int | None

    @property
    def text(self) -> str:
        return " ".join(line.text for line in self.lines)

    def render(self, translation: str) -> str:
        first, last = self.lines[0], self.lines[-1]
        if self.width is None:
            return first.indent + translation + last.end
        next_indent = self.lines[1].indent
        wrapped = wrap(translation, self.width, first.indent, next_indent, _any_word)
        return first.indent + (first.end.lstrip(" \t") + next_indent).join(wrapped) + last.end


def read_plain_text(path: Path, options: ReadingOptions) -> DocumentContent:
    """Read a text file. Raises :class:`DocumentError` if the file is not text."""
    encoded = read_text(path, options.encoding)
    parts = list(_parts(_lines(encoded.text)))
    paragraphs = [part for part in parts if isinstance(part, _TextParagraph)]

    def write(translations: Sequence[str], target: Path) -> None:
        remaining = iter(translations)
        encoded.write(
            "".join(part if isinstance(part, str) else part.render(next(remaining)) for part in parts), target
        )

    return DocumentContent([DocumentText(paragraph.text) for paragraph in paragraphs], write)


def _any_word(_: str) -> bool:
    return True


def _lines(text: str) -> Iterator[_Line]:
    for match in _LINE.finditer(text):
        content = match[1].strip()
        indent = match[1][: len(match[1]) - len(match[1].lstrip())] if content else match[1]
        yield _Line(indent, content, match[1][len(indent) + len(content) :] + match[2])


def _parts(lines: Iterator[_Line]) -> Iterator[str | _TextParagraph]:
    """Yield paragraphs, and the lines without letters and digits between them."""
    block: list[_Line] = []
    for line in lines:
        is_text = any(map(str.isalnum, line.text))
        continues = is_text and bool(block) and not _ITEM.match(line.text)
        if continues and len(block) > 1:
            continues = line.indent == block[-1].indent
        if not continues:
            yield from _paragraphs(block)
            block = []
        if is_text:
            block.append(line)
        else:
            yield line.indent + line.text + line.end
    yield from _paragraphs(block)


def _paragraphs(block: Sequence[_Line]) -> Iterator[str | _TextParagraph]:
    for start in range(min(len(block) - 1, _HEADING_LINES + 1)):
        lines = block[start:]
        if any("\t" in _ITEM.sub("", line.text, 1) for line in lines):
            continue
        width = detect_wrap_width([line.text for line in lines], lines[0].indent, lines[1].indent, _any_word)
        if width is not None:
            yield from chain.from_iterable(map(_parse_line, block[:start]))
            yield _TextParagraph(lines, width)
            return
    yield from chain.from_iterable(map(_parse_line, block))


def _parse_line(line: _Line) -> Iterator[str | _TextParagraph]:
    """Yield the parts of a line: a text for each column, and strings that contain nothing to translate."""
    yield line.indent
    for number, part in enumerate(_COLUMNS.split(line.text)):
        yield part if number % 2 or not is_translatable(part) else _TextParagraph([_Line("", part, "")], None)
    yield line.end
