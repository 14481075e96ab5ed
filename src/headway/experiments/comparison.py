"""Tables and plots of values that depend on chance: means over seeds, with spread and intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, variance
from typing import Any

from matplotlib.axes import Axes

from headway.experiments.figures import label
from headway.experiments.verdicts import mean_effect


def median_ci(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the low end of the median's 95 % interval, the median, and the high end. For times, which have outliers.

    The ends of the interval are two of the n values. The number of values below the true median has mean n / 2 and
    standard deviation sqrt(n) / 2 (sign test).
    """
    ranked, count = sorted(values), len(values)
    out = max(math.floor((count - 1.96 * math.sqrt(count)) / 2), 0)
    return ranked[out], median(ranked), ranked[count - 1 - out]


def column(runs: Sequence[Mapping[str, Any]], key: str, **where: Any) -> list[float]:
    """Return the values of ``key`` in the runs that have the values ``where`` for other keys."""
    return [float(row[key]) for row in runs if all(row[key] == value for key, value in where.items())]


def by_variant(runs: Sequence[Mapping[str, Any]], key: str, **where: Any) -> dict[str, list[float]]:
    """Return the :func:`column` of each variant."""
    variants = dict.fromkeys(row["variant"] for row in runs)
    return {variant: column(runs, key, variant=variant, **where) for variant in variants}


def format_mean_std(runs: Sequence[Mapping[str, Any]], key: str, **where: Any) -> str:
    """Format the mean of a :func:`column`, and the standard deviation if there are several values, for a table."""
    values = column(runs, key, **where)
    spread = f" ± {math.sqrt(variance(values)):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.4g}{spread}"


def strip_plot(axes: Axes, values: Mapping[str, Sequence[float]], title: str, xlabel: str) -> None:
    """Draw one row per name: a dot for each value, the mean as a line, and its 95 % interval as a bar."""
    label(axes, title, xlabel, "")
    for row, samples in enumerate(values.values()):
        reach = mean_effect(samples).interval().high - fmean(samples)
        if math.isfinite(reach):
            axes.barh(row, 2 * reach, left=fmean(samples) - reach, height=0.5, color="C0", alpha=0.18, linewidth=0)
        axes.plot([fmean(samples)] * 2, [row - 0.25, row + 0.25], "C0")
        axes.plot(samples, [row] * len(samples), "C1o", alpha=0.8)
        axes.annotate(
            f"{fmean(samples):.3g}", (fmean(samples), row - 0.27), ha="center", va="bottom", fontweight="bold"
        )
    axes.set_yticks(range(len(values)), list(values))
    axes.set_ylim(len(values) - 0.4, -0.75)
    axes.use_sticky_edges = False
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
