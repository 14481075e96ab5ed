"""Tables of values that depend on chance: means over seeds with their spread, medians with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, variance
from typing import Any


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


def format_mean_std(runs: Sequence[Mapping[str, Any]], key: str, **where: Any) -> str:
    """Format the mean of a :func:`column`, and the standard deviation if there are several values, for a table."""
    values = column(runs, key, **where)
    spread = f" ± {math.sqrt(variance(values)):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.4g}{spread}"
