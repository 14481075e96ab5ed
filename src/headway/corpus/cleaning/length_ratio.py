"""Limits on a pair's length ratio, learned from the corpus.

The logarithm of the length ratio (target to source, in characters) varies less in long pairs than in short ones. Its
median and its spread are therefore learned for each class of lengths, from a histogram, and interpolated between
classes. The spread is 1.4826 times the median absolute deviation, which for a normal distribution equals the standard
deviation. Both are robust: a minority of bad pairs hardly changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CLASSES_PER_OCTAVE = 2
_NUM_CLASSES = 40  # enough for texts of up to a million characters
_BIN = 0.01
_MAX_LOG_RATIO = 6.0
_NUM_BINS = round(2 * _MAX_LOG_RATIO / _BIN)
_MIN_PAIRS = 200  # minimum number of pairs in a class; smaller classes are merged with their neighbors
_MIN_SPREAD = 0.05
_NORMAL = 1.4826


@dataclass
class RatioHistogram:
    """Histogram of log ratios for each class of lengths."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros((_NUM_CLASSES, _NUM_BINS), dtype=np.int64))

    def add(self, source: NDArray[np.float32], target: NDArray[np.float32]) -> None:
        """Add pairs, given by their numbers of characters, which are at least 1."""
        ratios, lengths = _coordinates(source, target)
        classes = np.clip(np.round(lengths * _CLASSES_PER_OCTAVE).astype(int), 0, _NUM_CLASSES - 1)
        bins = np.clip(((ratios + _MAX_LOG_RATIO) / _BIN).astype(int), 0, _NUM_BINS - 1)
        np.add.at(self.counts, (classes, bins), 1)

    def limits(self) -> RatioLimits | None:
        """Return the limits, or None if there are no pairs."""
        if not self.counts.any():
            return None
        medians, spreads, lengths = [], [], []
        for number in np.flatnonzero(self.counts.any(axis=1)).tolist():
            counts, width = self.counts[number], 0
            while counts.sum() < _MIN_PAIRS and width < _NUM_CLASSES:
                width += 1
                counts = self.counts[max(number - width, 0) : number + width + 1].sum(axis=0)
            median = _weighted_median(_CENTERS, counts)
            medians.append(median)
            spreads.append(max(_NORMAL * _weighted_median(np.abs(_CENTERS - median), counts), _MIN_SPREAD))
            lengths.append(number / _CLASSES_PER_OCTAVE)
        return RatioLimits(tuple(lengths), tuple(medians), tuple(spreads))


_CENTERS = (np.arange(_NUM_BINS) + 0.5) * _BIN - _MAX_LOG_RATIO


@dataclass(frozen=True)
class RatioLimits:
    """Median and spread of the log ratio, by length.

    Attributes:
        lengths: Base-2 logarithms of lengths. A pair's length is the geometric mean of its two numbers of characters.
        medians: The median of the log ratio at each of these lengths.
        spreads: The robust standard deviation of the log ratio at each of these lengths.
    """

    lengths: tuple[float, ...]
    medians: tuple[float, ...]
    spreads: tuple[float, ...]

    def deviations(self, source: NDArray[np.float32], target: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the distance of each pair's log ratio from the median, in standard deviations."""
        ratios, lengths = _coordinates(source, target)
        medians = np.interp(lengths, self.lengths, self.medians)
        spreads = np.interp(lengths, self.lengths, self.spreads)
        return np.abs(ratios - medians) / spreads

    def ratios_at(self, characters: float, deviations: float) -> tuple[float, float]:
        """Return the smallest and the largest ratio of target to source within ``deviations`` at a length."""
        length = np.log2(characters)
        median = np.interp(length, self.lengths, self.medians)
        spread = np.interp(length, self.lengths, self.spreads)
        return float(np.exp(median - deviations * spread)), float(np.exp(median + deviations * spread))


def _coordinates(
    source: NDArray[np.float32], target: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return log(target / source), and the base-2 logarithm of the geometric mean of source and target."""
    ours, theirs = np.log(source.astype(np.float64)), np.log(target.astype(np.float64))
    return theirs - ours, (ours + theirs) / (2 * np.log(2.0))


def _weighted_median(values: NDArray[Any], counts: NDArray[np.int64]) -> float:
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(counts[order])
    return float(values[order[np.searchsorted(cumulative, cumulative[-1] / 2)]])
