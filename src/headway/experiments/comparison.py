"""Compare numbers that depend on chance: means over seeds, intervals, and verdicts.

Two variants are compared by the difference of their means and its 95 % interval: plus or minus Student's t times the
standard error of the difference (pooled variance). A claim names one threshold and is decided if the whole interval
lies on one side of it. With three seeds each, t is 2.78 (4 degrees of freedom). If a claim selects the best of several
comparisons, each interval is widened until all of them hold together at 95 % (Bonferroni). One seed has no interval, so
it decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from headway.experiments.experiment import Verdict, decide
from headway.experiments.figures import label

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """A difference of means, or one mean, with its interval from ``low`` to ``high``."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if not math.isfinite(self.low):
            return f"{self.value:.3g} (one seed, no interval)"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def student_t(freedom: int, confidence: float = _CONFIDENCE) -> float:
    """Return the number of standard errors that contain ``confidence`` of Student's distribution, two-sided.

    With t = sqrt(freedom) tan(angle) the density becomes cos(angle)^(freedom - 1), which is summed numerically.
    """
    angles = np.linspace(0.0, math.pi / 2, 200_001)
    held = np.cumsum(np.cos(angles) ** (freedom - 1))
    return math.sqrt(freedom) * math.tan(float(np.interp(confidence, held / held[-1], angles)))


def interval_half_width(values: Sequence[float]) -> float:
    """Return half the width of a mean's 95 % interval; infinite for one value."""
    if len(values) < 2:
        return math.inf
    return student_t(len(values) - 1) * math.sqrt(variance(values) / len(values))


def interval(values: Sequence[float]) -> Difference:
    """Return the mean with its 95 % interval."""
    mean, reach = fmean(values), interval_half_width(values)
    return Difference(mean, mean - reach, mean + reach)


def median_interval(values: Sequence[float]) -> Difference:
    """Return the median with its 95 % interval, for times, which have outliers.

    The interval runs between two of the values: of n values, the number below the true median varies by sqrt(n) / 2
    around n / 2 (sign test).
    """
    ranked, count = sorted(values), len(values)
    out = max(math.floor((count - 1.96 * math.sqrt(count)) / 2), 0)
    return Difference(median(ranked), ranked[out], ranked[count - 1 - out])


def difference(more: Sequence[float], less: Sequence[float], comparisons: int = 1) -> Difference:
    """Return the mean of ``more`` minus the mean of ``less``, with an interval corrected for the number of
    ``comparisons``.
    """
    value, freedom = fmean(more) - fmean(less), len(more) + len(less) - 2
    if min(len(more), len(less)) < 2:
        return Difference(value, -math.inf, math.inf)
    pooled = ((len(more) - 1) * variance(more) + (len(less) - 1) * variance(less)) / freedom
    error = math.sqrt(pooled * (1 / len(more) + 1 / len(less)))
    reach = student_t(freedom, 1 - (1 - _CONFIDENCE) / comparisons) * error
    return Difference(value, value - reach, value + reach)


def judge_greater(found: Difference, what: str, *, than: float = 0.0, noticeable: float = 0.0) -> Verdict:
    """Judge the claim that a value is greater than ``than`` by at least ``noticeable``.

    Supported if the whole interval lies above the sum of both, refuted if it lies below. A difference that is certainly
    real but certainly too small to notice is inconclusive.
    """
    least = than + noticeable
    place = "is above" if found.low > least else "is below" if found.high < least else "contains"
    reason = f"the interval {place} {least:g}"
    if only_real := than < found.low and found.high < least:
        reason = f"real, but {reason}, which is too small to notice"
    refuted = found.high < least and not only_real
    return decide(f"{what}: {found}; {reason}", supported=found.low > least, refuted=refuted)


def judge_best(
    values: Mapping[str, Sequence[float]], others: Sequence[str], one: str, what: str, *, noticeable: float
) -> Verdict:
    """Judge the claim that the best of ``others`` is greater than ``one``, corrected for the choice of the best.

    ``what`` describes the difference, with a place for the name of the best.
    """
    best = max(others, key=lambda name: fmean(values[name]))
    found = difference(values[best], values[one], len(others))
    words = f"{what.format(best)}, corrected for {len(others)} comparisons"
    return judge_greater(found, words, noticeable=noticeable)


def judge_equivalent(found: Difference, what: str, *, within: float) -> Verdict:
    """Judge the claim that there is practically no difference: supported if the whole interval is ``within`` of 0."""
    inside, outside = max(abs(found.low), abs(found.high)) <= within, found.low > within or found.high < -within
    place = f"within {within:g} of 0" if inside else f"more than {within:g} away from 0"
    if not (inside or outside):
        place = f"neither within {within:g} of 0 nor outside"
    return decide(f"{what}: {found}; the interval is {place}", supported=inside, refuted=outside)


def column(runs: Sequence[Mapping[str, Any]], name: str, **where: Any) -> list[float]:
    """Return the values of ``name`` from the runs whose other values equal ``where``."""
    return [float(row[name]) for row in runs if all(row[key] == value for key, value in where.items())]


def by_variant(runs: Sequence[Mapping[str, Any]], name: str, **where: Any) -> dict[str, list[float]]:
    """Return a :func:`column` for each variant."""
    variants = dict.fromkeys(row["variant"] for row in runs)
    return {variant: column(runs, name, variant=variant, **where) for variant in variants}


def mean_with_spread(runs: Sequence[Mapping[str, Any]], name: str, **where: Any) -> str:
    """Format the mean of a :func:`column`, and the standard deviation if there are several values, for a table."""
    values = column(runs, name, **where)
    spread = f" ± {math.sqrt(variance(values)):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.4g}{spread}"


def quality(runs: Sequence[Mapping[str, Any]], variant: str) -> dict[str, str]:
    """Return the cells of a table that say how good a variant is."""
    columns = {"BLEU": "bleu", "loss (nats a token)": "loss"}
    return {shown: mean_with_spread(runs, name, variant=variant) for shown, name in columns.items()}


def strip_plot(axes: Axes, values: Mapping[str, Sequence[float]], title: str, x: str) -> None:
    """Draw one row per name: a dot for each value, the mean as a line, and its 95 % interval as a bar."""
    label(axes, title, x, "")
    for row, each in enumerate(values.values()):
        reach = interval_half_width(each)
        if math.isfinite(reach):
            axes.barh(row, 2 * reach, left=fmean(each) - reach, height=0.5, color="C0", alpha=0.18, linewidth=0)
        axes.plot([fmean(each)] * 2, [row - 0.25, row + 0.25], "C0")
        axes.plot(each, [row] * len(each), "C1o", alpha=0.8)
        axes.annotate(f"{fmean(each):.3g}", (fmean(each), row - 0.27), ha="center", va="bottom", fontweight="bold")
    axes.set_yticks(range(len(values)), list(values))
    axes.set_ylim(len(values) - 0.4, -0.75)
    axes.use_sticky_edges = False
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
