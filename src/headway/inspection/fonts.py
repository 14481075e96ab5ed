"""Find fonts for all scripts of a text: matplotlib's own covers Latin, Greek, Cyrillic, Hebrew and Arabic only."""

from __future__ import annotations

import functools
import warnings

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

__all__ = ["families"]

_OWN = "DejaVu Sans"


def families(text: str) -> list[str]:
    """Return font families that together cover ``text``: matplotlib's own, then installed fonts for the rest.

    Warns about characters that no installed font covers; they are drawn as boxes.
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
    """Sort key: regular fonts without serifs first."""
    return "Regular" not in path, "Sans" not in path or "Mono" in path, path


@functools.cache
def _characters(path: str) -> frozenset[int]:
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # a bitmap font or a damaged file
        return frozenset()
