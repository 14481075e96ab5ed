"""The score by which the best model is selected."""

from __future__ import annotations

import math

import pytest

from headway.training.report import format_number
from headway.training.validation import selection_key, selection_score


@pytest.mark.parametrize(
    ("metric", "expected"), [("bleu", 31.5), ("macro_f1", 80.0), ("within_one_star", 99.0), ("loss", -2.5), ("x", -2.5)]
)
def test_a_metric_names_a_score(metric: str, expected: float) -> None:
    record: dict[str, float | str] = {
        "loss": 2.5,
        "BLEU": 31.5,
        "BLEU signature": "nrefs:1",
        "macro F1": 80.0,
        "within one star": 99.0,
    }
    assert selection_score(metric, record) == expected


def test_a_score_that_is_not_a_number_is_the_worst() -> None:
    assert selection_score("loss", {"loss": math.nan}) == -math.inf


def test_equal_scores_are_ordered_by_the_loss() -> None:
    one, other = ({"BLEU": 50.0, "loss": loss} for loss in (1.5, 1.25))
    assert selection_key("bleu", other) > selection_key("bleu", one)
    assert selection_key("bleu", {"BLEU": 50.1, "loss": 9.0}) > selection_key("bleu", other)
    assert not selection_key("bleu", {"BLEU": 50.0, "loss": math.nan}) > selection_key("bleu", one)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12.345, "12.35"), (-1.0, "-1.00"), (99999.0, "99999.00"), (1631013.0, "1.6e6"), (1e300, "1.0e300"),
        (math.inf, "inf"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_large_numbers_are_short(value: float, shown: str) -> None:
    assert format_number(value) == shown
