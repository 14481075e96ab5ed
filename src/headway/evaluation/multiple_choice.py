"""Accuracy on multiple-choice questions: a model should assign the highest score to the correct answer.

Each answer is scored by the log-probabilities of its tokens after the question, in two ways: by their sum, which is the
log-probability of the answer, and by their mean, which does not favor short answers (Brown et al. 2020, "Language
Models are Few-Shot Learners", section 2.4). A question is answered correctly if the correct answer has the highest
score; a tie with another answer is wrong.

With k answers, a random guess is correct with probability 1 / k. The mean over all questions is the chance level. The
confidence interval of the accuracy is Wilson's (:mod:`headway.evaluation.wilson`). If it contains the chance level, the
model may only have guessed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.errors import DataError
from headway.evaluation.bootstrap import Score
from headway.evaluation.wilson import wilson_interval
from headway.version import __version__

AnswerScores = Sequence[Sequence[float]]
"""Log-probabilities of the tokens of each answer to a question."""


@dataclass(frozen=True)
class ChoiceReport:
    """Accuracy on multiple-choice questions.

    Attributes:
        by_sum: Accuracy in percent, with answers ranked by the sum of their token log-probabilities.
        by_mean: Accuracy in percent, with answers ranked by the mean of their token log-probabilities.
        chance: Expected accuracy of random guessing, in percent.
        num_questions: Number of questions.
    """

    by_sum: Score
    by_mean: Score
    chance: float
    num_questions: int


def evaluate_choices(
    scores: Sequence[AnswerScores], truth: Sequence[int], *, num_examples: int = 0, precision: str | None = None
) -> ChoiceReport:
    """Return the accuracy of a model on multiple-choice questions, with 95 % confidence intervals.

    Args:
        scores: For each question, the log-probabilities of the tokens of each answer.
        truth: Index of the correct answer to each question, counted from 0.
        num_examples: Number of few-shot examples in each prompt, for the signatures.
        precision: Precision in which the scores were computed, for the signatures.

    Raises:
        DataError: There are no questions, a question has fewer than two answers, an answer has no tokens, or an index
            is out of range.
    """
    if len(scores) != len(truth):
        raise DataError(f"{len(scores):,} questions, but {len(truth):,} correct answers; expected one for each")
    if not scores:
        raise DataError("no questions to evaluate; expected at least one")
    for number, (answers, right) in enumerate(zip(scores, truth, strict=True), start=1):
        if len(answers) < 2 or not all(answers):
            raise DataError(f"question {number}: expected two or more answers with at least one token each")
        if not 0 <= right < len(answers):
            raise DataError(
                f"question {number}: the index of the correct answer is {right}; expected 0 to {len(answers) - 1}"
            )
    settings = f"examples:{num_examples}|" + ("" if precision is None else f"precision:{precision}|")

    def accuracy(name: str, score: Callable[[Sequence[float]], float]) -> Score:
        hits = sum(_is_best(list(map(score, answers)), right) for answers, right in zip(scores, truth, strict=True))
        total = len(scores)
        signature = f"n:{total}|score:{name}|ties:wrong|ci:wilson|{settings}version:headway-{__version__}"
        return Score(f"accuracy by {name}", 100 * hits / total, signature, *wilson_interval(hits, total))

    return ChoiceReport(
        by_sum=accuracy("sum", math.fsum),
        by_mean=accuracy("mean", statistics.fmean),
        chance=100 * statistics.fmean(1 / len(answers) for answers in scores),
        num_questions=len(scores),
    )


def _is_best(values: Sequence[float], index: int) -> bool:
    """Return whether the value at ``index`` is greater than all other values."""
    return all(values[index] > value for other, value in enumerate(values) if other != index)
