"""The numbers that claims are about, each from the record of one run.

A statistic is computed from sums over test items: sentences, blocks of sentences or texts. So the choice of the items,
a second source of chance beside the seeds, can be resampled without a model. "Effects" of one model compare two
quantities of the same run; they are positive if they agree with the claims in ``claims.toml``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.evaluation.translation import find_metric
from headway.experiments.model_measurements import BEAMS, BLOCKS, SENTENCES_BEFORE, Array, bleu_counts

MAX_COST = 0.03  # nats per token; a head that costs less can be spared
_BINS = 10  # of confidence, for the calibration error (Guo et al. 2017, 2)

Record = Mapping[str, Any]


@dataclass(frozen=True)
class EvaluationSet:
    """What the records do not repeat: the references, and the baseline's number of tokens of each."""

    references: list[str]
    tokens: Array


@dataclass(frozen=True)
class Statistic:
    """A number of a run.

    Attributes:
        unit: What it is and in which unit, for reports.
        smallest: The smallest difference of interest, fixed before the runs.
        sign: 1 if a greater number is better, otherwise -1.
        rows: Function that returns what is summed (items x columns), from a record and the test set.
        value: Function that returns the number from the sums.
        needs: The measurement that it needs (:mod:`model_measurements`), if any.
    """

    unit: str
    smallest: float
    sign: int
    rows: Callable[[Record, EvaluationSet], Array]
    value: Callable[[Array], float]
    needs: str = ""

    def rows_of(self, record: Record, test: EvaluationSet) -> Array | None:
        """Return the rows of a record, or None if it does not have what they need."""
        lacks = self.needs and record.get("measured", {}).get(self.needs) is None
        is_text = "log_probs" in record or self.needs == "labels"
        return None if record["diverged"] or lacks or not is_text else self.rows(record, test)


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


def _calibration_error(sums: Array) -> float:
    right, confidence = sums[:-1].reshape(2, _BINS)
    return float(100 * np.abs(right - confidence).sum() / sums[-1])


def _binned(record: Record, _: EvaluationSet) -> Array:
    labels = {key: np.array(values) for key, values in record["measured"]["labels"].items()}
    in_bin = np.eye(_BINS)[np.minimum((labels["confidence"] * _BINS).astype(int), _BINS - 1)]
    return _columns(in_bin * labels["right"][:, None], in_bin * labels["confidence"][:, None], np.ones(len(in_bin)))


def _counts(record: Record, beam: int, test: EvaluationSet) -> Array:
    return bleu_counts(record["translations"][str(beam)], test.references)


def _beams(first: tuple[int, float], second: tuple[int, float]) -> Callable[[Record, EvaluationSet], Array]:
    pair = [BEAMS.index(setting) for setting in (first, second)]
    return lambda record, _: np.hstack([np.array(record["measured"]["beams"][index]) for index in pair])


def _overfitting(record: Record, _: EvaluationSet) -> Array:
    known, own_tokens = record["measured"]["fit"]["training_loss"], np.array(record["num_tokens"])
    return _columns(-np.array(record["log_probs"]) - known * own_tokens, own_tokens)


def _head_costs(record: Record, test: EvaluationSet) -> Array:
    """Return the log-probability that is lost without each head, first those over the source, and tokens."""
    heads = record["measured"]["heads"]
    order = sorted(range(len(heads["kinds"])), key=lambda number: heads["kinds"][number] != "cross")
    lost = np.array(heads["whole"])[:, None] - np.array(heads["without"]).T[:, order]
    num_cross = np.full(len(lost), heads["kinds"].count("cross") / len(lost))
    return _columns(lost, num_cross, _blocks(test.tokens))


def _cheap_heads(sums: Array) -> float:
    return float(100 * np.mean(sums[:-2] / sums[-1] < MAX_COST) - 50)


def _cross_heads(sums: Array) -> float:
    costs, cross = sums[:-2] / sums[-1], round(sums[-2])
    return float(costs[:cross].mean() - costs[cross:].mean())


def _after_others(record: Record, _: EvaluationSet) -> Array:
    tokens, *scores = np.array(record["measured"]["length"]).T
    return _columns(scores[0] - scores[len(SENTENCES_BEFORE) - 1], tokens)


def _int8(record: Record, test: EvaluationSet) -> Array:
    return np.hstack([np.array(record["measured"]["int8"]["counts"]), _blocks(_counts(record, 4, test))])


def _ema(record: Record, test: EvaluationSet) -> Array:
    gain = np.array(record["measured"]["average"]["ema"]["log_probs"]) - _blocks(np.array(record["log_probs"]))
    return _columns(gain, _blocks(test.tokens))


def _loss(record: Record, test: EvaluationSet) -> Array:
    return _columns(-np.array(record["log_probs"]), test.tokens)


def _accuracy(record: Record, _: EvaluationSet) -> Array:
    return _columns(record["measured"]["fit"]["correct"], _blocks(np.array(record["num_tokens"], dtype=float)))


def _errors(record: Record, _: EvaluationSet) -> Array:
    right = np.array(record["measured"]["labels"]["right"])
    return _columns(1 - right, np.ones(len(right)))


def _average(record: Record, test: EvaluationSet) -> Array:
    return _columns(np.subtract(record["log_probs_of_average"], record["log_probs"]), test.tokens)


def _four_beams(record: Record, test: EvaluationSet) -> Array:
    return np.hstack([_counts(record, beam, test) for beam in (4, 1)])


def _links(record: Record, _: EvaluationSet) -> Array:
    links, diagonal, *layers = np.array(record["measured"]["alignment"], dtype=float).T
    return _columns(layers[-1] - diagonal, links)


def _source_tokens(record: Record, _: EvaluationSet) -> Array:
    tokens, *layers = np.array(record["measured"]["tokens"], dtype=float).T
    return _columns(layers[-1], tokens)


_WIDE, _PENALTY = _beams((16, 0.6), (4, 0.6)), _beams((4, 0.6), (4, 0.0))
_CHEAP = f"percent of heads, above 50, whose removal costs less than {MAX_COST} nats per token"
_CROSS = "nats per token, cost of a head over the source minus that of one of self-attention"
_AVERAGE = "nats per token, last weights minus the mean of five checkpoints"
_ALIGNMENT = "percent of the aligner's links, the last layer's attention minus the diagonal"

STATISTICS = {
    "loss": Statistic("nats per token", 0.03, -1, _loss, _ratio),
    "bleu": Statistic("BLEU", 0.5, 1, lambda record, test: _counts(record, 4, test), _bleu),
    "accuracy": Statistic("points of accuracy of tokens", 0.5, 1, _accuracy, _percent, "fit"),
    "overfitting": Statistic("nats per token, test minus training", 0.03, -1, _overfitting, _ratio, "fit"),
    "error": Statistic("points of error", 0.5, -1, _errors, _percent, "labels"),
    "calibration": Statistic("points of calibration error", 0.5, -1, _binned, _calibration_error, "labels"),
    "average": Statistic(_AVERAGE, 0.03, 1, _average, _ratio),
    "ema": Statistic("nats per token, last weights minus their moving average", 0.03, 1, _ema, _ratio, "average"),
    "beam": Statistic("BLEU, beam of 4 minus greedy search", 0.5, 1, _four_beams, _bleu_gain),
    "wide-beam": Statistic("BLEU, beam of 16 minus 4", 0.5, 1, _WIDE, _bleu_gain, "beams"),
    "length-penalty": Statistic("BLEU, length penalty of 0.6 minus none", 0.5, 1, _PENALTY, _bleu_gain, "beams"),
    "int8": Statistic("BLEU, int8 minus float32", 0.5, 1, _int8, _bleu_gain, "int8"),
    "cheap-heads": Statistic(_CHEAP, 5.0, 1, _head_costs, _cheap_heads, "heads"),
    "cross-heads": Statistic(_CROSS, 0.03, 1, _head_costs, _cross_heads, "heads"),
    "alignment": Statistic(_ALIGNMENT, 5.0, 1, _links, _percent, "alignment"),
    "source-tokens": Statistic(
        "percent of source tokens, told by the encoder's output", 2.0, 1, _source_tokens, _percent, "tokens"
    ),
    "long": Statistic(
        "nats per token, lost by a sentence after seven others", 0.03, -1, _after_others, _ratio, "length"
    ),
}
"""All statistics, by name."""
