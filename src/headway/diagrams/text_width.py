"""The width of text, so that no box cuts its text.

The fonts that a drawing names are Arial and similar ones; where they are missing, DejaVu Sans, the widest, takes their
place. Widths are those of DejaVu Sans, so text fits in all of them. Letters that the table lacks count as wide as the
widest Latin letter, and East Asian ones as a full em.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator

# Advance widths of DejaVu Sans in thousandths of an em, and the characters that have them.
_CHARACTERS: dict[int, str] = {
    228: '′', 275: "'", 278: 'ijl', 295: 'IJₜ', 318: ' \u00a0,.·', 337: '/:;\\|', 353: 'f', 361: '-', 374: 'ₛ',
    385: 'ᵀ', 391: '()[]', 393: 't', 401: '!₀₁₂₃₄₅₆₇₈₉', 412: 'r', 460: '"', 500: '*_`–', 519: '“”', 521: 's', 525: 'z',
    528: '₋', 531: '?', 550: 'cç', 558: 'L', 576: 'F', 580: 'k', 592: 'vxy', 604: 'P', 611: 'TY', 612: 'oö',
    613: 'aäà', 616: 'eéè', 626: '∘', 630: 'ß', 632: 'E', 634: 'hnuσüñ', 635: 'Sbdgpq', 637: '$0123456789{}',
    638: '√', 656: 'K', 660: 'α', 685: 'AV', 686: 'XZ', 687: 'B', 695: 'R', 699: 'C', 732: 'U', 749: 'N', 752: 'H',
    771: 'D', 775: 'G', 780: '&', 788: 'OQ', 818: 'w', 838: '#+<=>^~×→←−≤⊕', 863: 'M', 951: '%', 975: 'm', 989: 'W',
    1000: '@—…',
}  # fmt: skip
_WIDTHS = {character: width / 1000 for width, characters in _CHARACTERS.items() for character in characters}
_OTHER, _EAST_ASIAN, _MONOSPACED = 1.0, 1.05, 0.61
BOLD, _WIDER = ("title", "count", "bold"), 1.14  # roles in bold, whose letters are up to this much wider


@functools.lru_cache(4096)
def text_width(text: str, size: float, role: str = "label") -> float:
    """Return the width of ``text`` in pixels, in letters of ``size`` pixels."""
    if role == "code":
        return _MONOSPACED * size * sum(_width(character) > 0 for character in text)
    bold = _WIDER if role in BOLD else 1.0
    return bold * size * sum(map(_width, text))


def wrapped(text: str, size: float, width: float, role: str = "label") -> Iterator[str]:
    """Yield lines that are at most ``width`` wide, broken between words. A longer word is broken anywhere."""
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if text_width(longer, size, role) <= width:
            line = longer
            continue
        if line:
            yield line
        while text_width(word, size, role) > width and len(word) > 1:
            fits = max((n for n in range(1, len(word)) if text_width(word[:n], size, role) <= width), default=1)
            yield word[:fits]
            word = word[fits:]
        line = word
    yield line


def shortened(text: str, size: float, width: float) -> str:
    """Return ``text``, or its beginning and an ellipsis if it is wider than ``width``."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text + "…"


@functools.cache
def _width(character: str) -> float:
    if character in _WIDTHS:
        return _WIDTHS[character]
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0.0
    return _EAST_ASIAN if unicodedata.east_asian_width(character) in "WF" else _OTHER
