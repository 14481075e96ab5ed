"""HTML pages. Each block is translated as a separate text. Tags, scripts, comments, code and everything else that is
not text are copied unchanged; see :mod:`headway.predict.markup.html`.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.documents.content import (
    DocumentContent,
    DocumentError,
    DocumentText,
    EncodedText,
    ReadingOptions,
    read_text,
)
from headway.documents.encodings import python_codec_name
from headway.predict.markup.document import Pieces, raw_pieces
from headway.predict.markup.html import MarkupOptions, parse_markup

HTML_OPTIONS = MarkupOptions(kind="html", attributes=("title", "alt", "placeholder", "aria-label", "label"))
_CHARSET = re.compile(
    rb"""<meta\s[^<>]*?charset\s*+=\s*+["']?\s*+([\w.:-]++)|<\?xml\s[^<>]*?encoding\s*+=\s*+["']([\w.:-]++)""",
    re.IGNORECASE,
)
# For some labels, browsers use an encoding with more characters (Encoding Standard, section 4.2).
_READ_AS_WINDOWS_1252 = ("iso8859-1", "ascii")
_LARGER = {"gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs"}
_HEAD_BYTES = 4096  # the declaration of the encoding must be among these first bytes
_AFTER_QUOTE = re.compile(r"""=\s*(["'])$""")
_QUOTES = {'"': "&quot;", "'": "&#39;"}


@dataclass(frozen=True)
class _Fragment:
    """A text in a page.

    Attributes:
        raw: The text as written in the page's source.
        quote: The quotation mark around the text if it is an attribute's value. Empty for other texts.
    """

    raw: str
    quote: str = ""

    def render(self, translation: str) -> str:
        return translation.replace(self.quote, _QUOTES[self.quote]) if self.quote else translation


def read_html(path: Path, options: ReadingOptions) -> DocumentContent:
    """Read an HTML page.

    Raises:
        DocumentError: The file is not text, or its encoding is unknown.
    """
    encoded = _read(path, options.encoding)
    texts, fill = extract_html_texts(encoded.text)

    def write(translations: Sequence[str], target: Path) -> None:
        encoded.write(fill(translations), target)

    return DocumentContent(texts, write)


def extract_html_texts(page: str) -> tuple[list[DocumentText], Callable[[Sequence[str]], str]]:
    """Return the texts of a page, and a function that inserts their translations into the page."""
    parts = list(_parts(page))
    fragments = [part for part in parts if isinstance(part, _Fragment)]

    def fill(translations: Sequence[str]) -> str:
        remaining = iter(translations)
        return "".join(part if isinstance(part, str) else part.render(next(remaining)) for part in parts)

    return [DocumentText(fragment.raw, "html") for fragment in fragments], fill


def _parts(page: str) -> Iterator[str | _Fragment]:
    """Yield the texts of a page, without the white space around them, and everything between them."""
    document = parse_markup(page, HTML_OPTIONS, keeps_icu_messages=True)

    def raw(pieces: Pieces) -> str:
        return "".join(
            piece if isinstance(piece, str) else raw(raw_pieces(document.segments[piece].items)) for piece in pieces
        )

    before = ""
    for piece in document.pieces:
        if isinstance(piece, str):
            before = piece
            yield piece
            continue
        whole = raw((piece,))
        text = whole.strip()
        lead = whole[: len(whole) - len(whole.lstrip())]
        match = _AFTER_QUOTE.search(before)
        yield lead
        yield _Fragment(text, match[1] if match else "")
        yield whole[len(lead) + len(text) :]
        before = ""


def _read(path: Path, encoding: str | None) -> EncodedText:
    with path.open("rb") as file:
        start = file.read(_HEAD_BYTES)
    match = _CHARSET.search(start)
    declared = encoding or ((match[1] or match[2]).decode("ascii") if match else "utf-8")
    name = python_codec_name(declared)
    if name is None:
        raise DocumentError(f"the page declares the encoding {declared!r}, which is unknown")
    if name.startswith("utf") or start.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return read_text(path)
    data = path.read_bytes()
    encodings = [name, _LARGER.get(name, name)]
    # the bytes in which Latin-1 and Windows-1252 differ
    if name in _READ_AS_WINDOWS_1252 and re.search(rb"[\x80-\x9f]", data):
        encodings.insert(0, "cp1252")
    for candidate in encodings:
        with contextlib.suppress(UnicodeDecodeError):  # Windows-1252 lacks a few bytes that Latin-1 has
            return _HtmlText(data.decode(candidate), candidate)
    reason = "which it declares as its encoding" if encoding is None else "the requested encoding"
    raise DocumentError(f"the page is not valid {declared}, {reason}")


class _HtmlText(EncodedText):
    """A page in a legacy encoding. Characters that the encoding lacks are written as character references."""

    def write(self, text: str, target: Path) -> None:
        target.write_bytes(text.encode(self.encoding, "xmlcharrefreplace"))
