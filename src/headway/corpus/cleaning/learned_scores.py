"""What is learned from a corpus to score its pairs: word translations, and the border between good and bad scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headway.corpus.cleaning.artificial_pairs import random_pairs, truncated_pairs
from headway.corpus.cleaning.lexical_model import LexicalModel
from headway.corpus.cleaning.mixture import pair_posteriors
from headway.corpus.cleaning.scoring import SCORES, PairScorer, ScoringSettings
from headway.storage import atomic_write

MIN_PAIRS = 5000
"""Number of pairs from which word translations can be learned."""
MAX_PAIRS = 200_000
_JUDGED_BY_MODELS = 1000  # pairs, with as many random and twice as many truncated ones


def learn_lexical_model(pairs: Sequence[tuple[str, str]], share: float, path: Path) -> None:
    """Learn word translations from a share of the pairs of a corpus, and write them to a file."""
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    model = LexicalModel.learn(sources, targets, corpus_size=round(len(pairs) / share))
    with atomic_write(path) as new:
        model.save(new)


def learn_borders(
    settings: ScoringSettings, scores: NDArray[np.float32], pairs: Sequence[tuple[str, str]], posterior: float
) -> dict[str, float]:
    """Return the border of each score, by its rule.

    Args:
        settings: The models with which pairs are scored.
        scores: Scores of pairs of the corpus: shape (pairs, ``SCORES``).
        pairs: Pairs of the corpus, from which bad ones are made.
        posterior: The probability of being good at the border.
    """
    borders: dict[str, float] = {}
    if settings.lexical_model is not None:
        model = LexicalModel.load(Path(settings.lexical_model))
        related = pair_posteriors(scores[:, 0], model.scores_of_random_pairs)
        coverages = scores[related.posterior(scores[:, 0]) >= posterior, 1]  # random pairs would count as truncated
        truncated = pair_posteriors(coverages, model.coverages_of_truncated_pairs)
        borders |= {SCORES[0]: related.border_at(posterior), SCORES[1]: truncated.border_at(posterior)}
    if settings.cleaning.model is not None:
        scorer, chosen = PairScorer(settings.model_copy(update={"lexical_model": None})), pairs[:_JUDGED_BY_MODELS]
        borders[SCORES[2]] = min(
            -pair_posteriors(-scores[:, 2], -scorer.scores(bad)[:, 2]).border_at(posterior)
            for bad in (random_pairs(chosen), truncated_pairs(chosen))
        )
    return borders
