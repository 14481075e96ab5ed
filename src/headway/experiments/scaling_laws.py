"""How the loss of language models falls with compute, and how large a model should be for a given amount of compute.

Decoder-only models of six sizes (8,000 to 560,000 weights) predict the characters of English novels, on two cores. The
compute of a training run is counted as C = 6 N D floating-point operations, for N weights, with embeddings, and D
characters of training (Kaplan et al. 2020, 2.1). At each of four amounts of compute, models of three sizes are trained:
the sizes that read 8 to 1,000 characters for each weight. A larger model reads less text. Each point is a separate
training run, with a learning rate that decays to zero at its end, because a model in the middle of a longer run has a
higher loss than one that was trained to end there (Hoffmann et al. 2022, 3.1).

At each amount of compute there is a best size: smaller models have too few weights, larger ones see too little text. A
parabola through the best run and its two neighbors, over the logarithm of the size, gives the best loss and the best
size (Hoffmann et al. 2022, 3.2, fit one parabola to all sizes). Straight lines through these four points in logarithmic
scales give the exponents of

    loss = a / C^alpha          best size = b C^beta

The published values are alpha = 0.050 (Kaplan et al. 2020, 1.2, for the best use of compute), and beta = 0.73 (ibid.)
or 0.50 (Hoffmann et al. 2022, table 2, approach 1). They were measured with words or parts of words and with at least
a thousand times as much compute. Hoffmann et al. fit the loss above a constant, the entropy of text, which is not known
for this text, so only their exponent of the best size is compared. Two exponents count as
equal if they certainly differ by less than a tenth of the published one, and a line as straight if the exponents
between its first two and its last two points do so. If the smallest or the largest size is the best in more than a
quarter of the cases, the best size is not known.

Models read contexts of 128 characters. The training text has 30 million characters, more than any run reads. A short
run needs small batches, or it has too few steps: 512 characters with the least compute, 2,048 with the most. The peak
learning rate is 0.16 / width (in inverse proportion, as Yang et al. 2021 derive for Adam). Sizes, batches and rate were
chosen with single runs of seed 1. With larger models, or with batches of 2,048 and a rate of 0.003 for all, the
smallest size was always the best. Three seeds were chosen beforehand. The full version has 36 runs. It takes about 75
minutes on two cores.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headway.data.store import fingerprint
from headway.experiments.corpus import BOOKS, find_data, made_up_text, write_files
from headway.experiments.experiment import Numbers, Settings
from headway.experiments.figures import label, subplots
from headway.experiments.pool_runs import read_metrics
from headway.experiments.verdicts import LEVEL, Regime, Tested, mean_effect
from headway.hardware import has_fast_bfloat16
from headway.inspection.picture_files import MARKERS
from headway.models.registry import build_model
from headway.tasks import parse_recipe, train
from headway.text.base import NUM_SPECIAL
from headway.training.recipe import Recipe

KAPLAN_LOSS, KAPLAN_SIZE, HOFFMANN_SIZE = 0.050, 0.73, 0.50  # published exponents
MAX_LOSS_EXPONENT_GAP, MAX_SIZE_EXPONENT_GAP = 0.005, 0.05  # a tenth of the published exponents

_SIZES = ((16, 2), (24, 3), (32, 4), (48, 4), (64, 5), (96, 5))  # width and number of blocks
_QUICK_SIZES = ((16, 1), (32, 1), (48, 2))
# The characters of a batch, for each number of floating-point operations of a training run.
_BATCHES = {3.2e11: 512, 1.28e12: 1024, 5.12e12: 2048, 2.048e13: 2048}
_QUICK_BATCHES = {1e9: 512, 3e9: 512}
_FEWEST, _MOST = 8, 1000  # characters of training for each weight; other combinations are left out
_CONTEXT = 128  # characters
_TRAIN_CHARACTERS, _DEV_CHARACTERS = 30_000_000, 200_000
_MAX_AT_END = 0.25  # share of the cases in which the best size may be the smallest or the largest
HOURS_PER_SEED = 1.3  # of a core of an AMD EPYC (Zen 4)

TITLE = "Loss, compute and the size of language models"
DATA_FILES = BOOKS


def measure(settings: Settings) -> Numbers:
    """Train models of each size with each amount of compute, and fit both power laws for each seed."""
    folder = _corpus(settings)
    vocab_size = len(set((folder / "train.txt").read_text(encoding="utf-8"))) + NUM_SPECIAL
    sizes = _QUICK_SIZES if settings.quick else _SIZES
    amounts = _QUICK_BATCHES if settings.quick else _BATCHES
    weights = {size: _count_weights(_recipe(settings, folder, 1, size, 1, 512), vocab_size) for size in sizes}
    runs = []
    for seed, compute, size in product(settings.seeds, amounts, sizes):
        count, batch = weights[size], amounts[compute]
        text = compute / (6 * count)
        if not settings.quick and not _FEWEST <= text / count <= _MOST:
            continue
        recipe = _recipe(settings, folder, seed, size, max(round(text / batch), 1), batch)
        trained = train_recipe(settings, recipe, f"width{size[0]}-compute{compute:.3g}-seed{seed}")
        runs.append({"seed": seed, "compute": compute, "weights": count, "text": text, **trained})
    fits = [{"seed": seed, **fit_power_laws([row for row in runs if row["seed"] == seed])} for seed in settings.seeds]
    return {"runs": runs, "fits": fits, "tables": {"Training runs": runs}}


def _corpus(settings: Settings) -> Path:
    """Write the beginnings of the training and the development text, and return their folder."""
    if settings.quick:
        random = Random(1)
        texts = {name: made_up_text(count, random) for name, count in (("train.txt", 2000), ("dev.txt", 100))}
    else:
        folder, texts = find_data(settings, BOOKS, "books"), {}
        for name, count in (("train.txt", _TRAIN_CHARACTERS), ("dev.txt", _DEV_CHARACTERS)):
            with (folder / name).open(encoding="utf-8") as file:
                texts[name] = file.read(count)
    return write_files(texts, settings.work_folder, "text")


def _recipe(settings: Settings, folder: Path, seed: int, size: tuple[int, int], steps: int, batch: int) -> Recipe:
    """Return the recipe of a model, with one validation, at the end."""
    width, blocks = size
    # The precision is part of the run's name: "auto" would mix the results of different processors.
    device = torch.device("cuda" if torch.cuda.is_available() and not settings.quick else "cpu")
    precision = "bfloat16" if has_fast_bfloat16(device) and not settings.quick else "float32"
    sections: dict[str, dict[str, Any]] = {
        "task": {"kind": "language_model"},
        "data": {
            "folder": str(folder), "train": [{"files": ["train.txt"]}], "dev": {"files": ["dev.txt"]},
            "max_tokens": batch,
        },
        "tokenizer": {"kind": "characters"},
        "model": {
            "d_model": width, "num_heads": max(width // 16, 1), "d_ff": width * 8 // 3, "decoder_layers": blocks,
            "max_length": _CONTEXT, "dropout": 0.0, "norm_kind": "rms", "bias": "none", "activation": "swiglu",
            "positions": "rotary",
        },
        "optimizer": {
            "schedule": "cosine", "learning_rate": 0.16 / width, "warmup_steps": max(min(steps // 10, 100), 1),
            "beta2": 0.99, "clip_norm": 1.0,
        },
        "training": {
            "seed": seed, "steps": steps, "compile": "off", "log_every": max(steps // 5, 1), "device": device.type,
            "precision": precision,
        },
        "validation": {"metric": "loss", "every": steps},
        "checkpoints": {"every": max(steps // 4, 100), "keep": 1, "average": 0},
    }  # fmt: skip
    return parse_recipe(sections, "the experiment's recipe")


def train_recipe(settings: Settings, recipe: Recipe, name: str) -> Numbers:
    """Train a model, or return the result of an earlier call: its loss.

    The run folder's name begins with ``name``. It ends with a hash of the recipe, which names the folder of the data,
    whose name contains a hash of the data. A call after an interruption resumes the training.

    Raises:
        DivergenceError: The training diverged.
        KeyboardInterrupt: The training was interrupted.
    """
    key = fingerprint(json.dumps(recipe.active_options()).replace(str(settings.work_folder), ""))
    run = settings.work_folder / "runs" / f"{name}-{key[:10]}"

    def compute() -> Numbers:
        settings.say(f"training {run.name}")
        if train(recipe, run).interrupted:
            raise KeyboardInterrupt
        for folder in ("checkpoints", "tokens"):  # no longer needed; the folders of all runs would take gigabytes
            shutil.rmtree(run / folder)
        return {"loss": read_metrics(run, "dev")[-1]["loss"]}

    return settings.cached(f"runs/{run.name}/result", compute)


def _count_weights(recipe: Recipe, vocab_size: int) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_model(recipe.model, vocab_size, vocab_size).parameters())


def column(runs: Sequence[Mapping[str, Any]], key: str, **where: Any) -> list[float]:
    """Return the values of ``key`` in the runs that have the values ``where`` for other keys."""
    return [float(row[key]) for row in runs if all(row[key] == value for key, value in where.items())]


def fit_power_laws(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fit the best loss and the best size over compute by power laws.

    Returns ``best``, the best size and loss at each amount of compute, and whether it is the smallest or largest size;
    ``loss`` and ``size``, the slopes and intercepts of the lines in natural logarithms; and ``bend``, the exponent of
    the loss between the last two amounts minus that between the first two.
    """
    best = []
    for compute in sorted({row["compute"] for row in runs}):
        points = sorted((float(row["weights"]), float(row["loss"])) for row in runs if row["compute"] == compute)
        weights, loss = _lowest(points)
        at_end = weights in (points[0][0], points[-1][0])
        best.append({"compute": compute, "weights": weights, "loss": loss, "at_end": at_end})
    logs = {key: np.log([point[key] for point in best]) for key in ("compute", "weights", "loss")}
    keys = {"loss": "loss", "size": "weights"}
    lines = {name: np.polyfit(logs["compute"], logs[key], 1).tolist() for name, key in keys.items()}
    exponents = -np.diff(logs["loss"]) / np.diff(logs["compute"])
    return {"best": best, **lines, "bend": float(exponents[-1] - exponents[0])}


def _lowest(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the lowest point of the parabola through the point with the lowest loss and its two neighbors.

    Each point is a pair of weights and loss, and points are sorted by weights. If the point with the lowest loss is the
    first or the last, no such parabola exists, and this point is returned.
    """
    best = min(range(len(points)), key=lambda index: points[index][1])
    if not 0 < best < len(points) - 1:
        return points[best]
    sizes, losses = zip(*points[best - 1 : best + 2], strict=True)
    curvature, slope, constant = np.polyfit(np.log(sizes), losses, 2)
    lowest = -slope / (2 * curvature)
    return math.exp(lowest), float(constant + slope * lowest / 2)


def judge(numbers: Numbers) -> tuple[Tested, ...]:
    """Judge by the fitted exponents of all seeds."""
    fits = numbers["fits"]
    losses, best_sizes = ([sign * fit[key][0] for fit in fits] for sign, key in ((-1, "loss"), (1, "size")))
    at_end = [best["at_end"] for fit in fits for best in fit["best"]]
    note = f"the smallest or largest size was the best in {sum(at_end)} of {len(at_end)} cases"
    more = f"{4 * len(fits)} seeds and {4 * len(fits) * HOURS_PER_SEED:.0f} core hours to detect half of that"
    regime = Regime("8,000 to 560,000 weights with embeddings, characters of novels", "", more)
    sizes = Regime(regime.conditions, note, "more sizes") if sum(at_end) > _MAX_AT_END * len(at_end) else regime
    quantity = f"exponent of the best size, {fmean(best_sizes):.2f}, {{}} ({note})"
    bend = mean_effect([fit["bend"] for fit in fits])
    loss = mean_effect([exponent - KAPLAN_LOSS for exponent in losses])
    equal = mean_effect([exponent - HOFFMANN_SIZE for exponent in best_sizes])
    below = mean_effect([KAPLAN_SIZE - exponent for exponent in best_sizes])
    ends = "exponent of the loss with the most compute minus that with the least"
    straight = Tested(bend, MAX_LOSS_EXPONENT_GAP, regime, ends, equal=True)
    is_straight = straight.verdict(LEVEL / 4).outcome == "no difference above"  # Holm's first step
    obstacle = "" if is_straight else "it is not certain that the line is straight"
    line = Regime(regime.conditions, obstacle, more if is_straight else "what the claim before this one takes")
    published = f"exponent of the loss, {fmean(losses):.3f}, minus {KAPLAN_LOSS:.3f}"
    return (
        straight,
        Tested(loss, MAX_LOSS_EXPONENT_GAP, line, published, equal=True),
        Tested(equal, MAX_SIZE_EXPONENT_GAP, sizes, quantity.format(f"minus {HOFFMANN_SIZE}"), equal=True),
        Tested(below, MAX_SIZE_EXPONENT_GAP, sizes, quantity.format(f"below {KAPLAN_SIZE}")),
    )


def draw(numbers: Numbers) -> Figure:
    """Draw a valley for each compute, and the best loss and size over compute with fits and published slopes."""
    picture, (valleys, losses, sizes) = subplots(TITLE, ncols=3, size=(21.0, 6.5))
    runs, fits = numbers["runs"], numbers["fits"]
    for number, operations in enumerate(sorted({row["compute"] for row in runs})):
        amounts = sorted({row["weights"] for row in runs if row["compute"] == operations})
        means = [fmean(column(runs, "loss", weights=weights, compute=operations)) for weights in amounts]
        valleys.plot(amounts, means, f"C{number}{MARKERS[number]}-", label=f"{operations:.2g} operations")
        ends = [point for fit in fits for point in fit["best"] if point["compute"] == operations]
        valleys.plot(column(ends, "weights"), column(ends, "loss"), f"C{number}*", markersize=14)
    kaplan, hoffmann = "Kaplan et al. 2020", "Hoffmann et al. 2022"
    _draw_slopes(losses, fits, "loss", "loss", {kaplan: -KAPLAN_LOSS})
    _draw_slopes(sizes, fits, "weights", "size", {kaplan: KAPLAN_SIZE, hoffmann: HOFFMANN_SIZE})
    compute, unit = "training compute (floating-point operations)", "loss (nats per character)"
    for axes, title, x, y in (
        (valleys, "One valley for each compute (stars: minima, by seed)", "weights", unit),
        (losses, "Loss of the best size (dots: seeds)", compute, unit),
        (sizes, "Best size for the compute (dots: seeds)", compute, "weights"),
    ):
        label(axes, title, x, y, log="xy")
        axes.legend(fontsize=11)
    return picture


def _draw_slopes(
    axes: Axes, fits: Sequence[Mapping[str, Any]], value: str, line: str, published: Mapping[str, float]
) -> None:
    """Draw the best values of all seeds, the fitted line, and lines with published exponents through its middle."""
    best = [point for fit in fits for point in fit["best"]]
    axes.plot(column(best, "compute"), column(best, value), "C0o", label="best size")
    ends = np.log([min(column(best, "compute")), max(column(best, "compute"))])
    fitted = np.mean([fit[line] for fit in fits], axis=0)
    axes.plot(np.exp(ends), np.exp(np.polyval(fitted, ends)), color="black", label=f"fitted exponent: {fitted[0]:.3f}")
    for style, (name, exponent) in zip(("--", ":"), published.items(), strict=False):
        values = np.exp(np.polyval(fitted, ends.mean()) + exponent * (ends - ends.mean()))
        axes.plot(np.exp(ends), values, color="#777777", linestyle=style, label=f"{name}: {exponent:.2f}")
