"""Development scores of a model in training, and the model card that reports them."""

from __future__ import annotations

import math
import platform
from importlib.metadata import version
from typing import Any

import torch

from headway.config import to_toml
from headway.hardware import autocast
from headway.models.registry import Model
from headway.train.recipe import Recipe
from headway.train.snapshot import Progress
from headway.train.stream import to_device
from headway.train.task import Prepared, Task

__all__ = ["Record", "dev_scores", "model_card", "selection_score"]

Record = dict[str, float | str]

_SCORE_NAMES = {"bleu": "BLEU", "accuracy": "accuracy", "macro_f1": "macro F1"}  # by validation.metric
_PACKAGES = ("headway", "torch", "tokenizers", "sacrebleu")


def dev_scores(
    task: Task[Any, Any, Any], recipe: Recipe, prepared: Prepared, model: Model, device: torch.device, precision: str
) -> Record:
    """Return the loss and the task's scores on the development set; empty if there is none.

    The model is scored on ``device`` in ``precision``, and then moved back to its own device.
    """
    if prepared.dev is None:
        return {}
    home = next(model.parameters()).device
    model.to(device).eval()
    objective = task.objective(model, recipe, prepared).eval()
    total, targets = 0.0, 0
    with torch.inference_mode():
        for rows in prepared.dev.sequential(max_tokens=recipe.data.max_tokens, max_examples=recipe.max_examples):
            batch = to_device(prepared.dev.batch(rows), device)
            with autocast(device, precision):
                total += float(objective.cross_entropy(batch))
            targets += batch.targets.numel()
    loss = total / max(targets, 1)
    record: Record = {"loss": loss}  # in nats per target, without smoothing
    if objective.per_token:
        record["perplexity"] = math.exp(min(loss, 700.0))
    for score in task.dev_scores(task.bundle(model, recipe, prepared), recipe):
        record |= {score.name: score.value, f"{score.name} signature": score.signature}
    model.to(home)
    return record


def selection_score(record: Record, metric: str) -> float:
    """Return the number that decides which model is the best by ``validation.metric``; higher is better."""
    score = None if metric == "loss" else record.get(_SCORE_NAMES.get(metric, metric))
    return -float(record["loss"]) if score is None else float(score)


def model_card(
    task: Task[Any, Any, Any], recipe: Recipe, progress: Progress, scores: Record, prepared: Prepared, model: Model
) -> str:
    """Return the README.md of a model folder: what the model is, its data and scores, and how to train it again."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    files = ", ".join(file for corpus in recipe.data.train for file in corpus.files)
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    title, data = task.summary(recipe, prepared)
    shown = recipe.as_dict()
    del shown["data"]["folder"]  # a path on one machine
    score_lines = "\n".join(
        f"- {name}: {value:.2f}" + (f" ({signature})" if (signature := scores.get(f"{name} signature")) else "")
        for name, value in scores.items()
        if isinstance(value, float)
    )
    return f"""# {title}

A {recipe.model.kind} with {weights:,} weights, trained with Headway for {progress.step:,} steps
({progress.epoch + 1} epochs begun, {progress.elapsed_s / 60:.1f} minutes of training steps).

    headway {task.command} THIS_FOLDER -i input.txt -o output.txt

## Data

{data} from {files}.

## Scores on the development set

{score_lines or "None were computed."}

## Versions

{versions}, Python {platform.python_version()}, {platform.machine()}

## Recipe

```toml
{to_toml(shown).strip()}
```
"""
