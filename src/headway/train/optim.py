"""Adam and the learning rate as a pure function of the step (Vaswani et al. 2017, section 5.3).

    lrate = d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)                                   (equation 3)

rises linearly for ``warmup_steps`` steps and then falls with the inverse square root of the step. Schedule "paper" is
that formula, times ``learning_rate`` as a factor; "inverse_sqrt" has the same shape with ``learning_rate`` as its peak;
"linear" falls from that peak straight to zero, which suits runs whose length is fixed beforehand.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import nn

from headway.config import Config

__all__ = ["OptimizerConfig", "learning_rate", "make_optimizer"]


class OptimizerConfig(Config):
    """Adam with the paper's settings, and the schedule of its learning rate."""

    schedule: Literal["inverse_sqrt", "linear", "paper"] = Field(
        "inverse_sqrt",
        description="After the warm-up: inverse square root, straight to zero, or the paper's equation 3.",
    )
    learning_rate: float = Field(
        7e-4, gt=0, description="The peak; with schedule paper, a factor on equation 3 (there 1)."
    )
    warmup_steps: int = Field(4000, ge=1, description="Steps of linear warm-up.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of Adam's mean of gradients, for each step.")
    beta2: float = Field(0.98, ge=0, lt=1, description="Decay of Adam's mean of squared gradients, for each step.")
    epsilon: float = Field(1e-9, gt=0, description="Added to the root of Adam's second moment.")
    clip_norm: float | None = Field(None, gt=0, description="Gradients are scaled down to this norm; none: never.")


def learning_rate(step: int, steps: int, config: OptimizerConfig, d_model: int) -> float:
    """The learning rate of a step, counted from 1, in a run of ``steps``."""
    warmup = config.warmup_steps
    match config.schedule:
        case "paper":
            return config.learning_rate * float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
        case "inverse_sqrt":
            return config.learning_rate * min(step / warmup, float((warmup / step) ** 0.5))
        case "linear":
            return config.learning_rate * min(step / warmup, max(steps + 1 - step, 0) / max(steps + 1 - warmup, 1))


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Adam:
    """Adam over all weights, in one fused kernel; the learning rate is set at every step."""
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True
    )
