"""Classification metrics, with signatures and confidence intervals.

Let n_tp be the number of texts of class t with the predicted label p (the confusion matrix, with true labels in rows):

    accuracy    sum_c n_cc / n
    precision   of class c: n_cc / sum_t n_tc       recall   n_cc / sum_p n_cp
    F1          2 precision recall / (precision + recall) = 2 n_cc / (sum_t n_tc + sum_p n_cp); 0 if n_cc is 0
    macro F1    the mean F1 of all classes that occur among the true or predicted labels
    ECE         sum_b |B_b| / n  |accuracy(B_b) - confidence(B_b)|

ECE is the expected calibration error (Guo et al., "On Calibration of Modern Neural Networks", 2017, equation 3). Texts
are binned by confidence, the probability of the predicted label, in 15 bins of equal width as in the paper: bin b
contains the confidences in ((b - 1) / 15, b / 15].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from headway.config import spelling_hint
from headway.errors import DataError, escape_unprintable
from headway.evaluation.bootstrap import (
    DEFAULT_SEED,
    Score,
    bootstrap_counts,
    bootstrap_interval,
    check_bootstrap,
    check_texts,
    scores_table,
    too_few_reason,
)
from headway.evaluation.wilson import wilson_interval
from headway.notebook_html import join_fragments, table
from headway.version import __version__

CALIBRATION_BINS = 15
_MAX_MATRIX_CLASSES = 12  # with more classes, only the most frequent errors are listed
_MAX_CONFUSIONS = 10


@dataclass(frozen=True)
class ClassScores:
    """Precision, recall and F1 of a class, from 0 to 100, and its number of texts (``support``)."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassificationReport:
    """Scores of a classifier on a test set.

    Attributes:
        scores: Accuracy, macro F1 and, if confidences were given, the expected calibration error (ECE; lower is
            better).
        classes: Scores of each class, in the order of the labels.
        confusion: Number of texts by true class (rows) and predicted class (columns), in the same order.
    """

    scores: tuple[Score, ...]
    classes: tuple[ClassScores, ...]
    confusion: tuple[tuple[int, ...], ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(scores.label for scores in self.classes)

    def __repr__(self) -> str:
        shown = ", ".join(f"{score.name} {score.value:.1f}" for score in self.scores)
        return f"<ClassificationReport: {shown}; {sum(map(sum, self.confusion)):,} texts>"

    def _repr_html_(self) -> str:
        header = ("true class", *(f"predicted {label}" for label in self.labels))
        rows = [
            (label, *(f"{count:,}" for count in counts))
            for label, counts in zip(self.labels, self.confusion, strict=True)
        ]
        return join_fragments(scores_table(self.scores), table(header, rows, numbers=range(1, len(header))))


def evaluate_classes(
    predicted: Sequence[str],
    truth: Sequence[str],
    labels: Sequence[str],
    *,
    confidences: Sequence[float] | None = None,
    bootstrap: int = 1000,
    seed: int = DEFAULT_SEED,
) -> ClassificationReport:
    """Score predicted labels against the true labels.

    Args:
        predicted: The predicted label of each text.
        truth: The true label of each text.
        labels: Names of all classes, which determine the order of rows and columns.
        confidences: Probability of each predicted label, for the calibration error.
        bootstrap: Number of bootstrap samples for the 95 % confidence intervals; 0 for no intervals. Accuracy is a
            rate, so it has Wilson's interval. With fewer than 10 texts, the other scores have no interval.
        seed: Random seed of the bootstrap.

    Raises:
        ConfigError: ``bootstrap`` is too small.
        DataError: There are no labels, the numbers of labels or confidences differ, or a label is not in ``labels``.
    """
    check_bootstrap(bootstrap)
    check_texts(predicted, truth, "predicted labels")
    if confidences is not None and len(confidences) != len(truth):
        raise DataError(f"{len(confidences):,} confidences for {len(truth):,} texts; expected one for each")
    true, predictions = _numbers(truth, labels, "true"), _numbers(predicted, labels, "predicted")
    correct = (true == predictions).astype(np.float64)
    size = len(labels)
    metrics: list[tuple[str, str, _Value]] = [
        ("accuracy", "", lambda weights: float(100 * (weights @ correct) / weights.sum())),
        ("macro F1", "average:macro|", lambda weights: _macro_f1(true, predictions, weights, size)),
    ]
    if confidences is not None:
        sure = np.asarray(confidences, np.float64)
        metrics.append(("ECE", f"bins:{CALIBRATION_BINS}|", lambda weights: _calibration_error(sure, correct, weights)))
    matrix = np.bincount(true * size + predictions, minlength=size * size).reshape(size, size)
    return ClassificationReport(
        tuple(_scores(metrics, len(true), size, bootstrap, seed)),
        tuple(_class_scores(label, matrix, place) for place, label in enumerate(labels)),
        tuple(tuple(row) for row in matrix.tolist()),
    )


_Value = Callable[[Float[np.ndarray, " N"]], float]  # value of a metric, given the weight of each text


def _scores(
    metrics: Sequence[tuple[str, str, _Value]], texts: int, classes: int, bootstrap: int, seed: int
) -> Iterator[Score]:
    few = too_few_reason(texts, "text") if bootstrap else None
    samples = 0 if few else bootstrap
    sampled = [
        [value(row.astype(np.float64)) for *_, value in metrics] for row in bootstrap_counts(texts, samples, seed)
    ]
    for place, (name, setting, value) in enumerate(metrics):
        result = value(np.ones(texts))
        low, high, reason = bootstrap_interval(np.array(sampled)[:, place]) if samples else (None, None, few)
        drawn = f"bs:{samples}|seed:{seed}|" if samples else ""
        if name == "accuracy" and bootstrap:
            (low, high), reason = wilson_interval(round(result * texts / 100), texts), None
            drawn = "ci:wilson|"
        signature = f"n:{texts}|classes:{classes}|{drawn}{setting}version:headway-{__version__}"
        yield Score(name, result, signature, low, high, reason)


def _numbers(names: Sequence[str], labels: Sequence[str], what: str) -> Int[np.ndarray, " N"]:
    places = {label: place for place, label in enumerate(labels)}
    try:
        return np.array([places[name] for name in names], np.int64)
    except KeyError:
        number, wrong = next((number, name) for number, name in enumerate(names, start=1) if name not in places)
        raise DataError(
            f"text {number:,}: the {what} label {wrong!r} is unknown; {spelling_hint(wrong, labels)}"
        ) from None


def _class_scores(label: str, matrix: Int[np.ndarray, "C C"], index: int) -> ClassScores:
    num_correct, num_predicted, num_true = matrix[index, index], matrix[:, index].sum(), matrix[index].sum()
    precision, recall = (float(100 * num_correct / whole) if whole else 0.0 for whole in (num_predicted, num_true))
    f1 = float(200 * num_correct / (num_predicted + num_true)) if num_predicted + num_true else 0.0
    return ClassScores(label, precision, recall, f1, int(num_true))


def _macro_f1(
    true: Int[np.ndarray, " N"], predictions: Int[np.ndarray, " N"], weights: Float[np.ndarray, " N"], classes: int
) -> float:
    both = np.bincount(true, weights, classes) + np.bincount(predictions, weights, classes)
    correct = np.bincount(true, weights * (true == predictions), classes)
    return float((200 * correct[both > 0] / both[both > 0]).mean())


def _calibration_error(
    confidences: Float[np.ndarray, " N"], correct: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"]
) -> float:
    bins = np.ceil(confidences * CALIBRATION_BINS).astype(np.int64)
    # For each bin, |B| / n |accuracy - confidence| equals |sum of (correct - confidence)| / n.
    gaps = np.bincount(bins, weights * (correct - confidences), CALIBRATION_BINS + 1)
    return float(100 * np.abs(gaps).sum() / weights.sum())


def class_table(report: ClassificationReport) -> str:
    """Return precision, recall, F1 and support of each class as a plain-text table."""
    rows = [["class", "precision", "recall", "F1", "support"]]
    rows += [
        [
            _shown(scores.label),
            f"{scores.precision:.1f}",
            f"{scores.recall:.1f}",
            f"{scores.f1:.1f}",
            f"{scores.support:,}",
        ]
        for scores in report.classes
    ]
    return _aligned(rows)


def confusion_table(report: ClassificationReport) -> str:
    """Return the confusion matrix as a plain-text table or, with more than 12 classes, the most frequent errors."""
    labels = [_shown(label) for label in report.labels]
    if len(labels) <= _MAX_MATRIX_CLASSES:
        rows = [["true \\ predicted", *labels]]
        rows += [[label, *(f"{count:,}" for count in row)] for label, row in zip(labels, report.confusion, strict=True)]
        return _aligned(rows)
    wrong = [
        (count, truth, predictions)
        for truth, row in zip(labels, report.confusion, strict=True)
        for predictions, count in zip(labels, row, strict=True)
        if count and predictions != truth
    ]
    if not wrong:
        return "all texts were classified correctly"
    wrong.sort(key=lambda cell: -cell[0])
    return _aligned(
        [
            ["true", "predicted", "texts"],
            *([truth, predicted, f"{n:,}"] for n, truth, predicted in wrong[:_MAX_CONFUSIONS]),
        ]
    )


def _shown(label: str) -> str:
    return escape_unprintable(" ".join(label.split()))


def _aligned(rows: list[list[str]]) -> str:
    """Left-align the first column, and right-align all others."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        for row in rows
    )
