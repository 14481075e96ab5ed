"""Evaluation metrics for translations, labels and language models, with signatures and confidence intervals.

translation.py       BLEU, chrF, TER, exact match, token accuracy
classification.py    accuracy, macro F1, calibration error, scores per class, confusion matrix
feature_weights.py   weights for ranking translations, tuned on BLEU
minimal_pairs.py     accuracy on minimal pairs of texts
multiple_choice.py   accuracy on multiple-choice questions
significance.py      significance tests: paired bootstrap, approximate randomization, McNemar's test
tokenization.py      choice of BLEU's tokenization for a target language
wilson.py            confidence intervals of rates
bootstrap.py         the class Score, and bootstrap confidence intervals
"""

from headway.evaluation.bootstrap import Score
from headway.evaluation.classification import (
    ClassificationReport,
    ClassScores,
    class_table,
    confusion_table,
    evaluate_classes,
)
from headway.evaluation.minimal_pairs import PairReport, evaluate_pairs
from headway.evaluation.multiple_choice import AnswerScores, ChoiceReport, evaluate_choices
from headway.evaluation.significance import (
    Comparison,
    ComparisonRow,
    ComparisonTable,
    OutputDifference,
    compare_labels,
    compare_language_models,
    compare_translations,
    mcnemar,
    paired_bootstrap,
    paired_randomization,
)
from headway.evaluation.tokenization import tokenization_for
from headway.evaluation.translation import (
    METRICS,
    bleu,
    chrf,
    evaluate,
    exact_match,
    sentence_chrf,
    ter,
    token_accuracy,
)

__all__ = [
    "METRICS",
    "AnswerScores",
    "ChoiceReport",
    "ClassScores",
    "ClassificationReport",
    "Comparison",
    "ComparisonRow",
    "ComparisonTable",
    "OutputDifference",
    "PairReport",
    "Score",
    "bleu",
    "chrf",
    "class_table",
    "compare_labels",
    "compare_language_models",
    "compare_translations",
    "confusion_table",
    "evaluate",
    "evaluate_choices",
    "evaluate_classes",
    "evaluate_pairs",
    "exact_match",
    "mcnemar",
    "paired_bootstrap",
    "paired_randomization",
    "sentence_chrf",
    "ter",
    "token_accuracy",
    "tokenization_for",
]
