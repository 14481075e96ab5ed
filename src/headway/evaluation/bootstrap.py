"""Scores with confidence intervals.

A metric consists of (1) a row of counts per example and (2) a function of the summed rows. The bootstrap (Koehn,
"Statistical Significance Tests for Machine Translation Evaluation", EMNLP 2004) scores test sets drawn from the
examples with replacement. Each row is weighted by the number of times its example was drawn, so the counts are computed
only once. With the same seed, sacreBLEU draws the same test sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from headway.errors import ConfigError, DataError
from headway.notebook_html import join_fragments, table

DEFAULT_SEED = 12345  # sacreBLEU's default
MIN_SAMPLES = 40  # with fewer samples, no sample is outside the middle 95 %
MIN_EXAMPLES = 10  # with fewer examples, intervals are far too narrow (with one example, the width is 0)


@dataclass(frozen=True)
class Score:
    """A corpus-level score of a test set.

    Attributes:
        name: Name of the metric, as used in papers.
        value: The score, from 0 to 100 (TER may exceed 100). Lower is better for TER and for the calibration error.
        signature: The settings on which the value depends, as ``key:value|key:value``.
        low: Lower end of the 95 % confidence interval: a bootstrap interval or, if the score is a rate, Wilson's
            interval. None if there is no interval.
        high: Upper end of the interval.
        no_interval_reason: The reason why there is no interval although one was requested, otherwise None.
    """

    name: str
    value: float
    signature: str
    low: float | None = None
    high: float | None = None
    no_interval_reason: str | None = None

    @property
    def shown_interval(self) -> str:
        """The interval as text, such as "[34.1, 36.2]", or the reason for its absence. Empty if none was requested."""
        if self.no_interval_reason is not None:
            return f"(no interval: {self.no_interval_reason})"
        return "" if self.low is None or self.high is None else f"[{self.low:.1f}, {self.high:.1f}]"

    def __str__(self) -> str:
        return " ".join(filter(None, [f"{self.name} {self.value:.1f}", self.shown_interval, self.signature]))

    def __repr__(self) -> str:
        return f"<Score: {' '.join(filter(None, [f'{self.name} {self.value:.1f}', self.shown_interval]))}>"

    def _repr_html_(self) -> str:
        return join_fragments(scores_table([self]))


def scores_table(scores: Iterable[Score]) -> str:
    """Return the scores as an HTML table for notebooks."""
    rows = [(score.name, f"{score.value:.1f}", score.shown_interval, score.signature) for score in scores]
    return table(("metric", "score", "95 % interval", "signature"), rows, numbers=(1,))


def check_bootstrap(num_samples: int) -> None:
    """Raise ConfigError if ``num_samples`` is too small for an interval."""
    if num_samples != 0 and num_samples < MIN_SAMPLES:
        raise ConfigError(f"bootstrap = {num_samples}: expected 0 (no interval) or at least {MIN_SAMPLES}, better 1000")


def too_few_reason(num_examples: int, noun: str) -> str | None:
    """Return a reason if there are too few examples for intervals and p-values, otherwise None."""
    if num_examples >= MIN_EXAMPLES:
        return None
    return f"{num_examples} {noun}{'' if num_examples == 1 else 's'}, but at least {MIN_EXAMPLES} are needed"


def bootstrap_interval(values: Float[np.ndarray, " N"]) -> tuple[float | None, float | None, str | None]:
    """Return (low, high, None) for the interval of bootstrapped scores, or (None, None, reason) without an interval."""
    low, high = interval_95(values)
    if low == high:
        return None, None, "all bootstrap samples have the same score"
    return low, high, None


def check_texts(hypotheses: Sequence[str], references: Sequence[str], name: str) -> None:
    """Raise DataError unless there is one reference per hypothesis. ``name`` describes the hypotheses in messages."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise DataError(f"{name} and references: got a single string; expected a list of strings, one per sentence")
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses):,} {name} but {len(references):,} references; expected one reference for each; check "
            "that both are from the same test set, in the same order"
        )
    if not references:
        raise DataError(f"no {name} to score; expected at least one sentence")


def bootstrap_counts(num_sentences: int, num_samples: int, seed: int) -> Iterator[Int[np.ndarray, " N"]]:
    """Yield the number of times that each sentence is drawn, for one sample after the other."""
    generator = np.random.default_rng(seed)
    for _ in range(num_samples):
        yield np.bincount(generator.integers(num_sentences, size=num_sentences), minlength=num_sentences)


def interval_95(values: Float[np.ndarray, " N"]) -> tuple[float, float]:
    """Return the smallest and the largest value after removing 1/40 of the values at each end."""
    ordered = np.sort(values)
    cut = len(ordered) // 40
    return float(ordered[cut]), float(ordered[-1 - cut])
