"""Estimate the width of text, so that text fits into its box.

Drawings request Arial and similar fonts. If these are missing, DejaVu Sans may replace them, which is the widest, so
its widths are used. Letters that are not in the table are assumed to be one em wide.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator

# The sizes of letters in pixels, for each role of a text.
FONT_SIZES = {"box": 12.0, "label": 12.0, "small": 11.0, "bold": 11.0, "code": 11.0, "title": 13.0, "count": 12.0}
# Maps each advance width in DejaVu Sans, in thousandths of an em, to the characters with this width.
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
BOLD, _WIDER = ("title", "count", "bold"), 1.14  # bold roles, and by which factor their letters may be wider


@functools.lru_cache(4096)
def text_width(text: str, role: str = "label") -> float:
    """Return the width of ``text`` in pixels."""
    if role == "code":
        return _MONOSPACED * FONT_SIZES[role] * sum(_width(character) > 0 for character in text)
    return (_WIDER if role in BOLD else 1.0) * FONT_SIZES[role] * sum(map(_width, text))


def wrap_text(text: str, width: float, role: str = "label") -> Iterator[str]:
    """Yield lines of at most ``width`` pixels, broken between words. A word that is longer than a line is split."""
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


def truncate_to_width(text: str, width: float, role: str = "label") -> str:
    """Return ``text``, truncated with an ellipsis if it is wider than ``width``. Blank text is shown as ␣."""
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
