"""A rehearsal of training: what a machine compiles at the first step, compiled ahead of it."""

from __future__ import annotations

import numpy as np
import torch

from headway.data.batching import Batch
from headway.engine.accelerate import accelerate
from headway.hardware import autocast, choose_device
from headway.models.registry import build_model
from headway.train.objective import batch_loss, make_objective, to_device
from headway.train.prepare import Prepared
from headway.train.recipe import Recipe
from headway.train.report import Listener

__all__ = ["rehearse"]

_EXAMPLES, _LENGTH = 8, 32


def rehearse(recipe: Recipe, prepared: Prepared, listener: Listener) -> None:
    """Take the gradients of a new model over a few examples, and its losses as validation does; nothing is kept.

    Compiled code stays on disk, so that training that begins later, with as many threads, begins at once. ``recipe`` is
    whole (:func:`headway.train.start.completed`). Random numbers are left as they were. Nothing is done for a GPU, nor
    where torch.compile makes the kernels: what it makes depends on shapes, and preparing is often done elsewhere.
    """
    training = recipe.training
    if training.device == "cuda" or training.compile == "on" or choose_device(training.device).type != "cpu":
        return
    listener.say("rehearsing a step of training; the first time on a machine compiles it")
    device = torch.device("cpu")
    with torch.random.fork_rng(devices=[]):
        model = accelerate(build_model(recipe.model, prepared.source_tokenizer.vocab_size, prepared.target_size))
        found = prepared.train.batch(np.arange(min(_EXAMPLES, len(prepared.train))))
        length = min(_LENGTH, model.max_length or _LENGTH)
        batch = to_device(Batch(found.source[:, :length], found.target[:, :length]), device)
        objective = make_objective(model, training.label_smoothing, training.r_drop)
        with autocast(device, training.precision):
            objective.train()(batch).backward()
        model.eval()
        for precision in (training.precision, "float32"):  # in which the loss is taken, and translations are made
            with torch.inference_mode(), autocast(device, precision):
                batch_loss(model, batch, 0.0)
