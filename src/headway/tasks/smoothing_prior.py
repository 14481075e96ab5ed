"""The prior of label smoothing: the distribution of the smoothed probability mass over all tokens or labels.

With ``label_smoothing_prior = "unigram"``, token k gets the share u(k) of this mass, where u(k) is the number of times
that k is a target in an epoch, divided by the number of all targets. A token that is never a target gets nothing. See
:mod:`headway.nn.loss` for the equation.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from headway.training.recipe import Recipe
from headway.training.task import RunData


def smoothing_prior(recipe: Recipe, prepared: RunData, size: int) -> Float[Tensor, " V"] | None:
    """Return the recipe's prior over the ``size`` target token ids, or None if it is uniform or unused."""
    training = recipe.training
    if training.label_smoothing_prior == "uniform" or not training.label_smoothing:
        return None
    return torch.from_numpy(prepared.train.target_shares(size)).float()
