"""Accuracy on minimal pairs: a model should assign the good text of each pair the higher probability.

A pair is correct if the good text has the greater score; equal scores are wrong. In BLiMP (Warstadt et al. 2020,
"BLiMP: The Benchmark of Linguistic Minimal Pairs for English", section 4.2) the score is the sum of the log-
probabilities of the sentence's tokens, without normalization by length.

The confidence interval is that of Wilson (:mod:`headway.evaluation.wilson`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.errors import DataError
from headway.evaluation.bootstrap import Score
from headway.evaluation.wilson import wilson_interval
from headway.version import __version__


@dataclass(frozen=True)
class PairReport:
    """Accuracy on minimal pairs.

    Attributes:
        overall: The accuracy over all pairs, in percent. Each pair has the same weight.
        groups: The accuracy in each group, in the order in which the groups first occur.
        counts: The number of pairs in each group.
    """

    overall: Score
    groups: Mapping[str, Score]
    counts: Mapping[str, int]


def evaluate_pairs(
    good: Sequence[float], bad: Sequence[float], groups: Sequence[str] = (), *, precision: str | None = None
) -> PairReport:
    """Return the accuracy of a model on minimal pairs, with 95 % confidence intervals.

    Args:
        good: The score of the good text of each pair. Greater is better.
        bad: The score of the bad text of each pair.
        groups: The group of each pair, or an empty sequence.
        precision: Precision in which the scores were computed, for the signatures.

    Raises:
        DataError: There are no pairs, or the numbers of scores or groups differ.
    """
    if not len(good) == len(bad) == (len(groups) or len(good)):
        raise DataError(
            f"{len(good):,} good and {len(bad):,} bad texts and {len(groups):,} groups; expected one for each pair"
        )
    if not good:
        raise DataError("no pairs to score; expected at least one")
    right = [better > worse for better, worse in zip(good, bad, strict=True)]
    members: dict[str, list[bool]] = {}
    for group, correct in zip(groups, right, strict=False):
        members.setdefault(group, []).append(correct)
    setting = "" if precision is None else f"precision:{precision}|"
    return PairReport(
        _accuracy(right, setting),
        {group: _accuracy(correct, setting) for group, correct in members.items()},
        {group: len(correct) for group, correct in members.items()},
    )


def _accuracy(is_correct: Sequence[bool], setting: str) -> Score:
    """Return the share of True in percent with Wilson's interval. The signature contains ``setting``."""
    hits, total = sum(is_correct), len(is_correct)
    signature = f"n:{total}|ties:wrong|ci:wilson|{setting}version:headway-{__version__}"
    return Score("accuracy", 100 * hits / total, signature, *wilson_interval(hits, total))
