"""The score by which the best model is selected."""

from __future__ import annotations

import math

import pytest

from headway.training.validation import selection_score


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
