"""The style, fonts and file formats of all pictures. Files are written completely or not at all.

The colors are from the palette of Okabe and Ito (2008), which color-blind people can distinguish. The same data give
the same file, byte for byte, because files contain no dates and no random names.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from headway.errors import ConfigError
from headway.storage import atomic_write

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PICTURE_FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}

PLOT_STYLE: dict[str, Any] = {
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
}
"""Additional style settings for pictures with lines, bars or points, but not for heat maps."""

_STYLE: dict[str, Any] = {
    "axes.titlelocation": "left",
    "axes.edgecolor": "#888888",
    "text.parse_math": False,  # treat $ as an ordinary character
    "svg.fonttype": "none",  # write text as text, not as outlines
    "svg.hashsalt": "headway",
}
_DEFAULT_FONT = "DejaVu Sans"  # matplotlib's default; it covers Latin, Greek, Cyrillic, Hebrew and Arabic
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


@contextmanager
def figure_style(extra_settings: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Apply the common matplotlib style inside the context, and ``extra_settings`` such as ``{"font.size": 9}``."""
    settings: Any = {**_STYLE, **extra_settings}
    with mpl.rc_context(settings):
        yield


def picture_format(output: Path) -> str:
    """Return the picture format for the extension of ``output``, such as "png" for ".png".

    Raises:
        ConfigError: The extension is not supported.
    """
    form = PICTURE_FORMATS.get(output.suffix.lower())
    if form is None:
        raise ConfigError(f"{output}: expected a picture whose name ends in {', '.join(PICTURE_FORMATS)}")
    return form


def save_picture(picture: Figure, output: Path) -> None:
    """Write ``picture`` in the format of the file name's extension. The file is written completely or not at all.

    Raises:
        ConfigError: The extension is not supported.
    """
    form = picture_format(output)
    with figure_style(), atomic_write(output) as aside, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from")  # font_families() has warned already
        if picture.get_layout_engine() is not None:  # fix the layout, because another pass would move elements slightly
            picture.draw_without_rendering()
            picture.set_layout_engine("none")
        picture.savefig(aside, format=form, dpi=160, metadata=_UNDATED.get(form))


def font_families(text: str) -> list[str]:
    """Return font families that together cover ``text``: matplotlib's default, then installed fonts for the rest.

    Warns about characters that no installed font covers. They are drawn as boxes.
    """
    missing = {ord(character) for character in text} - _characters(font_manager.findfont(_DEFAULT_FONT))
    families = [_DEFAULT_FONT]
    for path in sorted(font_manager.findSystemFonts(), key=_taste) if missing else ():
        if has := missing & _characters(path):
            missing -= has
            font_manager.fontManager.addfont(path)
            families.append(FT2Font(path).family_name)
        if not missing:
            break
    if missing:
        warnings.warn(
            f"no installed font contains {''.join(map(chr, sorted(missing)[:8]))!r}; such characters are drawn as "
            "boxes; install a font for them (such as Noto), or write an .html page",
            stacklevel=3,
        )
    return families


def _taste(path: str) -> tuple[bool, bool, str]:
    """Return a sort key that puts regular sans-serif fonts first."""
    return "Regular" not in path, "Sans" not in path or "Mono" in path, path


@functools.cache
def _characters(path: str) -> frozenset[int]:
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # a bitmap font or a damaged file
        return frozenset()
