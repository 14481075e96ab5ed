"""Test the paper's claims about trained models with the pool's records. Each variant changes one thing in a baseline.

The baseline is a Transformer of 2 + 2 layers and width 128 with the paper's options, trained for 4,600 steps on 29,000
sentence pairs. The paper trained 65 million weights on 4.5 million pairs. A small difference there may be absent here,
and the other way round. Recurrent models have as much processor time. Classifiers of AG News have baselines of their
own.

The loss is -log P(reference | source) over the 1,000 sentences of test_2016_flickr, divided by the baseline's number of
tokens, so that vocabularies can be compared. 0.03 nats, about half a point of BLEU, is the smallest difference of
interest. BLEU (beam 4, length penalty 0.6) decides where a change affects calibration or the vocabulary. Differences
have two sources of chance, seeds and sentences, and both are in the intervals.

Nothing is decided before a gate is passed: 35 BLEU of the baseline for translation, 1.1 times the recipe's error for
classification. Models with half the steps or 5,000 pairs are weaker than their gate, the full baseline's: they show
how fast something is learned. What lacks runs names their number and the hours that they take.

The figure shows each effect in units of the smallest difference of interest, with its 95 % interval before the
correction for multiple claims. An effect right of zero agrees with its claim. Colors: this experiment's verdicts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import fmean, stdev
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from headway.experiments.corpus import MULTI30K, find_data
from headway.experiments.experiment import Claim, Numbers, Settings, read_declarations
from headway.experiments.figures import label, shared_legend, subplots
from headway.experiments.model_measurements import TEST, Array, read_pairs
from headway.experiments.pool import VARIANTS, PoolRun, all_runs, core_hours, speeds_of
from headway.experiments.pool_runs import PoolFolder, PoolRecord
from headway.experiments.statistics_of_runs import STATISTICS, rows_by_statistic
from headway.experiments.verdicts import (
    LEVEL,
    Effect,
    Regime,
    Tested,
    Verdict,
    add_variance,
    decide,
    detectable,
    equality_power,
    fisher_p_value,
    mean_effect,
    planned_error,
    resampled_error,
    seed_effects,
    settle,
)

GATE = "baseline", "bleu", 35
ASSUMED_SPREAD = 0.7  # between seeds, in smallest differences (0.35 BLEU), until three seeds show it


@dataclass(frozen=True)
class ChoiceClaim:
    """A claim about a variant of the pool.

    Attributes:
        claim: The claim.
        group: The name of the claims that are corrected together.
        regime: What is trained on what.
        gate: Variant, statistic and limit that models must reach before anything is decided.
        variant: The variant.
        direction: Whether the claim says that the variant is "better" than the baseline, "worse" or "equal".
        statistic: The name of the statistic.
        baseline: The variant that it is compared with. Empty: the statistic itself is a difference.
    """

    claim: Claim
    group: str
    regime: str
    gate: tuple[str, str, float]
    variant: str
    direction: str
    statistic: str
    baseline: str

    @property
    def key(self) -> str:
        """What is estimated, without the direction."""
        return f"{self.statistic} of {self.variant}{f' against {self.baseline}' if self.baseline else ''}"

    @property
    def sides(self) -> tuple[str, ...]:
        """The variant, and its baseline if it has one."""
        return (self.variant, self.baseline) if self.baseline else (self.variant,)


COMPARISONS = tuple(
    ChoiceClaim(
        Claim(text, source, literature), group["name"], group["regime"], tuple(group.get("gate", GATE)), *comparison
    )
    for group in read_declarations("claims.toml")["choices"]
    for *comparison, source, literature, text in group["claims"]
)
TITLE, CLAIMS = "Which choices matter", tuple(comparison.claim for comparison in COMPARISONS)
DATA_FILES, READS_POOL = MULTI30K, True
_CAPTIONS = {"loss": "loss (nats per token)", "bleu": "BLEU", "error": "error (%)"}  # of statistics in the table
_COLORS = {"reproduced": "C0", "opposite here": "C1", "no difference above": "C2", "not decidable here": "#777777"}
_VARIANT = {variant.name: variant for variant in VARIANTS}
_GROUP_SIZES = Counter(claim.group for claim in COMPARISONS)


def measure(settings: Settings) -> Numbers:
    """Read the records, and estimate the effect of each comparison that has some."""
    folder = PoolFolder(settings.pool_folder or settings.work_folder, settings.work_folder)
    records: dict[str, list[PoolRecord]] = {name: [] for name in _VARIANT}
    for run in all_runs():
        if run.seed and (record := folder.record_of(run)) is not None:
            records[run.variant.name].append(record)
    references, tokens = list[str](), np.ones(0)
    if records["baseline"]:
        references = [target for _, target in read_pairs(find_data(settings, MULTI30K, "Multi30k"), TEST)]
        tokens = np.array(records["baseline"][0]["num_tokens"], dtype=float)
    else:  # losses are divided by its number of tokens
        records = {name: found if _VARIANT[name].classifies else [] for name, found in records.items()}
    rows = {name: [rows_by_statistic(one, references, tokens) for one in found] for name, found in records.items()}
    runs = [
        {"variant": name, "seed": record["seed"], "rate": record["rate"], "engine": record["engine"][:12]}
        | {"diverged": record["diverged"], "processor": record["starts"][-1]["processor"]}
        | {"seconds_per_step": record["cpu_seconds_per_step"]}
        | {"values": {key: STATISTICS[key].value(values.sum(0)) for key, values in found.items()}}
        for name in _VARIANT
        for record, found in zip(records[name], rows[name], strict=True)
    ]
    effects = dict[str, Any]()
    for claim in COMPARISONS:
        key = claim.statistic
        sides = [[found[key] for found in rows[name] if key in found] for name in claim.sides]
        if all(sides):
            effects[claim.key] = astuple(_seed_effect(claim, runs)), _sampling_error(claim, sides)
    table = [
        {"variant": name, "recorded": len(records[name]), "planned": variant.seeds}
        | {caption: fmean(_values(runs, name, key) or [math.nan]) for key, caption in _CAPTIONS.items()}
        for name, variant in _VARIANT.items()
    ]
    return {"runs": runs, "effects": effects, "tables": {"Variants: recorded runs, and means of the test set": table}}


def _values(runs: Sequence[Mapping[str, Any]], variant: str, key: str) -> list[float]:
    """Return the values of a statistic, or of another key, in the runs of a variant that have it."""
    values = [{**run, **run["values"]}.get(key) for run in runs if run["variant"] == variant]
    return [value for value in values if value is not None]


def _seed_effect(claim: ChoiceClaim, runs: Sequence[Mapping[str, Any]]) -> Effect:
    """Return variant minus baseline; the residuals of all that share the baseline are pooled."""
    if not claim.baseline:
        return mean_effect(_values(runs, claim.variant, claim.statistic))
    names = _sharing(claim)
    rows = [run for run in runs if claim.statistic in run["values"] and run["variant"] in names]
    numbers, seeds = [names.index(run["variant"]) for run in rows], [run["seed"] for run in rows]
    if len(rows) < len(set(numbers)) + len(set(seeds)):
        return Effect(math.nan, math.inf, 0)
    effects = seed_effects(numbers, seeds, np.array([[run["values"][claim.statistic] for run in rows]]))
    return Effect(*(float(part[0, 0]) for part in effects))


def _sharing(claim: ChoiceClaim) -> list[str]:
    """Return the variants whose residuals are pooled: the baseline, the variant, and others with the same baseline."""
    key = claim.baseline, claim.statistic
    others = [other.variant for other in COMPARISONS if (other.baseline, other.statistic) == key]
    return list(dict.fromkeys([claim.baseline, claim.variant, *others]))


def _sampling_error(claim: ChoiceClaim, sides: Sequence[Sequence[Array]]) -> float:
    """Return the bootstrap error over the choice of the test items, which all seeds of both sides share."""
    value, num_seeds = STATISTICS[claim.statistic].value, len(sides[0])
    rows = [rows for side in sides for rows in side]

    def effect(sums: Array) -> float:
        values = list(map(value, sums.reshape(len(rows), -1)))
        return fmean(values[:num_seeds]) - (fmean(values[num_seeds:]) if claim.baseline else 0.0)

    return resampled_error(np.hstack(rows), effect)


def judge(numbers: Numbers) -> tuple[Verdict | Tested, ...]:
    """Judge each claim whose runs are complete, if the models of its group pass the gate."""
    return tuple(_judge(claim, numbers) for claim in COMPARISONS)


def _judge(claim: ChoiceClaim, numbers: Numbers) -> Verdict | Tested:
    statistic = STATISTICS[claim.statistic]
    # A training that diverges is a result, too.
    runs = [run for run in numbers["runs"] if run["diverged"] or claim.statistic in run["values"]]
    sides = [[run for run in runs if run["variant"] == name] for name in claim.sides]
    planned = [_VARIANT[name].seeds for name in claim.sides]
    lacks = any(len(side) < seeds for side, seeds in zip(sides, planned, strict=True))
    obstacle = _missing(claim, list(map(len, sides)), numbers) if lacks else _missed_gate(claim.gate, numbers)
    if obstacle:
        return Verdict("not decidable here", obstacle, regime=claim.regime)
    diverged = [sum(run["diverged"] for run in side) for side in sides]
    if any(diverged):
        return _judge_divergence(claim, diverged, planned)
    if claim.key not in numbers["effects"]:
        return Verdict("not decidable here", "the claim is newer than the numbers; measure again", regime=claim.regime)
    (value, error, freedom), sampling = numbers["effects"][claim.key]
    sign = statistic.sign * (-1 if claim.direction == "worse" else 1)
    effect = add_variance(Effect(sign * value, error, freedom), Effect(0.0, sampling, len(numbers["runs"])))
    is_equal = claim.direction == "equal"
    hours = _measured_core_hours(numbers, [PoolRun(_VARIANT[name], 1) for name in claim.sides])
    remaining = 0.25 - 0.75 * (sampling / error) ** 2 if error else 0.0  # of the seeds' variance, to halve the error
    cost = "more test items: their choice hides smaller differences"
    if remaining > 0:
        num_seeds = math.ceil(planned[0] / remaining)
        cost = f"{num_seeds} seeds and {num_seeds * sum(hours):.0f} core hours to detect half of that"
    sides_in_order = " minus ".join(claim.sides if sign > 0 else claim.sides[::-1])
    what = statistic.unit + (f", {sides_in_order}" if claim.baseline else ", sign reversed" * (sign < 0))
    return Tested(effect, statistic.min_difference, Regime(claim.regime, "", cost), what, is_equal, claim.group)


def _measured_core_hours(numbers: Numbers, runs: Sequence[PoolRun]) -> list[float]:
    """Return the core hours that each run takes, estimated from the recorded time per step."""
    speeds = speeds_of((run["variant"], run["seconds_per_step"]) for run in numbers["runs"])
    return [core_hours(run, speeds) for run in runs]


def _missed_gate(gate: tuple[str, str, float], numbers: Numbers) -> str:
    """Return why the models of a group are too weak for verdicts, or "" if they are not."""
    name, key, limit = gate
    statistic = STATISTICS[key]
    values = _values(numbers["runs"], name, key)
    if not values:
        return f"the gate, {limit:g} {statistic.unit} of {name}, would take the runs of {name}"
    if statistic.sign * (fmean(values) - limit) >= 0:
        return ""
    return f"{name} reaches {fmean(values):.1f} {statistic.unit}; a verdict would take {limit:g}"


def _judge_divergence(claim: ChoiceClaim, diverged: Sequence[int], planned: Sequence[int]) -> Verdict:
    """Judge by how many trainings diverged, if any did: Fisher's exact test, at the first of Holm's steps."""
    reason = f"{diverged[0]} of {planned[0]} trainings of {claim.variant} diverged"
    if not claim.baseline:
        return Verdict("not decidable here", f"{reason}; it would take other rates", regime=claim.regime)
    reason += f", and {diverged[1]} of {planned[1]} of {claim.baseline}"
    is_certain = fisher_p_value(diverged, planned) <= LEVEL / _GROUP_SIZES[claim.group]
    is_worse = diverged[0] / planned[0] > diverged[1] / planned[1]
    agrees = is_certain and claim.direction != "equal" and is_worse == (claim.direction == "worse")
    if not is_certain:
        reason += "; it would take more seeds to be certain"
    return decide(reason, supported=agrees, refuted=is_certain and not agrees, exact=False, regime=claim.regime)


def _missing(claim: ChoiceClaim, recorded: Sequence[int], numbers: Numbers) -> str:
    """Say which runs are missing, what they would cost, and what they could detect."""
    trained = {run["variant"] for run in numbers["runs"]}
    missing = list[PoolRun]()
    for name, count in zip(claim.sides, recorded, strict=True):
        variant = _VARIANT[name]
        missing += [PoolRun(variant, 0, rate) for rate in variant.rates if name not in trained]
        missing += [PoolRun(variant, seed) for seed in range(count, variant.seeds)]
    trials = sum(run.rate is not None for run in missing)
    seeds = _VARIANT[claim.variant].seeds
    error, freedom = seeds**-0.5, seeds - 1
    if claim.baseline:
        plan = [(n, seed) for n, name in enumerate(_sharing(claim)) for seed in range(_VARIANT[name].seeds)]
        error, freedom = planned_error(*map(list, zip(*plan, strict=True)))
    statistic, size = STATISTICS[claim.statistic], _GROUP_SIZES[claim.group]
    unit = statistic.unit.partition(",")[0]
    spread, whose = ASSUMED_SPREAD * statistic.min_difference, "an assumption"
    for name in (claim.gate[0], claim.baseline):
        if len(seen := _values(numbers["runs"], name, claim.statistic)) >= 3:
            spread, whose = stdev(seen), f"as for {name}"
    same = {other.key for other in COMPARISONS if other.statistic == claim.statistic} & numbers["effects"].keys()
    sampling = fmean(numbers["effects"][key][1] for key in same) if same else 0.0
    error = math.hypot(spread * error, sampling)
    finds = f"a difference of {detectable(error, freedom, LEVEL / size):.2g} {unit}"
    if claim.direction == "equal":
        percent = round(100 * equality_power(statistic.min_difference, error, freedom, LEVEL / size))
        least = f"{statistic.min_difference:g} {unit}"
        finds = f"with a probability of {percent} % that a true difference of 0 is below {least}"
    pairs = zip(recorded, claim.sides, strict=True)
    counts = " against ".join(f"{count} of {_VARIANT[name].seeds} seeds" for count, name in pairs)
    return (
        f"recorded: {counts}{f', and {trials} trials of learning rates are missing' if trials else ''}; "
        f"after {sum(_measured_core_hours(numbers, missing)):.1f} core hours of training, all runs would detect "
        f"{finds} (at the first of Holm's {size} steps; standard deviation between seeds: {spread:.2g}, {whose})"
    )


def draw(numbers: Numbers) -> Figure:
    """Draw the effects in units of the smallest difference of interest."""
    judged = judge(numbers)
    known = [
        (claim.text, tested.effect.interval(), tested.min_difference, settled.outcome)
        for claim, tested, settled in list(zip(CLAIMS, judged, settle([judged])[0], strict=True))[::-1]
        if isinstance(tested, Tested)
    ]
    picture, (effects,) = subplots(TITLE, size=(13.0, 3.0 + 0.38 * len(known)))
    effects.axvspan(-1, 1, color="#000000", alpha=0.08, linewidth=0, label="too small to matter")
    for row, (_, found, smallest, outcome) in enumerate(known):
        low, middle, high = (value / smallest for value in (found.low, found.value, found.high))
        bars: Any = {"xerr": [[middle - low], [high - middle]], "fmt": "o", "color": _COLORS[outcome]}
        effects.errorbar(middle, row, **bars, label=outcome.replace("above", "above 1"))
    effects.set_yticks(range(len(known)), [fill(text, 75) for text, *_ in known], fontsize=10)
    effects.set_ylim(-0.7, len(known) - 0.3)
    if not known:
        effects.set_xlim(-3, 3)
        effects.annotate("no claim has all of its runs yet", (0.5, 0.5), xycoords="axes fraction", ha="center")
    effects.set_xscale("symlog", linthresh=3)
    effects.set_xticks([-30, -3, -1, 0, 1, 3, 30], ["−30", "−3", "−1", "0", "1", "3", "30"])
    what = "effect, in smallest differences of interest (positive: as claimed)"
    label(effects, "Effects (95 %, before the correction for many claims)", what, "claim")
    shared_legend(picture, effects)
    return picture
