"""Which choices of the paper matter: one change each from a baseline in its form, from the pool's records alone.

The baseline is a Transformer of 2 + 2 layers and width 128 with the paper's options, trained for 4,600 steps on 29,000
sentence pairs. The paper trained 65 million weights on 4.5 million pairs. A small
difference there may be absent here, and the other way round.

The loss is -log P(reference | source) over the 1,000 sentences of test_2016_flickr, divided by the baseline's number of
tokens, so that vocabularies can be compared. 0.03 nats, about half a point of BLEU, is the smallest difference of
interest. BLEU (beam 4, length penalty 0.6) decides where a change affects calibration or the vocabulary. Differences
have two sources of chance, seeds and sentences, and both are in the intervals.

Nothing is decided before the baseline's seeds reach a mean of 35 BLEU: models that are trained for less show how fast
something is learned, not how good it is. What lacks runs names their number and the hours that they take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from headway.evaluation.translation import find_metric
from headway.experiments.corpus import MULTI30K, find_data
from headway.experiments.experiment import Claim, Experiment, Numbers, Settings
from headway.experiments.figures import label, subplots
from headway.experiments.pool import VARIANTS, PoolRun, recipe_sections
from headway.experiments.pool_runs import PoolFolder, PoolRecord, read_test_pairs
from headway.experiments.verdicts import (
    LEVEL,
    Array,
    Effect,
    Regime,
    Tested,
    Verdict,
    add_variance,
    detectable,
    planned_error,
    seed_effects,
    sentence_error,
)

GATE = 35.0  # BLEU; 85 % of the recipe multi30k-de-en's 41.1
SMALLEST = {"loss": 0.03, "bleu": 0.5}
ASSUMED_SPREAD = 0.35  # BLEU between seeds, until the baseline's seeds have shown it
SECONDS_PER_STEP = 0.24  # of one core of an Intel Xeon with AVX-512, measured over 40 steps of the baseline
BLEU_RESAMPLES = 200

# group | variant | what the claim says of it | statistic | baseline | source | the source's numbers | claim
_TABLE = """
positions | learned-positions | equal | loss | baseline | paper, 3.5, table 3 (E) | BLEU 25.7 and 25.8 | Learned and sinusoidal positions produce nearly identical results.
positions | no-positions | worse | loss | baseline | paper, 3.5 | | Without positions, a model translates worse.
positions | rotary | better | loss | baseline | Su et al. 2021, 4.1 | | Rotary positions translate better.
heads | 1-head | worse | loss | baseline | paper, table 3 (A) | BLEU 24.9 against 25.8 | A single head is worse.
heads | 16-heads | worse | loss | baseline | paper, table 3 (A) | BLEU 25.4 (d_k 16) against 25.8; here d_k 8 | Too many heads are worse.
heads | half-d_k | worse | loss | baseline | paper, table 3 (B) | BLEU 25.4 (d_k 32) against 25.8 (d_k 64) | A smaller d_k is worse.
size | half-d_ff | worse | loss | baseline | paper, table 3 (C) | BLEU 25.4 against 25.8 | A smaller d_ff is worse.
size | 1+1-layers | worse | loss | baseline-tuned | paper, table 3 (C) | BLEU 23.7 (2 + 2), 25.8 (6 + 6) | Fewer layers are worse.
size | 3+3-layers | better | loss | baseline-tuned | paper, table 3 (C) | BLEU 25.5 (8 + 8), 25.8 (6 + 6) | More layers are better.
size | width-256 | better | loss | baseline-tuned | paper, table 3 (C) | BLEU 26.0 (1024), 25.8 (512) | A wider model is better.
scores | additive | better | loss | baseline-tuned | paper, 6.2, as a guess | | A more sophisticated score than the dot product (additive) is better.
scores | cosine | better | loss | baseline-tuned | Henry et al. 2020; notebook, question | | A cosine is the better score.
scores | hidden-projections | better | loss | baseline-tuned | notebook, question | | Non-linear projections of queries and keys are better.
form | no-residuals | worse | loss | baseline-tuned | He et al. 2016, 4.1 | | Without residual connections, a model is worse.
form | no-norm | worse | loss | baseline-tuned | paper, 3.1 | | Without norms, a model is worse.
form | pre-norm | equal | loss | baseline-tuned | Xiong et al. 2020, 4 | | Pre-norm and post-norm are equally good.
form | untied | equal | loss | baseline | Press and Wolf 2017, 5 | | Tied and untied embeddings are equally good.
form | no-embedding-scale | worse | loss | baseline | paper, 3.4 | | Without the factor √d_model, a model is worse.
form | window-4 | worse | loss | baseline | paper, 4, as a plan | | Attention to 4 neighbors costs quality.
training | no-dropout | worse | loss | baseline | paper, table 3 (D) | BLEU 24.6 against 25.8 | Without dropout, a model is worse.
training | paper-schedule | equal | loss | baseline-tuned | paper, 5.3 | | The paper's schedule and a linear one are equally good.
training | float32 | equal | loss | baseline | ours | | float32 and bfloat16 are equally good.
vocabulary | words | worse | bleu | baseline | notebook; Sennrich et al. 2016 | | Words with an unknown symbol are worse than byte pairs.
vocabulary | vocabulary-1000 | worse | bleu | baseline | ours | | A vocabulary of 1,000 is worse than one of 4,000.
vocabulary | vocabulary-8000 | better | bleu | baseline | ours | | A vocabulary of 8,000 is better than one of 4,000.
smoothing | small-corpus-dropout0-smoothing0.1 | worse | loss | small-corpus-dropout0-smoothing0 | paper, 5.4, table 3 (D) | perplexity 4.92 against 4.67 | Label smoothing hurts perplexity (5,000 pairs, no dropout).
smoothing | small-corpus-dropout0-smoothing0.1 | better | bleu | small-corpus-dropout0-smoothing0 | paper, 5.4, table 3 (D) | BLEU 25.8 against 25.3 | But it improves BLEU (5,000 pairs, no dropout).
smoothing | small-corpus-dropout0.2-smoothing0.1 | better | bleu | small-corpus-dropout0.2-smoothing0 | paper, 5.4 | | So it does beside dropout of 0.2.
budget | learned-positions-2300-steps | equal | loss | baseline-2300-steps | ours | | Half the steps leave learned and sinusoidal positions equal.
budget | 1-head-2300-steps | worse | loss | baseline-2300-steps | ours | | A single head is worse after half the steps, too.
open | the unscaled product with an initialization of its own, 4 seeds | | | | paper, 3.2.1, after Britz et al. 2017 | | Additive attention outperforms the unscaled dot product for large d_k.
open | recurrent models at equal processor time, forced decoding, 3 seeds, 10 core hours | | | | Bahdanau et al. 2015, 1 | | A fixed vector forgets long sentences; attention does not.
open | the same runs | | | | ours | | The Transformer is better at long sentences than recurrence with attention.
open | 6 + 6 layers, two norms, three rates with seed 0, then 3 seeds, 6 core hours | | | | Xiong et al. 2020, 3.2, 4 | | Without warm-up, post-norm trains worse; pre-norm does not.
open | the baseline's models, heads removed one at a time, judged by loss | | | | Michel et al. 2019, 3.2 | | Most heads can be removed one at a time at little cost.
open | the same measurement, paired within each model | | | | Michel et al. 2019, 5 | | Heads over the source matter more than those of self-attention.
open | the baseline's models, and an aligner as reference | | | | Bahdanau et al. 2015, 5.2.1 | | Attention over the source aligns words.
"""  # noqa: E501


@dataclass(frozen=True)
class ChoiceClaim:
    """A claim about a variant of the pool.

    Attributes:
        group: Claims of a group are corrected together. Those of the group "open" have no variant yet.
        variant: The variant, or what a measurement would take.
        direction: Whether the claim says that the variant is "better" than the baseline, "worse" or "equal".
        statistic: "loss" or "bleu".
        baseline: The variant that it is compared with.
        claim: The claim.
    """

    group: str
    variant: str
    direction: str
    statistic: str
    baseline: str
    claim: Claim

    @classmethod
    def of(cls, line: str) -> ChoiceClaim:
        """Return the comparison that a line of the table declares."""
        cells = [cell.strip() for cell in line.split("|")]
        group, variant, direction, statistic, baseline, source, literature, text = cells
        return cls(group, variant, direction, statistic, baseline, Claim(text, source, literature=literature))


COMPARISONS = tuple(map(ChoiceClaim.of, _TABLE.strip().splitlines()))
_VARIANT = {variant.name: variant for variant in VARIANTS}


def measure(settings: Settings) -> Numbers:
    """Read the records, and estimate the effect of each comparison that has some."""
    folder = PoolFolder(settings.pool_folder or settings.work_folder, settings.work_folder)
    records_of = {variant.name: _records(folder, variant.name) for variant in VARIANTS}
    runs = list[dict[str, Any]]()
    references, counts = list[str](), dict[str, list[Array]]()
    metric = find_metric("bleu")
    if any(records_of.values()):
        references = [target for _, target in read_test_pairs(find_data(settings, MULTI30K, "Multi30k"))]
    tokens = np.array(records_of["baseline"][0]["num_tokens"] if records_of["baseline"] else [1.0] * len(references))
    for name, records in records_of.items():
        counts[name] = [metric.counts(record["translations"]["4"], references) for record in records]
        runs += [
            {"variant": name, "seed": record["seed"], "rate": record["rate"], "engine": record["engine"][:12]}
            | {"loss": -sum(record["log_probs"]) / tokens.sum(), "bleu": metric.value(matches.sum(0))}
            | {"seconds_per_step": record["cpu_seconds_per_step"], "processor": record["starts"][-1]["processor"]}
            for record, matches in zip(records, counts[name], strict=True)
        ]
    effects = dict[str, Any]()
    for index, comparison in enumerate(COMPARISONS):
        if comparison.group != "open" and records_of[comparison.variant] and records_of[comparison.baseline]:
            sides = [records_of[name] for name in (comparison.variant, comparison.baseline)]
            if comparison.statistic == "loss":
                gaps = np.subtract(*(np.mean([record["log_probs"] for record in side], axis=0) for side in sides))
                sampling = sentence_error(gaps, tokens)
            else:
                sampling = _bleu_error(
                    *(np.sum(counts[name], axis=0) for name in (comparison.variant, comparison.baseline))
                )
            effects[str(index)] = _seed_effect(comparison, runs), sampling
    table = [_row(name, [run for run in runs if run["variant"] == name]) for name in records_of]
    return {
        "runs": runs,
        "effects": effects,
        "tables": {"Variants: recorded runs, loss and BLEU of the test set": table},
    }


def _records(folder: PoolFolder, variant: str) -> list[PoolRecord]:
    """Return the records of a variant, without trials and trainings that diverged, by seed."""
    runs = [PoolRun(_VARIANT[variant], seed) for seed in range(1, _VARIANT[variant].seeds + 1)]
    records = [folder.read(name) for run in runs if (name := folder.record_name(run))]
    return [record for record in records if record and not record["diverged"]]


def _seed_effect(comparison: ChoiceClaim, runs: Sequence[dict[str, Any]]) -> tuple[float, float, float]:
    """Return value, error and degrees of freedom of variant minus baseline; all that share the baseline are pooled."""
    key = comparison.baseline, comparison.statistic
    others = [other.variant for other in COMPARISONS if (other.baseline, other.statistic) == key]
    names = list(dict.fromkeys([comparison.baseline, comparison.variant, *others]))
    rows = [run for run in runs if run["variant"] in names]
    numbers = [names.index(run["variant"]) for run in rows]
    if len(rows) < len(set(numbers)) + len({run["seed"] for run in rows}):
        return float(np.nan), float("inf"), 0.0
    values = np.array([[run[comparison.statistic] for run in rows]])
    effect = seed_effects(numbers, [run["seed"] for run in rows], values).effect(0)
    return effect.value, effect.error, effect.freedom


def _bleu_error(variant: Array, baseline: Array) -> float:
    """Return the bootstrap error of the difference in BLEU over the choice of the test sentences."""
    metric, size = find_metric("bleu"), len(variant)
    drawn = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), BLEU_RESAMPLES)
    return float(np.std([metric.value(row @ variant) - metric.value(row @ baseline) for row in drawn], ddof=1))


def _row(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    keys = {"loss": "loss (nats per token)", "bleu": "BLEU", "seconds_per_step": "core seconds per step"}
    means = {shown: fmean(row[key] for row in rows) if rows else None for key, shown in keys.items()}
    return {"variant": name, "recorded": len(rows), "planned": _VARIANT[name].seeds, **means}


def judge(numbers: Numbers) -> tuple[Verdict | Tested, ...]:
    """Judge each claim whose runs are complete, if the baseline passes the gate."""
    return tuple(_judge(index, comparison, numbers) for index, comparison in enumerate(COMPARISONS))


def _judge(index: int, comparison: ChoiceClaim, numbers: Numbers) -> Verdict | Tested:
    if comparison.group == "open":
        return Verdict("not decidable here", f"not measured; it would take {comparison.variant}")
    regime = Regime("2 + 2 layers, width 128, Multi30k" + (", 5,000 pairs" if "small" in comparison.variant else ""))
    scores = [run["bleu"] for run in numbers["runs"] if run["variant"] == "baseline"]
    sides = comparison.variant, comparison.baseline
    counts = [(sum(run["variant"] == name for run in numbers["runs"]), _VARIANT[name].seeds) for name in sides]
    if any(recorded < planned for recorded, planned in counts):
        return Verdict("not decidable here", _missing(comparison, counts, numbers), regime=regime.conditions)
    if fmean(scores) < GATE:
        reason = f"the baseline reaches {fmean(scores):.1f} BLEU, less than {GATE:g}"
        return Verdict("not decidable here", reason, regime=regime.conditions)
    (value, error, freedom), sampling = numbers["effects"][str(index)]
    sign = {"better": 1, "worse": -1, "equal": 1}[comparison.direction] * (1 if comparison.statistic == "bleu" else -1)
    effect = add_variance(Effect(sign * value, error, freedom), Effect(0.0, sampling, len(numbers["runs"])))
    unit = "BLEU" if comparison.statistic == "bleu" else "nats per token"
    what = f"{unit} by which {comparison.variant} is {comparison.direction.replace('equal', 'better')}"
    is_equal, smallest = comparison.direction == "equal", SMALLEST[comparison.statistic]
    return Tested(effect, smallest, regime, what, is_equal, comparison.group)


def _missing(comparison: ChoiceClaim, counts: Sequence[tuple[int, int]], numbers: Numbers) -> str:
    """Say which runs are missing, what they would cost, and what they could detect."""
    seconds = [run["seconds_per_step"] for run in numbers["runs"] if run["seconds_per_step"]]
    hours, trials = 0.0, 0
    for name, (recorded, planned) in zip((comparison.variant, comparison.baseline), counts, strict=True):
        trials += len(_VARIANT[name].rates) if not recorded else 0
        steps = recipe_sections(_VARIANT[name], 0, None)["training"]["steps"]
        missing = planned - recorded + (len(_VARIANT[name].rates) if not recorded else 0)
        hours += missing * steps * (fmean(seconds) if seconds else SECONDS_PER_STEP) / 3600
    size = sum(other.group == comparison.group for other in COMPARISONS)
    others = [each.variant for each in COMPARISONS if each.baseline == comparison.baseline]
    names = list(dict.fromkeys([comparison.baseline, comparison.variant, *others]))
    plan = [(index, seed) for index, name in enumerate(names) for seed in range(_VARIANT[name].seeds)]
    error, freedom = planned_error([index for index, _ in plan], [seed for _, seed in plan])
    least = detectable(ASSUMED_SPREAD * error, freedom, LEVEL / size)
    words = " against ".join(f"{recorded} of {planned} seeds" for recorded, planned in counts)
    return (
        f"recorded: {words}{f', and {trials} trials of rates are missing' if trials else ''}; all would "
        f"detect {least:.2g} BLEU at the first of {size} steps if seeds spread by {ASSUMED_SPREAD}, after "
        f"{hours:.0f} core hours"
    )


def draw(numbers: Numbers) -> Figure:
    """Draw how many runs of each variant are recorded, and their losses."""
    names = [variant.name for variant in VARIANTS][::-1]
    picture, (recorded, losses) = subplots("Which choices matter", ncols=2, size=(15.0, 13.0))
    rows = {name: [run for run in numbers["runs"] if run["variant"] == name] for name in names}
    recorded.barh(names, [_VARIANT[name].seeds for name in names], color="#DDDDDD", label="planned")
    recorded.barh(names, [len(rows[name]) for name in names], color="C0", label="recorded")
    recorded.legend(loc="lower right")
    label(recorded, "Runs of each variant", "seeds for verdicts", "variant")
    for place, name in enumerate(names):
        losses.plot([run["loss"] for run in rows[name]], [place] * len(rows[name]), "C1o", alpha=0.8)
    losses.set_ylim(recorded.get_ylim())
    losses.set_yticks([])
    if not numbers["runs"]:
        losses.set_xticks([])
        losses.annotate("no run is recorded yet", (0.5, 0.5), xycoords="axes fraction", ha="center", color="#555555")
    label(losses, "Loss of the test set (dots: seeds)", "nats per token (lower is better)", "variant, as on the left")
    return picture


def explain(numbers: Numbers) -> str:
    """Say how far the baseline is."""
    scores = [run["bleu"] for run in numbers["runs"] if run["variant"] == "baseline"]
    shown = f": {', '.join(f'{score:.1f}' for score in scores)} BLEU" if scores else ""
    return f"{len(scores)} of {_VARIANT['baseline'].seeds} runs of the baseline are recorded{shown}."


EXPERIMENT = Experiment(
    "choices",
    "Which choices matter",
    __doc__,
    tuple(comparison.claim for comparison in COMPARISONS),
    measure,
    judge,
    draw,
    explain,
    data_files=MULTI30K,
    reads_pool=True,
)
