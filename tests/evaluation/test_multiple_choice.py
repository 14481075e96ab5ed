"""Accuracy on multiple-choice questions, against values worked out by hand."""

from __future__ import annotations

import pytest

from headway.errors import DataError
from headway.evaluation import evaluate_choices, evaluate_pairs


def test_sum_mean_and_chance() -> None:
    scores = [
        [[-1.0], [-0.6, -0.7]],  # sums -1.0 and -1.3, means -1.0 and -0.65
        [[-2.0, -2.0], [-1.0], [-3.0]],  # the second answer by both
        [[-1.0], [-1.0]],  # a tie, which is wrong
        [[-4.0], [-1.0, -1.0, -1.0], [-5.0], [-6.0]],  # the second answer by both
    ]
    found = evaluate_choices(scores, [0, 1, 0, 1], num_examples=5, precision="float32")
    assert (found.by_sum.value, found.by_mean.value) == (75, 50)
    assert found.chance == pytest.approx(100 * (1 / 2 + 1 / 3 + 1 / 2 + 1 / 4) / 4)
    assert found.num_questions == 4
    assert found.by_mean.signature.startswith(
        "n:4|score:mean|ties:wrong|ci:wilson|examples:5|precision:float32|version:"
    )
    assert str(found.by_sum).startswith("accuracy by sum 75.0 [")


def test_the_interval_is_wilsons() -> None:
    """It is that of minimal pairs, which are questions with two answers of one token."""
    good, bad = [1.0, 0.0, 3.0, 2.0, 1.0], [0.0, 1.0, 2.0, 1.0, 0.0]
    pairs = evaluate_pairs(good, bad).overall
    found = evaluate_choices([[[one], [other]] for one, other in zip(good, bad, strict=True)], [0] * 5).by_sum
    assert (found.value, found.low, found.high) == (pairs.value, pairs.low, pairs.high) == (80, pairs.low, pairs.high)


@pytest.mark.parametrize(
    ("scores", "truth", "message"),
    [
        ([], [], "no questions to evaluate"),
        ([[[-1.0], [-2.0]]], [], "1 questions, but 0 correct answers"),
        ([[[-1.0]]], [0], "question 1: expected two or more answers with at least one token each"),
        ([[[-1.0], []]], [0], "question 1: expected two or more answers with at least one token each"),
        ([[[-1.0], [-2.0]]], [2], "question 1: the index of the correct answer is 2; expected 0 to 1"),
    ],
)
def test_what_cannot_be_counted_is_refused(scores: list[list[list[float]]], truth: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        evaluate_choices(scores, truth)
