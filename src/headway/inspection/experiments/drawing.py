"""How the figures of the experiments look: one style, legible from the last row of a lecture hall.

Colours are those of Okabe and Ito (2008), which colour-blind people can tell apart; heat maps use scales of even
lightness. Figures keep a white ground in light and dark pages alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from headway.storage import replaced_file

__all__ = ["COLOURS", "DASHES", "MARKERS", "label", "log_scale", "panels", "save", "shared_legend", "styled"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_STYLE: Any = {
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#888888",
    "axes.prop_cycle": cycler(color=list(COLOURS)),
    "figure.titlesize": 17,
    "figure.titleweight": "bold",
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "image.cmap": "viridis",
    "legend.frameon": False,
    "lines.linewidth": 2.2,
    "lines.markersize": 6,
    "text.parse_math": False,  # a $ in a text is one
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "headway",  # the same numbers give the same file
}


def styled() -> AbstractContextManager[None]:
    """Inside, matplotlib draws in the common style; ``draw`` of an experiment is called there."""
    return mpl.rc_context(_STYLE)


def panels(
    title: str, rows: int = 1, columns: int = 1, *, size: tuple[int | float, int | float]
) -> tuple[Figure, list[Axes]]:
    """A titled figure of ``size`` inches, and its panels row by row."""
    picture = Figure(figsize=size, layout="constrained")
    picture.suptitle(title, x=0.01, ha="left")
    return picture, list(picture.subplots(rows, columns, squeeze=False).flat)


def label(axes: Axes, title: str, x: str, y: str, *, ticks: Sequence[int | float] | None = None) -> None:
    """Name a panel and its axes, each with its unit. ``ticks``: mark just these x, as plain numbers."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if ticks is not None:
        axes.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())


def log_scale(axes: Axes, *sides: Literal["x", "y"]) -> None:
    """Make axes of what has been plotted logarithmic, their ticks written without mathematics: 0.01, 100, 10⁻⁸."""
    for side in sides:
        getattr(axes, f"set_{side}scale")("log")
        axis = getattr(axes, f"{side}axis")
        low, high = getattr(axes, f"get_{side}lim")()
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 200 * low else (1.0,), numticks=8))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))


def _power(value: float) -> str:
    exponent = round(math.log10(value)) if value > 0 else 0
    if -3 <= exponent <= 4:
        return f"{value:,g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def shared_legend(picture: Figure, *panels: Axes) -> None:
    """One legend for several panels, below the figure where it hides nothing."""
    found: dict[str, Any] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    labels, handles = list(found), list(found.values())
    picture.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3))


def save(picture: Figure, path: Path) -> None:
    """Write the figure as the suffix says; it appears whole or not at all."""
    if picture.get_layout_engine() is not None:  # once: laying out again moves everything a little
        picture.draw_without_rendering()
        picture.set_layout_engine("none")
    form = path.suffix.removeprefix(".")
    metadata = {"Date": None} if form == "svg" else None
    with replaced_file(path) as aside:
        picture.savefig(aside, format=form, dpi=160, metadata=metadata)
