"""The optimisers, and the learning rate as a pure function of the step (Vaswani et al. 2017, section 5.3).

Every schedule rises linearly over ``warmup_steps`` steps; here step and warm-up are s and w, the run's steps n, and
``learning_rate`` is the factor p. ``paper`` is equation 3, the others peak at p:

    paper           p d_model^-0.5 min(s^-0.5, s w^-1.5)                    equation 3, times p
    inverse_sqrt    p (w / s)^0.5                                           the same shape
    linear          p (f + (1 - f) (1 - t))                                 f is ``final_fraction``, and
    cosine          p (f + (1 - f) (1 + cos(pi t)) / 2)                     t = (s - w) / (n + 1 - w)
    constant        p
    halve_every     p 2^-floor((s - 1) / h)                                 h is ``halve_every``, or n / 3

The cosine is that of Loshchilov and Hutter 2017 (equation 5) without restarts. With h = n / 3 the rate is halved at one
third and at two thirds of the training.

Adam (Kingma and Ba 2015) with ``weight_decay`` is AdamW (Loshchilov and Hutter 2019): each step takes the decay times
the learning rate off the matrices, that is weights of two or more dimensions: no norms, no biases, but embeddings,
which by default are one matrix with the output projection.

Adafactor (Shazeer and Stern 2018) keeps a row and a column instead of each matrix's second moment, and no first. It is
PyTorch's: a step is at most min(learning rate, s^-0.5) times the root mean square of the weight (at least 1e-3), so
rates of 1e-3 to 1e-2 suit it, and Adam's betas and epsilon are not used. It saves memory, not time: without a fused
kernel, a step on a CPU takes seven times Adam's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from headway.config import Config

__all__ = ["OptimizerConfig", "depends_on_length", "learning_rate", "make_optimizer", "step_if_finite"]


class OptimizerConfig(Config):
    """The optimiser, with the paper's settings of Adam, and the schedule of its learning rate."""

    kind: Literal["adam", "adafactor"] = Field(
        "adam",
        description="Adam, or Adafactor: almost no state, and a learning rate relative to the weights' size.",
    )
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant", "halve_every", "paper"] = Field(
        "inverse_sqrt",
        description="After the warm-up: inverse square root, straight or along a cosine to the end, constant, halved "
        "at intervals, or the paper's equation 3.",
    )
    learning_rate: float = Field(
        7e-4, gt=0, description="The peak; with schedule paper, a factor on equation 3 (there 1)."
    )
    warmup_steps: int = Field(4000, ge=1, description="Steps of linear warm-up.")
    final_fraction: float = Field(
        0.0, ge=0, le=1, description="Linear and cosine: the learning rate after the last step, as a share of the peak."
    )
    halve_every: int | None = Field(
        None, ge=1, description="Schedule halve_every: steps between halvings; none: a third of the training."
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of Adam's mean of gradients, for each step.")
    beta2: float = Field(0.98, ge=0, lt=1, description="Decay of Adam's mean of squared gradients, for each step.")
    epsilon: float = Field(1e-9, gt=0, description="Added to the root of Adam's second moment.")
    weight_decay: float = Field(
        0.0, ge=0, description="Share of a matrix, times the learning rate, taken off at each step; no norms or biases."
    )
    clip_norm: float | None = Field(None, gt=0, description="Gradients are scaled down to this norm; none: never.")


def learning_rate(step: int, steps: int, config: OptimizerConfig, d_model: int) -> float:
    """The learning rate of a step, counted from 1, in a run of ``steps``."""
    warmup, peak = config.warmup_steps, config.learning_rate
    rise = min(step / warmup, 1.0)
    progress = min(max(step - warmup, 0) / max(steps + 1 - warmup, 1), 1.0)
    floor = config.final_fraction
    match config.schedule:
        case "paper":
            return peak * float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
        case "inverse_sqrt":
            return peak * min(rise, float((warmup / step) ** 0.5))
        case "linear":
            return peak * rise * (floor + (1 - floor) * (1 - progress))
        case "cosine":
            return peak * rise * (floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2)
        case "constant":
            return peak * rise
        case "halve_every":
            halvings = 3 * (step - 1) // steps if config.halve_every is None else (step - 1) // config.halve_every
            return peak * rise * 0.5**halvings


def depends_on_length(config: OptimizerConfig) -> bool:
    """Whether the learning rate of a step depends on how many there will be: then a run cannot be prolonged."""
    return config.schedule in ("linear", "cosine") or (config.schedule == "halve_every" and config.halve_every is None)


def make_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimiser of all weights that are not frozen; the learning rate is set at every step."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in trained if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    match config.kind:
        case "adam":
            betas = (config.beta1, config.beta2)
            return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.epsilon, fused=True)
        case "adafactor":
            return torch.optim.Adafactor(groups, lr=0.0)


@torch.no_grad()
def step_if_finite(optimizer: torch.optim.Optimizer, clip_norm: float | None = None) -> Bool[Tensor, ""]:
    """One step, unless the gradient's norm is infinite or not a number; returns whether it was taken, on the device.

    A step that is not taken changes neither weights nor moments nor step counters. With Adam the host does not wait for
    the decision: the fused kernel makes it, and scales the gradients in the same sweep so that their norm over all
    weights, in float32, is at most ``clip_norm``. PyTorch's Adafactor has no such kernel: there the host waits.
    The norm spans all shards of gradients that several processes share, so these agree.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
    if hasattr(norm, "full_tensor"):  # the norm of FSDP's shards, each process holding a part of the sum
        norm = norm.full_tensor()
    finite: Tensor = norm.isfinite()
    if optimizer.defaults.get("fused"):
        divisor = None if clip_norm is None else ((norm + 1e-6) / clip_norm).clamp(min=1.0)
        with _told(optimizer, (~finite).float(), divisor):
            optimizer.step()
    elif finite:
        if clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
        optimizer.step()
    return finite


@contextmanager
def _told(
    optimizer: torch.optim.Optimizer, found_inf: Float[Tensor, ""], grad_scale: Float[Tensor, ""] | None
) -> Iterator[None]:
    """Hand the fused kernel what it skips a step for and divides gradients by, the way torch.amp.GradScaler does."""
    optimizer.found_inf, optimizer.grad_scale = found_inf, grad_scale  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
