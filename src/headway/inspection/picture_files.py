"""Style and file format of all pictures: one palette, one style, files that appear whole or not at all.

The colors are those of Okabe and Ito (2008), which color-blind people can distinguish. The same numbers give the same
file, byte for byte: it contains no date and no random names.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure

from headway.errors import ConfigError
from headway.storage import atomic_write

__all__ = ["COLORS", "DASHES", "FORMATS", "MARKERS", "PLOT", "figure_style", "picture_format", "save"]

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}

PLOT: dict[str, Any] = {
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
}
"""Additional style settings of pictures with lines, bars or points, but not of heat maps."""

_STYLE: dict[str, Any] = {
    "axes.titlelocation": "left",
    "axes.edgecolor": "#888888",
    "text.parse_math": False,  # a $ is a plain character
    "svg.fonttype": "none",  # keep text as text
    "svg.hashsalt": "headway",
}
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


@contextmanager
def figure_style(more: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Apply the common matplotlib style inside the context, with ``more`` settings such as ``{"font.size": 9}``."""
    settings: Any = {**_STYLE, **more}
    with mpl.rc_context(settings):
        yield


def picture_format(output: Path) -> str:
    """Return the picture format that the ending of ``output`` names.

    Raises:
        ConfigError: The ending is not a supported format.
    """
    form = FORMATS.get(output.suffix.lower())
    if form is None:
        raise ConfigError(f"{output}: expected a picture whose name ends in {', '.join(FORMATS)}")
    return form


def save(picture: Figure, output: Path) -> None:
    """Write ``picture`` in the format of the file name's ending, whole or not at all.

    Raises:
        ConfigError: The ending is not a supported format.
    """
    form = picture_format(output)
    with figure_style(), atomic_write(output) as aside, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from")  # families() has warned already
        if picture.get_layout_engine() is not None:  # fix the layout: a second pass would move everything slightly
            picture.draw_without_rendering()
            picture.set_layout_engine("none")
        picture.savefig(aside, format=form, dpi=160, metadata=_UNDATED.get(form))
