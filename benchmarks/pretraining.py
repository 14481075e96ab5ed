"""Measure the gain of pretraining for a classifier, compared with the same model from random weights and TF-IDF + SVM.

    python benchmarks/pretraining.py recipes/ag-news-pretrained.toml --pretrained runs/ag-news-bert/best --data FOLDER

The recipe is trained with each seed, from the model in ``--pretrained`` and from random weights. The model from random
weights has the same sizes, a vocabulary of the same size learned from the task's own texts, and a separate learning
rate, which is the same for all blocks. All other settings are the same as in the recipe. scikit-learn is not a
requirement of Headway: pip install scikit-learn. Without it, the TF-IDF row contains a message.

Accuracy is measured on the recipe's development set. For each seed, pretrained and random weights are compared by
McNemar's test. Over all seeds, texts are drawn with replacement (paired bootstrap), and the value of each text is its
mean over the seeds, because the results of three seeds on the same text are not independent.

Finished runs are stored in ``--runs`` and not repeated, and interrupted runs are resumed.
"""

import json
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import torch
import typer
from classification import installed, read_corpora, train_recipe
from labellers import MissingError, train_tfidf

from headway.bundle import read_config
from headway.config import apply_overrides, read_toml
from headway.evaluation import compare_labels
from headway.evaluation.bootstrap import DEFAULT_SEED, bootstrap_counts, interval_95
from headway.hardware import processor_name
from headway.tasks import parse_recipe
from headway.training.recipe import Recipe

PRETRAINED, SCRATCH_NAME, TFIDF = "pretrained", "scratch", "TF-IDF + linear SVM"
SAMPLES = 1000  # of the bootstrap
QUICK = ("training.steps=2", "validation.every=2", "optimizer.warmup_steps=1", "training.device=cpu")


def make_recipe(
    path: Path, data: Path, pretrained: Path, variant: str, seed: int, scratch_rate: float, changes: Sequence[str]
) -> Recipe:
    """Return the recipe in ``path`` for one run."""
    sections = apply_overrides(read_toml(path), [*changes, f"training.seed={seed}"])
    sections["data"]["folder"] = str(data)
    if variant == PRETRAINED:
        sections["training"]["start_from"] = str(pretrained)
    else:
        sections["training"] = {
            key: value for key, value in sections["training"].items() if key not in ("start_from", "unfreeze_every")
        }
        config = read_config(pretrained)
        sections["model"]["body"] = {**config.model.as_dict(), **sections["model"].get("body", {})}
        sections["tokenizer"] = {
            "vocab_size": max(config.load_tokenizers()[0].vocab_size, 300)
        }  # 300: the least allowed
        sections["optimizer"] |= {"learning_rate": scratch_rate, "layer_decay": 1.0}
    return parse_recipe(sections, str(path))


def predict(recipe: Recipe, run: Path, texts: list[str]) -> list[str]:
    """Train ``recipe`` in ``run`` and return the label of each text, or the labels that an earlier call has saved."""
    saved, settings = run / "labels.json", recipe.as_dict()
    if saved.is_file():
        found = json.loads(saved.read_text(encoding="utf-8"))
        if found["recipe"] != settings or len(found["labels"]) != len(texts):
            raise SystemExit(f"{run}: trained with another recipe or other data; choose another --runs, or remove it")
        return list(found["labels"])
    labels = train_recipe(recipe, run)(texts)
    saved.write_text(json.dumps({"recipe": settings, "labels": labels}) + "\n", encoding="utf-8")
    return labels


def compare_over_seeds(
    pretrained: Sequence[Sequence[str]], scratch: Sequence[Sequence[str]], truth: Sequence[str]
) -> dict[str, float]:
    """Return the difference of the mean accuracies in points, its 95 % interval, and the p-value of the bootstrap."""
    each = [
        np.mean([[a == b for a, b in zip(run, truth, strict=True)] for run in runs], 0)
        for runs in (pretrained, scratch)
    ]
    difference = 100 * (each[0] - each[1])
    delta = float(difference.mean())
    drawn = np.array([counts @ difference for counts in bootstrap_counts(len(truth), SAMPLES, DEFAULT_SEED)]) / len(
        truth
    )
    low, high = interval_95(drawn)
    far = int((np.abs(drawn - drawn.mean()) >= abs(delta)).sum())
    return {"delta": delta, "low": low, "high": high, "p_value": (far + 1) / (SAMPLES + 1)}


def tfidf_accuracy(texts: list[str], labels: list[str], dev: list[str], truth: Sequence[str]) -> float | None:
    """Return the accuracy of TF-IDF with a linear SVM in percent, or None without scikit-learn."""
    try:
        classify = train_tfidf("machine", texts, labels)
    except MissingError:
        return None
    return accuracy(classify(dev), truth)


def accuracy(labels: Sequence[str], truth: Sequence[str]) -> float:
    """Return the percentage of correct labels."""
    return 100 * fmean(a == b for a, b in zip(labels, truth, strict=True))


def report(figures: Mapping[str, Any]) -> str:
    """Return the figures as text."""
    lines = [f"{figures['date']}: {figures['machine']}", figures["command"]]
    for name in (PRETRAINED, SCRATCH_NAME):
        found = figures["accuracy"][name]
        lines.append(f"{name}: {', '.join(f'{each:.2f}' for each in found)} %, mean {fmean(found):.2f} %")
    tfidf = figures["accuracy"][TFIDF]
    lines.append(f"{TFIDF}: " + ("not installed: pip install scikit-learn" if tfidf is None else f"{tfidf:.2f} %"))
    lines += [
        f"seed {row['seed']}: {row['delta']:+.2f} points [{row['low']:+.2f}, {row['high']:+.2f}], "
        f"McNemar p = {row['p_values']['mcnemar']:.4f}"
        for row in figures["seeds"]
    ]
    over = figures["all_seeds"]
    lines.append(
        f"all seeds: {over['delta']:+.2f} points [{over['low']:+.2f}, {over['high']:+.2f}], "
        f"bootstrap p = {over['p_value']:.4f}"
    )
    return "\n".join(lines)


def main(
    recipe: Annotated[Path, typer.Argument(help="Recipe of a classifier that starts from a language model.")],
    pretrained: Annotated[Path, typer.Option(help="Folder of the pretrained model.")],
    data: Annotated[Path, typer.Option(help="Folder that replaces the recipe's data.folder.")],
    runs: Annotated[Path | None, typer.Option(help="Folder of the runs. Default: runs/pretraining/RECIPE.")] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds: 1, 2, and so on.", min=1)] = 3,
    scratch_rate: Annotated[float, typer.Option(help="Learning rate for training from random weights.")] = 5e-4,
    quick: Annotated[bool, typer.Option("--quick", help="Train only two steps, as a check.")] = False,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, for all runs.")] = None,
    output: Annotated[Path | None, typer.Option("-o", help="Also write the figures as JSON.")] = None,
) -> None:
    """Train all runs that are not finished, and print the accuracies and the tests."""
    folder, numbers = runs or Path("runs/pretraining", recipe.stem), range(1, seeds + 1)
    changes = [*(QUICK if quick else ()), *(assignments or [])]
    recipes = {
        (variant, seed): make_recipe(recipe, data, pretrained, variant, seed, scratch_rate, changes)
        for seed in numbers
        for variant in (PRETRAINED, SCRATCH_NAME)
    }
    train_set, dev_set = read_corpora(recipes[PRETRAINED, 1])
    truth, found = dev_set.labels, dict[tuple[str, int], list[str]]()
    for (variant, seed), each in recipes.items():
        print(f"{variant}, seed {seed}", file=sys.stderr, flush=True)
        found[variant, seed] = predict(each, folder / f"{variant}-{seed}", dev_set.texts)
    rows = []
    for seed in numbers:
        systems = {SCRATCH_NAME: found[SCRATCH_NAME, seed], PRETRAINED: found[PRETRAINED, seed]}
        rows.append({"seed": seed, **asdict(compare_labels(systems, truth, max_differences=0).rows[1])})
    packages = {"PyTorch": "torch", "scikit-learn": "scikit-learn", "Headway": "headway"}
    versions = [f"{name} {installed(package)}" for name, package in packages.items()]
    software = ", ".join([*versions, f"Python {platform.python_version()}"])
    by_variant = {name: [found[name, seed] for seed in numbers] for name in (PRETRAINED, SCRATCH_NAME)}
    figures = {
        "date": str(date.today()),
        "machine": f"{processor_name()}, {torch.get_num_threads()} threads, {software}",
        "command": f"python benchmarks/pretraining.py {shlex.join(sys.argv[1:])}",
        "quick": quick,
        "train_texts": len(train_set.texts),
        "dev_texts": len(truth),
        "accuracy": {
            **{name: [accuracy(labels, truth) for labels in each] for name, each in by_variant.items()},
            TFIDF: tfidf_accuracy(train_set.texts, train_set.labels, dev_set.texts, truth),
        },
        "seeds": rows,
        "all_seeds": compare_over_seeds(by_variant[PRETRAINED], by_variant[SCRATCH_NAME], truth),
    }
    print(report(figures))
    if output is not None:
        output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
