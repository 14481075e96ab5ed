"""Translation metrics, with signatures and confidence intervals.

BLEU (Papineni et al., 2002), chrF (Popović, 2015) and TER (Snover et al., 2006) are computed by sacreBLEU (Post, 2018),
so that they can be compared with published scores. The signature lists every setting on which a score depends. Exact
match and token accuracy are Headway's own metrics, defined below.

Each metric is a function of a *sum over sentences* (of n-gram counts, edits or matches). A metric is therefore
implemented as (1) a row of counts per sentence and (2) a function of the summed rows, and
:mod:`headway.evaluation.bootstrap` resamples the rows.

Sources: Papineni et al., "BLEU: a Method for Automatic Evaluation of Machine Translation", ACL 2002. Snover et al., "A
Study of Translation Edit Rate with Targeted Human Annotation", AMTA 2006. Popović, "chrF: character n-gram F-score for
automatic MT evaluation", WMT 2015. Post, "A Call for Clarity in Reporting BLEU Scores", WMT 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.base import Metric as SacreBleuMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from headway.config import spelling_hint
from headway.errors import ConfigError
from headway.evaluation.bootstrap import (
    DEFAULT_SEED,
    Score,
    bootstrap_counts,
    bootstrap_interval,
    check_bootstrap,
    check_texts,
    too_few_reason,
)
from headway.evaluation.tokenization import (
    DEFAULT_TOKENIZATION,
    Tokenization,
    check_tokenization,
    splits_characters,
)
from headway.evaluation.wilson import wilson_interval
from headway.version import __version__

_MIN_SHARE_WITH_FOUR_TOKENS = 0.1  # BLEU is meaningless if a smaller share of references has four tokens
METRICS = ("bleu", "chrf", "ter", "exact_match", "token_accuracy")


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    bootstrap: int = 0,
    lowercase: bool = False,
    tokenization: Tokenization = DEFAULT_TOKENIZATION,
    seed: int = DEFAULT_SEED,
) -> Score:
    """Compute BLEU: the geometric mean of the n-gram precisions, n = 1 to 4, times a brevity penalty.

    BLEU = 100 · min(1, exp(1 - r/c)) · (p_1 p_2 p_3 p_4)^(1/4), where c and r are the numbers of tokens in hypotheses
    and references, and p_n is the share of the hypotheses' n-grams that also occur in their references, with clipped
    counts (Papineni et al., 2002, section 2.3). The settings are sacreBLEU's defaults: mteval-v13a tokenization unless
    ``tokenization`` is set, case-sensitive unless ``lowercase`` is set, and exponential smoothing of zero precisions.

    Args:
        hypotheses: Detokenized translations.
        references: One reference for each hypothesis.
        bootstrap: Number of bootstrap samples for the confidence interval; 0 for no interval.
        lowercase: Whether to ignore case.
        tokenization: sacreBLEU's name of the tokenization; see :func:`tokenization_for`.
        seed: Random seed of the bootstrap.
    """
    check_tokenization(tokenization)
    metric = BLEU(lowercase=lowercase, tokenize=tokenization)
    return _score(_SacreBleu("BLEU", metric), hypotheses, references, bootstrap, seed)


def chrf(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    bootstrap: int = 0,
    lowercase: bool = False,
    word_order: int = 0,
    seed: int = DEFAULT_SEED,
) -> Score:
    """Compute chrF2: the F-score of character n-grams, n = 1 to 6, with recall weighted twice as much as precision.

    chrF = 100 · (1 + β²) · P · R / (β² · P + R), β = 2, where P and R are the mean precision and recall over the orders
    n. White space is ignored (Popović, 2015). ``word_order=2`` adds n-grams of up to two words: chrF++ (Popović, 2017).

    Args:
        hypotheses: Detokenized translations.
        references: One reference for each hypothesis.
        bootstrap: Number of bootstrap samples for the confidence interval; 0 for no interval.
        lowercase: Whether to ignore case.
        word_order: Maximum length of word n-grams; 0 for no word n-grams.
        seed: Random seed of the bootstrap.
    """
    metric = CHRF(lowercase=lowercase, word_order=word_order)
    return _score(_SacreBleu("chrF2" + "+" * word_order, metric), hypotheses, references, bootstrap, seed)


def ter(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    bootstrap: int = 0,
    lowercase: bool = True,
    tokenization: Tokenization = DEFAULT_TOKENIZATION,
    seed: int = DEFAULT_SEED,
) -> Score:
    """Compute TER: the number of edits that turn the hypotheses into the references, per 100 reference words.

    Lower is better. An edit inserts, deletes or substitutes a word, or moves a sequence of words (Snover et al., 2006).
    Case is ignored by default, as in the original program and in sacreBLEU. TER is slow, because sacreBLEU searches for
    moves in Python.

    Args:
        hypotheses: Detokenized translations.
        references: One reference for each hypothesis.
        bootstrap: Number of bootstrap samples for the confidence interval; 0 for no interval.
        lowercase: Whether to ignore case.
        tokenization: BLEU's tokenization for the target language. If it is for a language without spaces between words,
            each Chinese or Japanese character is treated as a word.
        seed: Random seed of the bootstrap.
    """
    return _score(_SacreBleu("TER", _ter(tokenization, lowercase)), hypotheses, references, bootstrap, seed)


def exact_match(
    hypotheses: Sequence[str], references: Sequence[str], *, bootstrap: int = 0, seed: int = DEFAULT_SEED
) -> Score:
    """Compute exact match: the percentage of hypotheses that equal their reference, character for character.

    Args:
        hypotheses: The outputs.
        references: One reference for each hypothesis.
        bootstrap: Number of bootstrap samples for the confidence interval; 0 for no interval.
        seed: Random seed of the bootstrap.
    """
    return _score(find_metric("exact_match"), hypotheses, references, bootstrap, seed)


def token_accuracy(
    hypotheses: Sequence[str], references: Sequence[str], *, bootstrap: int = 0, seed: int = DEFAULT_SEED
) -> Score:
    """Compute token accuracy: the percentage of positions at which hypothesis and reference have the same token.

    Tokens are separated by white space. The number of positions of a pair is the number of tokens in the longer text,
    so a missing or extra token is an error and shifts all following tokens. Accuracy = 100 · Σ matches / Σ positions
    over the test set, and 100 if there are no positions at all (every text is blank).

    Args:
        hypotheses: The outputs.
        references: One reference for each hypothesis.
        bootstrap: Number of bootstrap samples for the confidence interval; 0 for no interval.
        seed: Random seed of the bootstrap.
    """
    return _score(find_metric("token_accuracy"), hypotheses, references, bootstrap, seed)


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    metrics: Sequence[str] = ("bleu", "chrf"),
    bootstrap: int = 1000,
    tokenization: Tokenization = DEFAULT_TOKENIZATION,
    seed: int = DEFAULT_SEED,
) -> list[Score]:
    """Score ``hypotheses`` by each of ``metrics`` (names from :data:`METRICS`), with confidence intervals.

    Args:
        hypotheses: The outputs.
        references: One reference for each hypothesis.
        metrics: Names of the metrics.
        bootstrap: Number of bootstrap samples for the confidence intervals; 0 for no intervals. Exact match is a rate,
            so it has Wilson's interval. With fewer than 10 sentences, the other scores have no interval.
        tokenization: The tokenization of BLEU and TER; see :func:`tokenization_for`.
        seed: Random seed of the bootstrap.

    Raises:
        ConfigError: A metric is unknown, or ``bootstrap`` is too small.
        DataError: There are no sentences, or the numbers of hypotheses and references differ.
    """
    chosen = [find_metric(name, tokenization) for name in metrics]
    return [_score(metric, hypotheses, references, bootstrap, seed) for metric in chosen]


def sentence_chrf(hypothesis: str, reference: str) -> float:
    """Return the sentence-level chrF2, from 0 to 100; see :func:`chrf`."""
    return float(CHRF().sentence_score(hypothesis, [reference]).score)


class _SacreBleu:
    """A sacreBLEU metric. It calls two private functions of sacreBLEU, whose results are checked by tests."""

    def __init__(self, name: str, metric: SacreBleuMetric) -> None:
        self.name = name
        self._metric = metric

    def counts(self, hypotheses: Sequence[str], references: Sequence[str]) -> Float[np.ndarray, "N C"]:
        return np.array(self._metric._extract_corpus_statistics(hypotheses, [references]), dtype=np.float64)

    def value(self, counts: Float[np.ndarray, " C"]) -> float:
        return float(self._metric._compute_score_from_stats(counts.tolist()).score)

    def signature(self, samples: int, seed: int, trials: int = 0) -> str:
        signature = self._metric.get_signature()
        if samples:
            signature.update("bs", samples)
            signature.update("seed", seed)
        if trials:
            signature.update("ar", trials)
        return signature.format()


class _Ratio:
    """A metric of the form 100 times the sum of a count divided by the sum of another count.

    ``is_rate`` means that each sentence is either counted or not, so the score gets the confidence interval of a rate.
    """

    def __init__(
        self, name: str, count: Callable[[str, str], tuple[int, int]], setting: str, *, is_rate: bool = False
    ) -> None:
        self.name = name
        self.is_rate = is_rate
        self._count = count
        self._setting = setting

    def counts(self, hypotheses: Sequence[str], references: Sequence[str]) -> Float[np.ndarray, "N C"]:
        return np.array([self._count(*pair) for pair in zip(hypotheses, references, strict=True)], dtype=np.float64)

    def value(self, counts: Float[np.ndarray, " C"]) -> float:
        hits, of = counts.tolist()
        return 100 * hits / of if of else 100.0

    def signature(self, samples: int, seed: int, trials: int = 0) -> str:
        drawn = f"bs:{samples}|seed:{seed}|" if samples else ""
        drawn += f"ar:{trials}|" if trials else ""
        return f"nrefs:1|{drawn}case:mixed|{self._setting}|version:headway-{__version__}"


Metric = _SacreBleu | _Ratio


def find_metric(name: str, tokenization: Tokenization = DEFAULT_TOKENIZATION) -> Metric:
    """Return the metric called ``name`` in :data:`METRICS`, with ``tokenization`` and otherwise default settings."""
    match name:
        case "bleu":
            check_tokenization(tokenization)
            return _SacreBleu("BLEU", BLEU(tokenize=tokenization))
        case "chrf":
            return _SacreBleu("chrF2", CHRF())
        case "ter":
            return _SacreBleu("TER", _ter(tokenization))
        case "exact_match":
            return _Ratio(
                "exact match", lambda hypothesis, reference: (hypothesis == reference, 1), "tok:none", is_rate=True
            )
        case "token_accuracy":
            return _Ratio("token accuracy", _same_positions, "tok:whitespace")
    raise ConfigError(f"unknown metric {name!r}; {spelling_hint(name, METRICS)}")


def _ter(tokenization: Tokenization, lowercase: bool = True) -> TER:
    asian = splits_characters(tokenization)  # asian_support has an effect only on normalized text
    return TER(case_sensitive=not lowercase, normalized=asian, asian_support=asian)


def are_too_short_for_bleu(references: Sequence[str], tokenization: Tokenization) -> bool:
    """Return whether almost no reference has a 4-gram, so that BLEU is 0 or depends on only a few sentences."""
    tokenize = BLEU(tokenize=tokenization).tokenizer
    long_enough = sum(len(tokenize(text).split()) >= 4 for text in references)
    return long_enough < _MIN_SHARE_WITH_FOUR_TOKENS * len(references)


def _same_positions(hypothesis: str, reference: str) -> tuple[int, int]:
    ours, theirs = hypothesis.split(), reference.split()
    return sum(a == b for a, b in zip(ours, theirs, strict=False)), max(len(ours), len(theirs))


def _score(metric: Metric, hypotheses: Sequence[str], references: Sequence[str], bootstrap: int, seed: int) -> Score:
    check_bootstrap(bootstrap)
    check_texts(hypotheses, references, "hypotheses")
    counts = metric.counts(hypotheses, references)
    value = metric.value(counts.sum(axis=0))
    if isinstance(metric, _Ratio) and metric.is_rate and bootstrap:
        interval = wilson_interval(int(counts.sum(axis=0)[0]), len(references))
        return Score(metric.name, value, metric.signature(0, seed).replace("nrefs:1|", "nrefs:1|ci:wilson|"), *interval)
    if (reason := too_few_reason(len(references), "sentence")) or not bootstrap:
        return Score(metric.name, value, metric.signature(0, seed), no_interval_reason=reason if bootstrap else None)
    sampled = [metric.value(weights @ counts) for weights in bootstrap_counts(len(references), bootstrap, seed)]
    return Score(metric.name, value, metric.signature(bootstrap, seed), *bootstrap_interval(np.array(sampled)))
