"""Rerank given candidates, by their expected agreement with each other or by the probabilities of other models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from headway.decode import length_penalty
from headway.errors import ConfigError, HeadwayError
from headway.predict.results import ScoredTarget, Translation

if TYPE_CHECKING:
    from headway.predict.translation.translator import Translator


@dataclass(frozen=True)
class RankedText:
    """A text and the score by which it was ranked. Higher is better."""

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
) -> list[list[RankedText]]:
    """Rank the candidates of each source by the sum of ``weight * log P(candidate | source) / length penalty``.

    The length is counted in each model's own tokens, so models with different vocabularies can be combined. The length
    penalty is from Wu et al. 2016, with exponent ``alpha``.

    Raises:
        HeadwayError: A candidate cannot be scored. The message contains the source's number, counted from 1.
    """
    if len(weights) != len(translators):
        raise ConfigError(f"{len(weights)} weights for {len(translators)} models; expected one weight per model")
    totals = [0.0] * sum(map(len, candidates))
    for translator, weight in zip(translators, weights, strict=True):
        scored = score_candidates(
            translator, sources, candidates, target_language=target_language, source_language=source_language
        )
        for index, target in enumerate(scored):
            totals[index] += weight * target.log_probability / length_penalty(len(target.tokens) + 1, alpha)
    scores = iter(totals)
    return [rank_by_scores(texts, list(islice(scores, len(texts)))) for texts in candidates]


def score_candidates(
    translator: Translator,
    sources: Sequence[str],
    candidates: Sequence[Sequence[str]],
    *,
    reverse: bool = False,
    target_language: str | None = None,
    source_language: str | None = None,
) -> list[ScoredTarget]:
    """Return the score of each candidate given its source, for all sources in one list.

    If ``reverse`` is set, ``translator`` must be a model for the reverse direction, and the result contains the scores
    of the sources given the candidates.

    Raises:
        HeadwayError: A candidate cannot be scored. The message contains the source's number, counted from 1.
    """
    numbers = [number for number, texts in enumerate(candidates) for _ in texts]
    pairs = [sources[number] for number in numbers], [text for texts in candidates for text in texts]
    scored = translator.score_each(
        *(pairs[::-1] if reverse else pairs), target_language=target_language, source_language=source_language
    )
    for number, target in zip(numbers, scored, strict=True):
        if isinstance(target, HeadwayError):
            raise target.with_location(f"source {number + 1}")
    return [target for target in scored if not isinstance(target, HeadwayError)]


def rank_by_agreement(candidates: Sequence[str], scores: Sequence[float] | None = None) -> list[RankedText]:
    """Rank the candidates of one source by expected chrF. Weights are exp(score), or equal without ``scores``."""
    weights = [1.0] * len(candidates) if scores is None else softmax(scores)
    values = expected_chrf(candidates, weights)
    return rank_by_scores(candidates, values)


def rank_by_scores(candidates: Sequence[str], scores: Sequence[float]) -> list[RankedText]:
    """Return one source's candidates sorted by score, best first. The sort is stable."""
    ranked = [RankedText(text, score) for text, score in zip(candidates, scores, strict=True)]
    return sorted(ranked, key=lambda ranked_text: ranked_text.score, reverse=True)


def expected_chrf(texts: Sequence[str], weights: Sequence[float]) -> list[float]:
    """Return the weighted mean chrF (0 to 100) of each text against all texts as references.

    Duplicate texts are compared only once. The chrF of a text against itself is 100.
    """
    from headway.evaluation import sentence_chrf

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
    """Sort the candidates by expected chrF, so that the candidate that agrees most with the others comes first.

    This is minimum Bayes risk decoding (Kumar and Byrne 2004, "Minimum Bayes-Risk Decoding for Statistical Machine
    Translation"; Eikema and Aziz 2020, "Is MAP Decoding All You Need?", section 7).

    Args:
        translation: A translation with several candidates.
        sampled: Whether the candidates were sampled. Samples have equal weights, so a text that was sampled twice has
            twice the weight. Otherwise, each candidate is weighted by its probability.
    """
    candidates = translation.candidates
    weights = [1.0] * len(candidates) if sampled else softmax([candidate.log_probability for candidate in candidates])
    values = expected_chrf([candidate.text for candidate in candidates], weights)
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)
    return replace(translation, candidates=tuple(replace(candidates[index], utility=values[index]) for index in order))


def softmax(values: Sequence[float]) -> list[float]:
    """Return the softmax of the values, or equal weights if every value is -inf."""
    top = max(values)
    if top == -math.inf:
        return [1 / len(values)] * len(values)
    powers = [math.exp(value - top) for value in values]
    return [power / sum(powers) for power in powers]
