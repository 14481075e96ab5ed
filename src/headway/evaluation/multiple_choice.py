"""Accuracy on multiple-choice questions: a model should find the right answer more probable than the others.

Each answer is scored by the log-probabilities of its tokens after the question, in two ways: by their sum, which is the
log-probability of the answer, and by their mean per token, which does not favor short answers (Brown et al. 2020,
"Language Models are Few-Shot Learners", section 2.4). A question is correct if the right answer has the greatest score;
a tie with another answer is wrong.

A guess is right with the probability 1 / k for k answers. The mean over the questions is the line of chance. The
confidence interval of the accuracy is that of Wilson (:mod:`headway.evaluation.wilson`): if it contains chance, the
model may have guessed.
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
"""The log-probabilities of the tokens of each answer to a question."""


@dataclass(frozen=True)
class ChoiceReport:
    """Accuracy on multiple-choice questions.

    Attributes:
        by_sum: The accuracy, in percent, if answers are ranked by the sum of their tokens' log-probabilities.
        by_mean: The accuracy, in percent, if answers are ranked by the mean of their tokens' log-probabilities.
        chance: The accuracy of guessing, in percent.
        num_questions: The number of questions.
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
        truth: The index of the right answer to each question, counted from 0.
        num_examples: Number of examples that the model read before each question, for the signatures.
        precision: Precision in which the scores were computed, for the signatures.

    Raises:
        DataError: There are no questions, a question has fewer than two answers, an answer has no tokens, or an index
            is out of range.
    """
    if len(scores) != len(truth):
        raise DataError(f"{len(scores):,} questions, but {len(truth):,} right answers; expected one for each")
    if not scores:
        raise DataError("no questions to answer; expected at least one")
    for number, (answers, right) in enumerate(zip(scores, truth, strict=True), start=1):
        if len(answers) < 2 or not all(answers):
            raise DataError(f"question {number}: expected two or more answers with at least one token each")
        if not 0 <= right < len(answers):
            raise DataError(f"question {number}: the right answer {right}; expected 0 to {len(answers) - 1}")
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
    """Return whether the value at ``index`` is greater than all others."""
    return all(values[index] > value for other, value in enumerate(values) if other != index)
