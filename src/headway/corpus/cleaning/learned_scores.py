"""Learn from a corpus how to score its pairs: word translations, coverage, and the thresholds of good scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.corpus.cleaning.artificial_pairs import swap_texts, truncate_texts
from headway.corpus.cleaning.coverage import CoverageModel, coverage_posteriors
from headway.corpus.cleaning.lexical_model import LexicalModel
from headway.corpus.cleaning.mixture import estimate_posteriors, is_probably_good
from headway.corpus.cleaning.scoring import PairScorer, ScoringSettings
from headway.storage import atomic_write

MIN_PAIRS = 5000
"""Minimum number of pairs for learning word translations."""
MAX_PAIRS = 200_000
# Number of pairs to score with models, in addition to equally many random pairs and twice as many truncated pairs.
_JUDGED_BY_MODELS = 3000

Pairs = Sequence[tuple[str, str]]


def learn_lexical_model(pairs: Pairs, share: float, path: Path) -> None:
    """Learn word translations from pairs of a corpus, and write them to a file.

    ``share`` is the share of the corpus's pairs that ``pairs`` contains.
    """
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    model = LexicalModel.learn(sources, targets, corpus_size=round(len(pairs) / share))
    with atomic_write(path) as new:
        model.save(new)


def learn_coverage(settings: ScoringSettings, pairs: Pairs, path: Path) -> None:
    """Learn from pairs of a corpus how translation models score truncated pairs, and write the model to a file."""
    scorer, pairs = PairScorer(settings), _evenly_spaced(pairs)
    if settings.lexical_model is not None:
        model = LexicalModel.load(Path(settings.lexical_model))
        is_probable = is_probably_good(model.scores(*_sides(pairs)), model.scores_of_random_pairs)
        pairs = [pair for pair, good in zip(pairs, is_probable.tolist(), strict=True) if good]
        truncated = [_evenly_spaced(group) for group in model.truncated_pairs]
    else:
        truncated = _truncated_pairs(pairs)
    features = map(scorer.features, (pairs, *truncated))
    coverage = CoverageModel.learn(*(rows[~np.isnan(rows).any(axis=1)] for rows in features))
    with atomic_write(path) as new:
        coverage.save(new)


def _truncated_pairs(pairs: Pairs) -> list[Pairs]:
    """Return the pairs with truncated targets, and the pairs with truncated sources."""
    (sources, targets), dice = _sides(pairs), np.random.default_rng(1)
    groups = (
        zip(sources, truncate_texts(targets, dice), strict=True),
        zip(truncate_texts(sources, dice), targets, strict=True),
    )
    return [[pair for pair, whole in zip(group, pairs, strict=True) if pair != whole] for group in groups]


def learn_thresholds(
    settings: ScoringSettings, scores: NDArray[np.float32], pairs: Pairs, posterior: float
) -> dict[str, float]:
    """Return the threshold of each rule that uses these scores.

    Args:
        settings: The models with which pairs are scored.
        scores: Scores of pairs in the corpus: shape (pairs, ``SCORE_NAMES``).
        pairs: Pairs in the corpus, from which random pairs are created.
        posterior: The probability of being a good pair at the threshold.
    """
    borders: dict[str, float] = {}
    of_truncated: NDArray[np.float64] | None = None
    related = np.ones(len(scores), dtype=bool)  # excludes random pairs, which would count as truncated
    share: float | None = None
    if settings.lexical_model is not None:
        model = LexicalModel.load(Path(settings.lexical_model))
        misaligned = estimate_posteriors(scores[:, 0], model.scores_of_random_pairs)
        borders["misaligned"] = misaligned.score_at_posterior(posterior)
        related &= misaligned.posterior(scores[:, 0]) >= posterior
        of_truncated = model.coverages_of_truncated_pairs
        # Share of random pairs among the remaining pairs.
        share = float(1 - misaligned.posterior(scores[related, 0]).mean())
    if settings.cleaning.model is not None:
        sources, targets = _sides(_evenly_spaced(pairs))
        random = [*zip(sources, swap_texts(targets, np.random.default_rng(1)), strict=True)]
        scores_of_random = PairScorer(settings).scores(random)[:, 2]
        disagreement = estimate_posteriors(-scores[related, 2], -scores_of_random, share=share)
        borders["cross_entropy"] = -disagreement.score_at_posterior(posterior)
        related &= disagreement.posterior(-scores[:, 2]) >= posterior
    if settings.coverage is not None:
        of_truncated = CoverageModel.load(Path(settings.coverage)).truncated_pair_coverages
    if of_truncated is not None:
        borders["truncated"] = coverage_posteriors(scores[related, 1], of_truncated).score_at_posterior(posterior)
    return borders


def _evenly_spaced(pairs: Pairs) -> Pairs:
    """Return evenly spaced pairs, at most as many as are scored with the translation models."""
    if len(pairs) <= _JUDGED_BY_MODELS:
        return pairs
    return [pairs[number] for number in np.linspace(0, len(pairs) - 1, _JUDGED_BY_MODELS).astype(int)]


def _sides(pairs: Pairs) -> tuple[list[str], list[str]]:
    return [source for source, _ in pairs], [target for _, target in pairs]
