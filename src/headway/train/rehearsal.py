"""A rehearsal of training: what a machine compiles at the first step, compiled ahead of it."""

from __future__ import annotations

import numpy as np
import torch

from headway.hardware import autocast, choose_device
from headway.models.build import build_model
from headway.train.objective import make_objective, to_device
from headway.train.prepare import Prepared
from headway.train.recipe import Recipe

__all__ = ["rehearse"]

_EXAMPLES = 8


def rehearse(recipe: Recipe, prepared: Prepared) -> None:
    """Take the gradients of a new model over a few examples, and its losses as validation does; nothing is kept.

    Compiled code stays on disk, so that training that begins later begins at once. ``recipe`` is whole
    (:func:`headway.train.start.completed`). Random numbers are left as they were. A GPU has nothing to rehearse: what
    torch.compile makes depends on the GPU's own shapes, and preparing is often done where there is none.
    """
    device, training = choose_device(recipe.training.device), recipe.training
    if device.type != "cpu":
        return
    batch = to_device(prepared.train.batch(np.arange(min(_EXAMPLES, len(prepared.train)))), device)
    with torch.random.fork_rng(devices=[]):
        model = build_model(recipe.model, prepared.source_tokenizer.vocab_size, prepared.target_size)
        objective = make_objective(model, training.label_smoothing, training.r_drop)
        with autocast(device, training.precision):
            objective.train()(batch).backward()
        for precision in (training.precision, "float32"):  # in which the loss is taken, and translations are made
            with torch.inference_mode(), autocast(device, precision):
                objective.eval()(batch)
