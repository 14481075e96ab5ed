"""Train the models that ``pretraining`` and ``scaling_laws`` compare, and collect their results.

A model is trained only once: the name of its folder contains a hash of the resolved recipe and of the data, so that a
second request finds its results, and an interrupted training resumes. Others are trained in the pool
(:mod:`pool_runs`).
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import torch

from headway.calls.run import Run
from headway.data.store import fingerprint
from headway.experiments.experiment import Numbers, Settings
from headway.hardware import has_fast_bfloat16
from headway.tasks import parse_recipe, train
from headway.training.recipe import Recipe

Changes = Mapping[str, Mapping[str, Any]]
"""Keys of a recipe, by section."""


def make_recipe(settings: Settings, seed: int, steps: int, sections: Changes) -> Recipe:
    """Return a recipe of ``sections``, with one validation, at the end, whose model is the result."""
    # The precision is part of the run's name: "auto" would mix the results of different processors.
    device = torch.device("cuda" if torch.cuda.is_available() and not settings.quick else "cpu")
    precision = "bfloat16" if has_fast_bfloat16(device) and not settings.quick else "float32"
    shared: Changes = {
        "training": {"seed": seed, "steps": steps, "compile": "off", "log_every": max(steps // 5, 1)}
        | {"device": device.type, "precision": precision},
        "validation": {"metric": "loss", "every": steps},
        "checkpoints": {"every": max(steps // 4, 100), "keep": 1, "average": 0},
    }
    return parse_recipe(merge_sections(shared, sections), "the experiment's recipe")


def merge_sections(*parts: Changes) -> dict[str, dict[str, Any]]:
    """Merge the sections of recipes. Keys of later parts replace those of earlier parts."""
    sections: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, keys in part.items():
            sections[name] = {**sections.get(name, {}), **keys}
    return sections


def train_recipe(settings: Settings, recipe: Recipe, name: str) -> Numbers:
    """Train ``recipe``, or return the result of an earlier call. ``name`` begins the run folder's name.

    The recipe's data and its starting model are in folders below ``settings.work_folder`` whose names contain hashes of
    what is in them.

    Returns:
        The metrics of the development set; ``model``, the folder of the model below ``settings.work_folder``; and
        ``minutes``, the duration of all steps.

    Raises:
        DivergenceError: The training diverged.
        KeyboardInterrupt: The training was interrupted. A second call resumes it.
    """
    key = fingerprint(json.dumps(recipe.active_options()).replace(str(settings.work_folder), ""))
    run = settings.work_folder / "runs" / f"{name}-{key[:10]}"

    def compute() -> Numbers:
        settings.say(f"training {run.name}")
        result = train(recipe, run)
        if result.interrupted:
            raise KeyboardInterrupt
        assert result.model_folder is not None
        for folder in ("checkpoints", "tokens"):  # no longer needed; the folders of all runs would take gigabytes
            shutil.rmtree(run / folder)
        dev, last = (read_metrics(run, kind)[-1] for kind in ("dev", "train"))
        model = str(result.model_folder.relative_to(settings.work_folder))
        return {**dev, "model": model, "minutes": last["elapsed_s"] / 60}

    return settings.cached(f"runs/{run.name}/result", compute)


def read_metrics(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the metrics of one kind, such as "train" or "dev", that a run has written."""
    return [line for line in Run(run, interrupted=True).metrics if line["kind"] == kind]


def column(runs: Sequence[Mapping[str, Any]], key: str, **where: Any) -> list[float]:
    """Return the values of ``key`` in the runs that have the values ``where`` for other keys."""
    return [float(row[key]) for row in runs if all(row[key] == value for key, value in where.items())]


def format_mean_std(runs: Sequence[Mapping[str, Any]], key: str, **where: Any) -> str:
    """Format the mean of a :func:`column`, and the standard deviation if there are several values, for a table."""
    values = column(runs, key, **where)
    spread = f" ± {math.sqrt(variance(values)):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.4g}{spread}"
