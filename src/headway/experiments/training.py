"""Train the models that ``pretraining`` and ``scaling_laws`` compare. A variant is trained only once.

The name of a run folder contains a hash of the resolved recipe and the data files, so that a second request finds the
trained model, and an interrupted training resumes. Other models are trained in the pool (:mod:`pool_runs`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.data.store import ContentHashes, fingerprint
from headway.experiments.experiment import Numbers, Settings
from headway.hardware import has_fast_bfloat16
from headway.tasks import parse_recipe, train
from headway.training.recipe import Recipe

Changes = Mapping[str, Mapping[str, Any]]
"""Keys of the recipe that a variant changes, by section."""


@dataclass(frozen=True)
class TrainedRun:
    """A trained model.

    Attributes:
        run_folder: Folder of the training run.
        model_folder: Folder of the trained model.
        dev_loss: Cross-entropy on the development set without label smoothing, in nats per target token.
        training_seconds: Duration of all training steps, in seconds.
    """

    run_folder: Path
    model_folder: Path
    dev_loss: float
    training_seconds: float


def make_recipe(settings: Settings, seed: int, steps: int, *parts: Changes) -> Recipe:
    """Return a recipe of the sections in ``parts`` and of those that all runs share.

    Keys of later parts replace those of earlier parts.
    """
    return parse_recipe(merge_sections(_run_sections(settings, seed, steps), *parts), "the experiment's recipe")


def _run_sections(settings: Settings, seed: int, steps: int) -> dict[str, dict[str, Any]]:
    """Return the recipe sections that all runs share: one validation, at the end, whose model is the result."""
    # The precision is part of the run's name: "auto" would mix the results of different processors.
    device = torch.device("cuda" if torch.cuda.is_available() and not settings.quick else "cpu")
    precision = "bfloat16" if has_fast_bfloat16(device) and not settings.quick else "float32"
    return {
        "training": {"seed": seed, "steps": steps, "compile": "off", "log_every": max(steps // 5, 1)}
        | {"device": device.type, "precision": precision},
        "validation": {"metric": "loss", "every": steps},
        "checkpoints": {"every": max(steps // 4, 100), "keep": 1, "average": 0},
    }


def merge_sections(*parts: Changes) -> dict[str, dict[str, Any]]:
    """Merge the sections of recipes. Keys of later parts replace those of earlier parts."""
    sections: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, keys in part.items():
            sections[name] = {**sections.get(name, {}), **keys}
    return sections


def train_recipe(settings: Settings, recipe: Recipe, name: str) -> TrainedRun:
    """Train ``recipe``, or return the model that an earlier call has trained. ``name`` begins the run folder's name.

    Raises:
        DivergenceError: The training diverged.
        KeyboardInterrupt: The training was interrupted. A second call resumes it.
    """
    run = settings.work_folder / "runs" / f"{name}-{_key(recipe, settings.work_folder)[:10]}"

    def compute() -> Numbers:
        settings.say(f"training {run.name}")
        result = train(recipe, run)
        if result.interrupted:
            raise KeyboardInterrupt
        assert result.model_folder is not None
        for folder in ("checkpoints", "tokens"):  # no longer needed; the folders of all runs would take gigabytes
            shutil.rmtree(run / folder)
        dev, last = (read_metrics(run, kind)[-1] for kind in ("dev", "train"))
        return {"folder": result.model_folder.name, "loss": dev["loss"], "seconds": last["elapsed_s"]}

    stored = settings.cached(f"{run.relative_to(settings.work_folder)}/result", compute)
    return TrainedRun(run, run / stored["folder"], stored["loss"], stored["seconds"])


def read_metrics(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of one kind, such as "train" or "dev", in a run's metrics.jsonl."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["kind"] == kind]


def _key(recipe: Recipe, work: Path) -> str:
    """Hash the recipe and the contents of its data files and of its starting model, regardless of their paths."""
    sections = recipe.active_options()
    sections["data"].pop("folder", None)
    folder, hashes = Path(recipe.data.folder), ContentHashes(work / "inputs.json")
    for key in ("start_from", "start_decoder_from"):
        if start := getattr(recipe.training, key):
            sections["training"][key] = hashes.hash_file(Path(start) / "model.safetensors")
    corpora = [*recipe.data.train, *([recipe.data.dev] if recipe.data.dev else [])]
    return fingerprint(sections, [hashes.hash_file(folder / file) for corpus in corpora for file in corpus.files])
