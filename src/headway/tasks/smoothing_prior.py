"""The prior of label smoothing that a recipe asks for: the way to spread probability over all tokens or labels.

With ``label_smoothing_prior = "unigram"``, token k gets the share u(k) of this probability, where u(k) is the number of
times that k is a target in an epoch, divided by the number of all targets. A token that is never a target gets no
share. :mod:`headway.nn.loss` has the equation.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from headway.training.recipe import Recipe
from headway.training.task import RunData


def smoothing_prior(recipe: Recipe, prepared: RunData, size: int) -> Float[Tensor, " V"] | None:
    """Return the prior over ``size`` token ids of the targets, or None if it is uniform or not used."""
    training = recipe.training
    if training.label_smoothing_prior == "uniform" or not training.label_smoothing:
        return None
    return torch.from_numpy(prepared.train.target_shares(size)).float()
