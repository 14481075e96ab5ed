"""Another order for candidates that are there: by expected agreement with each other, or by what models say of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headway.decode import length_penalty
from headway.errors import ConfigError, HeadwayError
from headway.predict.results import Candidate, Translation

if TYPE_CHECKING:
    from headway.predict.translator import Translator

__all__ = ["Ranked", "expected_chrf", "minimum_bayes_risk", "rank_by_agreement", "rank_by_models", "softmax"]


@dataclass(frozen=True)
class Ranked:
    """A text and the score that it was ranked by; greater is better."""

    text: str
    score: float


def rank_by_models(
    translators: Sequence[Translator],
    sources: Sequence[str],
    candidates: Sequence[Sequence[str]],
    *,
    weights: Sequence[float],
    alpha: float = 0.6,
    target_language: str | None = None,
    source_language: str | None = None,
) -> list[list[Ranked]]:
    """The candidates of each source, best first by the sum of ``weight * log P(candidate | source) / length penalty``.

    The length is counted in each model's own tokens, so that models of different vocabularies can be joined; the
    penalty is that of Wu et al. 2016 with exponent ``alpha``.

    Raises:
        HeadwayError: A candidate cannot be scored; the message has the number of its source, counted from 1.
    """
    if len(weights) != len(translators):
        raise ConfigError(f"{len(weights)} weights for {len(translators)} models; expected a weight for each")
    flat = [(number, text) for number, texts in enumerate(candidates) for text in texts]
    totals = [0.0] * len(flat)
    for translator, weight in zip(translators, weights, strict=True):
        found = translator.score_each(
            [sources[number] for number, _ in flat],
            [text for _, text in flat],
            target_language=target_language,
            source_language=source_language,
        )
        for place, ((number, _), each) in enumerate(zip(flat, found, strict=True)):
            if isinstance(each, HeadwayError):
                raise each.at(f"source {number + 1}")
            totals[place] += weight * each.log_probability / length_penalty(len(each.tokens) + 1, alpha)
    scores = iter(totals)
    return [_best_first([Ranked(text, next(scores)) for text in texts]) for texts in candidates]


def rank_by_agreement(candidates: Sequence[str], scores: Sequence[float] | None = None) -> list[Ranked]:
    """The candidates of one source, best first by expected chrF; each counts by exp(score), or without scores alike."""
    weights = [1.0] * len(candidates) if scores is None else softmax(scores)
    values = expected_chrf(candidates, weights)
    return _best_first([Ranked(text, value) for text, value in zip(candidates, values, strict=True)])


def _best_first(ranked: list[Ranked]) -> list[Ranked]:
    return sorted(ranked, key=lambda each: each.score, reverse=True)


def expected_chrf(texts: Sequence[str], weights: Sequence[float]) -> list[float]:
    """For each text its mean chrF against all texts as references, these weighted: 0 to 100.

    Texts that are equal are compared once, and a text that is its own reference scores 100.
    """
    from headway.evaluate import sentence_chrf

    shares: dict[str, float] = {}
    for text, weight in zip(texts, weights, strict=True):
        shares[text] = shares.get(text, 0.0) + weight
    total = sum(shares.values())
    values = {
        text: sum(share * (100.0 if other == text else sentence_chrf(text, other)) for other, share in shares.items())
        for text in shares
    }
    return [values[text] / total for text in texts]


def minimum_bayes_risk(translation: Translation, *, sampled: bool) -> Translation:
    """The candidates ordered by their expected chrF: that which agrees most with all comes first (Kumar and Byrne 2004,
    "Minimum Bayes-Risk Decoding for Statistical Machine Translation"; Eikema and Aziz 2020, "Is MAP Decoding All You
    Need?", section 7).

    Args:
        translation: At least two candidates, or the choice is none.
        sampled: Whether the candidates were drawn, so that each counts as much as another (one drawn twice counts
            twice); otherwise each counts by its probability.
    """
    candidates = translation.candidates
    weights = [1.0] * len(candidates) if sampled else softmax([each.log_probability for each in candidates])
    values = expected_chrf([candidate.text for candidate in candidates], weights)
    rated = [replace(candidate, utility=value) for candidate, value in zip(candidates, values, strict=True)]
    return replace(translation, candidates=tuple(sorted(rated, key=_utility, reverse=True)))


def softmax(values: Sequence[float]) -> list[float]:
    """exp(value) over their sum; all alike where every value is -inf."""
    top = max(values)
    if top == -math.inf:
        return [1 / len(values)] * len(values)
    powers = [math.exp(value - top) for value in values]
    return [power / sum(powers) for power in powers]


def _utility(candidate: Candidate) -> float:
    assert candidate.utility is not None
    return candidate.utility
