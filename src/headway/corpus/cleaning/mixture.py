"""Estimate the score that separates translations from random pairs, from the scores of a corpus and of random pairs.

A corpus is a mixture of translations and of pairs whose sides are unrelated. The density of its scores is

    f(s) = (1 - share) f1(s) + share f0(s)

where f1 is the density of translations and f0 the density of random pairs, of which any number can be created. The
posterior probability that a pair is a translation is 1 - share f0(s) / f(s) (Efron et al. 2001: one minus the local
false discovery rate).

- f / f0 is estimated as a function that does not decrease with the score: the isotonic regression of "is from the
  corpus" on the score, computed by pooling adjacent violators (Barlow et al. 1972).
- The share is estimated by the minimum of F(s) / F0(s), the ratio of the distribution functions (after Storey 2002).
  This is an upper bound: translations with low scores make it too high.

No parameter has to be chosen. In a corpus without bad pairs, the estimated share is close to 0, and few pairs score
below the threshold (the score at which the posterior is 1/2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Shaped

_BINS = 1_000
_LOWEST_PART = 0.05  # below this quantile of the random pairs, the ratio of the distribution functions is noise
_PSEUDO = 0.5  # pseudo-count that is added to the counts of each block


@dataclass(frozen=True, eq=False)
class PosteriorCurve:
    """The posterior probability of being a translation, as a function of the score.

    Attributes:
        share: The estimated share of pairs that are not translations.
        scores: Scores in ascending order.
        posteriors: The posterior probability of scores that are at least the corresponding value of ``scores``.
    """

    share: float
    scores: Float[npt.NDArray[np.float64], " B"]
    posteriors: Float[npt.NDArray[np.float64], " B"]

    def posterior(self, scores: Shaped[np.ndarray, " N"]) -> Float[npt.NDArray[np.float64], " N"]:
        """Return the probability that each pair is a translation."""
        blocks = np.searchsorted(self.scores, scores, side="right") - 1
        return self.posteriors[np.maximum(blocks, 0)]

    @property
    def border(self) -> float:
        """The lowest score at which a pair is probably a translation (posterior above 1/2)."""
        return self.score_at_posterior(0.5)

    def score_at_posterior(self, posterior: float) -> float:
        """Return the lowest score with at least this posterior probability, or infinity if there is none."""
        block = int(np.searchsorted(self.posteriors, posterior))
        if block == 0:
            return -np.inf
        return float(self.scores[block]) if block < len(self.scores) else np.inf


def estimate_posteriors(
    scores: Shaped[np.ndarray, " N"],
    scores_of_random_pairs: Shaped[np.ndarray, " M"],
    *,
    share: float | None = None,
    lowest_part: float = _LOWEST_PART,
) -> PosteriorCurve:
    """Estimate the posterior probability of being a translation.

    Args:
        scores: The scores of the pairs in a corpus. Higher is better. NaN is ignored.
        scores_of_random_pairs: The scores of random pairs. If there are none, all pairs are treated as translations.
        share: The share of pairs that are not translations. None means that it is estimated.
        lowest_part: The share is estimated only at scores above this quantile of the random pairs. Use a high value if
            artificial bad pairs have the lowest scores more or less often than real bad pairs.
    """
    corpus, random = (
        np.sort(values[~np.isnan(values)].astype(np.float64)) for values in (scores, scores_of_random_pairs)
    )
    if not len(corpus) or not len(random):
        return PosteriorCurve(0.0, np.array([-np.inf]), np.array([1.0]))
    pooled = np.concatenate([corpus, random])
    edges = np.unique(np.quantile(pooled, np.linspace(0, 1, _BINS + 1)[:-1]))
    counts = [np.diff(np.append(np.searchsorted(values, edges), len(values))) for values in (corpus, random)]
    if share is None:
        below = [np.cumsum(of_bin) / of_bin.sum() for of_bin in counts]
        enough = below[1] >= lowest_part
        share = min(1.0, float((below[0][enough] / below[1][enough]).min()))
    starts, num_corpus, num_random = _pool(counts[0], counts[1])
    ratio = (num_corpus + _PSEUDO) / len(corpus) / ((num_random + _PSEUDO) / len(random))
    posteriors = np.maximum.accumulate(np.clip(1 - share / ratio, 0, 1))
    return PosteriorCurve(share, edges[starts], posteriors)


def is_probably_good(
    scores: Shaped[np.ndarray, " N"], scores_of_bad_pairs: Shaped[np.ndarray, " M"], lowest_part: float = _LOWEST_PART
) -> npt.NDArray[np.bool_]:
    """Return whether each pair is more probably good than bad.

    If this is true of no pair, as in a tiny corpus, return True for all.
    """
    border = estimate_posteriors(scores, scores_of_bad_pairs, lowest_part=lowest_part)
    is_probable = border.posterior(scores) >= 0.5
    return is_probable if is_probable.any() else np.ones_like(is_probable)


def _pool(
    corpus: Shaped[np.ndarray, " B"], random: Shaped[np.ndarray, " B"]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Merge adjacent bins into blocks until the corpus's share of the counts does not decrease from block to block.

    Return the first bin and both counts of each block.
    """
    blocks: list[tuple[int, float, float]] = []
    for number, (of_corpus, of_random) in enumerate(zip(corpus.tolist(), random.tolist(), strict=True)):
        block = (number, float(of_corpus), float(of_random))
        while blocks and blocks[-1][1] * block[2] >= block[1] * blocks[-1][2]:
            first, before_corpus, before_random = blocks.pop()
            block = (first, before_corpus + block[1], before_random + block[2])
        blocks.append(block)
    starts, num_corpus, num_random = zip(*blocks, strict=True)
    return np.array(starts), np.array(num_corpus), np.array(num_random)
