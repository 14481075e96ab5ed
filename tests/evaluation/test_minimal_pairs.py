"""Accuracy on minimal pairs, against values worked out by hand."""

from __future__ import annotations

import pytest

from headway.errors import DataError
from headway.evaluation import evaluate_pairs


def test_accuracy_in_each_group_and_overall() -> None:
    found = evaluate_pairs([-1.0, -2.0, -3.0, -4.0], [-2.0, -1.0, -3.0, -5.0], ["a", "b", "a", "a"])
    assert found.overall.value == 50  # the third pair is a tie, which is wrong
    assert {name: score.value for name, score in found.groups.items()} == {"a": pytest.approx(200 / 3), "b": 0}
    assert found.counts == {"a": 3, "b": 1}
    assert found.overall.signature.startswith("n:4|ties:wrong|ci:wilson|")


def test_wilsons_interval() -> None:
    """Of half of n pairs, the middle is 1/2, and the half width is z / (2 sqrt(n + z^2))."""
    z, n = 1.959964, 100
    score = evaluate_pairs([1.0, 0.0] * 50, [0.0, 1.0] * 50).overall
    half = 100 * z / (2 * (n + z * z) ** 0.5)
    assert score.low == pytest.approx(50 - half, abs=1e-4)
    assert score.high == pytest.approx(50 + half, abs=1e-4)
    sure = evaluate_pairs([1.0] * 10, [0.0] * 10).overall
    assert sure.high == pytest.approx(100)
    assert sure.low == pytest.approx(100 * 10 / (10 + z * z), abs=1e-4)  # of n successes: n / (n + z^2)


def test_scores_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="2 good and 1 bad texts and 0 groups; expected one of each per pair"):
        evaluate_pairs([1.0, 2.0], [1.0])
    with pytest.raises(DataError, match="no pairs to score"):
        evaluate_pairs([], [])
