"""Development scores, and the score by which the best model is selected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch

from headway.data.batching import TokenDataset
from headway.data.epoch_plan import EpochPlan
from headway.hardware import autocast
from headway.models.base import Model
from headway.training.recipe import Recipe
from headway.training.report import Scores
from headway.training.stream import to_device
from headway.training.task import RunData, Task

_SAMPLED_BATCHES = 64


def dev_scores(
    task: Task[Any, Any, Any], recipe: Recipe, prepared: RunData, model: Model, device: torch.device, precision: str
) -> Scores:
    """Return a model's loss and scores on the development set; empty if there is no development set.

    The loss is in nats per target, without smoothing. The model is left in evaluation mode.
    """
    if (dev := prepared.dev) is None:
        return {}
    model.eval()
    objective = task.build_objective(model, recipe, prepared).eval()
    sums, targets = {"loss": 0.0}, 0
    # Code compiled for training would be compiled again without gradients.
    with torch.compiler.set_stance("force_eager"), torch.inference_mode():
        for rows in dev.plan_sequential(recipe.data.max_tokens, recipe.max_batch_examples):
            batch = to_device(dev.batch(rows), device)
            with autocast(device, precision):
                for name, value in objective.dev_sums(batch).items():
                    sums[name] = sums.get(name, 0.0) + float(value)
            targets += batch.targets.numel()
    record: Scores = {name: value / max(targets, 1) for name, value in sums.items()}
    if objective.is_per_token:
        record["perplexity"] = math.exp(min(sums["loss"] / max(targets, 1), 700.0))
    if prepared.dev_bytes is not None:
        record["bits_per_byte"] = sums["loss"] / math.log(2) / prepared.dev_bytes
    if prepared.dev_unknown:
        record["unknown_tokens"] = prepared.dev_unknown
    for score in task.dev_scores(task.build_bundle(model, recipe, prepared), recipe):
        record |= {score.name: score.value, f"{score.name} signature": score.signature}
    return record


def target_entropy(train: TokenDataset, plan: EpochPlan) -> float:
    """Return the entropy, in nats, of the targets of a sample of the training batches.

    It is the loss of a model that has learned only the frequency of each target.
    """
    counts = np.zeros(1, np.int64)
    for rows in islice(plan, _SAMPLED_BATCHES):
        targets = to_device(train.batch(rows), torch.device("cpu")).targets.numpy()
        more = np.bincount(targets, minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


class Selection(NamedTuple):
    """What orders models: the greater one is better. Equal scores are ordered by the loss."""

    score: float
    negative_loss: float


def selection(metric: str, record: Mapping[str, float | str]) -> Selection:
    """Return a key that orders a model with these scores among the models of its run."""
    return Selection(selection_score(metric, record), selection_score("loss", record))


def selection_score(metric: str, record: Mapping[str, float | str]) -> float:
    """Return the score in ``record`` by which the metric selects the best model; higher is better.

    A metric is the name of a score in lower case, with underscores: "macro_f1" stands for "macro F1". For the
    metric "loss", and if the score is missing, return the negative loss. If the score is NaN, return -infinity.
    """
    named = {name.lower().replace(" ", "_"): value for name, value in record.items()}
    score = float(named[metric]) if metric != "loss" and metric in named else -float(record["loss"])
    return -math.inf if math.isnan(score) else score
