"""From measured values to verdicts: effects with their errors, corrections for many claims, and one rule for all.

An *effect* is an estimated difference, counted so that a positive one agrees with the claim, with its standard error.

docs/experiments.md, *Statistics*, describes the model of runs (:func:`seed_effects`), the second source of chance
(:func:`resampled_error`), the test of equality (Schuirmann 1987) and the corrections for multiple claims
(:func:`levels`; the intervals are those of Benjamini and Yekutieli 2005).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

Array = NDArray[np.float64]

Outcome = Literal[
    "holds exactly", "does not hold", "reproduced", "opposite here", "no difference above", "not decidable here"
]

LEVEL = 0.05
POWER = 0.86  # 80 %, and what the occasional choice of Welch's test costs
_UNEQUAL = 0.05  # level of the F test for unequal variances
_RESAMPLES = 400


@dataclass(frozen=True)
class Effect:
    """An estimated difference.

    Attributes:
        value: The estimate.
        error: Its standard error, which is infinite if it is unknown.
        freedom: Degrees of freedom of the error.
    """

    value: float
    error: float
    freedom: float

    def p_value(self, smallest: float | None = None) -> float:
        """Return the p value of the hypothesis that there is no difference (two-sided).

        With ``smallest``, return that of the hypothesis that the difference is at least so large, in either direction.
        """
        if not 0 < self.error < math.inf:
            return 1.0 if self.error else float(self.value == 0 if smallest is None else abs(self.value) >= smallest)
        if smallest is None:
            return float(2 * stats.t.sf(abs(self.value) / self.error, self.freedom))
        return float(stats.t.sf((smallest - abs(self.value)) / self.error, self.freedom))

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the interval of confidence 1 - ``level``, and the narrower one for equivalence."""
        reach, inner = (self.error * _quantile(1 - tail, self.freedom) for tail in (level / 2, level))
        low, high = self.value - reach, self.value + reach
        return Interval(self.value, low, high, self.value - inner, self.value + inner)


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval, and the narrower one (``inner_low`` to ``inner_high``) for equivalence."""

    value: float
    low: float
    high: float
    inner_low: float
    inner_high: float

    def __str__(self) -> str:
        if not math.isfinite(self.low):
            return f"{self.value:.3g} (no interval)"
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class Regime:
    """The conditions under which a claim was tested.

    Attributes:
        conditions: What was trained on what for how long, in a few words.
        obstacle: Why the claim cannot be decided whatever the numbers are, such as a gate that was missed; else empty.
        cost: Sample and hours that a decision would take, such as "4 seeds, 3 hours". Empty if unknown.
    """

    conditions: str
    obstacle: str = ""
    cost: str = ""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim.

    Attributes:
        outcome: One of six words; see :func:`verdict` and :func:`decide`.
        reason: The numbers that it is based on.
        effect: What was estimated with its interval, or "" where numbers are computed or counted.
        regime: The conditions, or "" where the verdict holds in general.
    """

    outcome: Outcome
    reason: str
    effect: str = ""
    regime: str = ""


def verdict(
    interval: Interval, smallest: float, detectable: float, regime: Regime, *, what: str = "", equal: bool = False
) -> Verdict:
    """Return the verdict on a claim about a difference, which is the only rule for claims that depend on chance.

    - *reproduced*: the whole interval lies on the side of the claim;
    - *opposite here*: it lies on the other side;
    - *no difference above*: the difference is certainly smaller than ``smallest``, which reproduces a claim of
      equality. If it is certainly not zero either, the reason says both;
    - *not decidable here*: none of these, or the regime has an obstacle.

    Args:
        interval: The difference, positive if it agrees with the claim, corrected for the number of claims.
        smallest: The smallest difference of interest, which was fixed before the measurement.
        detectable: The true difference that a test of this size would find in 80 % of all repetitions.
        regime: The conditions.
        what: Words for the difference.
        equal: Whether the claim says that there is no difference. Every certain difference then contradicts it.
    """
    text = f"{what}: {interval}" if what else str(interval)
    cost = f"; it would take {regime.cost}" if regime.cost else ""

    def found(outcome: Outcome, reason: str, effect: str = text) -> Verdict:
        return Verdict(outcome, f"{text}; {reason}", effect, regime.conditions)

    certain = interval.low > 0 or interval.high < 0
    if regime.obstacle:
        return found("not decidable here", regime.obstacle + cost)
    if -smallest < interval.inner_low and interval.inner_high < smallest:
        sure = "a difference is certain, but it is" if certain else "the difference is"
        inner = f"interval for equivalence: [{interval.inner_low:.3g}, {interval.inner_high:.3g}]"
        effect = f"{smallest:g} {what}: {interval.value:.3g} ({inner})"
        return found("no difference above", f"{sure} smaller than {smallest:g} ({inner})", effect)
    if certain and not equal and interval.low > 0:
        return found("reproduced", "the whole interval is above 0")
    if certain:
        side = "above" if interval.low > 0 else "below"
        return found("opposite here", f"the whole interval is {side} 0")
    size = f"only a difference of {detectable:.2g} would be detected" if math.isfinite(detectable) else "too few runs"
    return found("not decidable here", size + cost)


def decide(
    reason: str, *, supported: bool, refuted: bool | None = None, exact: bool = True, regime: str = ""
) -> Verdict:
    """Return the verdict on a claim that is computed, counted or timed, without an interval.

    Args:
        reason: The numbers.
        supported: Whether they bear the claim out.
        refuted: Whether they contradict it. None: whenever they do not bear it out.
        exact: Whether the numbers are computed or counted. Otherwise they were drawn at random or timed.
        regime: The conditions of numbers that are not exact.
    """
    if supported:
        return Verdict("holds exactly" if exact else "reproduced", reason, regime=regime)
    if refuted or refuted is None:
        return Verdict("does not hold" if exact else "opposite here", reason, regime=regime)
    return Verdict("not decidable here", reason, regime=regime)


@dataclass(frozen=True)
class Tested:
    """A claim about a difference that has been measured, before the level of its test is known; see :func:`settle`.

    Attributes:
        effect: The difference, positive if it agrees with the claim.
        min_difference: The smallest difference of interest.
        regime: The conditions.
        what: Words for the difference.
        equal: Whether the claim says that there is no difference.
        group: Claims of one experiment with the same group are corrected together.
    """

    effect: Effect
    min_difference: float
    regime: Regime
    what: str
    equal: bool = False
    group: str = ""

    @property
    def p_value(self) -> float:
        """The p value of the test that would bear the claim out."""
        return self.effect.p_value(self.min_difference if self.equal else None)

    def verdict(self, level: float) -> Verdict:
        """Return the verdict of a test at ``level``."""
        interval, size = self.effect.interval(level), detectable(self.effect.error, self.effect.freedom, level)
        return verdict(interval, self.min_difference, size, self.regime, what=self.what, equal=self.equal)


def settle(judged: Sequence[Sequence[Verdict | Tested]]) -> list[tuple[Verdict, ...]]:
    """Return the verdicts of a report, by experiment. Claims that are tested are corrected for each other.

    Claims that cannot be decided whatever the numbers are, because their regime has an obstacle, count as untested.
    """
    groups = dict[tuple[int, str], list[Tested]]()
    for number, claims in enumerate(judged):
        for claim in claims:
            if isinstance(claim, Tested) and not claim.regime.obstacle:
                groups.setdefault((number, claim.group), []).append(claim)
    level = dict[int, float]()
    p_values = [[claim.p_value for claim in group] for group in groups.values()]
    for group, found in zip(groups.values(), levels(p_values), strict=True):
        level |= zip(map(id, group), found, strict=True)
    return [
        tuple(claim.verdict(level.get(id(claim), LEVEL)) if isinstance(claim, Tested) else claim for claim in claims)
        for claims in judged
    ]


def _quantile(probability: float, freedom: float) -> float:
    return float(stats.t.ppf(probability, freedom)) if freedom > 0 else math.inf


def detectable(error: float, freedom: float, level: float = LEVEL) -> float:
    """Return the true difference that a two-sided t test at ``level`` finds with a probability of at least 80 %.

    The noncentral t distribution gives the power exactly.
    """
    if not math.isfinite(error) or freedom <= 0:
        return math.inf
    limit = _quantile(1 - level / 2, freedom)
    power = lambda ratio: float(stats.nct.sf(limit, freedom, ratio)) - POWER  # noqa: E731
    return error * float(optimize.brentq(power, 0.0, limit + 10 * _quantile(1 - level / 4, freedom)))


def equality_power(smallest: float, error: float, freedom: float, level: float = LEVEL) -> float:
    """Return the probability that two one-sided t tests find a true difference of 0 to be below ``smallest``."""
    if not math.isfinite(error) or freedom <= 0:
        return 0.0
    spreads = np.sqrt(stats.chi2.ppf((np.arange(1000) + 0.5) / 1000, freedom) / freedom)  # estimated over true error
    reach = smallest / error - _quantile(1 - level, freedom) * spreads
    return float(np.mean(2 * stats.norm.cdf(np.maximum(reach, 0)) - 1))


def mean_effect(values: Sequence[float]) -> Effect:
    """Return the mean of ``values``."""
    error = math.sqrt(variance(values) / len(values)) if len(values) > 1 else math.inf
    return Effect(fmean(values), error, len(values) - 1)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the median's 95 % interval, which are two of the values. For times, which have outliers."""
    ends = stats.quantile_test(values, p=0.5).confidence_interval(1 - LEVEL)
    return float(ends.low), float(ends.high)


def difference(values: Sequence[float], baseline: Sequence[float]) -> Effect:
    """Return the mean of ``values`` minus that of ``baseline``, which are independent, by Welch's t test."""
    return add_variance(mean_effect(values), mean_effect([-value for value in baseline]))


def add_variance(one: Effect, other: Effect) -> Effect:
    """Return the sum of two independent effects, with Welch and Satterthwaite's degrees of freedom."""
    value, total = one.value + other.value, one.error**2 + other.error**2
    if not 0 < total < math.inf:
        return Effect(value, math.sqrt(total), min(one.freedom, other.freedom) if total else math.inf)
    parts = [effect.error**4 / effect.freedom for effect in (one, other) if effect.error]
    return Effect(value, math.sqrt(total), total**2 / sum(parts))


def _one_hot(labels: ArrayLike) -> Array:
    kinds, numbers = np.unique(labels, return_inverse=True)
    return np.eye(len(kinds))[numbers]


def _design_matrix(variants: ArrayLike, seeds: ArrayLike) -> tuple[Array, int]:
    """Return a column for each variant and for each further seed, and the degrees of freedom that are left."""
    design = np.hstack([_one_hot(variants), _one_hot(seeds)[:, 1:]])
    return design, len(design) - int(np.linalg.matrix_rank(design))


def planned_error(variants: Sequence[int], seeds: Sequence[int]) -> tuple[float, int]:
    """Return the error of variant 1 minus variant 0 if residuals spread by 1, and its degrees of freedom.

    Seeds that only the baseline has tell little about the difference, because their own effect is unknown.
    """
    design, freedom = _design_matrix(variants, seeds)
    solve = np.linalg.pinv(design)
    return float(np.linalg.norm(solve[1] - solve[0])), freedom


def seed_effects(variants: Sequence[int], seeds: Sequence[int], values: Array) -> tuple[Array, Array, Array]:
    """Estimate the difference between each variant and the baseline from runs with several seeds.

    Args:
        variants: A number for the variant of each run; the baseline has the smallest.
        seeds: The seed of each run.
        values: What was measured (experiments x runs).

    Returns:
        The differences, their standard errors and degrees of freedom (experiments x variants without the baseline).
    """
    one_hot = _one_hot(variants)
    counts = one_hot.sum(0)
    means = values @ one_hot / counts
    with np.errstate(divide="ignore", invalid="ignore"):
        variances = np.square(values - means @ one_hot.T) @ one_hot / (counts - 1)
        parts, terms = variances / counts, (variances / counts) ** 2 / (counts - 1)
        freedoms = (parts[:, 1:] + parts[:, :1]) ** 2 / (terms[:, 1:] + terms[:, :1])
    effects, errors = means[:, 1:] - means[:, :1], np.sqrt(parts[:, 1:] + parts[:, :1])  # Welch's test
    pooled = _equal_variances(variances, counts - 1)
    for pattern in np.unique(pooled[pooled[:, 0]], axis=0):
        rows, runs = (pooled == pattern).all(1), one_hot @ pattern > 0
        design, freedom = _design_matrix(np.array(variants)[runs], np.array(seeds)[runs])
        solve, data = np.linalg.pinv(design), values[np.ix_(rows, runs)]
        differences = solve[1 : pattern.sum()] - solve[0]
        spread = np.square(data - data @ solve.T @ design.T).sum(1) / (freedom or np.nan)
        cells = np.ix_(rows, pattern[1:])
        effects[cells] = data @ differences.T
        errors[cells] = np.sqrt(np.outer(spread, np.square(differences).sum(1)))
        freedoms[cells] = freedom
    return effects, np.nan_to_num(errors, nan=np.inf), np.nan_to_num(freedoms)


def _equal_variances(variances: Array, freedoms: Array) -> NDArray[np.bool_]:
    """Return which variants are assumed to have the same variance (experiments x variants).

    The variant whose variance differs most from that of all others is excluded while an F test finds a difference.
    """
    pooled = np.ones(variances.shape, dtype=bool)
    while True:
        sums, others = np.nan_to_num(variances) * freedoms * pooled, freedoms * pooled
        sums, others = sums.sum(1, keepdims=True) - sums, others.sum(1, keepdims=True) - others
        with np.errstate(divide="ignore", invalid="ignore"):
            tails = stats.f.cdf(variances * others / sums, freedoms, others)
        p_values = np.where(pooled, np.nan_to_num(2 * np.minimum(tails, 1 - tails), nan=1.0), 1.0)
        rows = np.flatnonzero(p_values.min(1) < _UNEQUAL)
        if not len(rows):
            return pooled
        pooled[rows, p_values[rows].argmin(1)] = False


def resampled_error(rows: Array, value: Callable[[Array], float]) -> float:
    """Return the bootstrap error of ``value`` of the summed rows (items x columns) over the choice of the items."""
    size = len(rows)
    drawn = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), _RESAMPLES)
    return float(np.std([value(sums) for sums in drawn @ rows], ddof=1))


def fisher_p_value(hits: Sequence[int], of: Sequence[int]) -> float:
    """Return the two-sided p value of Fisher's exact test that two shares, ``hits`` out of ``of``, are equal."""
    return float(stats.fisher_exact([[count, total - count] for count, total in zip(hits, of, strict=True)])[1])


def holm(p_values: Array, level: float | Array = LEVEL) -> Array:
    """Return the level at which Holm's procedure tests each claim; a claim is rejected if its p value is below.

    Args:
        p_values: p values of the claims of one experiment (last axis), for any number of experiments.
        level: The level of each experiment.
    """
    order, count = np.argsort(p_values, axis=-1, kind="stable"), p_values.shape[-1]
    steps = np.asarray(level)[..., None] / np.arange(count, 0, -1)
    passed = np.take_along_axis(p_values, order, -1) <= steps
    first = np.where(passed.all(-1), count - 1, passed.argmin(-1))[..., None]  # the step that fails
    reached = np.minimum(np.arange(count), first)
    sorted_levels = np.take_along_axis(np.broadcast_to(steps, p_values.shape), reached, -1)
    result = np.empty_like(sorted_levels)
    np.put_along_axis(result, order, sorted_levels, -1)
    return result


def levels(p_values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the level of each claim of a report, by experiment: Benjamini-Hochberg over all, Holm within each."""
    adjusted = [
        p * LEVEL / step
        for group in p_values
        for p, step in zip(group, holm(np.array(group)).tolist() if group else (), strict=True)
    ]
    total = len(adjusted)
    rejected = max((rank for rank, p in enumerate(sorted(adjusted), 1) if p <= LEVEL * rank / total), default=1)
    return [holm(np.array(group), LEVEL * rejected / total).tolist() if group else [] for group in p_values]
