"""The border between translations and random pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.corpus.cleaning.mixture import estimate_posteriors


def mixture(share: float, distance: float, number: int = 40_000) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of a corpus with a share of random pairs, and of random pairs: two normal distributions."""
    dice = np.random.default_rng(1)
    bad = round(share * number)
    return np.concatenate([dice.normal(size=bad), dice.normal(distance, size=number - bad)]), dice.normal(size=number)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.4])
def test_the_border_is_where_both_densities_are_equal(share: float) -> None:
    distance = 4.0
    border = estimate_posteriors(*mixture(share, distance))
    # share exp(-s^2 / 2) = (1 - share) exp(-(s - d)^2 / 2), so s = d / 2 + log(share / (1 - share)) / d
    expected = distance / 2 + math.log(share / (1 - share)) / distance
    assert border.border == pytest.approx(expected, abs=0.25)
    assert border.share == pytest.approx(share, rel=0.1)
    scores = np.array([-5.0, border.border - 0.2, border.border, 9.0])
    posterior = border.posterior(scores)
    assert posterior[0] < 0.1
    assert posterior[1] < 0.5 <= posterior[2]
    assert posterior[3] > 0.99


def test_hardly_anything_of_a_clean_corpus_is_below_the_border() -> None:
    scores, random = mixture(0.0, 3.0)
    border = estimate_posteriors(scores, random)
    assert (scores < border.border).mean() < 0.005


def test_a_corpus_of_random_pairs_is_below_the_border() -> None:
    scores, random = mixture(1.0, 0.0)
    border = estimate_posteriors(scores, random)
    assert (border.posterior(scores) < 0.5).mean() > 0.95


def test_a_known_share_is_used() -> None:
    scores, random = mixture(0.1, 1.0)  # so near to each other that the share is estimated much too high
    # At the median of the random pairs, F / F0 = 0.1 + 0.9 Phi(-1) / 0.5.
    assert estimate_posteriors(scores, random, lowest_part=0.5).share == pytest.approx(0.386, abs=0.03)
    known = estimate_posteriors(scores, random, share=0.1)
    # Where both densities times their shares are equal: s = 1 / 2 + log(0.1 / 0.9), below which few pairs are.
    assert known.border == pytest.approx(0.5 - math.log(9), abs=0.4)


def test_the_share_does_not_need_the_lowest_scores_of_artificial_pairs() -> None:
    scores, artificial = mixture(0.1, 8.0)
    artificial[:10_000] -= 3  # what is worse than any bad pair of the corpus
    assert estimate_posteriors(scores, artificial).share < 0.02
    assert estimate_posteriors(scores, artificial, lowest_part=0.5).share > 0.04


def test_posteriors_never_decrease_with_the_score() -> None:
    border = estimate_posteriors(*mixture(0.3, 1.0, 2_000))
    assert (np.diff(border.posteriors) >= 0).all()
    assert (np.diff(border.posterior(np.linspace(-9, 9, 500))) >= 0).all()
    assert border.score_at_posterior(0.9) >= border.border


def test_without_random_pairs_nothing_is_below_the_border() -> None:
    border = estimate_posteriors(np.array([1.0, np.nan, 2.0]), np.array([]))
    assert border.border == -math.inf
    assert border.posterior(np.array([0.0, 1.0])).tolist() == [1.0, 1.0]


def test_equal_scores_are_one_block() -> None:
    border = estimate_posteriors(np.full(100, 7.0), np.full(100, 7.0))
    assert border.posterior(np.array([7.0])).tolist() == [0.0]
    assert border.border == math.inf
