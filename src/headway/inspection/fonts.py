"""Fonts for the scripts of a text: matplotlib's own has Latin, Greek, Cyrillic, Hebrew and Arabic, and no more."""

from __future__ import annotations

import functools
import warnings

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

__all__ = ["families"]

_OWN = "DejaVu Sans"


def families(text: str) -> list[str]:
    """Font families that between them draw ``text``: matplotlib's own, and of those installed here what is missing.

    Warns of characters that no font has; they are drawn as boxes.
    """
    missing = {ord(character) for character in text} - _characters(font_manager.findfont(_OWN))
    found = [_OWN]
    for path in sorted(font_manager.findSystemFonts(), key=_taste) if missing else ():
        if has := missing & _characters(path):
            missing -= has
            font_manager.fontManager.addfont(path)
            found.append(FT2Font(path).family_name)
        if not missing:
            break
    if missing:
        warnings.warn(
            f"no font installed here draws {''.join(map(chr, sorted(missing)[:8]))!r}; such characters become boxes: "
            "install a font for them (such as Noto), or write an .html page",
            stacklevel=3,
        )
    return found


def _taste(path: str) -> tuple[bool, bool, str]:
    """Upright, plain and without serifs first."""
    return "Regular" not in path, "Sans" not in path or "Mono" in path, path


@functools.cache
def _characters(path: str) -> frozenset[int]:
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # a font of bitmaps, or a damaged one
        return frozenset()
