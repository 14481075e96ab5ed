"""The report on a cleaned corpus: report.json for programs, and report.html, a self-contained page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from numpy.typing import NDArray

from headway.corpus.cleaning.findings import CorpusCounts, LineExample, NearestExamples, RuleFindings, percentiles
from headway.corpus.cleaning.language import language_detector
from headway.corpus.cleaning.length_ratio import RatioLimits
from headway.corpus.cleaning.measuring import CleaningSettings
from headway.corpus.cleaning.scripts import SCRIPTS
from headway.report_page import report_parts
from headway.storage import atomic_write_text

_SHARES = {"5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "99 %": 0.99}
_MAX_LISTED = 8  # maximum number of languages and of scripts to list
_MANY_DROPPED = 0.5
_ONE_LABEL = 0.95
_MAX_LABELS = 100
_RATIO_LENGTHS = (10, 30, 100, 300)


@dataclass(frozen=True)
class CleaningReport:
    """The results of a run.

    Attributes:
        settings: The settings of the run.
        counts: Statistics of the corpus.
        findings: The results of each rule, in the order of the rules.
        repairs: Examples of each repair.
        repeats: For "source" and "target", the number of lines whose text on this side repeats an earlier one.
        ratio_limits: The limits of the length ratio.
    """

    settings: CleaningSettings
    counts: CorpusCounts
    findings: Sequence[RuleFindings]
    repairs: Mapping[str, NearestExamples]
    repeats: Mapping[str, int]
    ratio_limits: RatioLimits | None

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        counts = self.counts
        return {
            "kind": self.settings.kind,
            "languages": list(self.settings.languages),
            "lines": counts.num_lines,
            "kept": counts.num_kept,
            "warnings": self._warnings(),
            "repairs": {
                name: {"lines": counts.repairs[name], "examples": [*map(_example, examples.examples())]}
                for name, examples in self.repairs.items()
                if name in self.settings.config.repairs
            },
            "rules": [*map(_rule, self.findings)],
            "ratio": self._ratio(),
            "labels": dict(counts.labels.most_common(_MAX_LABELS)),
            "corpus": {
                "usable": counts.num_usable,
                **{side: self._side(number) for number, side in enumerate(self._sides())},
            },
        }

    def _sides(self) -> tuple[str, ...]:
        return ("source", "target") if self.settings.kind == "pairs" else ("text",)

    def _side(self, number: int) -> dict[str, Any]:
        """Return a description of the texts of one side."""
        lengths, name = self.counts.lengths[number], ("source", "target")[number]
        total = int(lengths.sum())
        detected = "language" in self.settings.config.rules
        return {
            "language": self.settings.languages[number],
            "detected_languages": _named(self.counts.languages[number], language_detector().languages)
            if detected
            else {},
            "scripts": _named(self.counts.scripts[number], [*SCRIPTS, "none"]),
            "characters": {
                "mean": round(float(lengths @ np.arange(len(lengths)) / total), 1) if total else 0.0,
                **(dict(zip(_SHARES, percentiles(lengths, [*_SHARES.values()]), strict=True)) if total else {}),
            },
            "repeated": self.repeats[name],
        }

    def _ratio(self) -> dict[str, Any] | None:
        """Return, for some lengths, the range of length ratios (target to source) in which pairs are kept."""
        if self.ratio_limits is None:
            return None
        deviations = self.settings.config.thresholds.max_ratio_deviations
        limits = {length: self.ratio_limits.ratios_at(length, deviations) for length in _RATIO_LENGTHS}
        return {str(length): [round(low, 3), round(high, 3)] for length, (low, high) in limits.items()}

    def _warnings(self) -> list[str]:
        counts, warnings = self.counts, []
        if counts.num_lines and counts.num_kept < (1 - _MANY_DROPPED) * counts.num_lines:
            worst = max(self.findings, key=lambda finding: finding.num_dropped)
            warnings.append(
                f"{1 - counts.num_kept / counts.num_lines:.0%} of the lines were dropped, most of them by "
                f"{worst.rule.name}: check the examples of this rule, and check --from and --to"
            )
        if not_learned := [finding.rule.name for finding in self.findings if math.isnan(finding.threshold)]:
            warnings.append(f"too few pairs to learn word translations; rules not applied: {', '.join(not_learned)}")
        for label, count in counts.labels.most_common(1):
            if count >= _ONE_LABEL * counts.labels.total():
                share = math.floor(100 * count / counts.labels.total())
                warnings.append(f"{share} % of the texts have the label {label!r}")
        return warnings


def _named(counts: NDArray[np.int64], names: Sequence[str]) -> dict[str, int]:
    """Return the nonzero counts by name, the largest first."""
    order = np.argsort(-counts, kind="stable")
    return {names[number]: int(counts[number]) for number in order.tolist() if counts[number]}


def _rule(finding: RuleFindings) -> dict[str, Any]:
    rule = finding.rule
    has_threshold = rule.threshold is not None or rule.is_learned
    histogram = None
    if finding.edges is not None and finding.counts.any():
        histogram = {
            "edges": [float(f"{edge:.6g}") for edge in finding.edges],
            "counts": finding.counts.tolist(),
            "scale": rule.histogram_scale,
        }
    return {
        "name": rule.name,
        "meaning": rule.meaning,
        "value": rule.value,
        "threshold": finding.threshold if has_threshold and math.isfinite(finding.threshold) else None,
        "drops": rule.drops_if,
        "alone": finding.num_matches,
        "dropped": finding.num_dropped,
        "histogram": histogram,
        "examples": {
            "dropped": [*map(_example, finding.dropped_examples.examples())],
            "kept": [*map(_example, finding.kept_examples.examples())],
        },
    }


def _example(example: LineExample) -> dict[str, Any]:
    data: dict[str, Any] = {"file": example.file, "line": example.line, "texts": list(example.texts)}
    if example.texts_before_repair:
        return {**data, "before": list(example.texts_before_repair)}
    return {**data, "value": float(f"{example.value:.4g}")}


def write_report(data: Mapping[str, Any], json_path: Path, html_path: Path) -> None:
    """Write both files. The JSON file is written last, because it marks the run as finished."""
    html = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    html.filters["number"] = _shown
    html.filters["share"] = lambda part, whole: f"{part / whole:.2%}" if whole else "–"
    template, style = report_parts("headway.corpus.cleaning")
    page = html.from_string(template).render(
        style=style, report=data, histogram=_histogram, max_listed=_MAX_LISTED, shares=[*_SHARES]
    )
    atomic_write_text(html_path, page)
    atomic_write_text(json_path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def _shown(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:.4g}"


@dataclass(frozen=True)
class _Bar:
    """A bar in a histogram, in units of the drawing."""

    x: float
    y: float
    width: float
    height: float
    is_dropped: bool
    title: str


@dataclass(frozen=True)
class _Drawing:
    """A histogram, in units of the drawing.

    Attributes:
        bars: The bars of nonempty bins.
        threshold: Horizontal position of the threshold.
        ticks: Positions and labels on the horizontal axis.
        levels: Positions and labels on the vertical axis, which is logarithmic.
        width: Width of the plot.
        height: Height of the plot.
    """

    bars: list[_Bar]
    threshold: float
    ticks: list[tuple[float, str]]
    levels: list[tuple[float, str]]
    width: float
    height: float


_WIDTH, _HEIGHT = 640.0, 150.0
_NUM_TICKS = 6


def _histogram(rule: Mapping[str, Any]) -> _Drawing:
    """Return the drawing of a rule's histogram. Heights are logarithmic, so that rare values can be seen."""
    edges, counts = rule["histogram"]["edges"], rule["histogram"]["counts"]
    is_log = rule["histogram"]["scale"] == "log"
    threshold = rule["threshold"]
    if threshold is None:  # place the threshold at the edge, so that no bin counts as dropped
        threshold = edges[0] if rule["drops"] == "below" else edges[-1]

    def position(value: float) -> float:
        low, high = edges[0], edges[-1]
        if is_log:
            low, high, value = (math.log(max(number, edges[0])) for number in (low, high, value))
        share: float = min(max((value - low) / (high - low), 0.0), 1.0)
        return share * _WIDTH

    top = math.log10(max(*counts, 9) + 1)
    bars = []
    for number, count in enumerate(counts):
        if not count:
            continue
        left, right = position(edges[number]), position(edges[number + 1])
        height = math.log10(count + 1) / top * _HEIGHT
        middle = (left + right) / 2
        is_above = middle > position(threshold)
        title = f"{_shown(edges[number])} to {_shown(edges[number + 1])}: {count:,} lines"
        bars.append(
            _Bar(
                left, _HEIGHT - height, max(right - left - 1, 1), height, is_above == (rule["drops"] == "above"), title
            )
        )
    if is_log:
        powers = range(math.ceil(math.log10(edges[0]) - 1e-9), math.floor(math.log10(edges[-1]) + 1e-9) + 1)
        marks = [10.0**power for power in powers]
    elif edges[0] == -0.5:  # each integer has its own bin
        marks = [float(count) for count in range(len(counts))]
    else:
        marks = [float(f"{mark:.6g}") for mark in np.linspace(edges[0], edges[-1], _NUM_TICKS)]
    ticks = [(position(mark), f"{mark:g}") for mark in marks]
    levels = [
        (_HEIGHT - math.log10(10.0**power + 1) / top * _HEIGHT, f"{10**power:,}")
        for power in range(math.floor(top) + 1)
        if math.log10(10.0**power + 1) <= top
    ]
    return _Drawing(bars, position(threshold), ticks, levels, _WIDTH, _HEIGHT)
