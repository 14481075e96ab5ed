"""Scores a model on the development set, and writes it as a model folder with its model card."""

from __future__ import annotations

import math
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from headway.config import to_toml
from headway.hardware import autocast
from headway.models.registry import Model
from headway.train.recipe import Recipe
from headway.train.snapshot import Progress
from headway.train.stream import to_device
from headway.train.task import Objective, Prepared, Task

__all__ = ["Record", "Validator", "model_card"]

Record = dict[str, float | str]

_SCORE_NAMES = {"bleu": "BLEU", "accuracy": "accuracy", "macro_f1": "macro F1"}  # by validation.metric
_PACKAGES = ("headway", "torch", "tokenizers", "sacrebleu")


class Validator:
    """Scores and writes ``model``, whose weights change from call to call.

    The model is scored on ``device`` in ``precision``, and then moved back to where it was.
    """

    def __init__(
        self,
        task: Task[Any, Any],
        recipe: Recipe,
        prepared: Prepared,
        model: Model,
        device: torch.device,
        precision: str,
    ) -> None:
        self._task, self._recipe, self._prepared, self._model = task, recipe, prepared, model
        self._device, self._precision = device, precision

    def scores(self) -> Record:
        """Return the loss and the task's scores on the development set; empty if there is none."""
        if self._prepared.dev is None:
            return {}
        home = next(self._model.parameters()).device
        self._model.to(self._device).eval()
        objective = self._task.objective(self._model, self._recipe, self._prepared)
        loss = self._dev_loss(objective.eval())
        record: Record = {"loss": loss}
        if objective.per_token:
            record["perplexity"] = math.exp(min(loss, 700.0))
        bundle = self._task.bundle(self._model, self._recipe, self._prepared)
        for score in self._task.dev_scores(bundle, self._recipe):
            record |= {score.name: score.value, f"{score.name} signature": score.signature}
        self._model.to(home)
        return record

    def quality(self, record: Record) -> float:
        """Return the number that decides which model is the best; higher is better."""
        metric = self._recipe.validation.metric
        score = None if metric == "loss" else record.get(_SCORE_NAMES.get(metric, metric))
        return -float(record["loss"]) if score is None else float(score)

    def write(self, folder: Path, progress: Progress, scores: Record) -> None:
        """Write the model folder; its card reports ``scores`` and how the model was trained."""
        bundle = self._task.bundle(self._model.eval(), self._recipe, self._prepared)
        bundle.save(folder, model_card(self._task, self._recipe, progress, scores, self._prepared, self._model))

    @torch.inference_mode()
    def _dev_loss(self, objective: Objective) -> float:
        """Return the cross-entropy without smoothing, in nats per target."""
        dev, recipe = self._prepared.dev, self._recipe
        assert dev is not None
        total, targets = 0.0, 0
        for rows in dev.sequential(max_tokens=recipe.data.max_tokens, max_examples=recipe.max_examples):
            batch = to_device(dev.batch(rows), self._device)
            with autocast(self._device, self._precision):
                total += float(objective.cross_entropy(batch))
            targets += batch.targets.numel()
        return total / max(targets, 1)


def model_card(
    task: Task[Any, Any], recipe: Recipe, progress: Progress, scores: Record, prepared: Prepared, model: Model
) -> str:
    """Return the README.md of a model folder: what the model is, its data and scores, and how to train it again."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    files = ", ".join(file for corpus in recipe.data.train for file in corpus.files)
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    title, data = task.summary(recipe, prepared)
    shown = recipe.as_dict()
    del shown["data"]["folder"]  # a path on one machine
    lines = []
    for name, value in scores.items():
        if isinstance(value, float):
            signature = scores.get(f"{name} signature")
            lines.append(f"- {name}: {value:.2f}" + (f" ({signature})" if signature else ""))
    score_lines = "\n".join(lines) or "None were computed."
    return f"""# {title}

A {recipe.model.kind} with {weights:,} weights, trained with Headway for {progress.step:,} steps
({progress.epoch + 1} epochs begun, {progress.elapsed_s / 60:.1f} minutes of training steps).

    headway {task.command} THIS_FOLDER -i input.txt -o output.txt

## Data

{data} from {files}.

## Scores on the development set

{score_lines}

## Versions

{versions}, Python {platform.python_version()}, {platform.machine()}

## Recipe

```toml
{to_toml(shown).strip()}
```
"""
