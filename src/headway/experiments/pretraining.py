"""What a text classifier gains from pretraining, with few and with many labeled examples.

A masked language model (Devlin et al. 2019, 3.1) with 3.3 million weights is trained once on the news texts of AG News,
without their labels. A classifier with its encoder is then fine-tuned on 100, 1,000, 10,000 and all 35,436 labeled
texts. The same classifier is trained from random weights on the same texts, with the same vocabulary, the same number
of steps and its own learning rate. Each seed draws other labeled texts, the same for both.

Such pretraining on the texts of the task itself needs no other corpus. It is useful if texts are plentiful and labels
are scarce. Howard and Ruder 2018 (ULMFiT, 5, low-shot learning) make the same comparison with a recurrent model that
was pretrained on much more text.

Accuracy is measured with the final weights on 2,000 other texts, which are used for nothing else. Three seeds were
chosen beforehand; all share one pretrained model, so the differences between seeds do not include those between
pretrained models. The full version has one pretraining run of 25 minutes and 24 runs of up to 6 minutes. It takes about
80 minutes on two cores.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure

from headway.bundle import MaskedLanguageModelBundle
from headway.data.labels import read_labeled_texts
from headway.data.readers import Corpus
from headway.experiments.corpus import AG_NEWS, VERBS, find_data, made_up_text, write_files
from headway.experiments.experiment import Numbers, Settings
from headway.experiments.figures import label, plot_lines, subplots
from headway.experiments.training import column, format_mean_std, make_recipe, train_recipe
from headway.experiments.verdicts import Effect, Regime, Tested, add_variance, difference
from headway.models.masked import MaskedTransformer

LabeledText = tuple[str, str]  # a label and a text
PRETRAINED, SCRATCH = "pretrained", "from random weights"
VARIANTS = (PRETRAINED, SCRATCH)
MIN_GAIN = 0.5  # points of accuracy; smaller gains do not count
MAX_ERROR = 1.1 * 6.95  # %; the error of recipes/ag-news-pretrained.toml is 6.95 %
NUM_TEST_TEXTS = 2000

# Labeled texts, steps of fine-tuning, and texts per step. None means all texts.
_FULL = ((100, 100, 32), (1000, 300, 32), (10_000, 500, 64), (None, 1100, 64))
_QUICK = ((24, 8, 8), (48, 12, 8), (96, 16, 16), (None, 24, 16))
_MODEL: dict[str, Any] = {
    "kind": "masked", "activation": "geglu", "norm": "pre", "bias": "none", "positions": "rotary", "dropout": 0.0,
    "max_length": 128,
}  # fmt: skip
_FULL_SIZE: dict[str, Any] = {"d_model": 192, "num_heads": 4, "d_ff": 512, "encoder_layers": 4}
_QUICK_SIZE: dict[str, Any] = {"d_model": 32, "num_heads": 2, "d_ff": 64, "encoder_layers": 1}
# Rates of Muon, chosen in training recipes/ag-news-pretrained.toml, on texts held out from the training file.
_PRETRAINING_RATE, _RATES = 5e-3, {PRETRAINED: 3e-3, SCRATCH: 1e-2}

TITLE = "Pretraining and the number of labeled texts"
DATA_FILES = AG_NEWS


def measure(settings: Settings) -> Numbers:
    """Pretrain once, and train both classifiers with each number of labeled texts and each seed."""
    train, test = _read(settings)
    texts = write_files({"texts.txt": "".join(f"{text}\n" for _, text in train)}, settings.work_folder, "unlabeled")
    pretrained = _pretrain(settings, texts)
    runs = list[Numbers]()
    for seed, (count, steps, rows) in product(settings.seeds, _QUICK if settings.quick else _FULL):
        chosen = train if count is None else Random(seed).sample(train, count)
        parts = {"train.tsv": chosen, "test.tsv": test}
        files = {file: "".join(f"{name}\t{text}\n" for name, text in part) for file, part in parts.items()}
        folder = write_files(files, settings.work_folder, "labeled")
        for variant in VARIANTS:
            trained = _train_classifier(settings, variant, seed, folder, pretrained["model"], (steps, rows))
            row = {"variant": variant, "seed": seed, "labeled": len(chosen), "steps": steps}
            runs.append(row | {key: trained[key] for key in ("accuracy", "minutes")})
    table = [
        {"labeled texts": count}
        | {f"{name}: accuracy (%)": format_mean_std(runs, "accuracy", variant=name, labeled=count) for name in VARIANTS}
        | {"minutes of fine-tuning": format_mean_std(runs, "minutes", variant=PRETRAINED, labeled=count)}
        for count in sorted({row["labeled"] for row in runs})
    ]
    caption = f"Accuracy, means over seeds with standard deviations (pretraining: {pretrained['minutes']:.3g} minutes)"
    return {"runs": runs, "classes": len({name for name, _ in train}), "tables": {caption: table}}


def _read(settings: Settings) -> tuple[list[LabeledText], list[LabeledText]]:
    """Return the labeled texts for training and for the test; in the quick version, the verb is the label."""
    if settings.quick:
        sentences = made_up_text(400, Random(1)).splitlines()
        made_up = [(next(word for word in sentence.split() if word in VERBS), sentence) for sentence in sentences]
        return made_up[:300], made_up[300:]
    folder = find_data(settings, AG_NEWS, "AG News")
    corpora = (Corpus(files=(Path(name).name,)) for name in AG_NEWS)
    train, test = ([(name, text) for text, name in read_labeled_texts(corpus, folder)] for corpus in corpora)
    return train, test


def _pretrain(settings: Settings, folder: Path) -> Numbers:
    steps = 60 if settings.quick else 1800
    sections: dict[str, dict[str, Any]] = {
        "task": {"kind": "masked_language_model"},
        "data": {
            "folder": str(folder), "train": [{"files": ["texts.txt"], "documents": "line"}], "dev_fraction": 0.02,
            "max_tokens": 512 if settings.quick else 8192, "masking": {"fraction": 0.2},
        },
        "tokenizer": {"kind": "whitespace"} if settings.quick else {"vocab_size": 8000},
        "model": {**_MODEL, **(_QUICK_SIZE if settings.quick else _FULL_SIZE)},
        "optimizer": {**_schedule(1e-2 if settings.quick else _PRETRAINING_RATE, steps), "weight_decay": 0.1},
    }  # fmt: skip
    recipe = make_recipe(settings, settings.seeds[0], steps, sections)
    return train_recipe(settings, recipe, "pretrained")


def _train_classifier(
    settings: Settings, variant: str, seed: int, data: Path, pretrained: str, length: tuple[int, int]
) -> Numbers:
    """Train a classifier from pretrained or random weights. ``length``: number of steps, and of texts per step."""
    steps, rows = length
    start = settings.work_folder / pretrained
    if variant == SCRATCH:
        start = _random_weights(start, seed)
    sections: dict[str, dict[str, Any]] = {
        "task": {"kind": "classification"},
        "data": {
            "folder": str(data), "train": [{"files": ["train.tsv"]}], "dev": {"files": ["test.tsv"]},
            "max_examples": rows, "max_tokens": 128 * rows,
        },
        "model": {"kind": "sequence_classifier", "pooling": "mean", "body": {"kind": "masked", "dropout": 0.1}},
        "optimizer": _schedule(1e-2 if settings.quick else _RATES[variant], steps),
        "training": {"start_from": str(start)},
        "validation": {"metric": "accuracy"},
    }  # fmt: skip
    recipe = make_recipe(settings, seed, steps, sections)
    return train_recipe(settings, recipe, f"{variant.replace(' ', '-')}-{steps}-seed{seed}")


def _random_weights(pretrained: Path, seed: int) -> Path:
    """Return the folder of a model like ``pretrained``, with its vocabulary but random weights."""
    folder = pretrained.parent / f"random-seed{seed}"
    if not folder.is_dir():
        bundle = MaskedLanguageModelBundle.load(pretrained)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = MaskedTransformer(bundle.model.config, bundle.tokenizer.vocab_size)
        replace(bundle, model=model).save(folder, "A model with random weights, for comparison.\n")
    return folder


def _schedule(rate: float, steps: int) -> dict[str, Any]:
    warmup = max(steps // 10, 1)
    return {"kind": "muon", "schedule": "linear", "learning_rate": rate, "warmup_steps": warmup, "clip_norm": 1.0}


def judge(numbers: Numbers) -> tuple[Tested, ...]:
    """Judge by the differences of accuracies with the fewest, 100 times as many, and all labeled texts."""
    runs = numbers["runs"]
    few, _, many, every = sorted({row["labeled"] for row in runs})

    def gap(count: int, against: int) -> Effect:
        """Return the gain, with the chance of seeds and that of the test texts."""
        sides = [
            column(runs, "accuracy", variant=name, labeled=labeled)
            for name, labeled in ((PRETRAINED, count), (SCRATCH, against))
        ]
        shares = [fmean(values) / 100 for values in sides]
        sampling = 100 * math.sqrt(sum(share * (1 - share) for share in shares) / NUM_TEST_TEXTS)
        return add_variance(difference(*sides), Effect(0.0, sampling, NUM_TEST_TEXTS - 1))

    fewer = add_variance(gap(few, few), gap(every, every).negative())
    error = 100 - fmean(column(runs, "accuracy", variant=PRETRAINED, labeled=every))
    missed = f"the error with all labels is {error:.3g} %, more than {MAX_ERROR:g} %" if error > MAX_ERROR else ""
    regime = Regime("3.3 million weights, pretrained on 1.3 million words of the task", missed)
    small = Regime(regime.conditions, "1.3 million words cannot test it: the claim's pretraining text has 103 million")
    what = "points of accuracy, pretrained minus from random weights"
    return (
        Tested(gap(few, many), MIN_GAIN, small, f"{what}, with {few:,} against {many:,} labeled texts"),
        Tested(gap(few, few), MIN_GAIN, regime, f"{what}, with {few:,} labeled texts"),
        Tested(gap(every, every), MIN_GAIN, regime, f"{what}, with {every:,} labeled texts"),
        Tested(fewer, MIN_GAIN, regime, f"gain with {few:,} labeled texts minus gain with {every:,}, in points"),
    )


def draw(numbers: Numbers) -> Figure:
    """Draw the accuracy of both classifiers, and what pretraining gains, over the number of labeled texts."""
    picture, (accuracies, gains) = subplots(TITLE, ncols=2, size=(15.0, 5.5))
    runs, counts = numbers["runs"], sorted({row["labeled"] for row in numbers["runs"]})
    values = {name: [column(runs, "accuracy", variant=name, labeled=count) for count in counts] for name in VARIANTS}
    plot_lines(accuracies, counts, {name: [fmean(seeds) for seeds in seen] for name, seen in values.items()})
    for number, seen in enumerate(values.values()):
        accuracies.plot(counts, seen, f"C{number}o", alpha=0.35, markersize=4)
    chance = 100 / numbers["classes"]
    accuracies.axhline(chance, color="#777777", linestyle=":")
    accuracies.annotate("guessing", (counts[0], chance), xytext=(0, 4), textcoords="offset points", color="#555555")
    intervals = [difference(*pair).interval() for pair in zip(values[PRETRAINED], values[SCRATCH], strict=True)]
    reach = [gain.value - gain.low if math.isfinite(gain.low) else 0.0 for gain in intervals]
    gains.errorbar(counts, [gain.value for gain in intervals], yerr=reach, color="C2", marker="o", capsize=5)
    gains.axhline(0, color="#777777", linestyle=":")
    x: Any = {"log": "x", "xticks": counts}
    label(accuracies, "Accuracy (small dots: seeds)", "labeled texts", "accuracy (%)", **x)
    label(gains, "What pretraining gains (bars: 95 %, seeds alone)", "labeled texts", "points of accuracy", **x)
    accuracies.legend(loc="center right")
    return picture
