"""Recurrent and Transformer language models, at equal weights and at equal training time.

Both models predict the characters of Shakespeare's plays (1 MB of text). Both have 1.8 million weights: a Transformer
with four blocks of width 192 (pre-norm, rotary positions, SwiGLU), and an LSTM with two layers of width 332. Both are
trained on blocks of 256 characters in random order, each without the text before it, so that they have the same
context. Kaplan et al. 2020 (3.2.1) compare LSTMs and Transformers in this way. An LSTM can also carry its state from
block to block, which this experiment does not measure.

The Transformer is trained for 1,000 steps of 2,048 characters. The LSTM is trained twice: for as many steps, so that it
reads as much text, and for as many steps as fit into the Transformer's training time. Time is the duration of the
training steps on the machine of this report, so keep the machine idle during the measurement.

The loss is the mean over all characters of the development text, in blocks of 256 that do not overlap. To show how they
use their context, models also read windows of 512 characters, twice as long as in training. A character at position p
of a window is predicted from p characters. The panel in the middle shows the loss over this number: how much it falls
from left to right is what the model gains from more distant context. The right panel shows the difference.

Three seeds were chosen beforehand. The full version has 9 runs. It takes about an hour on two cores, and 17
minutes if they have AMX.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

from headway.bundle import LanguageModelBundle
from headway.experiments.comparison import (
    by_variant,
    column,
    format_mean_std,
    strip_plot,
)
from headway.experiments.corpus import TINYSHAKESPEARE, find_data, made_up_text, write_files
from headway.experiments.experiment import OURS, Claim, Experiment, Numbers, Settings
from headway.experiments.figures import label, plot_lines, subplots
from headway.experiments.training import (
    TrainedRun,
    cache_key,
    make_recipe,
    train_recipe,
)
from headway.experiments.verdicts import Regime, Tested, difference
from headway.models.base import ContinuationModel
from headway.text.base import BOS

TRANSFORMER, SAME_TEXT, SAME_TIME = "Transformer", "LSTM, equal text", "LSTM, equal time"
VARIANTS = (TRANSFORMER, SAME_TEXT, SAME_TIME)
MIN_LOSS_GAP = 0.02  # nats per character; smaller differences do not count
RECIPE_LOSS = 1.468  # nats per character, recipes/shakespeare-char.toml

_TRANSFORMER: dict[str, Any] = {
    "kind": "decoder_only", "norm_kind": "rms", "bias": "none", "activation": "swiglu", "positions": "rotary",
    "dropout": 0.1,
}  # fmt: skip
_LSTM: dict[str, Any] = {"kind": "recurrent_lm", "cell": "lstm", "num_layers": 2, "carry_state": False, "dropout": 0.1}
_FULL: dict[str, dict[str, Any]] = {
    TRANSFORMER: {"d_model": 192, "num_heads": 3, "d_ff": 512, "decoder_layers": 4},
    "LSTM": {"d_model": 332},
}
_QUICK: dict[str, dict[str, Any]] = {
    TRANSFORMER: {"d_model": 32, "num_heads": 2, "d_ff": 64, "decoder_layers": 1},
    "LSTM": {"d_model": 24},
}
_ROWS = 16  # windows that are read at a time

TITLE = "Recurrent and Transformer language models"
CLAIMS = (
    Claim(
        "At equal weights and after as much text, the Transformer predicts better than the LSTM.",
        "Kaplan et al. 2020, 3.2.1",
    ),
    Claim(
        "At equal weights and after as much training time, the Transformer predicts better than the LSTM.",
        f"{OURS}: the paper, 4, argues with parallel computation",
    ),
    Claim("The LSTM does as well as the Transformer early in the context.", "Kaplan et al. 2020, 3.2.1"),
    Claim("The LSTM cannot match the Transformer later in the context.", "Kaplan et al. 2020, 3.2.1"),
)


def measure(settings: Settings) -> Numbers:
    """Train the three variants with each seed, and measure their losses over the context."""
    context, steps = (32, 40) if settings.quick else (256, 1000)
    corpus = _corpus(settings)
    text = (Path(corpus["data"]["folder"]) / corpus["data"]["dev"]["files"][0]).read_text(encoding="utf-8")
    early, late = (0, context // 16), (context // 2, context)
    bins = [(0, 1), *((2**power, 2 ** (power + 1)) for power in range((2 * context).bit_length() - 1))]
    runs = []
    for seed in settings.seeds:
        attending, recurrent = (_train(settings, corpus, seed, kind, context, steps) for kind in (TRANSFORMER, "LSTM"))
        in_time = round(steps * min(max(attending.training_seconds / recurrent.training_seconds, 0.2), 5.0))
        timed = _train(settings, corpus, seed, "LSTM", context, max(in_time, 1))
        for variant, trained, count in (
            (TRANSFORMER, attending, steps),
            (SAME_TEXT, recurrent, steps),
            (SAME_TIME, timed, in_time),
        ):
            measured = _context_losses(settings, trained.model_folder, text, context)
            losses = measured["losses"]
            runs.append(
                {"variant": variant, "seed": seed, "steps": count, "minutes": trained.training_seconds / 60}
                | {"weights": measured["weights"], "loss": fmean(losses[:context])}
                | {"early": fmean(losses[slice(*early)]), "late": fmean(losses[slice(*late)])}
                | {"by_context": [fmean(losses[low:high]) for low, high in bins]}
            )
    unit = "word" if settings.quick else "character"
    table = [
        {
            "model": variant,
            "weights": int(column(runs, "weights", variant=variant)[0]),
            "steps": format_mean_std(runs, "steps", variant=variant),
            "minutes": format_mean_std(runs, "minutes", variant=variant),
            f"loss (nats per {unit})": format_mean_std(runs, "loss", variant=variant),
        }
        for variant in VARIANTS
    ]
    tables = {"Models, means over seeds with standard deviations": table}
    return {"runs": runs, "bins": bins, "early": early, "late": late, "context": context, "unit": unit} | {
        "tables": tables
    }


def _corpus(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the recipe sections that describe the data."""
    if settings.quick:
        random = Random(1)
        files = {name: made_up_text(count, random) for name, count in (("train.txt", 2000), ("val.txt", 200))}
        folder, tokenizer = write_files(files, settings.work_folder, "text"), "whitespace"
    else:
        folder, tokenizer = find_data(settings, TINYSHAKESPEARE, "Tiny Shakespeare"), "characters"
    data = {"folder": str(folder), "train": [{"files": ["train.txt"]}], "dev": {"files": ["val.txt"]}}
    return {"data": data, "tokenizer": {"kind": tokenizer}}


def _train(
    settings: Settings, corpus: dict[str, dict[str, Any]], seed: int, kind: str, context: int, steps: int
) -> TrainedRun:
    common = _TRANSFORMER if kind == TRANSFORMER else _LSTM
    sizes = (_QUICK if settings.quick else _FULL)[kind]
    rate = 1e-2 if settings.quick else 3e-3
    changes: dict[str, dict[str, Any]] = {
        "task": {"kind": "language_model"},
        "data": {"max_tokens": 512 if settings.quick else 2048},
        "model": {**common, **sizes, "max_length": context},
        "optimizer": {
            "schedule": "cosine", "learning_rate": rate, "warmup_steps": max(steps // 10, 1), "beta2": 0.99,
            "clip_norm": 1.0,
        },
    }  # fmt: skip
    recipe = make_recipe(settings, seed, steps, corpus, changes)
    return train_recipe(settings, recipe, f"{kind.lower()}-{steps}-seed{seed}")


def _context_losses(settings: Settings, folder: Path, text: str, context: int) -> Numbers:
    """Return the mean loss at each position of windows of twice the context, and the number of the model's weights.

    Windows begin every ``context`` tokens, so their first halves are the blocks that do not overlap.
    """

    def compute() -> Numbers:
        bundle = LanguageModelBundle.load(folder)
        model = bundle.model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        tokens = torch.tensor(bundle.tokenizer.encode(text), device=model.device)
        losses = position_losses(model, tokens, length=2 * context, every=context)
        return {"losses": losses, "weights": sum(parameter.numel() for parameter in model.parameters())}

    return settings.cached(cache_key(settings, folder, "context", text, context), compute)


@torch.inference_mode()
def position_losses(model: ContinuationModel, tokens: torch.Tensor, *, length: int, every: int) -> list[float]:
    """Return the mean loss at each position of windows of ``length`` tokens, which begin every ``every`` tokens.

    A window is read from BOS, so the token at position p is predicted from the p tokens before it in its window.
    """
    windows = tokens.unfold(0, length, every)
    total = torch.zeros(length, dtype=torch.float64)
    for some in torch.split(windows, _ROWS):
        logits = model(F.pad(some[:, :-1], (1, 0), value=BOS))
        losses = F.cross_entropy(logits.float().flatten(0, 1), some.flatten(), reduction="none")
        total += losses.view(some.shape).sum(0).double().cpu()
    means: list[float] = (total / len(windows)).tolist()
    return means


def judge(numbers: Numbers) -> tuple[Tested, ...]:
    """Judge by the loss on all characters, and on those with little and with much context."""
    loss, early, late = (by_variant(numbers["runs"], key) for key in ("loss", "early", "late"))
    reached = fmean(loss[TRANSFORMER])
    missed = f"the Transformer's loss, {reached:.2f}, is not within 0.05 of its recipe's, {RECIPE_LOSS}"
    regime = Regime("1.8 million weights, 2 million characters", missed if reached > RECIPE_LOSS + 0.05 else "")
    what = f"nats per {numbers['unit']}, LSTM minus Transformer"
    early_what = f"{what}, with less than {numbers['early'][1]} {numbers['unit']}s of context"
    late_what = f"{what}, with {numbers['late'][0]} to {numbers['late'][1] - 1} {numbers['unit']}s of context"

    def tested(values: dict[str, list[float]], variant: str, words: str, *, equal: bool = False) -> Tested:
        return Tested(difference(values[variant], values[TRANSFORMER]), MIN_LOSS_GAP, regime, words, equal)

    return (
        tested(loss, SAME_TEXT, f"{what}, after as much text"),
        tested(loss, SAME_TIME, f"{what}, after as much time"),
        tested(early, SAME_TEXT, early_what, equal=True),
        tested(late, SAME_TEXT, late_what),
    )


def draw(numbers: Numbers) -> Figure:
    """Draw the losses after training, and the loss over the length of the context."""
    picture, (final, curves, differences) = subplots(TITLE, ncols=3, size=(20.0, 5.5))
    runs, unit, bins = numbers["runs"], numbers["unit"], numbers["bins"]
    names = {
        variant: f"{variant}\n({fmean(column(runs, 'minutes', variant=variant)):.2g} minutes)" for variant in VARIANTS
    }
    losses = {names[variant]: values for variant, values in by_variant(runs, "loss").items()}
    strip_plot(final, losses, "After training (dots: seeds)", f"loss on new text (nats per {unit}); less is better")
    bin_numbers = range(len(bins))
    rows = {variant: [row["by_context"] for row in runs if row["variant"] == variant] for variant in VARIANTS}
    means = {variant: [fmean(bin_losses) for bin_losses in zip(*rows[variant], strict=True)] for variant in VARIANTS}
    above = {
        variant: [mean - base for mean, base in zip(means[variant], means[TRANSFORMER], strict=True)]
        for variant in (SAME_TEXT, SAME_TIME)
    }
    plot_lines(curves, bin_numbers, means)
    plot_lines(differences, bin_numbers, above, VARIANTS)
    differences.axhline(0, color="#777777", linestyle=":")
    context = f"{unit}s before the predicted one"
    label(curves, "By the length of the context", context, f"loss (nats per {unit})")
    label(differences, "LSTM minus Transformer", context, f"difference in loss (nats per {unit})")
    longer = next(index for index, (low, _) in enumerate(bins) if low >= numbers["context"])
    ticks = [str(low) if high == low + 1 else f"{low}–{high - 1}" for low, high in bins]
    for axes in (curves, differences):
        axes.axvspan(longer - 0.5, len(bins) - 0.5, color="#000000", alpha=0.06, linewidth=0)
        axes.set_xticks(list(bin_numbers), ticks, rotation=40, ha="right", rotation_mode="anchor")
        axes.set_xlim(-0.5, len(bins) - 0.5)
    curves.annotate("longer than\ntrained on", (1, 0.97), xycoords="axes fraction", ha="right", va="top", fontsize=11)
    curves.legend(loc="upper center")
    return picture


EXPERIMENT = Experiment("recurrent-lm", TITLE, __doc__, CLAIMS, measure, judge, draw, data_files=TINYSHAKESPEARE)
