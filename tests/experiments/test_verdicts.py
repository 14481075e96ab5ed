from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headway.experiments.verdicts import (
    LEVEL,
    Effect,
    Interval,
    Regime,
    add_variance,
    decide,
    detectable,
    difference,
    equality_power,
    fisher_p_value,
    holm,
    levels,
    mean_effect,
    median_interval,
    planned_error,
    resampled_error,
    seed_effects,
    verdict,
)

REGIME = Regime("a small model", cost="8 seeds, 5 hours")
EXPERIMENTS = 10_000
BASELINE_SEEDS, SEEDS, CLAIMS = 8, 4, 5
VARIANTS = [0] * BASELINE_SEEDS + [variant for variant in range(1, CLAIMS + 1) for _ in range(SEEDS)]
RUN_SEEDS = [*range(BASELINE_SEEDS), *list(range(SEEDS)) * CLAIMS]


def p_values(variants: list[int], seeds: list[int], values: Any) -> Any:
    effects, errors, freedom = seed_effects(variants, seeds, values)
    return 2 * stats.t.sf(np.abs(effects) / errors, freedom)


def made_up(effect: float, spread: float = 0.35) -> Any:
    """Values of 10,000 experiments in which only the first variant differs from the baseline."""
    random = np.random.default_rng(1)
    values = spread * random.standard_normal((EXPERIMENTS, len(VARIANTS)))
    values += random.standard_normal((EXPERIMENTS, BASELINE_SEEDS))[:, RUN_SEEDS]  # what all runs of a seed share
    return values + effect * (np.array(VARIANTS) == 1)


def between(low: float, high: float, inner: float = 0.8) -> Interval:
    middle, reach = (low + high) / 2, (high - low) / 2
    return Interval(middle, low, high, middle - inner * reach, middle + inner * reach)


class TestVerdict:
    @pytest.mark.parametrize(
        ("interval", "equal", "outcome", "words"),
        [
            (between(0.01, 0.09), False, "reproduced", "above 0"),
            (between(-0.09, -0.01), False, "opposite here", "below 0"),
            (between(-0.01, 0.02), False, "no difference above", "is smaller than 0.03"),
            (between(-0.01, 0.02), True, "no difference above", "is smaller than 0.03"),
            (between(0.005, 0.02), False, "no difference above", "certain, but it is smaller than 0.03"),
            (between(0.01, 0.09), True, "opposite here", "above 0"),
            (between(-0.09, -0.01), True, "opposite here", "below 0"),
            (between(-0.01, 0.09), False, "not decidable here", "0.07 would be detected; it would take 8 seeds"),
            # A whole interval beyond a margin, but not beyond zero, decides nothing.
            (between(-0.2, 0.01), False, "not decidable here", "0.07"),
        ],
    )
    def test_follows_from_the_interval(self, interval: Interval, equal: bool, outcome: str, words: str) -> None:
        result = verdict(interval, 0.03, 0.07, REGIME, equal=equal)
        assert result.outcome == outcome
        assert words in result.reason
        assert result.regime == "a small model"

    def test_is_open_behind_a_gate(self) -> None:
        regime = Regime("a small model", "the baseline has 20 BLEU", "4 hours")
        result = verdict(between(1, 2), 0.03, 0.07, regime)
        assert result.outcome == "not decidable here"
        assert "the baseline has 20 BLEU; it would take 4 hours" in result.reason

    def test_of_one_run_is_open(self) -> None:
        effect = mean_effect([1.0])
        result = verdict(effect.interval(), 0.03, detectable(effect.error, effect.freedom), REGIME)
        assert result.outcome == "not decidable here"
        assert "too few runs" in result.reason

    def test_of_computed_and_of_timed_numbers(self) -> None:
        assert decide("", supported=True).outcome == "holds exactly"
        assert decide("", supported=False).outcome == "does not hold"
        assert decide("", supported=True, exact=False).outcome == "reproduced"
        assert decide("", supported=False, refuted=True, exact=False).outcome == "opposite here"
        assert decide("", supported=False, refuted=False).outcome == "not decidable here"


class TestEffects:
    def test_an_interval_by_hand(self) -> None:
        """Student's t for 2 degrees of freedom is 4.303 (two-sided, 95 %) and 2.920 (90 %)."""
        effect = mean_effect([1.0, 2.0, 3.0])
        interval = effect.interval()
        assert interval.high - interval.value == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
        assert interval.inner_high - interval.value == pytest.approx(2.920 / math.sqrt(3), rel=1e-3)

    def test_p_values_and_intervals_agree(self) -> None:
        effect = Effect(0.5, 0.2, 7)
        assert effect.interval(effect.p_value()).low == pytest.approx(0)
        assert effect.interval(effect.p_value(0.8)).inner_high == pytest.approx(0.8)
        assert Effect(-0.5, 0.2, 7).p_value(0.8) == effect.p_value(0.8)

    def test_differences_are_welchs(self) -> None:
        values, baseline = [1.0, 2.0, 4.0], [0.0, 0.1, 0.3, 0.2]
        expected = stats.ttest_ind(values, baseline, equal_var=False)
        effect = difference(values, baseline)
        assert effect.p_value() == pytest.approx(expected.pvalue)
        assert effect.freedom == pytest.approx(expected.df)

    def test_variances_add(self) -> None:
        total = add_variance(Effect(1.0, 3.0, 10), Effect(0.0, 4.0, 999))
        assert total.error == pytest.approx(5.0)
        assert 10 < total.freedom < 999 + 10

    def test_without_seeds_in_common_it_is_the_pooled_t_test(self) -> None:
        values = np.array([[1.0, 2.0, 4.0, 0.0, 0.1, 1.3, 0.2]])
        expected = stats.ttest_ind(values[0, 3:], values[0, :3])
        assert p_values([0, 0, 0, 1, 1, 1, 1], [0] * 7, values)[0, 0] == pytest.approx(expected.pvalue)

    def test_paired_seeds_are_compared_within_seeds(self) -> None:
        """Two variants with the same seeds: the model is then the paired t test."""
        values = np.array([[1.0, 5.0, 9.0, 1.4, 5.7, 9.4]])
        expected = stats.ttest_rel(values[0, 3:], values[0, :3])
        assert p_values([0, 0, 0, 1, 1, 1], [1, 2, 3, 1, 2, 3], values)[0, 0] == pytest.approx(expected.pvalue)

    def test_unequal_variances_are_not_pooled(self) -> None:
        random = np.random.default_rng(2)
        values = np.concatenate([random.normal(0, 0.01, 8), random.normal(0, 1, 6)])[None]
        expected = stats.ttest_ind(values[0, 8:], values[0, :8], equal_var=False)
        assert p_values([0] * 8 + [1] * 6, [*range(8), *range(6)], values)[0, 0] == pytest.approx(expected.pvalue)

    def test_a_variant_that_spreads_more_does_not_hide_the_others(self) -> None:
        """Of three seeds each, one variant is compared by Welch's test, and the others as if it were not there."""
        random = np.random.default_rng(5)
        values = 0.01 * random.standard_normal((1, 15)) + np.repeat([0, 0.1, 0.2, 0.3, 0.4], 3)
        wild = values + np.where(np.arange(15) // 3 == 2, 30 * random.standard_normal(15), 0)
        variants, seeds = np.repeat(np.arange(5), 3).tolist(), [1, 2, 3] * 5
        others = [run for run in range(15) if variants[run] != 2]
        alone = seed_effects([variants[run] for run in others], [seeds[run] for run in others], values[:, others])
        for found, expected in zip(seed_effects(variants, seeds, wild), alone, strict=True):
            assert found[0, [0, 2, 3]] == pytest.approx(expected[0])
        welch = stats.ttest_ind(wild[0, 6:9], wild[0, :3], equal_var=False)
        assert p_values(variants, seeds, wild)[0, 1] == pytest.approx(welch.pvalue)

    @pytest.mark.parametrize("spreads", [[1, 2, 1, 1, 1], [1, 1, 6, 1, 1], [3, 1, 1, 1, 1], [5, 1, 25, 0.3, 1]])
    def test_one_unequal_variance_about_doubles_false_alarms_at_most(self, spreads: list[float]) -> None:
        """Of claims about five variants with three seeds each: so few tell little about variances."""
        values = np.random.default_rng(6).standard_normal((EXPERIMENTS, 15)) * np.repeat(spreads, 3)
        found = p_values(np.repeat(np.arange(5), 3).tolist(), [1, 2, 3] * 5, values)
        assert (found <= holm(found)).any(-1).mean() <= 0.11

    def test_what_one_run_cannot_show_is_unknown(self) -> None:
        """A single run of a variant has no variance that Welch's test could use, and two runs no error at all."""
        values = np.array([[0, 50, -50, 0.1, 0.2, 0.21, 0.19, 0.3, 0.31, 0.29]])
        _, errors, freedoms = seed_effects([0, 0, 0, 1, 2, 2, 2, 3, 3, 3], [1, 2, 3, 1, 1, 2, 3, 1, 2, 3], values)
        assert (errors[0, 0], freedoms[0, 0]) == (math.inf, 0)
        assert np.isfinite(errors[0, 1:]).all()
        effects, errors, freedoms = seed_effects([0, 1], [1, 1], np.array([[1.0, 3.0]]))
        assert (effects[0, 0], errors[0, 0], freedoms[0, 0]) == (2, math.inf, 0)

    def test_the_choice_of_sentences(self) -> None:
        """For sentences of one length, the error of a mean is its standard deviation over the root of their number."""
        differences = np.random.default_rng(3).normal(0, 2, 1000)
        error = resampled_error(np.column_stack([differences, np.full(1000, 10.0)]), lambda sums: sums[0] / sums[1])
        assert error == pytest.approx(differences.std() / 10 / math.sqrt(1000), rel=0.1)

    def test_the_interval_of_a_median_leaves_out_what_is_far_off(self) -> None:
        # Of 25 values 12.5 are expected below the median, give or take 1.96 sqrt(25) / 2 = 4.9: the 8th to the 18th.
        assert median_interval([*map(float, range(24)), 1e9]) == (7.0, 17.0)

    def test_shares_by_hand(self) -> None:
        # All 3 of 3 against 0 of 8: one of the 165 ways to choose 3 of 11.
        assert fisher_p_value((3, 0), (3, 8)) == pytest.approx(1 / 165)
        assert fisher_p_value((1, 1), (3, 3)) == pytest.approx(1)


class TestCorrections:
    def test_holm_by_hand(self) -> None:
        assert holm(np.array([0.001, 0.04, 0.02])).tolist() == pytest.approx([0.05 / 3, 0.05, 0.05 / 2])
        # The second smallest fails at 5 % / 2, and so do all larger ones, whatever they are.
        assert holm(np.array([0.001, 0.04, 0.03])).tolist() == pytest.approx([0.05 / 3, 0.025, 0.025])

    def test_levels_of_a_report_by_hand(self) -> None:
        # Adjusted within experiments: 0.002, 0.4 and 0.03. Of three, two are rejected, at 2/3 of 5 %.
        (first, second), (third,) = levels([[0.001, 0.4], [0.03]])
        assert (first, second) == pytest.approx((0.05 * 2 / 3 / 2, 0.05 * 2 / 3))
        assert third == pytest.approx(0.05 * 2 / 3)
        assert levels([[0.04], [0.9]]) == [[pytest.approx(0.025)], [pytest.approx(0.025)]]

    def test_false_alarms_are_at_most_five_percent(self) -> None:
        found = p_values(VARIANTS, RUN_SEEDS, made_up(0.0))
        alarms = (found <= holm(found)).any(-1).mean()
        assert 0.02 < alarms <= 0.055

    def test_equality_is_found_as_often_as_stated(self) -> None:
        """Four paired seeds: the error of a mean difference is estimated from 3 degrees of freedom."""
        differences = np.random.default_rng(4).normal(0, 1, (4000, 4))
        upper, lower = (stats.ttest_1samp(differences, limit, axis=1) for limit in (2.0, -2.0))
        found = (upper.statistic < 0) & (upper.pvalue <= 0.1) & (lower.statistic > 0) & (lower.pvalue <= 0.1)
        assert equality_power(2.0, 0.5, 3) == pytest.approx(np.mean(found), abs=0.03)

    def test_the_detectable_difference_is_found_in_four_of_five_experiments(self) -> None:
        """At Holm's first step of five, 8 seeds against 4 whose residuals spread by 0.35."""
        spread, (error, freedom) = 0.35, planned_error(VARIANTS, RUN_SEEDS)
        size = detectable(spread * error, freedom, LEVEL / CLAIMS)
        found = p_values(VARIANTS, RUN_SEEDS, made_up(size, spread))
        assert (found[:, 0] <= holm(found)[:, 0]).mean() >= 0.8
        smaller = p_values(VARIANTS, RUN_SEEDS, made_up(size / 2, spread))
        assert (smaller[:, 0] <= holm(smaller)[:, 0]).mean() < 0.5

    def test_a_planned_error_by_hand(self) -> None:
        """Without seeds in common, sqrt(1/3 + 1/2) and 5 - 2 degrees of freedom; paired, sqrt(2/3) and 6 - 2 - 2."""
        (error, freedom), paired = (
            planned_error([0, 0, 0, 1, 1], [1] * 5),
            planned_error([0, 0, 0, 1, 1, 1], [1, 2, 3] * 2),
        )
        assert (error, freedom) == pytest.approx((math.sqrt(5 / 6), 3))
        assert paired == pytest.approx((math.sqrt(2 / 3), 2))

    def test_the_stated_sizes(self) -> None:
        """8 seeds against 4 that spread by 0.35 and share no effect: 0.66 alone, and 0.79 at the first of five steps.

        For a power of 86 %, (1.96 + 1.08) and (2.58 + 1.08) errors, and a little more for 100 degrees of freedom. 80 %
        are left in the cases in which variances differ by chance.
        """
        error = 0.35 * math.sqrt(1 / 8 + 1 / 4)
        assert detectable(error, 100) == pytest.approx(0.66, abs=0.01)
        assert detectable(error, 100, LEVEL / 5) == pytest.approx(0.79, abs=0.01)
