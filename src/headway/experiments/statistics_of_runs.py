"""The numbers that claims are about, each from the record of one run.

A statistic is computed from sums over test items: sentences, blocks of sentences or texts. So the choice of the items,
a second source of chance beside the seeds, can be resampled without a model. "Effects" of one model compare two
quantities of the same run; they are positive if they agree with the claims. ``claims.toml`` has units and smallest
differences of interest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.evaluation.translation import find_metric
from headway.experiments.experiment import read_declarations
from headway.experiments.model_measurements import BEAMS, BLOCKS, Array, bleu_counts

MAX_COST = 0.03  # nats per token; a head that costs less can be spared
_BINS = 10  # of confidence, for the calibration error (Guo et al. 2017, 2)

Record = Mapping[str, Any]
Run = dict[str, Any]
"""The arrays of a record: log-probabilities, number of tokens, counts of BLEU, and what the records do not repeat."""


@dataclass(frozen=True)
class Statistic:
    """A number of a run.

    Attributes:
        compute_rows: Function that returns what is summed (items x columns), from a run and the measurement it needs.
        value: Function that returns the number from the sums.
        unit: What it is and in which unit, for reports.
        min_difference: The smallest difference of interest, fixed before the runs.
        sign: 1 if a greater number is better, otherwise -1.
        needs: The measurement that it needs (:mod:`model_measurements`). Empty: the record's log-probabilities.
    """

    compute_rows: Callable[[Run, Any], Array]
    value: Callable[[Array], float]
    unit: str
    min_difference: float
    sign: int
    needs: str


def rows_by_statistic(record: Record, references: Sequence[str], tokens: Array) -> dict[str, Array]:
    """Return the rows of each statistic for which a record has what they need.

    ``references`` and ``tokens``, the baseline's number of tokens of each, are what the records do not repeat.
    """
    keys = ("log_probs", "log_probs_of_average", "num_tokens")
    run: Run = {"tokens": tokens} | {key: np.array(record[key], dtype=np.float64) for key in keys if key in record}
    run["bleu"] = {beam: bleu_counts(found, references) for beam, found in record.get("translations", {}).items()}
    parts = {"": record.get("log_probs"), **record.get("measured", {})}
    parts["ema"] = (parts.get("average") or {}).get("ema")
    needed = {name: parts.get(statistic.needs) for name, statistic in STATISTICS.items()}
    return {
        name: STATISTICS[name].compute_rows(run, np.array(part) if isinstance(part, list) else part)
        for name, part in needed.items()
        if part is not None and not record["diverged"]
    }


def _blocks(values: Array) -> Array:
    return np.array([part.sum(0) for part in np.array_split(values, BLOCKS)])


def _columns(*columns: Any) -> Array:
    return np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])


def _ratio(sums: Array) -> float:
    return float(sums[0] / sums[1])


def _percent(sums: Array) -> float:
    return 100 * _ratio(sums)


def _bleu_gain(sums: Array) -> float:
    value, half = find_metric("bleu").value, len(sums) // 2
    return value(sums[:half]) - value(sums[half:])


def _binned(_: Run, labels: Any) -> Array:
    right, confidence = (np.array(labels[key]) for key in ("right", "confidence"))
    in_bin = np.eye(_BINS)[np.minimum((confidence * _BINS).astype(int), _BINS - 1)]
    return _columns(in_bin * right[:, None], in_bin * confidence[:, None], np.ones(len(in_bin)))


def _calibration_error(sums: Array) -> float:
    right, confidence = sums[:-1].reshape(2, _BINS)
    return float(100 * np.abs(right - confidence).sum() / sums[-1])


def _beams(one: tuple[int, float], other: tuple[int, float]) -> Callable[[Run, Any], Array]:
    return lambda _, counts: np.hstack([counts[BEAMS.index(setting)] for setting in (one, other)])


def _head_costs(run: Run, heads: Any) -> Array:
    """Return the log-probability that is lost without each head, first those over the source, and tokens."""
    order = sorted(range(len(heads["kinds"])), key=lambda number: heads["kinds"][number] != "cross")
    lost = np.array(heads["whole"])[:, None] - np.array(heads["without"]).T[:, order]
    num_cross = np.full(len(lost), heads["kinds"].count("cross") / len(lost))
    return _columns(lost, num_cross, _blocks(run["tokens"]))


def _cheap_heads(sums: Array) -> float:
    return float(100 * np.mean(sums[:-2] / sums[-1] < MAX_COST) - 50)


def _cross_heads(sums: Array) -> float:
    costs, cross = sums[:-2] / sums[-1], round(sums[-2])
    return float(costs[:cross].mean() - costs[cross:].mean())


_FUNCTIONS: dict[str, tuple[Callable[[Run, Any], Array], Callable[[Array], float]]] = {
    "loss": (lambda run, scores: _columns(-scores, run["tokens"]), _ratio),
    "bleu": (lambda run, _: run["bleu"]["4"], lambda sums: find_metric("bleu").value(sums)),
    "accuracy": (lambda run, fit: _columns(fit["correct"], _blocks(run["num_tokens"])), _percent),
    "overfitting": (
        lambda run, fit: _columns(-run["log_probs"] - fit["training_loss"] * run["num_tokens"], run["num_tokens"]),
        _ratio,
    ),
    "error": (lambda _, labels: _columns(np.subtract(1, labels["right"]), np.ones(len(labels["right"]))), _percent),
    "calibration": (_binned, _calibration_error),
    "confidence": (lambda _, labels: _columns(labels["confidence"], np.ones(len(labels["right"]))), _percent),
    "average": (lambda run, scores: _columns(run["log_probs_of_average"] - scores, run["tokens"]), _ratio),
    "ema": (lambda run, mean: _columns(mean["log_probs"] - _blocks(run["log_probs"]), _blocks(run["tokens"])), _ratio),
    "beam": (lambda run, _: np.hstack([run["bleu"][beam] for beam in ("4", "1")]), _bleu_gain),
    "wide-beam": (_beams((16, 0.6), (4, 0.6)), _bleu_gain),
    "wide-beam-plain": (_beams((16, 0.0), (4, 0.0)), _bleu_gain),
    "length-penalty": (_beams((4, 0.6), (4, 0.0)), _bleu_gain),
    "int8": (lambda run, int8: np.hstack([int8["counts"], _blocks(run["bleu"]["4"])]), _bleu_gain),
    "cheap-heads": (_head_costs, _cheap_heads),
    "cross-heads": (_head_costs, _cross_heads),
    "alignment": (lambda _, links: _columns(links[:, -1] - links[:, 1], links[:, 0]), _percent),
    "source-tokens": (lambda _, identified: _columns(identified[:, -1], identified[:, 0]), _percent),
    "long": (lambda _, scores: _columns(scores[:, 1] - scores[:, -1], scores[:, 0]), _ratio),
}
STATISTICS = {
    name: Statistic(*_FUNCTIONS[name], *declared)
    for name, declared in read_declarations("claims.toml")["statistics"].items()
}
"""All statistics, by name."""
