"""Compute development scores, and select the best model by them."""

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
    """Return a model's loss and scores on the development set, or an empty dictionary if there is no development set.

    The loss is in nats per target, without label smoothing. The model is left in evaluation mode.
    """
    if (dev := prepared.dev) is None:
        return {}
    model.eval()
    objective = task.build_objective(model, recipe, prepared).eval()
    sums, targets = {"loss": 0.0}, 0
    # Code compiled for training would otherwise be recompiled without gradients.
    with torch.compiler.set_stance("force_eager"), torch.inference_mode():
        for rows in dev.plan_sequential(recipe.data.max_tokens, recipe.max_batch_examples):
            batch = to_device(dev.batch(rows), device)
            with autocast(device, precision):
                for name, value in objective.dev_sums(batch).items():
                    sums[name] = sums.get(name, 0.0) + float(value)
            targets += batch.targets.numel()
    record: Scores = {name: value / max(targets, 1) for name, value in sums.items()}
    if objective.reports_perplexity:
        record["perplexity"] = math.exp(min(sums["loss"] / max(targets, 1), 700.0))
    if prepared.num_dev_bytes is not None:
        record["bits_per_byte"] = sums["loss"] / math.log(2) / prepared.num_dev_bytes
    if prepared.num_dev_unknown:
        record["unknown_tokens"] = prepared.num_dev_unknown
    for score in task.dev_scores(task.build_bundle(model, recipe, prepared), recipe):
        record |= {score.name: score.value, f"{score.name} signature": score.signature}
    return record


def target_entropy(train: TokenDataset, plan: EpochPlan) -> float:
    """Return the entropy of the targets in a sample of training batches, in nats.

    This is the loss of a model that has learned only the frequency of each target.
    """
    counts = np.zeros(1, np.int64)
    for rows in islice(plan, _SAMPLED_BATCHES):
        targets = to_device(train.batch(rows), torch.device("cpu")).targets.numpy()
        more = np.bincount(targets, minlength=len(counts))
        more[: len(counts)] += counts
        counts = more
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


class SelectionKey(NamedTuple):
    """A sort key for models: the greatest key belongs to the best model. The loss breaks ties between equal scores."""

    score: float
    negative_loss: float


def selection_key(metric: str, record: Mapping[str, float | str]) -> SelectionKey:
    """Return the sort key of a model with the scores in ``record``."""
    return SelectionKey(selection_score(metric, record), selection_score("loss", record))


def selection_score(metric: str, record: Mapping[str, float | str]) -> float:
    """Return the score in ``record`` that ``metric`` selects; higher is better.

    A metric is the name of a score in lower case, with underscores: "macro_f1" stands for "macro F1". Returns the
    negative loss if the metric is "loss" or the score is missing, and -infinity if the score is NaN.
    """
    named = {name.lower().replace(" ", "_"): value for name, value in record.items()}
    score = float(named[metric]) if metric != "loss" and metric in named else -float(record["loss"])
    return -math.inf if math.isnan(score) else score
