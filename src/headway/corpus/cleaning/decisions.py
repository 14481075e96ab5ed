"""Decide which lines to drop, and by which rule, from the rows of the first pass, chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.corpus.cleaning.config import Thresholds
from headway.corpus.cleaning.length_ratio import RatioLimits
from headway.corpus.cleaning.measures import get_value
from headway.corpus.cleaning.rules import Rule

KEPT = -1

Scores = Mapping[str, NDArray[np.float32]]

LineFlags = Mapping[str, NDArray[np.bool_]]
"""For each rule that compares lines with each other: whether it drops each line of the corpus."""


@dataclass(frozen=True)
class Decisions:
    """The results of the rules for the lines in a chunk.

    Attributes:
        values: For each rule, the value of each line.
        would_drop: For each rule, whether it would drop each line if it were the only rule.
        dropped_by: For each line, the index of the first rule that drops it, or ``KEPT``.
    """

    values: dict[str, NDArray[np.float64]]
    would_drop: dict[str, NDArray[np.bool_]]
    dropped_by: NDArray[np.int64]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Whether each line is kept."""
        kept: NDArray[np.bool_] = self.dropped_by == KEPT
        return kept


@dataclass(frozen=True)
class Judge:
    """Applies rules to the rows of lines.

    Attributes:
        rules: The rules in the order in which they are applied.
        thresholds: The configured thresholds of the rules.
        ratio_limits: The limits of the length ratio.
        learned: The thresholds that were learned from the corpus, by rule.
        flags_alone: For each rule that compares lines, which lines it would drop if it were the only rule.
        flags_in_order: For each rule that compares lines, which lines it drops among those that earlier rules keep.
    """

    rules: Sequence[Rule]
    thresholds: Thresholds
    ratio_limits: RatioLimits | None = None
    learned: Mapping[str, float] = field(default_factory=dict)
    flags_alone: LineFlags = field(default_factory=dict)
    flags_in_order: LineFlags = field(default_factory=dict)

    def threshold_of(self, rule: Rule) -> float:
        """Return the threshold of a rule."""
        return self.learned.get(rule.name, rule.default_threshold(self.thresholds))

    def decide(self, rows: NDArray[Any], first: int, scores: Scores | None = None) -> Decisions:
        """Apply the rules to consecutive lines.

        Args:
            rows: The rows of the lines.
            first: Index of the first of these lines in the corpus, counted from 0.
            scores: For each rule that uses model scores, the scores of the lines.
        """
        span = slice(first, first + len(rows))
        values: dict[str, NDArray[np.float64]] = {}
        drops: dict[str, NDArray[np.bool_]] = {}
        dropped_by = np.full(len(rows), KEPT, dtype=np.int64)
        for index, rule in enumerate(self.rules):
            if rule.name in self.flags_alone:
                dropped = np.array(self.flags_alone[rule.name][span])
                values[rule.name] = dropped.astype(np.float64)
                drops[rule.name], dropped = dropped, np.array(self.flags_in_order[rule.name][span])
            else:
                measured, limit = self._values(rule.name, rows, scores or {}), self.threshold_of(rule)
                values[rule.name] = measured
                with np.errstate(invalid="ignore"):
                    dropped = measured > limit if rule.drops_if == "above" else measured < limit
                drops[rule.name] = dropped
            dropped_by[(dropped_by == KEPT) & dropped] = index
        return Decisions(values, drops, dropped_by)

    def _values(self, name: str, rows: NDArray[Any], scores: Scores) -> NDArray[np.float64]:
        """Return the lines' values for a rule that examines each line separately."""
        source, target = get_value(rows, "source_characters"), get_value(rows, "target_characters")
        if name in scores:
            return scores[name].astype(np.float64)
        match name:
            case "held_out":
                measured: NDArray[np.float32] = get_value(rows, "is_held_out")
            case "undecodable":
                measured = get_value(rows, "is_undecodable")
            case "empty":
                measured = ((source == 0) | (target == 0)) & (get_value(rows, "is_undecodable") == 0)
            case "length":
                measured = np.fmax(source, target)
            case "ratio":
                measured = np.full(len(rows), np.nan, dtype=np.float32)
                if self.ratio_limits is not None:
                    usable = usable_lines(rows)
                    measured[usable] = self.ratio_limits.deviations(source[usable], target[usable])
            case "misaligned" | "truncated" | "cross_entropy":
                measured = np.full(len(rows), np.nan, dtype=np.float32)  # without scores
            case _:
                measured = get_value(rows, name)
        return measured.astype(np.float64)


def usable_lines(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each line can be decoded and contains no empty text."""
    usable: NDArray[np.bool_] = get_value(rows, "is_undecodable") == 0
    usable &= get_value(rows, "source_characters") > 0
    usable &= ~(get_value(rows, "target_characters") == 0)  # not `> 0`: the value is NaN in corpora of single texts
    return usable
