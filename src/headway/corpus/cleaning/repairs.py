"""Repairs of damaged texts. Correct texts are not changed.

==================  ==================================================================================================
encoding            text that was decoded with a wrong encoding: ``schÃ¶n`` becomes ``schön`` (``ftfy.fix_encoding``,
                    which changes nothing else; ``ftfy.fix_text`` would also change right quotation marks)
entities            HTML entities with a semicolon, also if they were escaped several times: ``&amp;quot;``
tags                HTML and subtitle tags (``<i>``, ``<br/>``, ``<font color="red">``) and comments. Other names in
                    angle brackets, such as the placeholder ``<name>``, are kept.
byte_order_marks    U+FEFF anywhere
line_separators     carriage returns, U+2028 and other line separators inside a line become spaces
invisible           control characters, and invisible characters where no script needs them
nfc                 Unicode's Normalization Form C
spaces              runs of spaces, and spaces at both ends
==================  ==================================================================================================

The last three are also part of :mod:`headway.text.normalization`, which is applied to every text that models process.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from headway.corpus.cleaning.config import REPAIRS, RepairName
from headway.errors import MissingPackageError
from headway.text.normalization import collapse_spaces, remove_invisible

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_MAX_ESCAPES = 4  # maximum number of times to unescape a text
_TAG_NAMES = (
    "a abbr article aside b big blockquote body br button center cite code dd del details dfn div dl dt em embed "
    "figcaption figure font footer form h1 h2 h3 h4 h5 h6 head header hr html i iframe img input ins kbd label li link "
    "main map mark meta nav nobr ol option p param pre q s samp script section select small span strike strong style "
    "sub summary sup table tbody td textarea tfoot th thead title tr tt u ul var video wbr"
)
_TAG = re.compile(
    rf"<!--.*?-->|</?(?P<name>{'|'.join(_TAG_NAMES.split())})(?:\s[^<>]*)?\s*/?>", re.IGNORECASE | re.DOTALL
)
# Tags that separate the text before them from the text after them.
_BLOCK_TAGS = frozenset(
    [
        "article",
        "aside",
        "blockquote",
        "body",
        "br",
        "center",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "head",
        "header",
        "hr",
        "html",
        "li",
        "main",
        "nav",
        "ol",
        "option",
        "p",
        "pre",
        "section",
        "select",
        "summary",
        "table",
        "tbody",
        "td",
        "textarea",
        "tfoot",
        "th",
        "thead",
        "title",
        "tr",
        "ul",
    ]
)
_SEPARATOR = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")


class Repairer:
    """Repairs texts.

    Args:
        names: The repairs to make.

    Raises:
        MissingPackageError: The repair "encoding" needs ftfy, which is not installed.
    """

    def __init__(self, names: Sequence[RepairName] = REPAIRS) -> None:
        self._steps = [(1 << bit, _STEPS[name]) for bit, name in enumerate(REPAIRS) if name in names]
        if "encoding" in names:
            _ftfy()

    def repair(self, text: str) -> tuple[str, int]:
        """Return the repaired text, and the repairs that changed it as a bit set: bit n stands for ``REPAIRS[n]``."""
        if text.isascii() and text.isprintable() and not ("&" in text or "<" in text or "  " in text):
            stripped = text.strip()
            if stripped == text:
                return text, 0
        made = 0
        for bit, step in self._steps:
            new = step(text)
            if new != text:
                text, made = new, made | bit
        return text, made


def repair_names(made: int) -> list[RepairName]:
    """Return the names of the repairs in a bit set."""
    return [name for bit, name in enumerate(REPAIRS) if made >> bit & 1]


@cache
def _ftfy() -> Any:
    try:
        import ftfy
    except ModuleNotFoundError:
        raise MissingPackageError("the repair of wrong encodings", "ftfy") from None
    return ftfy


def _fix_encoding(text: str) -> str:
    if text.isascii():
        return text
    fixed: str = _ftfy().fix_encoding(text)
    return fixed


def _resolve_entities(text: str) -> str:
    for _ in range(_MAX_ESCAPES):
        if "&" not in text or not _ENTITY.search(text):
            break
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    return text


def _remove_tags(text: str) -> str:
    return _TAG.sub(_tag_text, text) if "<" in text else text


def _tag_text(match: re.Match[str]) -> str:
    return " " if (match["name"] or "").lower() in _BLOCK_TAGS else ""


def _remove_byte_order_marks(text: str) -> str:
    return text.replace("\ufeff", "")


def _join_lines(text: str) -> str:
    return _SEPARATOR.sub(" ", text)


def _compose(text: str) -> str:
    return unicodedata.normalize("NFC", text)


_STEPS: dict[RepairName, Callable[[str], str]] = {
    "encoding": _fix_encoding,
    "entities": _resolve_entities,
    "tags": _remove_tags,
    "byte_order_marks": _remove_byte_order_marks,
    "line_separators": _join_lines,
    "invisible": remove_invisible,
    "nfc": _compose,
    "spaces": collapse_spaces,
}
