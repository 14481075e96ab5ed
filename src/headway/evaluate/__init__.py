"""Scores: texts or labels in, numbers with their signatures and confidence intervals out.

translation.py       BLEU, chrF, TER, exact match, token accuracy; is one system better than another?
classification.py    accuracy, macro F1, calibration error, the table of each class, the confusion matrix
bootstrap.py         what they share
"""

from headway.evaluate.bootstrap import Score
from headway.evaluate.classification import (
    ClassificationReport,
    ClassScores,
    class_table,
    confusion_table,
    evaluate_classes,
)
from headway.evaluate.translation import (
    METRICS,
    Comparison,
    bleu,
    chrf,
    evaluate,
    exact_match,
    paired_bootstrap,
    sentence_chrf,
    ter,
    token_accuracy,
)

__all__ = [
    "METRICS",
    "ClassScores",
    "ClassificationReport",
    "Comparison",
    "Score",
    "bleu",
    "chrf",
    "class_table",
    "confusion_table",
    "evaluate",
    "evaluate_classes",
    "exact_match",
    "paired_bootstrap",
    "sentence_chrf",
    "ter",
    "token_accuracy",
]
