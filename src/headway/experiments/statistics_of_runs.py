"""The numbers that claims are about, each from the record of one run.

A statistic is computed from sums over test items: sentences, blocks of sentences or texts. So the choice of the items,
a second source of chance beside the seeds, can be resampled without a model. "Effects" of one model compare two
quantities of the same run; they are positive if they agree with the claims. ``claims.toml`` has units and smallest
differences of interest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headway.evaluation.translation import find_metric
from headway.experiments.experiment import read_declarations
from headway.experiments.model_measurements import BEAMS, BLOCKS, Array, bleu_counts

MAX_COST = 0.03  # nats per token; a head that costs less can be spared
_BINS = 10  # of confidence, for the calibration error (Guo et al. 2017, 2)

Record = Mapping[str, Any]


@dataclass(frozen=True)
class EvaluationSet:
    """What the records do not repeat: the references, and the baseline's number of tokens of each."""

    references: list[str]
    tokens: Array


@dataclass(frozen=True)
class RecordedRun:
    """The record of a run, and the test set that its model has read."""

    record: Record
    test: EvaluationSet

    def array(self, key: str) -> Array:
        """Return a list of the record."""
        return np.array(self.record[key], dtype=np.float64)

    @property
    def own_tokens(self) -> Array:
        """Number of tokens of each reference, by the model's tokenizer."""
        return self.array("num_tokens")

    @cached_property
    def bleu_counts(self) -> dict[str, Array]:
        """The counts of each translation from which BLEU is computed, by beam."""
        return {beam: bleu_counts(found, self.test.references) for beam, found in self.record["translations"].items()}


@dataclass(frozen=True)
class Statistic:
    """A number of a run.

    Attributes:
        rows: Function that returns what is summed (items x columns), from a run and the measurement that it needs.
        value: Function that returns the number from the sums.
        unit: What it is and in which unit, for reports.
        smallest: The smallest difference of interest, fixed before the runs.
        sign: 1 if a greater number is better, otherwise -1.
        needs: The measurement that it needs (:mod:`model_measurements`). Empty: the record's log-probabilities.
    """

    rows: Callable[[RecordedRun, Any], Array]
    value: Callable[[Array], float]
    unit: str
    smallest: float
    sign: int
    needs: str


def rows_by_statistic(record: Record, test: EvaluationSet) -> dict[str, Array]:
    """Return the rows of each statistic for which a record has what they need."""
    run, parts = RecordedRun(record, test), {"": record.get("log_probs"), **record.get("measured", {})}
    parts["ema"] = (parts.get("average") or {}).get("ema")
    found = {name: parts.get(statistic.needs) for name, statistic in STATISTICS.items()}
    return {
        name: STATISTICS[name].rows(run, np.array(needed) if isinstance(needed, list) else needed)
        for name, needed in found.items()
        if needed is not None and not record["diverged"]
    }


def _blocks(values: Array) -> Array:
    return np.array([part.sum(0) for part in np.array_split(values, BLOCKS)])


def _columns(*columns: Any) -> Array:
    return np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])


def _ratio(sums: Array) -> float:
    return float(sums[0] / sums[1])


def _percent(sums: Array) -> float:
    return 100 * _ratio(sums)


def _bleu(sums: Array) -> float:
    return find_metric("bleu").value(sums)


def _bleu_gain(sums: Array) -> float:
    return _bleu(sums[: len(sums) // 2]) - _bleu(sums[len(sums) // 2 :])


def _binned(_: RecordedRun, labels: Any) -> Array:
    right, confidence = (np.array(labels[key]) for key in ("right", "confidence"))
    in_bin = np.eye(_BINS)[np.minimum((confidence * _BINS).astype(int), _BINS - 1)]
    return _columns(in_bin * right[:, None], in_bin * confidence[:, None], np.ones(len(in_bin)))


def _calibration_error(sums: Array) -> float:
    right, confidence = sums[:-1].reshape(2, _BINS)
    return float(100 * np.abs(right - confidence).sum() / sums[-1])


def _overfitting(run: RecordedRun, fit: Any) -> Array:
    return _columns(-run.array("log_probs") - fit["training_loss"] * run.own_tokens, run.own_tokens)


def _ema(run: RecordedRun, average: Any) -> Array:
    gain = average["log_probs"] - _blocks(run.array("log_probs"))
    return _columns(gain, _blocks(run.test.tokens))


def _beams(one: tuple[int, float], other: tuple[int, float]) -> Callable[[RecordedRun, Any], Array]:
    return lambda _, counts: np.hstack([counts[BEAMS.index(setting)] for setting in (one, other)])


def _head_costs(run: RecordedRun, heads: Any) -> Array:
    """Return the log-probability that is lost without each head, first those over the source, and tokens."""
    order = sorted(range(len(heads["kinds"])), key=lambda number: heads["kinds"][number] != "cross")
    lost = np.array(heads["whole"])[:, None] - np.array(heads["without"]).T[:, order]
    num_cross = np.full(len(lost), heads["kinds"].count("cross") / len(lost))
    return _columns(lost, num_cross, _blocks(run.test.tokens))


def _cheap_heads(sums: Array) -> float:
    return float(100 * np.mean(sums[:-2] / sums[-1] < MAX_COST) - 50)


def _cross_heads(sums: Array) -> float:
    costs, cross = sums[:-2] / sums[-1], round(sums[-2])
    return float(costs[:cross].mean() - costs[cross:].mean())


_FUNCTIONS: dict[str, tuple[Callable[[RecordedRun, Any], Array], Callable[[Array], float]]] = {
    "loss": (lambda run, scores: _columns(-scores, run.test.tokens), _ratio),
    "bleu": (lambda run, _: run.bleu_counts["4"], _bleu),
    "accuracy": (lambda run, fit: _columns(fit["correct"], _blocks(run.own_tokens)), _percent),
    "overfitting": (_overfitting, _ratio),
    "error": (lambda _, labels: _columns(np.subtract(1, labels["right"]), np.ones(len(labels["right"]))), _percent),
    "calibration": (_binned, _calibration_error),
    "average": (lambda run, scores: _columns(run.array("log_probs_of_average") - scores, run.test.tokens), _ratio),
    "ema": (_ema, _ratio),
    "beam": (lambda run, _: np.hstack([run.bleu_counts[beam] for beam in ("4", "1")]), _bleu_gain),
    "wide-beam": (_beams((16, 0.6), (4, 0.6)), _bleu_gain),
    "length-penalty": (_beams((4, 0.6), (4, 0.0)), _bleu_gain),
    "int8": (lambda run, int8: np.hstack([int8["counts"], _blocks(run.bleu_counts["4"])]), _bleu_gain),
    "cheap-heads": (_head_costs, _cheap_heads),
    "cross-heads": (_head_costs, _cross_heads),
    "alignment": (lambda _, links: _columns(links[:, -1] - links[:, 1], links[:, 0]), _percent),
    "source-tokens": (lambda _, told: _columns(told[:, -1], told[:, 0]), _percent),
    "long": (lambda _, scores: _columns(scores[:, 1] - scores[:, -1], scores[:, 0]), _ratio),
}
STATISTICS = {
    name: Statistic(*_FUNCTIONS[name], *declared)
    for name, declared in read_declarations("claims.toml")["statistics"].items()
}
"""All statistics, by name."""
