"""The flag ``unlikely``: whether a source text is unlike the text that the model was calibrated on.

A model turns any input into fluent text, even text in other languages and random characters. Three measures of surprise
distinguish such input from in-domain text. Each is a mean of -log p, in nats:

- The surprise of the source, per token and per character. Here p is the token's relative frequency in the calibration's
  source texts, with additive smoothing. Text in another language contains tokens that are rare in the source language,
  and random characters need many tokens for few characters.
- The surprise of the translation, per token. Here p is the model's probability of the token.

Short texts vary more than long ones, so each surprise is standardized by a mean and a variance that depend on the
length n as a + b / n. The result is divided by its tail quantile on the calibration set. The score of a text is the
largest of the three standardized surprises. The flag is set if the score exceeds the k-th largest score of the n texts
in the calibration set.

The choice of k limits false alarms. Suppose that the n texts are a random sample of the model's domain. More than 1 %
of the domain scores above the k-th largest score only if fewer than k of the n texts are among the 1 % of the domain
with the highest scores. The probability of this is P(X < k) for X ~ B(n, 0.01) (Wilks 1941, "Determination of sample
sizes for setting tolerance limits"). We use the largest k for which this probability is at most 1 %: k = 1 for 459
texts, the minimum, and k = 3 for 1,000 texts. On average, k / (n + 1) of the domain is flagged. The argument ignores
that the means and variances were fitted to the same texts, and that later text may differ slightly from the sample.

The calibration also contains the threshold of the flag ``forced`` (:mod:`headway.predict.translation.quality`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from headway.bundle import AnyBundle
from headway.config import Config
from headway.errors import BundleError, ConfigError
from headway.predict.results import Translation
from headway.storage import atomic_write_text
from headway.text.base import TextTokenizer
from headway.weights import check_readable

CALIBRATION_FILE = "calibration.json"
"""Name of the calibration file in a model folder."""

MIN_TEXTS = 459
"""Minimum number of texts for a calibration, because 0.99^459 < 1 %."""

_FALSE_ALARMS, _CONFIDENCE = 0.01, 0.99
_SMOOTHING = 0.1  # added to each token's count
_MIN_VARIANCE = 0.05  # minimum variance as a share of the mean variance, because the fitted line may even be negative
_MIN_COSTS, _LEAST_COST_LIMIT = 100, 5.0
_LEAST = 1e-4  # minimum of the mean variance, in nats squared, in case all texts are equal

TokenCount = Annotated[int, Field(ge=0, lt=1 << 53)]


class SurpriseScale(Config):
    """Mean and variance of a surprise, as functions a + b / length.

    The variance is scaled so that the tail quantile of the standardized surprise is 1.
    """

    mean: tuple[float, float]
    variance: tuple[float, float]
    min_variance: float = Field(gt=0)

    def standardize(self, surprise: float, length: int) -> float:
        """Subtract the mean surprise at this length, and divide by the tail quantile."""
        variance = max(_at(self.variance, length), self.min_variance)
        return (surprise - _at(self.mean, length)) / math.sqrt(variance)

    @classmethod
    def fit(cls, surprises: Sequence[tuple[float, int]], tail_rank: int) -> SurpriseScale:
        """Fit the scale to the pairs (surprise, length) of many texts.

        The ``tail_rank``-th largest standardized surprise is the tail quantile.
        """
        mean = _fit_line(surprises)
        squares = [((value - _at(mean, length)) ** 2, length) for value, length in surprises]
        variance, average = _fit_line(squares), max(sum(square for square, _ in squares) / len(squares), _LEAST)
        plain = cls(mean=mean, variance=variance, min_variance=_MIN_VARIANCE * average)
        tail = max(_largest([plain.standardize(*surprise) for surprise in surprises], tail_rank), 1.0) ** 2
        return cls(mean=mean, variance=(variance[0] * tail, variance[1] * tail), min_variance=plain.min_variance * tail)


class Calibration(Config):
    """The distribution of text in a model's domain; see the module's docstring.

    Attributes:
        format: Version of the file format.
        tokenizer: Fingerprint of the source tokenizer.
        source_language: The language of the sources, for models that require it.
        target_language: The target language, for models with several target languages.
        texts: Number of texts from which the scales and the threshold were computed.
        vocab_size: Size of the source vocabulary.
        counts: Number of occurrences of each source token. Tokens that are not listed did not occur.
        token_scale: Scale of the source's surprise per token.
        character_scale: Scale of the source's surprise per character.
        target_scale: Scale of the translation's surprise per token, EOS included.
        threshold: The score above which a text is unlikely.
        max_constraint_cost: The cost of a constraint, in nats, above which a translation is flagged as forced: the 99th
            percentile of the costs of single words from references. None if there were too few references.
    """

    format: Literal[1] = 1
    tokenizer: str
    source_language: str | None = None
    target_language: str | None = None
    texts: int = Field(ge=MIN_TEXTS)
    vocab_size: int = Field(ge=1, lt=1 << 31)
    counts: dict[int, TokenCount]
    token_scale: SurpriseScale
    character_scale: SurpriseScale
    target_scale: SurpriseScale
    threshold: float
    max_constraint_cost: float | None = Field(None, gt=0)

    def is_unlikely(self, text: str, ids: Sequence[int], log_probs: Sequence[float]) -> bool:
        """Return whether a text is unlike the calibration set.

        Args:
            text: The source.
            ids: Tokens of the source, without special tokens.
            log_probs: Log-probabilities of the translation's tokens and of EOS. If empty, only the source is used.
        """
        source = sum(self._surprises.get(token, self._unseen) for token in ids)
        return self.score(text, ids, source, log_probs) > self.threshold

    def score(self, text: str, ids: Sequence[int], source_surprise: float, log_probs: Sequence[float]) -> float:
        """Return the score of a text. ``source_surprise`` is the total surprise of its tokens."""
        scores = [
            self.token_scale.standardize(source_surprise / len(ids), len(ids)),
            self.character_scale.standardize(source_surprise / len(text), len(text)),
        ]
        if log_probs:
            scores.append(self.target_scale.standardize(-sum(log_probs) / len(log_probs), len(log_probs)))
        return max(scores)

    @cached_property
    def _surprises(self) -> dict[int, float]:
        total = sum(self.counts.values())
        return {token: _surprise(count, total, self.vocab_size) for token, count in self.counts.items()}

    @cached_property
    def _unseen(self) -> float:
        return _surprise(0, sum(self.counts.values()), self.vocab_size)


def fit_calibration(
    translations: Sequence[Translation],
    tokenizer: TextTokenizer,
    training_sources: Sequence[str] = (),
    *,
    target_language: str | None = None,
    source_language: str | None = None,
) -> Calibration | None:
    """Calibrate the flag ``unlikely`` on in-domain translations. Return None if there are too few.

    Args:
        translations: At least :data:`MIN_TEXTS` translations of texts that the model was not trained on.
        tokenizer: The tokenizer of the sources.
        training_sources: Source texts from the training data. They make the token frequencies more precise.
        target_language: The language of the translations, for models with several target languages.
        source_language: The language of the sources, for imported models that need it.
    """
    if (rank := _tail_rank(len(translations))) == 0:
        return None
    texts = [translation.source for translation in translations]
    ids = tokenizer.encode_batch(texts)
    counts = Counter(chain.from_iterable(chain(ids, tokenizer.encode_batch(training_sources))))
    total, vocab_size = counts.total(), tokenizer.vocab_size

    def source_surprise(tokens: Sequence[int]) -> float:
        """Return the surprise of a text in the calibration set, given the token frequencies in all other texts."""
        in_text, rest = Counter(tokens), total - len(tokens)
        return sum(times * _surprise(counts[token] - times, rest, vocab_size) for token, times in in_text.items())

    surprises = [source_surprise(tokens) for tokens in ids]
    log_probs = [translation.candidates[0].token_log_probabilities for translation in translations]

    def scale(totals: Iterable[float], lengths: Iterable[int]) -> SurpriseScale:
        return SurpriseScale.fit([(value / n, n) for value, n in zip(totals, lengths, strict=True)], rank)

    calibration = Calibration(
        tokenizer=tokenizer.fingerprint,
        source_language=source_language,
        target_language=target_language,
        texts=len(texts),
        vocab_size=vocab_size,
        counts=dict(sorted(counts.items())),
        token_scale=scale(surprises, map(len, ids)),
        character_scale=scale(surprises, map(len, texts)),
        target_scale=scale((-sum(of_tokens) for of_tokens in log_probs), map(len, log_probs)),
        threshold=0.0,
    )
    scores = [calibration.score(*measured) for measured in zip(texts, ids, surprises, log_probs, strict=True)]
    return calibration.model_copy(update={"threshold": max(_largest(scores, rank), 1.0)})


def write_calibration(calibration: Calibration, folder: Path) -> None:
    """Write a calibration into a model folder."""
    atomic_write_text(folder / CALIBRATION_FILE, json.dumps(calibration.as_dict(), separators=(",", ":")) + "\n")


def read_calibration(bundle: AnyBundle, folder: Path) -> Calibration | None:
    """Return the calibration in a model folder, or None if it has none.

    Raises:
        BundleError: The file is damaged, or was made for a different vocabulary.
    """
    path = folder / CALIBRATION_FILE
    if not path.exists():
        return None
    check_readable(path)
    try:
        calibration = Calibration.parse_saved(json.loads(path.read_text(encoding="utf-8")), "content")
    except (ConfigError, OSError, ValueError, RecursionError) as error:
        raise BundleError(
            f"{path}: not a calibration file, or damaged ({error}); delete it and run headway calibrate"
        ) from None
    if calibration.tokenizer != bundle.tokenizers["source"].fingerprint:
        raise BundleError(f"{path}: made for a model with a different vocabulary; delete it and run headway calibrate")
    return calibration


def _surprise(count: int, total: int, vocab_size: int) -> float:
    """Return -log p, in nats, for a token that occurs ``count`` times among ``total`` tokens."""
    return math.log(total + _SMOOTHING * vocab_size) - math.log(count + _SMOOTHING)


def _at(line: tuple[float, float], length: int) -> float:
    return line[0] + line[1] / length


def _fit_line(values: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Return a and b in the least-squares fit a + b / length."""
    from statistics import linear_regression  # only calibrating needs it

    inverse, heights = [1 / length for _, length in values], [value for value, _ in values]
    if min(inverse) == max(inverse):
        return sum(heights) / len(heights), 0.0
    slope, intercept = linear_regression(inverse, heights)
    return intercept, slope


def _largest(values: Iterable[float], rank: int) -> float:
    """Return the ``rank``-th largest value, counted from 1."""
    return sorted(values, reverse=True)[rank - 1]


def constraint_cost_limit(costs: Sequence[float]) -> float | None:
    """Return the 99th percentile (nearest rank) of the costs of constraints, or None if there are fewer than 100.

    The result is at least 5 nats, because the percentile is too low for models that predict nearly every word in the
    references. A cost of 5 nats makes a translation 150 times less probable.
    """
    if len(costs) < _MIN_COSTS:
        return None
    return max(_largest(costs, len(costs) // _MIN_COSTS + 1), _LEAST_COST_LIMIT)


def _tail_rank(count: int) -> int:
    """Return the largest k with P(X < k) <= 1 % for X ~ B(count, 0.01)."""
    rank, term = 0, (1 - _FALSE_ALARMS) ** count
    cumulative = term
    while cumulative <= 1 - _CONFIDENCE:
        rank += 1
        term *= (count - rank + 1) / rank * _FALSE_ALARMS / (1 - _FALSE_ALARMS)
        cumulative += term
    return rank
