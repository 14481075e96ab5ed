"""Test whether the difference between two systems on the same test set is statistically significant.

Paired bootstrap (Koehn, "Statistical Significance Tests for Machine Translation Evaluation", EMNLP 2004, section 4)
    Both systems are scored on test sets drawn from the sentences with replacement. Let d be the score differences on
    these test sets, and delta the difference on the original test set. The confidence interval is the middle 95 % of d.
    The p-value is the share of draws with |d - mean(d)| >= |delta|, because d centered at zero shows how much the
    difference varies by chance (Efron and Tibshirani, 1993, chapter 16).
Approximate randomization (Riezler and Maxwell, "On Some Pitfalls in Automatic Evaluation and Significance Testing for
MT", ACL 2005 workshop)
    If the systems are equally good, their outputs for a sentence are exchangeable. Each trial swaps the outputs for
    each sentence with probability 1/2. The p-value is the share of trials with an absolute difference of at least
    |delta|.
McNemar's test (McNemar, 1947), for labels
    If two classifiers are equally good, each is expected to be correct on half of the texts that exactly one of them
    labels correctly. The p-value is the exact two-sided binomial probability.

With fewer than 10 sentences (texts, documents), no tests are performed, because with a single sentence the bootstrap
would find every difference significant. All p-values are two-sided. Both simulations add one to numerator and
denominator.

sacreBLEU implements the first two tests, but Headway does not use them, for three reasons. First, sacreBLEU reports p =
1/(samples + 1) for two identical systems, as if they were significantly different: its randomization counts only
differences strictly greater than the observed one, and its bootstrap takes absolute values before centering. Here,
identical systems get p = 1. Second, sacreBLEU returns a confidence interval for the score of each system, but not for
the difference. Third, it does not support exact match, token accuracy or labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float

from headway.errors import ConfigError, DataError
from headway.evaluation.bootstrap import (
    DEFAULT_SEED,
    MIN_SAMPLES,
    bootstrap_counts,
    check_texts,
    interval_95,
    too_few_reason,
)
from headway.evaluation.tokenization import DEFAULT_TOKENIZATION, Tokenization
from headway.evaluation.translation import Metric, find_metric, sentence_chrf
from headway.notebook_html import join_fragments, paragraph, table, text
from headway.version import __version__

_Counts = Float[np.ndarray, "N C"]
_Value = Callable[[Float[np.ndarray, " C"]], float]


@dataclass(frozen=True)
class Comparison:
    """The difference between two systems on the same test set.

    Attributes:
        name: Name of the metric, as used in papers.
        delta: Score of the system minus score of the baseline. Positive is better, except for TER.
        p_value: Probability of a difference at least as large, with either sign, if the systems were equally good.
            ``p_value``, ``low`` and ``high`` are None if there are fewer than 10 sentences.
        low: Lower end of the 95 % bootstrap confidence interval of the difference.
        high: Upper end of the interval.
        signature: The settings that the numbers depend on.
    """

    name: str
    delta: float
    p_value: float | None
    low: float | None
    high: float | None
    signature: str

    def __str__(self) -> str:
        if self.p_value is None:
            return f"{self.name} {self.delta:+.1f} (no test: too few sentences) {self.signature}"
        interval = f"[{self.low:+.1f}, {self.high:+.1f}]"
        return f"{self.name} {self.delta:+.1f} {interval} p={self.p_value:.3f} {self.signature}"


@dataclass(frozen=True)
class ComparisonRow:
    """Comparison of a system with the baseline by one metric.

    Attributes:
        system: Name of the system.
        metric: Name of the metric, as used in papers.
        value: Score of the system.
        delta: Score minus the baseline's score; None for the baseline itself.
        low: Lower end of the 95 % bootstrap confidence interval of ``delta``; None for the baseline and without tests.
        high: Upper end of the interval.
        p_values: p-value of each test: "bootstrap" and "randomization", or "bootstrap" and "mcnemar" for labels. None
            for the baseline and without tests (:attr:`ComparisonTable.no_tests_reason`).
        signature: The settings that the numbers depend on.
    """

    system: str
    metric: str
    value: float
    signature: str
    delta: float | None = None
    low: float | None = None
    high: float | None = None
    p_values: Mapping[str, float] | None = None


@dataclass(frozen=True)
class OutputDifference:
    """A sentence for which the systems' outputs differ.

    Attributes:
        number: Number of the sentence, counted from 1.
        reference: Reference translation or true label.
        outputs: Output of each system, in the order of :attr:`ComparisonTable.systems`.
        scores: Sentence-level chrF2 of each output; for labels, 100 if the label is correct, otherwise 0.
    """

    number: int
    reference: str
    outputs: tuple[str, ...]
    scores: tuple[float, ...]

    @property
    def spread(self) -> float:
        """Difference between the best and the worst score."""
        return max(self.scores) - min(self.scores)


@dataclass(frozen=True)
class ComparisonTable:
    """Comparison of several systems on the same test set.

    Attributes:
        systems: Names of the systems. The first one is the baseline.
        rows: One row per metric and system, grouped by metric.
        differences: Sentences for which the systems differ most, largest spread first.
        decimals: Number of decimals to print for scores.
        no_tests_reason: The reason why there are no intervals and p-values, or None if there are.
    """

    systems: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    differences: tuple[OutputDifference, ...]
    decimals: int = 2
    no_tests_reason: str | None = None

    def cells(self) -> list[list[str]]:
        """Return the texts of all table cells, row by row. The first row contains the headings."""
        tests = list(next((row.p_values for row in self.rows if row.p_values is not None), ()))
        cells = [["system", "metric", "score", "difference [95 %]", *(f"p ({test})" for test in tests)]]
        for row in self.rows:
            signed = f"+.{self.decimals}f"
            delta = "baseline" if row.delta is None else f"{row.delta:{signed}}"
            delta += "" if row.low is None else f" [{row.low:{signed}}, {row.high:{signed}}]"
            p_values = [f"{row.p_values[test]:.4f}" if row.p_values else "" for test in tests]
            cells.append([row.system, row.metric, f"{row.value:.{self.decimals}f}", delta, *p_values])
        return cells

    def __repr__(self) -> str:
        _, *rows = self.cells()
        shown = (" ".join(row[:4]) for row in rows if row[3] != "baseline")
        return f"<ComparisonTable with {self.systems[0]}: {'; '.join(shown)}>"

    def _repr_html_(self) -> str:
        header, *rows = self.cells()
        parts = [table(header, rows, numbers=range(2, len(header)))]
        if self.no_tests_reason:
            parts.append(paragraph(escape(f"no intervals and no tests: {self.no_tests_reason}"), note=True))
        for difference in self.differences:
            parts.append(paragraph(f"{difference.number:,}: {text(difference.reference)}"))
            outputs = zip(
                self.systems, (f"{score:.1f}" for score in difference.scores), difference.outputs, strict=True
            )
            parts.append(table((), outputs, numbers=(1,)))
        return join_fragments(*parts)


def compare_translations(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    *,
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    tokenization: Tokenization = DEFAULT_TOKENIZATION,
    samples: int = 1000,
    trials: int = 10_000,
    seed: int = DEFAULT_SEED,
    max_differences: int = 10,
) -> ComparisonTable:
    """Compare translations of two or more systems, with paired bootstrap and approximate randomization.

    Args:
        systems: The translations of each system, by system name. The first system is the baseline.
        references: One reference for each sentence.
        metrics: Names from :data:`~headway.evaluation.METRICS`.
        tokenization: The tokenization of BLEU and TER; see :func:`~headway.evaluation.tokenization_for`.
        samples: Number of bootstrap samples.
        trials: Number of trials of approximate randomization.
        seed: Random seed of bootstrap and randomization.
        max_differences: Maximum number of sentences in :attr:`ComparisonTable.differences`.

    Raises:
        ConfigError: Fewer than two systems, an unknown metric, or too few samples or trials.
        DataError: A system does not have one translation for each reference.
    """
    _check_tests(len(systems), samples, trials)
    names = _check_systems(systems, references)
    rows: list[ComparisonRow] = []
    few = too_few_reason(len(references), "sentence")
    for metric in (find_metric(name, tokenization) for name in metrics):
        baseline, *others = [metric.counts(systems[name], references) for name in names]
        first = metric.value(baseline.sum(axis=0))
        rows.append(ComparisonRow(names[0], metric.name, first, metric.signature(0, seed)))
        signature = metric.signature(samples, seed, trials)
        for name, counts in zip(names[1:], others, strict=True):
            value = metric.value(counts.sum(axis=0))
            if few:
                rows.append(ComparisonRow(name, metric.name, value, metric.signature(0, seed), value - first))
                continue
            p_value, low, high = _bootstrap(baseline, counts, metric.value, samples, seed)
            swapped = _randomization(baseline, counts, metric.value, trials, seed)
            p_values = {"bootstrap": p_value, "randomization": swapped}
            rows.append(ComparisonRow(name, metric.name, value, signature, value - first, low, high, p_values))
    differences = _most_different(systems, references, sentence_chrf, max_differences)
    return ComparisonTable(names, tuple(rows), differences, no_tests_reason=few)


def compare_labels(
    systems: Mapping[str, Sequence[str]],
    truth: Sequence[str],
    *,
    samples: int = 1000,
    seed: int = DEFAULT_SEED,
    max_differences: int = 10,
) -> ComparisonTable:
    """Compare the accuracy of two or more classifiers, with paired bootstrap and McNemar's test.

    Args:
        systems: The predicted labels of each system, by system name. The first system is the baseline.
        truth: The true label of each text.
        samples: Number of bootstrap samples.
        seed: Random seed of the bootstrap.
        max_differences: Maximum number of texts in :attr:`ComparisonTable.differences`.

    Raises:
        ConfigError: Fewer than two systems, or too few samples.
        DataError: A system does not have one label for each text.
    """
    _check_tests(len(systems), samples, MIN_SAMPLES)
    names = _check_systems(systems, truth)
    baseline, *others = [[a == b for a, b in zip(systems[name], truth, strict=True)] for name in names]
    start, end = f"n:{len(truth)}|", f"version:headway-{__version__}"
    rows = [ComparisonRow(names[0], "accuracy", 100 * sum(baseline) / len(truth), start + end)]
    signature, few = f"{start}bs:{samples}|seed:{seed}|mcnemar:exact|{end}", too_few_reason(len(truth), "text")
    for name, right in zip(names[1:], others, strict=True):
        value, delta = 100 * sum(right) / len(truth), 100 * (sum(right) - sum(baseline)) / len(truth)
        if few:
            rows.append(ComparisonRow(name, "accuracy", value, start + end, delta))
            continue
        before, after = (np.array(outcomes, np.float64)[:, None] for outcomes in (baseline, right))
        p_value, low, high = _bootstrap(before, after, lambda sums: 100 * float(sums[0]) / len(truth), samples, seed)
        p_values = {"bootstrap": p_value, "mcnemar": mcnemar(baseline, right)}
        rows.append(ComparisonRow(name, "accuracy", value, signature, delta, low, high, p_values))
    differ = _most_different(systems, truth, lambda label, true: 100.0 * (label == true), max_differences)
    return ComparisonTable(names, tuple(rows), differ, no_tests_reason=few)


def compare_language_models(
    systems: Mapping[str, Sequence[float]],
    sizes: Sequence[int],
    signatures: Mapping[str, str],
    *,
    samples: int = 1000,
    trials: int = 10_000,
    seed: int = DEFAULT_SEED,
) -> ComparisonTable:
    """Compare bits per byte of two or more language models, with paired bootstrap and approximate randomization.

    The documents are the units of both tests. Lower is better.

    Args:
        systems: Log-probability of each document under each model, in nats, by model name. The first model is the
            baseline.
        sizes: Size of each document in bytes.
        signatures: The settings on which each model's log-probabilities depend.
        samples: Number of bootstrap samples.
        trials: Number of trials of approximate randomization.
        seed: Random seed of bootstrap and randomization.

    Raises:
        ConfigError: Fewer than two models, or too few samples or trials.
        DataError: There are fewer than two documents, or a model does not have one log-probability per document.
    """
    _check_tests(len(systems), samples, trials)
    if len(sizes) < 2:
        raise DataError(f"{len(sizes)} documents: expected at least two, because documents are the units of the tests")
    if wrong := [name for name, values in systems.items() if len(values) != len(sizes)]:
        raise DataError(f"{wrong[0]}: {len(systems[wrong[0]]):,} log-probabilities for {len(sizes):,} documents")

    def value(sums: Float[np.ndarray, " C"]) -> float:
        return float(-sums[0] / math.log(2) / sums[1])

    names, rows = tuple(systems), list[ComparisonRow]()
    baseline, *others = [np.stack([values, sizes], 1).astype(np.float64) for values in systems.values()]
    first, name = value(baseline.sum(axis=0)), "bits per byte"
    rows.append(ComparisonRow(names[0], name, first, signatures[names[0]]))
    few = too_few_reason(len(sizes), "document")
    for system, counts in zip(names[1:], others, strict=True):
        after = value(counts.sum(axis=0))
        if few:
            signature = f"n:{len(sizes)}|{signatures[system]}"
            rows.append(ComparisonRow(system, name, after, signature, after - first))
            continue
        p_value, low, high = _bootstrap(baseline, counts, value, samples, seed)
        swapped = _randomization(baseline, counts, value, trials, seed)
        signature = f"n:{len(sizes)}|bs:{samples}|ar:{trials}|seed:{seed}|{signatures[system]}"
        p_values = {"bootstrap": p_value, "randomization": swapped}
        rows.append(ComparisonRow(system, name, after, signature, after - first, low, high, p_values))
    return ComparisonTable(names, tuple(rows), (), decimals=4, no_tests_reason=few)


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    *,
    metric: str = "bleu",
    tokenization: Tokenization = DEFAULT_TOKENIZATION,
    samples: int = 1000,
    seed: int = DEFAULT_SEED,
) -> Comparison:
    """Compare two systems with paired bootstrap; see the module docstring.

    Args:
        baseline: The translations of the baseline.
        system: The translations of the other system.
        references: One reference for each sentence.
        metric: A name from :data:`~headway.evaluation.METRICS`.
        tokenization: The tokenization of BLEU and TER; see :func:`~headway.evaluation.tokenization_for`.
        samples: Number of bootstrap samples.
        seed: Random seed.
    """
    chosen = find_metric(metric, tokenization)
    _check_samples(samples)
    counts = _paired_counts(chosen, baseline, system, references)
    before, after = (chosen.value(rows.sum(axis=0)) for rows in counts)
    if too_few_reason(len(references), "sentence"):
        return Comparison(chosen.name, after - before, None, None, None, chosen.signature(0, seed))
    p_value, low, high = _bootstrap(*counts, chosen.value, samples, seed)
    return Comparison(chosen.name, after - before, p_value, low, high, chosen.signature(samples, seed))


def paired_randomization(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    *,
    metric: str = "bleu",
    tokenization: Tokenization = DEFAULT_TOKENIZATION,
    trials: int = 10_000,
    seed: int = DEFAULT_SEED,
) -> float | None:
    """Return the two-sided p-value of approximate randomization, or None if there are fewer than 10 sentences.

    Args:
        baseline: The translations of the baseline.
        system: The translations of the other system.
        references: One reference for each sentence.
        metric: A name from :data:`~headway.evaluation.METRICS`.
        tokenization: The tokenization of BLEU and TER; see :func:`~headway.evaluation.tokenization_for`.
        trials: Number of trials, each of which randomly swaps outputs.
        seed: Random seed.
    """
    chosen = find_metric(metric, tokenization)
    counts = _paired_counts(chosen, baseline, system, references)
    if too_few_reason(len(references), "sentence"):
        return None
    return _randomization(*counts, chosen.value, trials, seed)


def _paired_counts(
    metric: Metric, baseline: Sequence[str], system: Sequence[str], references: Sequence[str]
) -> tuple[_Counts, _Counts]:
    check_texts(baseline, references, "baseline translations")
    check_texts(system, references, "translations")
    return metric.counts(baseline, references), metric.counts(system, references)


def mcnemar(baseline: Sequence[bool], system: Sequence[bool]) -> float:
    """Return the exact two-sided p-value of McNemar's test.

    Let b be the number of texts that only the baseline labels correctly, and c the number that only the system labels
    correctly. The p-value is min(1, 2 P(X <= min(b, c))), where X is binomially distributed with b + c trials and
    probability 1/2.

    Args:
        baseline: Whether the baseline labels each text correctly.
        system: Whether the other system labels each text correctly.
    """
    only_baseline = sum(a and not b for a, b in zip(baseline, system, strict=True))
    only_system = sum(b and not a for a, b in zip(baseline, system, strict=True))
    n, fewer = only_baseline + only_system, min(only_baseline, only_system)
    tail = sum(math.comb(n, k) for k in range(fewer + 1))
    p_value: float = 2 * tail / (1 << n)  # Python integers do not overflow
    return min(1.0, p_value)


def _check_tests(num_systems: int, samples: int, trials: int) -> None:
    if num_systems < 2:
        raise ConfigError(f"{num_systems} systems: expected at least two systems to compare")
    _check_samples(samples)
    if trials < MIN_SAMPLES:
        raise ConfigError(f"trials = {trials}: expected at least {MIN_SAMPLES}; 10000 is common")


def _check_systems(systems: Mapping[str, Sequence[str]], references: Sequence[str]) -> tuple[str, ...]:
    for name, outputs in systems.items():
        try:
            check_texts(outputs, references, "outputs")
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
    return tuple(systems)


def _check_samples(samples: int) -> None:
    if samples < MIN_SAMPLES:
        raise ConfigError(f"samples = {samples}: expected at least {MIN_SAMPLES}, better 1000")


def _bootstrap(
    baseline: _Counts, system: _Counts, value: _Value, samples: int, seed: int
) -> tuple[float, float, float]:
    """Return the p-value and the confidence interval of the difference."""
    delta = value(system.sum(axis=0)) - value(baseline.sum(axis=0))
    weighted = bootstrap_counts(len(system), samples, seed)
    deltas = np.array([value(weights @ system) - value(weights @ baseline) for weights in weighted])
    as_far = np.abs(deltas - deltas.mean()) >= abs(delta)
    return (int(as_far.sum()) + 1) / (samples + 1), *interval_95(deltas)


def _randomization(baseline: _Counts, system: _Counts, value: _Value, trials: int, seed: int) -> float:
    total, change = baseline.sum(axis=0) + system.sum(axis=0), system - baseline
    start = baseline.sum(axis=0)
    delta = abs(value(total - start) - value(start))
    generator = np.random.default_rng(seed)
    as_far = 0
    for _ in range(trials):
        swapped = start + generator.integers(2, size=len(change)) @ change
        # Sums of counts are exact, so equal assignments give equal differences. Swapping all sentences changes only the
        # sign. The tolerance of 1e-9 allows for rounding.
        as_far += abs(value(total - swapped) - value(swapped)) >= delta - 1e-9
    return (as_far + 1) / (trials + 1)


def _most_different(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], score: Callable[[str, str], float], count: int
) -> tuple[OutputDifference, ...]:
    differences = []
    for number, (reference, *texts) in enumerate(zip(references, *systems.values(), strict=True), start=1):
        if len(set(texts)) > 1:
            # equal texts are scored only once, because chrF is slow
            scores = {text: score(text, reference) for text in set(texts)}
            differences.append(OutputDifference(number, reference, tuple(texts), tuple(scores[text] for text in texts)))
    differences.sort(key=lambda difference: -difference.spread)
    return tuple(differences[:count])
