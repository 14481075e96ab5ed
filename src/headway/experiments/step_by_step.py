"""How a model translates token by token: the beam search for one sentence, and the effect of wider beams.

Greedy search takes the most probable token at each step. A beam keeps several hypotheses, so it can find a translation
whose first tokens are less probable, but which is more probable as a whole. The tree shows such a case, with a model of
the pool's baseline: each token that a beam of 4 kept, and below it the log-probability (nats) of the hypothesis up to
there. The sentence was chosen because greedy search and the beam differ. The winner has the best score: the log-
probability, divided by the paper's length penalty.

The curves show all 1,000 test sentences: more probable translations need not be better ones.
"""

from __future__ import annotations

from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from headway.evaluation.translation import find_metric
from headway.experiments.code_hash import code_hash, engine_hash
from headway.experiments.corpus import MULTI30K, find_data
from headway.experiments.experiment import Numbers, Settings, hardware, read_numbers, write_numbers
from headway.experiments.figures import label, subplots
from headway.experiments.model_measurements import BEAM_SIZES, BEAMS, TrainedModel, measure_examples
from headway.experiments.pool import all_runs
from headway.experiments.pool_runs import PoolFolder, PoolRecord
from headway.experiments.verdicts import Effect, Regime, Tested, add_variance, mean_effect, resampled_error
from headway.inspection.search_tree_plot import draw_search_tree
from headway.predict.translation.search_tree import SearchEnd, SearchNode, SearchTree

TITLE, DATA_FILES, READS_POOL = "Step by step: what a beam search finds", MULTI30K, True
DRAWN_SEED = 2  # of the model whose search is drawn
SMALLEST = 0.1  # nats per sentence
REGIME = "the pool's baseline (2 + 2 layers, width 128), Multi30k"


def read_examples(settings: Settings) -> list[tuple[PoolRecord, Numbers]]:
    """Return the baseline's records that have examples (:func:`measure_examples`), and the examples.

    Examples are kept beside the records. Those that are missing, or that other code measured, are measured if the model
    is still there.
    """
    folder = PoolFolder(settings.pool_folder or settings.work_folder, settings.work_folder.parent / "pool")
    records, code = list[tuple[PoolRecord, Numbers]](), code_hash(measure_examples)
    for run in all_runs():
        if run.variant.name == "baseline" and run.seed and (record := folder.read(run.name)) is not None:
            path, trained = folder.records / f"{run.name}-examples.json", folder.run_folder(run.name, record)
            examples = read_numbers(path) if path.is_file() else {}
            if trained.is_dir() and examples.get("code") != code:
                settings.say(f"measuring examples of {run.name}")
                examples = measure_examples(TrainedModel(trained, find_data(settings, MULTI30K, "Multi30k")))
                examples |= {"code": code, "engine": engine_hash(), "hardware": hardware()}
                examples["date"] = datetime.now(UTC).isoformat(timespec="seconds")
                write_numbers(path, examples)
            if examples:
                records.append((record, examples))
    return records


def measure(settings: Settings) -> Numbers:
    """Return BLEU and log-probabilities over the size of the beam, and the tree of the drawn model."""
    baselines, bleu = read_examples(settings), find_metric("bleu")
    sums = [np.sum(record["measured"]["beams"], axis=1) for record, _ in baselines]
    log_probs = np.array([examples["log_probs"] for _, examples in baselines])
    rows = [
        {"beam": beam, "length penalty": penalty, "BLEU": fmean(bleu.value(run[at]) for run in sums)}
        for at, (beam, penalty) in enumerate(BEAMS if sums else ())
    ]
    drawn = [examples for record, examples in baselines if record["seed"] == DRAWN_SEED]
    return {
        "seeds": [record["seed"] for record, _ in baselines],
        "log_probs": log_probs.sum(1) / 1000 if baselines else [],
        "sampling": [_sampling_error(log_probs, columns) for columns in ((0, 2), (2, 4))] if baselines else [],
        "example": drawn[0] if drawn else None,
        "tables": {"BLEU over the beam, mean of the models": rows},
    }


def _sampling_error(log_probs: Any, columns: tuple[int, int]) -> float:
    """Return the error, over the choice of sentences, of the mean gain of one beam size over another, per sentence."""
    gains = (log_probs[:, :, columns[1]] - log_probs[:, :, columns[0]]).mean(0)
    return resampled_error(gains[:, None], lambda sums: float(sums[0]) / 1000)


def judge(numbers: Numbers) -> tuple[Tested, ...]:
    """Judge the gain in log-probability from beam to beam, over seeds and sentences."""
    obstacle = "" if len(numbers["seeds"]) > 1 else "it would take two models of the baseline"
    judged = list[Tested]()
    for number, (one, other) in enumerate(((0, 2), (2, 4))):
        gains = [row[other] - row[one] for row in numbers["log_probs"]] or [0.0]
        sampling = numbers["sampling"][number] if numbers["sampling"] else 0.0
        effect = add_variance(mean_effect(gains), Effect(0.0, sampling, 49))
        what = f"nats per sentence, beam of {BEAM_SIZES[other]} minus {BEAM_SIZES[one]}, {len(gains)} models"
        judged.append(Tested(effect, SMALLEST, Regime(REGIME, obstacle), what))
    return tuple(judged)


def draw(numbers: Numbers) -> Figure:
    """Draw the tree, and BLEU and log-probabilities over the size of the beam."""
    picture, (tree, bleu, likely) = subplots(TITLE, 1, 3, size=(26, 13), width_ratios=[4.4, 1, 1])
    label(tree, "The search (no trained model is recorded)", "step", "hypotheses")
    if example := numbers["example"]:
        stored = example["tree"]
        nodes = tuple(SearchNode(**node) for node in stored["nodes"])
        ends = tuple(SearchEnd(**end) for end in stored["ends"])
        draw_search_tree(tree, SearchTree(stored["beam_size"], nodes, ends), font_size=15)
        words = "blue: the winner; orange: greedy search's path, while the beam keeps it; gray: dropped"
        label(tree, f"“{example['searched']}” → “{ends[0].text}”\n{words}", "step", "hypotheses in the beam")
    rows = numbers["tables"]["BLEU over the beam, mean of the models"]
    for penalty, style in ((0.6, "C0o-"), (0.0, "C1s--"), (1.0, "C2^:")):
        points = {row["beam"]: row["BLEU"] for row in rows if row["length penalty"] == penalty}
        bleu.plot(sorted(points), [points[beam] for beam in sorted(points)], style, label=f"length penalty {penalty:g}")
    bleu.margins(y=0.25)
    bleu.legend(loc="upper left")
    label(bleu, "Quality", "beam size", "BLEU (test set)", log="x", xticks=BEAM_SIZES)
    for row in numbers["log_probs"]:
        likely.plot(BEAM_SIZES, row, "C0o-", linewidth=1)
    what = "mean log-probability of a translation (nats)"
    label(likely, "Probability (each model)", "beam size", what, log="x", xticks=BEAM_SIZES)
    return picture
