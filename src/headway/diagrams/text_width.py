"""The width of text, so that no box cuts its text.

Drawings name Arial and similar fonts. DejaVu Sans, the widest, takes their place where they are missing, so widths are
those of DejaVu Sans. Letters that the table lacks count as a full em.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator

# The sizes of letters in pixels, for each role of a text.
FONT_SIZES = {"box": 12.0, "label": 12.0, "small": 11.0, "bold": 11.0, "code": 11.0, "title": 13.0, "count": 12.0}
# Advance widths of DejaVu Sans in thousandths of an em, and the characters that have them.
_CHARACTERS: dict[int, str] = {
    228: '′', 275: "'", 278: 'ijl', 295: 'IJₜ', 318: ' \u00a0,.·', 337: '/:;\\|', 353: 'f', 361: '-', 374: 'ₛ',
    385: 'ᵀ', 391: '()[]', 393: 't', 401: '!₀₁₂₃₄₅₆₇₈₉', 412: 'r', 460: '"', 500: '*_`–', 519: '“”', 521: 's', 525: 'z',
    528: '₋', 531: '?', 550: 'cç', 558: 'L', 576: 'F', 580: 'k', 592: 'vxy', 604: 'P', 611: 'TY', 612: 'oö',
    613: 'aäà', 616: 'eéè', 626: '∘', 630: 'ß', 632: 'E', 634: 'hnuσüñ', 635: 'Sbdgpq', 637: '$0123456789{}',
    638: '√', 656: 'K', 660: 'α', 685: 'AV', 686: 'XZ', 687: 'B', 695: 'R', 699: 'C', 732: 'U', 749: 'N', 752: 'H',
    771: 'D', 775: 'G', 780: '&', 788: 'OQ', 818: 'w', 838: '#+<=>^~×→←−≤≈⊕', 863: 'M', 951: '%', 975: 'm', 989: 'W',
    1000: '@—…',
}  # fmt: skip
_WIDTHS = {character: width / 1000 for width, characters in _CHARACTERS.items() for character in characters}
_MONOSPACED, _EAST_ASIAN = 0.61, 1.05
BOLD, _WIDER = ("title", "count", "bold"), 1.14  # roles in bold, whose letters are up to this much wider


@functools.lru_cache(4096)
def text_width(text: str, role: str = "label") -> float:
    """Return the width of ``text`` in pixels."""
    if role == "code":
        return _MONOSPACED * FONT_SIZES[role] * sum(_width(character) > 0 for character in text)
    return (_WIDER if role in BOLD else 1.0) * FONT_SIZES[role] * sum(map(_width, text))


def wrapped(text: str, width: float, role: str = "label") -> Iterator[str]:
    """Yield lines that are at most ``width`` wide, broken between words. A longer word is broken anywhere."""
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if text_width(longer, role) <= width:
            line = longer
            continue
        if line:
            yield line
        while text_width(word, role) > width and len(word) > 1:
            fits = max((n for n in range(1, len(word)) if text_width(word[:n], role) <= width), default=1)
            yield word[:fits]
            word = word[fits:]
        line = word
    yield line


def shortened(text: str, width: float, role: str = "label") -> str:
    """Return ``text``, or its beginning and an ellipsis if it is wider than ``width``. Blank text is shown as ␣."""
    shown = text = text if text.strip() else "␣"
    while text and text_width(shown, role) > width:
        text = text[:-1]
        shown = text + "…"
    return shown


@functools.cache
def _width(character: str) -> float:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0.0
    return _WIDTHS.get(character, _EAST_ASIAN if unicodedata.east_asian_width(character) in "WF" else 1.0)
