"""Coverage: the log-odds that neither side of a pair is truncated, so that both sides have the same content.

A logistic regression for each side distinguishes pairs of the corpus from pairs in which this side was truncated. Its
inputs are features of pairs (:mod:`headway.corpus.cleaning.lexical_model`,
:mod:`headway.corpus.cleaning.cross_entropy`). The coverage is the lower of the two log-odds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Float, Shaped

from headway.corpus.cleaning.mixture import PosteriorCurve, estimate_posteriors, is_probably_good

_LEAST_TRUNCATED = 1e-4  # minimum share of truncated pairs in a corpus
# Quantile of truncated pairs below which scores are ignored: they depend on how many words are missing.
_LOWEST_PART = 0.5
_MAX_STEPS, _SMALL_STEP = 30, 1e-4  # maximum number of Newton steps, and the step size at which the iteration ends
_RIDGE = 1e-3  # weight of the L2 penalty, compared with the mean log-likelihood
_LEAST_DEVIATION = 1e-3
_MAX_LOG_ODDS = 30.0
_FARTHEST = 10.0  # features are clipped to this many standard deviations

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _TruncatedSide:
    """A logistic regression that distinguishes pairs in which one side is truncated from whole pairs.

    Attributes:
        mean: The mean of each feature.
        deviation: The standard deviation of each feature.
        weights: The weight of each feature, and the bias, fitted with equal total weight for both kinds of pairs.
        share: The estimated share of pairs in the corpus in which this side is truncated.
    """

    mean: Float[npt.NDArray[np.float64], " F"]
    deviation: Float[npt.NDArray[np.float64], " F"]
    weights: Float[npt.NDArray[np.float64], " W"]
    share: float = 0.5

    @classmethod
    def learn(
        cls, pairs: Float[npt.NDArray[np.float64], "N F"], truncated: Float[npt.NDArray[np.float64], "M F"]
    ) -> _TruncatedSide:
        """Learn from pairs of the corpus, some of which may be truncated, and from artificially truncated pairs."""
        side = cls._fit(pairs, truncated)
        side = cls._fit(
            pairs[is_probably_good(side.log_odds(pairs), side.log_odds(truncated), _LOWEST_PART)], truncated
        )
        share = coverage_posteriors(side.log_odds(pairs), side.log_odds(truncated)).share
        return replace(side, share=min(max(share, _LEAST_TRUNCATED), 0.5))

    @classmethod
    def _fit(
        cls, whole: Float[npt.NDArray[np.float64], "N F"], truncated: Float[npt.NDArray[np.float64], "M F"]
    ) -> _TruncatedSide:
        """Maximize the mean log-likelihood of both kinds of pairs by Newton's method."""
        features = np.concatenate([whole, truncated])
        start = cls(features.mean(axis=0), features.std(axis=0) + _LEAST_DEVIATION, np.zeros(0))
        terms = start._terms(features)
        is_whole = np.arange(len(features)) < len(whole)
        importance = np.where(is_whole, 0.5 / max(1, len(whole)), 0.5 / max(1, len(truncated)))
        weights = np.zeros(terms.shape[1])
        for _ in range(_MAX_STEPS):
            probability = 1 / (1 + np.exp(-np.clip(terms @ weights, -_MAX_LOG_ODDS, _MAX_LOG_ODDS)))
            gradient = terms.T @ (importance * (is_whole - probability)) - _RIDGE * weights
            curvature = (terms * (importance * probability * (1 - probability))[:, None]).T @ terms
            step = np.linalg.solve(curvature + _RIDGE * np.eye(len(weights)), gradient)
            weights += step
            if np.abs(step).max() < _SMALL_STEP:
                break
        return replace(start, weights=weights)

    def log_odds(self, features: Float[npt.NDArray[np.float64], "N F"]) -> Floats:
        """Return the log-odds that this side is not truncated."""
        log_odds: Floats = self._terms(features) @ self.weights - np.log(self.share / (1 - self.share))
        return log_odds

    def _terms(self, features: Float[npt.NDArray[np.float64], "N F"]) -> Float[npt.NDArray[np.float64], "N W"]:
        scaled = np.clip((features - self.mean) / self.deviation, -_FARTHEST, _FARTHEST)
        return np.concatenate([scaled, np.ones((len(scaled), 1))], axis=1)


@dataclass(frozen=True, eq=False)
class CoverageModel:
    """Distinguishes whole pairs from pairs in which one side is truncated.

    Attributes:
        target_classifier: Classifier for truncated targets.
        source_classifier: Classifier for truncated sources.
        truncated_pair_coverages: The coverages of artificially truncated pairs, for :func:`coverage_posteriors`.
            Truncated targets and truncated sources occur here in the same proportion as in the corpus.
    """

    target_classifier: _TruncatedSide
    source_classifier: _TruncatedSide
    truncated_pair_coverages: Floats

    @classmethod
    def learn(
        cls,
        pairs: Float[npt.NDArray[np.float64], "N F"],
        truncated_targets: Float[npt.NDArray[np.float64], "M F"],
        truncated_sources: Float[npt.NDArray[np.float64], "L F"],
    ) -> CoverageModel:
        """Learn from the features of pairs of the corpus, some of which may be truncated, and of truncated pairs."""
        model = cls(
            _TruncatedSide.learn(pairs, truncated_targets), _TruncatedSide.learn(pairs, truncated_sources), np.zeros(0)
        )
        of_targets, of_sources = map(model.log_odds, (truncated_targets, truncated_sources))
        num_sources = round(
            len(of_sources)
            * model.source_classifier.share
            / (model.target_classifier.share + model.source_classifier.share)
        )
        return replace(
            model, truncated_pair_coverages=np.concatenate([of_targets[num_sources:], of_sources[:num_sources]])
        )

    def log_odds(self, features: Float[npt.NDArray[np.float64], "N F"]) -> Floats:
        """Return the smaller of two log-odds for each pair: that its target is whole, and that its source is whole."""
        return np.minimum(self.target_classifier.log_odds(features), self.source_classifier.log_odds(features))

    def arrays(self) -> dict[str, Any]:
        """Return the model's arrays by name, for saving."""
        sides = {"target": self.target_classifier, "source": self.source_classifier}
        arrays = {f"{name}.{key}": value for name, side in sides.items() for key, value in asdict(side).items()}
        return arrays | {"of_truncated_pairs": self.truncated_pair_coverages}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> CoverageModel:
        """Create a model from the result of :meth:`arrays`."""

        def side(name: str) -> _TruncatedSide:
            parts = {key: arrays[f"{name}.{key}"] for key in ("mean", "deviation", "weights")}
            return _TruncatedSide(**parts, share=float(arrays[f"{name}.share"]))

        return cls(side("target"), side("source"), arrays["of_truncated_pairs"])

    def save(self, path: Path) -> None:
        """Write the model to a file (.npz)."""
        with path.open("wb") as file:
            np.savez(file, **self.arrays())

    @classmethod
    def load(cls, path: Path) -> CoverageModel:
        """Read the model from a file that :meth:`save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls.from_arrays(arrays)


def coverage_posteriors(
    coverages: Shaped[np.ndarray, " N"], truncated_pair_coverages: Shaped[np.ndarray, " M"]
) -> PosteriorCurve:
    """Estimate the probability that neither side is truncated, from coverages of a corpus and of truncated pairs."""
    return estimate_posteriors(coverages, truncated_pair_coverages, lowest_part=_LOWEST_PART)
