"""Accuracy on minimal pairs: a model should assign the higher probability to the good text of each pair.

A pair is correct if the good text has the higher score; a tie is wrong. In BLiMP (Warstadt et al. 2020, "BLiMP: The
Benchmark of Linguistic Minimal Pairs for English", section 4.2) the score is the sum of the token log-probabilities of
a sentence, without length normalization.

The confidence interval is Wilson's (:mod:`headway.evaluation.wilson`).
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
        overall: Accuracy over all pairs, in percent. All pairs have the same weight.
        groups: Accuracy per group, in the order of the groups' first occurrences.
        counts: Number of pairs per group.
    """

    overall: Score
    groups: Mapping[str, Score]
    counts: Mapping[str, int]


def evaluate_pairs(
    good: Sequence[float], bad: Sequence[float], groups: Sequence[str] = (), *, precision: str | None = None
) -> PairReport:
    """Return the accuracy of a model on minimal pairs, with 95 % confidence intervals.

    Args:
        good: Score of the good text of each pair. Higher is better.
        bad: Score of the bad text of each pair.
        groups: Group of each pair, or an empty sequence.
        precision: Precision in which the scores were computed, for the signatures.

    Raises:
        DataError: There are no pairs, or the numbers of scores or groups differ.
    """
    if not len(good) == len(bad) == (len(groups) or len(good)):
        raise DataError(
            f"{len(good):,} good and {len(bad):,} bad texts and {len(groups):,} groups; expected one of each per pair"
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
    """Return the share of True in percent, with Wilson's interval. ``setting`` is included in the signature."""
    hits, total = sum(is_correct), len(is_correct)
    signature = f"n:{total}|ties:wrong|ci:wilson|{setting}version:headway-{__version__}"
    return Score("accuracy", 100 * hits / total, signature, *wilson_interval(hits, total))
