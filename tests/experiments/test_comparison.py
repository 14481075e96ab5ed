from __future__ import annotations

import math

import pytest
from matplotlib.figure import Figure

from headway.experiments.comparison import (
    Estimate,
    ci_half_width,
    column,
    format_mean_std,
    judge_equivalent,
    judge_greater,
    mean_ci,
    mean_diff,
    median_ci,
    strip_plot,
    student_t,
)


@pytest.mark.parametrize(("freedom", "confidence", "table"), [(1, 0.95, 12.706), (4, 0.95, 2.776), (10, 0.99, 3.169)])
def test_student_t_is_that_of_the_tables(freedom: int, confidence: float, table: float) -> None:
    assert student_t(freedom, confidence) == pytest.approx(table, abs=2e-3)


def test_difference_by_hand() -> None:
    # Means 2 and 3, both variances 1: the standard error is sqrt(1/3 + 1/3), and t for 4 degrees of freedom 2.776.
    found = mean_diff([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
    assert found.value == -1
    assert found.high - found.value == pytest.approx(2.776 * math.sqrt(2 / 3), abs=1e-3)
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_the_interval_of_a_mean_by_hand() -> None:
    found = mean_ci([1.0, 2.0, 3.0])  # standard error sqrt(1/3), t for 2 degrees of freedom 4.303
    assert found.value == 2
    assert found.high - 2 == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)
    assert 2 - found.low == pytest.approx(found.high - 2)


def test_the_interval_of_a_median_leaves_out_what_is_far_off() -> None:
    # Of 25 values 12.5 are expected below the median, give or take 1.96 sqrt(25) / 2 = 4.9: the 8th to the 18th.
    values = [float(number) for number in range(24)] + [1e9]
    assert median_ci(values) == Estimate(12.0, 7.0, 17.0)
    assert median_ci([3.0, 1.0, 2.0]) == Estimate(2.0, 1.0, 3.0)


def test_more_comparisons_widen_the_interval() -> None:
    one, five = (mean_diff([1.0, 2.0, 3.0], [0.0, 1.0, 2.0], comparisons) for comparisons in (1, 5))
    assert five.low < one.low < one.value == five.value < one.high < five.high


def test_one_seed_decides_nothing() -> None:
    found = mean_diff([100.0], [0.0])
    assert judge_greater(found, "x").outcome == judge_equivalent(found, "x", tolerance=1e9).outcome == "inconclusive"
    assert ci_half_width([1.0]) == math.inf
    assert "one seed" in str(found)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (2.6, 3.0, "supported"),
        (2.4, 3.0, "inconclusive"),
        (1.0, 2.4, "refuted"),
        (1.0, 2.6, "inconclusive"),
        (2.1, 2.4, "inconclusive"),
    ],
)
def test_judge_greater(low: float, high: float, outcome: str) -> None:
    verdict = judge_greater(Estimate((low + high) / 2, low, high), "it", threshold=2.0, margin=0.5)
    assert verdict.outcome == outcome
    assert verdict.reason.startswith("it: ")
    assert ("real, but the interval is below 2.5" in verdict.reason) == ((low, high) == (2.1, 2.4))


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (-1.0, 1.0, "supported"),
        (-1.1, 0.0, "inconclusive"),
        (1.1, 2.0, "refuted"),
        (-2.0, -1.1, "refuted"),
        (-9.0, 9.0, "inconclusive"),
    ],
)
def test_judge_alike(low: float, high: float, outcome: str) -> None:
    assert judge_equivalent(Estimate((low + high) / 2, low, high), "it", tolerance=1.0).outcome == outcome


def test_columns_and_means() -> None:
    runs = [{"variant": "a", "bleu": 1}, {"variant": "b", "bleu": 2.5}, {"variant": "a", "bleu": 3}]
    assert column(runs, "bleu", variant="a") == [1, 3]
    assert format_mean_std(runs, "bleu", variant="a") == "2 ± 1.4"  # the standard deviation is sqrt(2)
    assert format_mean_std(runs, "bleu", variant="b") == "2.5"


def test_strips_have_a_row_each_with_its_mean() -> None:
    axes = Figure().subplots()
    strip_plot(axes, {"first": [1.0, 2.0, 3.0], "second": [5.0]}, "Quality", "BLEU")
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["first", "second"]
    assert [text.get_text() for text in axes.texts] == ["2", "5"]
    dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]  # type: ignore[arg-type]
    assert dots == [[1, 2, 3], [5]]
    assert len(axes.patches) == 1  # one value has no interval
