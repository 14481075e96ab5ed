"""Scores with confidence intervals.

A metric consists of (1) a row of counts for each example and (2) a function of the summed rows. The bootstrap (Koehn,
"Statistical Significance Tests for Machine Translation Evaluation", EMNLP 2004) scores test sets drawn from the
examples with replacement. Each row is weighted by how often its example was drawn, so the counts are computed only
once. With the same seed, the drawn test sets equal those of sacreBLEU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from headway.errors import ConfigError, DataError
from headway.notebook_html import page, table

DEFAULT_SEED = 12345  # the default of sacreBLEU
MIN_SAMPLES = 40  # with fewer samples, none lies outside the middle 95 %
MIN_EXAMPLES = 10  # with fewer examples, intervals are far too narrow (one example gives an interval of width 0)


@dataclass(frozen=True)
class Score:
    """A score of a whole test set.

    Attributes:
        name: The metric, as it is written in papers.
        value: The score, from 0 to 100. Lower is better for TER, which may exceed 100, and for the calibration error.
        signature: The settings that the value depends on, as ``key:value|key:value``.
        low: Lower end of the 95 % confidence interval: that of the bootstrap, or that of Wilson if the score is a rate.
            None if there is no interval.
        high: Upper end of the interval.
        no_interval: Why there is no interval although one was asked for, otherwise None.
    """

    name: str
    value: float
    signature: str
    low: float | None = None
    high: float | None = None
    no_interval: str | None = None

    @property
    def shown_interval(self) -> str:
        """The interval as text, such as "[34.1, 36.2]", or why there is none; empty if none was requested."""
        if self.no_interval is not None:
            return f"(no interval: {self.no_interval})"
        return "" if self.low is None or self.high is None else f"[{self.low:.1f}, {self.high:.1f}]"

    def __str__(self) -> str:
        return " ".join(filter(None, [f"{self.name} {self.value:.1f}", self.shown_interval, self.signature]))

    def __repr__(self) -> str:
        return f"<Score: {' '.join(filter(None, [f'{self.name} {self.value:.1f}', self.shown_interval]))}>"

    def _repr_html_(self) -> str:
        return page(scores_table([self]))


def scores_table(scores: Iterable[Score]) -> str:
    """Return scores as an HTML table for notebooks."""
    rows = [(score.name, f"{score.value:.1f}", score.shown_interval, score.signature) for score in scores]
    return table(("metric", "score", "95 % interval", "signature"), rows, numbers=(1,))


def check_bootstrap(num_samples: int) -> None:
    """Raise ConfigError if there are too few samples for an interval."""
    if num_samples != 0 and num_samples < MIN_SAMPLES:
        raise ConfigError(f"bootstrap = {num_samples}: expected 0 (no interval) or at least {MIN_SAMPLES}, better 1000")


def too_few_reason(num_examples: int, noun: str) -> str | None:
    """Return why there are no intervals and p-values for so few examples, or None if there are enough."""
    if num_examples >= MIN_EXAMPLES:
        return None
    return f"{num_examples} {noun}{'' if num_examples == 1 else 's'}, at least {MIN_EXAMPLES} are needed"


def bootstrap_interval(values: Float[np.ndarray, " N"]) -> tuple[float | None, float | None, str | None]:
    """Return the ends of the interval of bootstrapped scores and None, or twice None and why there is no interval."""
    low, high = interval_95(values)
    if low == high:
        return None, None, "all samples of the bootstrap have the same score"
    return low, high, None


def check_texts(hypotheses: Sequence[str], references: Sequence[str], name: str) -> None:
    """Raise DataError unless there is one reference for each hypothesis; ``name`` names the hypotheses in messages."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise DataError(f"{name} and references: got one string; expected a list of strings, one for each sentence")
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses):,} {name} but {len(references):,} references; expected one reference for each: "
            "check that both come from the same test set, line by line"
        )
    if not references:
        raise DataError(f"no {name} to score; expected at least one sentence")


def bootstrap_counts(num_sentences: int, num_samples: int, seed: int) -> Iterator[Int[np.ndarray, " N"]]:
    """Yield, for each sample, how often each sentence is drawn. Memory does not grow with ``num_samples``."""
    generator = np.random.default_rng(seed)
    for _ in range(num_samples):
        yield np.bincount(generator.integers(num_sentences, size=num_sentences), minlength=num_sentences)


def interval_95(values: Float[np.ndarray, " N"]) -> tuple[float, float]:
    """Return the smallest and the largest value after removing one in 40 at each end."""
    ordered = np.sort(values)
    cut = len(ordered) // 40
    return float(ordered[cut]), float(ordered[-1 - cut])
