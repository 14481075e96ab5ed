"""The common style of the experiments' figures, large enough to be read from the back of a lecture hall.

Heat maps use perceptually uniform color scales. Figures keep a white background on light and dark pages. The colors of
:data:`headway.inspection.picture_files.COLORS` are called "C0", "C1" and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from headway.inspection import picture_files
from headway.inspection.picture_files import COLORS, MARKERS, PLOT_STYLE

Number = int | float

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_STYLE: dict[str, Any] = {
    **PLOT_STYLE,
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=list(COLORS)),
    "figure.titlesize": 17,
    "figure.titleweight": "bold",
    "image.cmap": "viridis",
    "legend.frameon": False,
    "lines.linewidth": 2.2,
    "lines.markersize": 6,
}


def figure_style() -> AbstractContextManager[None]:
    """Return a context manager with the experiments' style of matplotlib, in which ``Experiment.draw`` is called."""
    return picture_files.figure_style(_STYLE)


def subplots(
    title: str, nrows: int = 1, ncols: int = 1, *, size: tuple[Number, Number], **grid: Any
) -> tuple[Figure, list[Axes]]:
    """Return a titled figure of ``size`` inches and its panels, row by row. ``grid`` goes to ``Figure.subplots``."""
    picture = Figure(figsize=size, layout="constrained")
    picture.suptitle(title, x=0.01, ha="left")
    return picture, list(picture.subplots(nrows, ncols, squeeze=False, **grid).flat)


def label(axes: Axes, title: str, xlabel: str, ylabel: str, *, log: str = "", xticks: Sequence[Number] = ()) -> None:
    """Set the title and the axis labels (with units) of a panel. Call it after plotting.

    ``log`` names the logarithmic axes: "x", "y" or "xy". Their ticks are written as 0.01, 100, 10⁻⁸ or 2·10⁶.
    ``xticks`` are the only x values to mark, as plain numbers.
    """
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    for side in log:
        getattr(axes, f"set_{side}scale")("log")
        axis = getattr(axes, f"{side}axis")
        low, high = getattr(axes, f"get_{side}lim")()
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 200 * low else (1.0,), numticks=8))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(_tick))
    if xticks:
        axes.set_xticks(list(xticks), [f"{tick:g}" for tick in xticks])
        axes.xaxis.set_minor_locator(NullLocator())


def _tick(value: float, _: object) -> str:
    exponent = math.floor(math.log10(value) + 1e-9) if value > 0 else 0
    if -3 <= exponent <= 4:
        return f"{value:,g}"
    power, factor = "10" + str(exponent).translate(_RAISED), round(value / 10.0**exponent)
    return power if factor == 1 else f"{factor}·{power}"


def plot_lines(
    axes: Axes, x: Sequence[Number], curves: Mapping[str, Sequence[Number]], order: Sequence[str] = (), **style: Any
) -> None:
    """Draw one line for each name in ``curves``.

    Color and marker of a line depend on the position of its name in ``order`` (default: the order of ``curves``).
    """
    for name, values in curves.items():
        index = list(order or curves).index(name)
        axes.plot(x, values, **{"color": f"C{index}", "marker": MARKERS[index], "label": name, **style})


def bars(axes: Axes, values: Mapping[str, float], *, texts: str = "%.3g", least: float = 0.0) -> None:
    """Draw a horizontal bar with its value for each name. Values below ``least`` get bars of this length."""
    drawn = axes.barh(list(values), [max(value, least) for value in values.values()], height=0.6)
    axes.bar_label(drawn, [texts % value for value in values.values()], padding=4)
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def heat_map(
    axes: Axes,
    values: Sequence[Sequence[float]],
    cell_texts: Sequence[Sequence[str]] = (),
    *,
    row_labels: Sequence[object] = (),
    column_labels: Sequence[object] = (),
    dark_above: float = math.inf,
    text_style: Callable[[int, int], Mapping[str, Any]] = lambda row, column: {},
    **image: Any,
) -> AxesImage:
    """Draw a table of colors, with a text in each cell if ``cell_texts`` are given.

    Args:
        axes: The panel.
        values: The values of the cells, row by row.
        cell_texts: Their texts.
        row_labels: Labels of the rows (default: their numbers, counted from 0).
        column_labels: Labels of the columns, likewise.
        dark_above: A text is white if the absolute value of its cell is above this limit, otherwise black.
        text_style: Function that returns further properties of a cell's text from its row and column.
        image: Arguments of ``imshow``, such as the color scale and its limits.
    """
    drawn = axes.imshow(values, **{"cmap": "Blues", "aspect": "auto", **image})
    for row, line in enumerate(cell_texts):
        for column, text in enumerate(line):
            ink = "white" if abs(values[row][column]) > dark_above else "black"
            axes.text(column, row, text, **{"ha": "center", "va": "center", "color": ink, **text_style(row, column)})
    if row_labels:
        axes.set_yticks(range(len(row_labels)), list(map(str, row_labels)))
    if column_labels:
        axes.set_xticks(range(len(column_labels)), list(map(str, column_labels)))
    axes.grid(visible=False)
    return drawn


def shared_legend(picture: Figure, *panels: Axes) -> None:
    """Draw one legend for several panels below the figure."""
    handles = [handle for axes in panels for handle in axes.get_legend_handles_labels()[0]]
    unique = {handle.get_label(): handle for handle in handles}
    picture.legend(handles=list(unique.values()), loc="outside lower center", ncols=min(len(unique), 4))
