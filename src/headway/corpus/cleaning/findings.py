"""The counts and examples that the second pass collects for the report."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.corpus.cleaning.config import REPAIRS
from headway.corpus.cleaning.decisions import Decisions, usable_lines
from headway.corpus.cleaning.measures import UNKNOWN_LANGUAGE, get_value
from headway.corpus.cleaning.rules import Rule

NUM_EXAMPLES = 20
_NUM_REPAIRS = 5
_MAX_LENGTH = 10_000
_MAX_LABELS = 10_000  # maximum number of distinct labels to count


@dataclass(frozen=True, order=True)
class LineExample:
    """An example line in the report.

    Attributes:
        file: The file name, as given by the user.
        line: Line number, counted from 1.
        value: The line's value for the rule.
        texts: The texts in the line, after repairs.
        texts_before_repair: The texts before repairs. Empty if nothing was repaired.
    """

    file: str
    line: int
    value: float
    texts: tuple[str, ...]
    texts_before_repair: tuple[str, ...] = ()


class NearestExamples:
    """Collects the lines whose values are nearest to a threshold. Ties are broken by the smallest hash.

    Args:
        count: Number of lines to keep.
    """

    def __init__(self, count: int = NUM_EXAMPLES) -> None:
        self._count = count
        # A heap whose first item is the farthest from the threshold.
        self._heap: list[tuple[float, int, LineExample]] = []

    def add(
        self,
        distances: NDArray[np.float64],
        candidates: NDArray[np.bool_],
        hashes: NDArray[np.uint64],
        example: Callable[[int], LineExample],
    ) -> None:
        """Add the candidates among the lines in a chunk. ``example`` returns a line by its index in the chunk."""
        numbers = np.flatnonzero(candidates)
        if len(self._heap) == self._count:
            numbers = numbers[distances[numbers] <= -self._heap[0][0]]
        order = np.lexsort((hashes[numbers], distances[numbers]))[: self._count]
        for number in numbers[order].tolist():
            key = (-float(distances[number]), -int(hashes[number]))
            if len(self._heap) < self._count:
                heapq.heappush(self._heap, (*key, example(number)))
            elif key > self._heap[0][:2]:
                heapq.heapreplace(self._heap, (*key, example(number)))

    def examples(self) -> list[LineExample]:
        """Return the collected lines, the nearest one first."""
        return [example for *_, example in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


@dataclass
class RuleFindings:
    """The results of one rule.

    Attributes:
        rule: The rule that was applied.
        threshold: The threshold that the rule used.
        num_matches: Number of lines that the rule would drop if it were the only rule.
        num_dropped: Number of lines that the rule dropped among the lines that earlier rules keep.
        edges: Edges of the bins of the rule's histogram.
        counts: Number of lines in each bin.
        dropped_examples: Examples of lines that the rule dropped, the nearest to the threshold first.
        kept_examples: Examples of lines that were kept, the nearest to the threshold first.
    """

    rule: Rule
    threshold: float
    num_matches: int = 0
    num_dropped: int = 0
    dropped_examples: NearestExamples = field(default_factory=NearestExamples)
    kept_examples: NearestExamples = field(default_factory=NearestExamples)

    def __post_init__(self) -> None:
        self.edges: NDArray[np.float64] | None = None
        if self.rule.histogram_edges is not None:
            make = np.geomspace if self.rule.histogram_scale == "log" else np.linspace
            self.edges = make(*self.rule.histogram_edges, self.rule.num_bins + 1)
        self.counts = np.zeros(self.rule.num_bins, dtype=np.int64)

    def add(
        self,
        index: int,
        decisions: Decisions,
        hashes: NDArray[np.uint64],
        example: Callable[[int, float], LineExample],
    ) -> None:
        """Add the decisions on a chunk. ``index`` is the rule's index in the order of rules."""
        values, name = decisions.values[self.rule.name], self.rule.name
        dropped = decisions.dropped_by == index
        self.num_matches += int(decisions.would_drop[name].sum())
        self.num_dropped += int(dropped.sum())
        distances = np.zeros(len(values))
        if self.edges is not None:
            known = ~np.isnan(values)
            self.counts += np.histogram(np.clip(values[known], self.edges[0], self.edges[-1]), self.edges)[0]
            distances = np.abs(self._scaled(values) - self._scaled(np.array([self.threshold])))
            distances[~known] = np.inf
            near = lambda number: example(number, float(values[number]))  # noqa: E731
            self.kept_examples.add(distances, decisions.kept & known, hashes, near)
        self.dropped_examples.add(distances, dropped, hashes, lambda number: example(number, float(values[number])))

    def _scaled(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        assert self.edges is not None
        return np.log(np.maximum(values, self.edges[0])) if self.rule.histogram_scale == "log" else values


@dataclass
class CorpusCounts:
    """Statistics of a corpus.

    Attributes:
        num_lines: Number of lines.
        num_kept: Number of lines that were kept.
        num_usable: Number of lines that can be decoded and have no empty text.
        repairs: Number of lines that each repair changed.
        languages: For source and target, the number of lines in each detected language, by index.
        scripts: For source and target, the number of lines in each script, by index.
        lengths: For source and target, the number of texts of each length in characters, up to 10,000.
        labels: Number of lines with each label.
    """

    num_lines: int = 0
    num_kept: int = 0
    num_usable: int = 0
    repairs: Counter[str] = field(default_factory=Counter)
    languages: list[NDArray[np.int64]] = field(default_factory=lambda: [np.zeros(256, np.int64) for _ in range(2)])
    scripts: list[NDArray[np.int64]] = field(default_factory=lambda: [np.zeros(256, np.int64) for _ in range(2)])
    lengths: list[NDArray[np.int64]] = field(
        default_factory=lambda: [np.zeros(_MAX_LENGTH + 1, np.int64) for _ in range(2)]
    )
    labels: Counter[str] = field(default_factory=Counter)
    _label_names: dict[int, str] = field(default_factory=dict)

    def add(self, rows: NDArray[Any], decisions: Decisions) -> None:
        """Add the lines in a chunk."""
        usable = usable_lines(rows)
        self.num_lines += len(rows)
        self.num_kept += int(decisions.kept.sum())
        self.num_usable += int(usable.sum())
        for bit, repair in enumerate(REPAIRS):
            self.repairs[repair] += int((rows["repairs"] >> bit & 1).sum())
        rows = rows[usable]
        for side, name in enumerate(("source", "target")):
            languages = rows[f"{name}_language"]
            self.languages[side] += np.bincount(languages[languages != UNKNOWN_LANGUAGE], minlength=256)
            self.scripts[side] += np.bincount(rows[f"{name}_script"], minlength=256)
            characters = get_value(rows, f"{name}_characters")
            characters = characters[~np.isnan(characters)].astype(np.int64)
            self.lengths[side] += np.bincount(np.minimum(characters, _MAX_LENGTH), minlength=_MAX_LENGTH + 1)

    def add_labels(self, rows: NDArray[Any], label: Callable[[int], str]) -> None:
        """Count the labels in a chunk. ``label`` returns the label of a line by its index in the chunk."""
        usable = np.flatnonzero(usable_lines(rows))
        keys, firsts, counts = np.unique(rows["target"][usable], return_index=True, return_counts=True)
        for key, first, count in zip(keys.tolist(), firsts.tolist(), counts.tolist(), strict=True):
            if key not in self._label_names:
                if len(self._label_names) >= _MAX_LABELS:
                    continue
                self._label_names[key] = label(int(usable[first]))
            self.labels[self._label_names[key]] += count


def percentiles(counts: NDArray[np.int64], shares: Sequence[float]) -> list[int]:
    """Return the percentiles of the lengths. ``counts`` contains the number of lines of each length."""
    cumulative = np.cumsum(counts)
    return [int(np.searchsorted(cumulative, share * cumulative[-1])) for share in shares]


def empty_repair_examples() -> dict[str, NearestExamples]:
    """Return an empty collection of examples for each repair."""
    return {name: NearestExamples(_NUM_REPAIRS) for name in REPAIRS}
