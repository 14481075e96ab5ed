"""Compare numbers that depend on chance: means over seeds, intervals, and verdicts.

Two variants are compared by the difference of their means and its 95 % interval: plus or minus Student's t times the
standard error of the difference (pooled variance). A claim names one threshold and is decided if the whole interval
lies on one side of it. With three seeds each, t is 2.78 (4 degrees of freedom). If a claim selects the best of several
comparisons, each interval is widened so that all of them hold simultaneously with 95 % confidence (Bonferroni). With
one seed there is no interval, so the verdict is inconclusive.
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
class Estimate:
    """A mean, a median or a difference of means, with its interval from ``low`` to ``high``."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if not math.isfinite(self.low):
            return f"{self.value:.3g} (one seed, no interval)"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def student_t(degrees_of_freedom: int, confidence: float = _CONFIDENCE) -> float:
    """Return the two-sided critical value of Student's t distribution.

    With n degrees of freedom and t = sqrt(n) tan(angle), the density is proportional to cos(angle)^(n - 1), which is
    integrated numerically.
    """
    angles = np.linspace(0.0, math.pi / 2, 200_001)
    covered = np.cumsum(np.cos(angles) ** (degrees_of_freedom - 1))
    return math.sqrt(degrees_of_freedom) * math.tan(float(np.interp(confidence, covered / covered[-1], angles)))


def ci_half_width(values: Sequence[float]) -> float:
    """Return half the width of a mean's 95 % interval, which is infinite for one value."""
    if len(values) < 2:
        return math.inf
    return student_t(len(values) - 1) * math.sqrt(variance(values) / len(values))


def mean_ci(values: Sequence[float]) -> Estimate:
    """Return the mean of ``values`` with its 95 % interval."""
    mean, reach = fmean(values), ci_half_width(values)
    return Estimate(mean, mean - reach, mean + reach)


def median_ci(values: Sequence[float]) -> Estimate:
    """Return the median with its 95 % interval. It is used for times, which have outliers.

    The ends of the interval are two of the n values. The number of values below the true median has mean n / 2 and
    standard deviation sqrt(n) / 2 (sign test).
    """
    ranked, count = sorted(values), len(values)
    out = max(math.floor((count - 1.96 * math.sqrt(count)) / 2), 0)
    return Estimate(median(ranked), ranked[out], ranked[count - 1 - out])


def mean_diff(values: Sequence[float], baseline: Sequence[float], num_comparisons: int = 1) -> Estimate:
    """Return the mean of ``values`` minus the mean of ``baseline``, with an interval that is corrected for the number
    of comparisons.
    """
    value, freedom = fmean(values) - fmean(baseline), len(values) + len(baseline) - 2
    if min(len(values), len(baseline)) < 2:
        return Estimate(value, -math.inf, math.inf)
    pooled = ((len(values) - 1) * variance(values) + (len(baseline) - 1) * variance(baseline)) / freedom
    error = math.sqrt(pooled * (1 / len(values) + 1 / len(baseline)))
    reach = student_t(freedom, 1 - (1 - _CONFIDENCE) / num_comparisons) * error
    return Estimate(value, value - reach, value + reach)


def judge_greater(estimate: Estimate, quantity: str, *, threshold: float = 0.0, margin: float = 0.0) -> Verdict:
    """Judge the claim that a value exceeds ``threshold`` by at least ``margin``; ``quantity`` describes the value.

    The claim is supported if the whole interval lies above ``threshold + margin``, and refuted if it lies below. If the
    value certainly exceeds ``threshold``, but by too little to be noticed, the verdict is inconclusive.
    """
    least = threshold + margin
    place = "is above" if estimate.low > least else "is below" if estimate.high < least else "contains"
    reason = f"the interval {place} {least:g}"
    if only_real := threshold < estimate.low and estimate.high < least:
        reason = f"real, but {reason}, which is too small to notice"
    refuted = estimate.high < least and not only_real
    return decide(f"{quantity}: {estimate}; {reason}", supported=estimate.low > least, refuted=refuted)


def judge_best(
    values: Mapping[str, Sequence[float]], candidates: Sequence[str], baseline: str, quantity: str, *, margin: float
) -> Verdict:
    """Judge the claim that the best candidate exceeds the baseline by at least ``margin``.

    The interval is corrected for the choice of the best. ``quantity`` describes the difference and contains ``{}``
    for the name of the best candidate.
    """
    best = max(candidates, key=lambda name: fmean(values[name]))
    difference = mean_diff(values[best], values[baseline], len(candidates))
    words = f"{quantity.format(best)}, corrected for {len(candidates)} comparisons"
    return judge_greater(difference, words, margin=margin)


def judge_equivalent(estimate: Estimate, quantity: str, *, tolerance: float) -> Verdict:
    """Judge the claim that there is practically no difference; ``quantity`` describes the difference.

    The claim is supported if the whole interval lies between ``-tolerance`` and ``tolerance``.
    """
    inside = max(abs(estimate.low), abs(estimate.high)) <= tolerance
    outside = estimate.low > tolerance or estimate.high < -tolerance
    place = f"within {tolerance:g} of 0" if inside else f"more than {tolerance:g} away from 0"
    if not (inside or outside):
        place = f"only partly within {tolerance:g} of 0"
    return decide(f"{quantity}: {estimate}; the interval is {place}", supported=inside, refuted=outside)


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


def row_cells(runs: Sequence[Mapping[str, Any]], variant: str) -> dict[str, str]:
    """Return the table cells with the BLEU and the loss of a variant."""
    columns = {"BLEU": "bleu", "loss (nats a token)": "loss"}
    return {shown: format_mean_std(runs, name, variant=variant) for shown, name in columns.items()}


def strip_plot(axes: Axes, values: Mapping[str, Sequence[float]], title: str, xlabel: str) -> None:
    """Draw one row per name: a dot for each value, the mean as a line, and its 95 % interval as a bar."""
    label(axes, title, xlabel, "")
    for row, samples in enumerate(values.values()):
        reach = ci_half_width(samples)
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
