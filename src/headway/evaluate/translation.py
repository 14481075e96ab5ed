"""Scores of translations: texts in, numbers with their signatures and confidence intervals out.

BLEU (Papineni et al., 2002), chrF (Popović, 2015) and TER (Snover et al., 2006) are computed by sacreBLEU (Post, 2018),
so that they compare with published scores; the signature says every setting that they depend on. Exact match and token
accuracy, defined below, are ours.

All of them are functions of a *sum over sentences*: of n-gram counts, of edits, of matches. So each metric here is
(1) a row of counts per sentence and (2) a function of the summed rows, and the bootstrap of
:mod:`headway.evaluate.bootstrap` draws its samples from the rows.

Sources: Papineni et al., "BLEU: a Method for Automatic Evaluation of Machine Translation", ACL 2002. Snover et al., "A
Study of Translation Edit Rate with Targeted Human Annotation", AMTA 2006. Popović, "chrF: character n-gram F-score for
automatic MT evaluation", WMT 2015. Post, "A Call for Clarity in Reporting BLEU Scores", WMT 2018. Koehn, "Statistical
Significance Tests for Machine Translation Evaluation", EMNLP 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.base import Metric as SacreBleuMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from headway import __version__
from headway.config import nearest
from headway.errors import ConfigError
from headway.evaluate.bootstrap import (
    DEFAULT_SEED,
    MIN_SAMPLES,
    Score,
    check_bootstrap,
    check_texts,
    draws,
    middle_95,
)

__all__ = [
    "METRICS",
    "Comparison",
    "bleu",
    "chrf",
    "evaluate",
    "exact_match",
    "paired_bootstrap",
    "sentence_chrf",
    "ter",
    "token_accuracy",
]

METRICS = ("bleu", "chrf", "ter", "exact_match", "token_accuracy")


@dataclass(frozen=True)
class Comparison:
    """How much better or worse one system is than another on the same test set.

    Attributes:
        name: The metric, as it is written in papers.
        delta: The score of the system minus that of the baseline (a gain where positive; for TER where negative).
        p_value: How often a difference at least as large, of either sign, would arise if the systems were equally good.
        low: Lower end of the 95 % bootstrap confidence interval of the difference.
        high: Upper end of it.
        signature: The settings that the numbers depend on.
    """

    name: str
    delta: float
    p_value: float
    low: float
    high: float
    signature: str

    def __str__(self) -> str:
        interval = f"[{self.low:+.1f}, {self.high:+.1f}]"
        return f"{self.name} {self.delta:+.1f} {interval} p={self.p_value:.3f} {self.signature}"


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    bootstrap: int = 0,
    lowercase: bool = False,
    seed: int = DEFAULT_SEED,
) -> Score:
    """BLEU: the geometric mean of the n-gram precisions, n = 1 to 4, times a penalty for brevity.

    BLEU = 100 · min(1, exp(1 - r/c)) · (p_1 p_2 p_3 p_4)^(1/4), with c and r the tokens of hypotheses and references
    and p_n the share of the hypotheses' n-grams that are in their references, each counted at most as often as there
    (Papineni et al., 2002, section 2.3). Tokens are those of mteval-v13a, case counts unless ``lowercase``, and a
    precision of zero is smoothed exponentially: sacreBLEU's defaults.

    Args:
        hypotheses: Detokenised translations.
        references: One reference for each.
        bootstrap: How many samples the confidence interval is drawn from; 0 for no interval.
        lowercase: Ignore case.
        seed: Of the bootstrap.
    """
    return _score(_SacreBleu("BLEU", BLEU(lowercase=lowercase)), hypotheses, references, bootstrap, seed)


def chrf(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    bootstrap: int = 0,
    lowercase: bool = False,
    word_order: int = 0,
    seed: int = DEFAULT_SEED,
) -> Score:
    """chrF2: the F-score of character n-grams, n = 1 to 6, recall counting twice as much as precision.

    chrF = 100 · (1 + β²) · P · R / (β² · P + R), β = 2, with P and R the mean precision and recall over the orders n;
    white space is left out (Popović, 2015). ``word_order=2`` adds n-grams of up to two words: chrF++ (Popović, 2017).

    Args:
        hypotheses: Detokenised translations.
        references: One reference for each.
        bootstrap: How many samples the confidence interval is drawn from; 0 for no interval.
        lowercase: Ignore case.
        word_order: The longest word n-grams to count; 0 for none.
        seed: Of the bootstrap.
    """
    metric = CHRF(lowercase=lowercase, word_order=word_order)
    return _score(_SacreBleu("chrF2" + "+" * word_order, metric), hypotheses, references, bootstrap, seed)


def ter(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    bootstrap: int = 0,
    lowercase: bool = True,
    seed: int = DEFAULT_SEED,
) -> Score:
    """TER: the edits that make the hypotheses equal to the references, per 100 words of those. Lower is better.

    An edit inserts, deletes or substitutes a word, or moves a run of words (Snover et al., 2006). Case is ignored by
    default, as in the original program and in sacreBLEU. Slow: the moves are searched for in Python.

    Args:
        hypotheses: Detokenised translations.
        references: One reference for each.
        bootstrap: How many samples the confidence interval is drawn from; 0 for no interval.
        lowercase: Ignore case.
        seed: Of the bootstrap.
    """
    return _score(_SacreBleu("TER", TER(case_sensitive=not lowercase)), hypotheses, references, bootstrap, seed)


def exact_match(
    hypotheses: Sequence[str], references: Sequence[str], *, bootstrap: int = 0, seed: int = DEFAULT_SEED
) -> Score:
    """Exact match: the percentage of hypotheses that equal their reference, character for character.

    Args:
        hypotheses: The outputs.
        references: One reference for each.
        bootstrap: How many samples the confidence interval is drawn from; 0 for no interval.
        seed: Of the bootstrap.
    """
    return _score(_metric("exact_match"), hypotheses, references, bootstrap, seed)


def token_accuracy(
    hypotheses: Sequence[str], references: Sequence[str], *, bootstrap: int = 0, seed: int = DEFAULT_SEED
) -> Score:
    """Token accuracy: the percentage of positions at which hypothesis and reference have the same token.

    Tokens are what white space separates. A pair has as many positions as the longer of the two has tokens, so a token
    too many or too few is an error, and one dropped early shifts all that follow. Accuracy = 100 · Σ matches /
    Σ positions over the test set; where there are no positions at all (every text blank) it is 100.

    Args:
        hypotheses: The outputs.
        references: One reference for each.
        bootstrap: How many samples the confidence interval is drawn from; 0 for no interval.
        seed: Of the bootstrap.
    """
    return _score(_metric("token_accuracy"), hypotheses, references, bootstrap, seed)


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    metrics: Sequence[str] = ("bleu", "chrf"),
    bootstrap: int = 1000,
    seed: int = DEFAULT_SEED,
) -> list[Score]:
    """Score ``hypotheses`` by each of ``metrics`` (names from :data:`METRICS`), with confidence intervals.

    Raises:
        ConfigError: A metric is unknown, or ``bootstrap`` too small.
        DataError: There are no sentences, or not one reference for each hypothesis.
    """
    chosen = [_metric(name) for name in metrics]
    return [_score(metric, hypotheses, references, bootstrap, seed) for metric in chosen]


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    *,
    metric: str = "bleu",
    samples: int = 1000,
    seed: int = DEFAULT_SEED,
) -> Comparison:
    """Is ``system`` better than ``baseline``? Both are scored on the same pseudo test sets (Koehn, 2004, section 4).

    With d the differences on the samples, the interval is the middle 95 % of d. The p-value is two-sided: the share of
    samples with abs(d - mean d) >= abs(delta), as d centred at zero shows what chance alone would do (Efron and
    Tibshirani, 1993, chapter 16), plus one in numerator and denominator. sacreBLEU takes the absolute value before it
    centres, which counts one tail only (about half of our p-value) and calls two equal systems different at p = 1/1001;
    here they get p = 1.

    Args:
        baseline: The translations to beat.
        system: Those of the other system.
        references: One reference for each sentence.
        metric: A name from :data:`METRICS`.
        samples: How many pseudo test sets are drawn.
        seed: Of the draws.
    """
    chosen = _metric(metric)
    if samples < MIN_SAMPLES:
        raise ConfigError(f"samples = {samples}: expected at least {MIN_SAMPLES}, better 1000")
    check_texts(baseline, references, "baseline translations")
    check_texts(system, references, "translations")
    counts = [chosen.counts(texts, references) for texts in (baseline, system)]
    before, after = (chosen.value(rows.sum(axis=0)) for rows in counts)
    delta = after - before
    sampled = [[chosen.value(weights @ rows) for rows in counts] for weights in draws(len(references), samples, seed)]
    differences = np.array([after - before for before, after in sampled])
    as_far = np.abs(differences - differences.mean()) >= abs(delta)
    low, high = middle_95(differences)
    p_value = (int(as_far.sum()) + 1) / (samples + 1)
    return Comparison(chosen.name, delta, p_value, low, high, chosen.signature(samples, seed))


def sentence_chrf(hypothesis: str, reference: str) -> float:
    """chrF2 of one sentence against another, 0 to 100: how much two texts agree; see :func:`chrf`."""
    return float(CHRF().sentence_score(hypothesis, [reference]).score)


class _SacreBleu:
    """A metric of sacreBLEU. The two halves that we need have private names there; tests compare the results."""

    def __init__(self, name: str, metric: SacreBleuMetric) -> None:
        self.name = name
        self._metric = metric

    def counts(self, hypotheses: Sequence[str], references: Sequence[str]) -> Float[np.ndarray, "N C"]:
        return np.array(self._metric._extract_corpus_statistics(hypotheses, [references]), dtype=np.float64)

    def value(self, counts: Float[np.ndarray, " C"]) -> float:
        return float(self._metric._compute_score_from_stats(counts.tolist()).score)

    def signature(self, samples: int, seed: int) -> str:
        signature = self._metric.get_signature()
        if samples:
            signature.update("bs", samples)
            signature.update("seed", seed)
        return signature.format()


class _Ratio:
    """100 times the sum of one count over the sum of another."""

    def __init__(self, name: str, count: Callable[[str, str], tuple[int, int]], setting: str) -> None:
        self.name = name
        self._count = count
        self._setting = setting

    def counts(self, hypotheses: Sequence[str], references: Sequence[str]) -> Float[np.ndarray, "N C"]:
        return np.array([self._count(*pair) for pair in zip(hypotheses, references, strict=True)], dtype=np.float64)

    def value(self, counts: Float[np.ndarray, " C"]) -> float:
        hits, of = counts.tolist()
        return 100 * hits / of if of else 100.0

    def signature(self, samples: int, seed: int) -> str:
        drawn = f"bs:{samples}|seed:{seed}|" if samples else ""
        return f"nrefs:1|{drawn}case:mixed|{self._setting}|version:headway-{__version__}"


_Metric = _SacreBleu | _Ratio  # a score that is a function of counts summed over sentences


def _metric(name: str) -> _Metric:
    match name:
        case "bleu":
            return _SacreBleu("BLEU", BLEU())
        case "chrf":
            return _SacreBleu("chrF2", CHRF())
        case "ter":
            return _SacreBleu("TER", TER())
        case "exact_match":
            return _Ratio("exact match", lambda hypothesis, reference: (hypothesis == reference, 1), "tok:none")
        case "token_accuracy":
            return _Ratio("token accuracy", _same_positions, "tok:whitespace")
    raise ConfigError(f"unknown metric {name!r}; {nearest(name, METRICS)}")


def _same_positions(hypothesis: str, reference: str) -> tuple[int, int]:
    ours, theirs = hypothesis.split(), reference.split()
    return sum(a == b for a, b in zip(ours, theirs, strict=False)), max(len(ours), len(theirs))


def _score(metric: _Metric, hypotheses: Sequence[str], references: Sequence[str], bootstrap: int, seed: int) -> Score:
    check_bootstrap(bootstrap)
    check_texts(hypotheses, references, "hypotheses")
    counts = metric.counts(hypotheses, references)
    value = metric.value(counts.sum(axis=0))
    low = high = None
    if bootstrap:
        sampled = [metric.value(weights @ counts) for weights in draws(len(references), bootstrap, seed)]
        low, high = middle_95(np.array(sampled))
    return Score(metric.name, value, metric.signature(bootstrap, seed), low, high)
