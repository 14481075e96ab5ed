"""Optimizers and learning-rate schedules (Vaswani et al. 2017, section 5.3).

Every schedule increases linearly over ``warmup_steps``. Below, s is the step, w the number of warm-up steps, n the
number of steps of the run, and p is ``learning_rate``: a factor on equation 3 for ``paper``, and the peak for the other
schedules.

    paper           p d_model^-0.5 min(s^-0.5, s w^-1.5)                    p times equation 3
    inverse_sqrt    p (w / s)^0.5                                           the shape of equation 3
    linear          p (f + (1 - f) (1 - t))                                 f is ``final_fraction``, and
    cosine          p (f + (1 - f) (1 + cos(pi t)) / 2)                     t = (s - w) / (n + 1 - w)
    constant        p
    halve_every     p 2^-floor((s - 1) / h)                                 h is ``halve_every``, or n / 3

The cosine is equation 5 of Loshchilov and Hutter 2017 without restarts. With h = n / 3, the rate is halved after one
third and after two thirds of the run.

Adam (Kingma and Ba 2015) with ``weight_decay`` is AdamW (Loshchilov and Hutter 2019): each step subtracts the decay
times the learning rate from every weight of two or more dimensions. Norms and biases therefore do not decay. Embeddings
do, because by default they share a matrix with the output projection.

With ``layer_decay`` < 1, lower layers are trained with lower rates (Howard and Ruder 2018, section 3.2; Clark et al.
2020, "ELECTRA", appendix A): the rate of a weight is multiplied by layer_decay^depth. The depth is 0 above the blocks
(the output), 1 in the last block, and so on down to the embeddings. Gradual unfreezing (Howard and Ruder 2018, section
3.3) uses the same depths: at first only the output is trained, and one more block is unfrozen every ``unfreeze_every``
steps.

Adafactor (Shazeer and Stern 2018) stores one row and one column instead of the second moment of each matrix, and no
first moment. Headway uses PyTorch's implementation. A step is at most min(learning rate, s^-0.5) times the root mean
square of the weight (at least 1e-3), so rates of 1e-3 to 1e-2 are suitable. Adam's betas and epsilon have no effect.
Adafactor saves memory, not time: PyTorch has no fused kernel for it, so on a CPU, an optimizer step takes seven times
as long as with Adam.

Muon (:mod:`headway.training.muon`) trains the matrices of the blocks, and AdamW trains all other weights, at the same
learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool
from pydantic import Field
from torch import Tensor, nn

from headway.config import Config, Inert
from headway.errors import ConfigError
from headway.nn.attention import MultiHeadAttention
from headway.torch_internals import fused_adam_step, fused_adam_step_works
from headway.training.muon import Muon

# The paper's factor on equation 3 is 1. For the paper's base model, this gives a peak of 7e-4, which is therefore the
# default of the other schedules.
_DEFAULT_RATE = 7e-4
_DEFAULT_FACTOR = 1.0
_SENSIBLE_PEAK = (1e-6, 0.1)  # below this range, a Transformer learns almost nothing; above it, training diverges


def _default_rate(settings: dict[str, Any]) -> float:
    return _DEFAULT_FACTOR if settings.get("schedule") == "paper" else _DEFAULT_RATE


class OptimizerConfig(Config):
    """Configuration of the optimizer (by default Adam with the paper's settings) and its learning-rate schedule."""

    kind: Literal["adam", "adafactor", "muon"] = Field(
        "adam",
        description="Adafactor needs almost no memory for its state; its learning rate is relative to the scale of "
        "the weights. Muon trains the matrices of a Transformer's blocks with orthogonal updates, and all other "
        "weights with Adam.",
    )
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant", "halve_every", "paper"] = Field(
        "inverse_sqrt",
        description="Learning rate after the warm-up: inverse square root, linear or cosine decay until the end of "
        "training, constant, halved at intervals, or the paper's equation 3.",
    )
    learning_rate: float = Field(
        default_factory=_default_rate,
        gt=0,
        description="Peak learning rate, by default 7e-4. With schedule = 'paper': factor on equation 3, by default 1.",
    )
    warmup_steps: int = Field(4000, ge=1, description="Steps of linear warm-up.")
    final_fraction: float = Field(
        0.0, ge=0, le=1, description="Linear and cosine: learning rate after the last step, as a fraction of the peak."
    )
    halve_every: int | None = Field(
        None, ge=1, description="With schedule = 'halve_every': steps between halvings. None means steps / 3."
    )
    momentum: float = Field(0.95, ge=0, lt=1, description="Muon: decay rate of the momentum.")
    muon_splits_attention: Annotated[bool, Inert(False)] = Field(
        True,
        description="Muon: queries, keys and values get separate orthogonal updates, although they share one matrix.",
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Adam: decay rate of the moving average of gradients.")
    beta2: float = Field(0.98, ge=0, lt=1, description="Adam: decay rate of the moving average of squared gradients.")
    epsilon: float = Field(1e-9, gt=0, description="Adam: constant added to the square root of the second moment.")
    weight_decay: float = Field(
        0.0, ge=0, description="Weight decay per step, times the learning rate. Norms and biases do not decay."
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Fine-tuning: factor by which the learning rate decreases from each block to the block below it, "
        "and from the output weights to the last block. 1 means the same rate for all weights.",
    )
    clip_norm: float | None = Field(
        None, gt=0, description="Maximum norm of the gradients; larger gradients are scaled down. None means no limit."
    )


def learning_rate(step: int, total_steps: int, config: OptimizerConfig, d_model: int) -> float:
    """Return the learning rate of a step, counted from 1, in a run of ``total_steps``."""
    warmup, peak = config.warmup_steps, config.learning_rate
    rise = min(step / warmup, 1.0)
    progress = min(max(step - warmup, 0) / max(total_steps + 1 - warmup, 1), 1.0)
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
            halvings = 3 * (step - 1) // total_steps if config.halve_every is None else (step - 1) // config.halve_every
            return peak * rise * 0.5**halvings


def learning_rate_warning(config: OptimizerConfig, d_model: int) -> str | None:
    """Return a warning if the peak learning rate of Adam is far outside the range in which models learn."""
    peak = learning_rate(config.warmup_steps, config.warmup_steps, config, d_model)
    low, high = _SENSIBLE_PEAK
    if config.kind == "adafactor" or low <= peak <= high:
        return None
    effect = "the model will learn almost nothing" if peak < low else "training will probably diverge"
    usual = f"usual values are near {_DEFAULT_RATE:g}"
    if config.schedule == "paper":
        usual = f"with schedule = 'paper' it is a factor on the paper's equation 3, usually {_DEFAULT_FACTOR:g}"
    return (
        f"optimizer.learning_rate = {config.learning_rate:g} gives a peak learning rate of {peak:.1e}, with which "
        f"{effect}; {usual}"
    )


def depends_on_total_steps(config: OptimizerConfig) -> bool:
    """Return whether the schedule depends on the total number of steps, so that a run cannot be extended."""
    return config.schedule in ("linear", "cosine") or (config.schedule == "halve_every" and config.halve_every is None)


def weight_depths(model: nn.Module, blocks: Sequence[nn.Module]) -> dict[nn.Parameter, int]:
    """Return the depth of each weight relative to ``blocks``, which determines its layer decay.

    The depth is 0 above all blocks, 1 in the last block, and so on up to len(blocks) + 1 below all blocks. Weights of
    ``model.projection`` that are not shared with another module are above all blocks. Other weights outside the blocks
    are below them if they are registered before them. A norm between two blocks has the depth of the first of the two.
    """
    result = {weight: len(blocks) - number for number, block in enumerate(blocks) for weight in block.parameters()}
    below = {weight for name, part in model.named_children() if name != "projection" for weight in part.parameters()}
    depth = len(blocks) + 1 if blocks else 0
    for weight in model.parameters():
        if weight in result:
            depth = result[weight] if result[weight] > 1 else 0
        else:
            result[weight] = depth if weight in below else 0
    return result


def make_optimizer(
    model: nn.Module, config: OptimizerConfig, blocks: Sequence[nn.Module] = ()
) -> torch.optim.Optimizer:
    """Return an optimizer for all weights that are not frozen.

    At each step, the training loop sets the learning rate of each group: the rate of the step times the group's
    ``rate_factor``. ``blocks`` are the model's blocks from input to output. They are used if ``layer_decay`` is not 1,
    and by Muon.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    factors = {weight: config.layer_decay**depth for weight, depth in weight_depths(model, blocks).items()}
    orthogonal = _orthogonal_parts(blocks, config.muon_splits_attention) if config.kind == "muon" else {}
    groups: list[dict[str, Any]] = []
    for factor in sorted({factors[weight] for weight in trained}, reverse=True):
        group_weights = [weight for weight in trained if factors[weight] == factor]
        matrices, vectors = (
            [weight for weight in group_weights if (weight.dim() > 1) is wide] for wide in (True, False)
        )
        decaying = {"weight_decay": config.weight_decay, "rate_factor": factor}
        groups += [
            {"params": [weight for weight in matrices if weight not in orthogonal], **decaying},
            {"params": vectors, "weight_decay": 0.0, "rate_factor": factor},
        ]
        for heights in dict.fromkeys(orthogonal.values()):
            parts = [weight for weight in matrices if orthogonal.get(weight) == heights]
            groups.append({"params": parts, "orthogonal": True, "heights": heights, **decaying})
    betas = (config.beta1, config.beta2)
    match config.kind:
        case "adam":
            return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.epsilon, fused=True)
        case "adafactor":
            return torch.optim.Adafactor(groups, lr=0.0)
        case "muon":
            return Muon(groups, momentum=config.momentum, betas=betas, epsilon=config.epsilon)


def _orthogonal_parts(blocks: Sequence[nn.Module], splits_attention: bool) -> dict[nn.Parameter, tuple[int, ...]]:
    """Map each matrix in the blocks to the numbers of rows of its separately updated parts.

    An attention layer has one matrix for three linear maps: queries, keys and values. If ``splits_attention`` is False,
    the whole matrix gets a single orthogonal update, so the updates of the three maps depend on each other.

    Raises:
        ConfigError: The blocks have no matrices.
    """
    heights = {
        module.projection.weight: module.widths
        for block in blocks
        for module in block.modules()
        if isinstance(module, MultiHeadAttention) and splits_attention
    }
    matrices = (weight for block in blocks for weight in block.parameters() if weight.dim() == 2)
    parts: dict[nn.Parameter, tuple[int, ...]] = {weight: heights.get(weight, (len(weight),)) for weight in matrices}
    if parts:
        return parts
    raise ConfigError("optimizer.kind = 'muon' trains a Transformer's blocks, but this model has no blocks; use 'adam'")


@torch.no_grad()
def clip_and_step(optimizer: torch.optim.Optimizer, clip_norm: float | None = None) -> Bool[Tensor, ""]:
    """Clip the gradients to ``clip_norm`` and take one step, unless their norm is infinite or NaN.

    Returns whether the step was taken, as a tensor on the weights' device. A skipped step changes neither weights nor
    moments nor step counters. With Adam, the host does not wait for the norm, because the fused kernel skips the step
    if necessary and clips the gradients in the same pass (:func:`~headway.torch_internals.fused_adam_step`). The other
    optimizers have no such kernel, so the host waits.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    finite: Tensor = norm.isfinite()
    if optimizer.defaults.get("fused") and fused_adam_step_works(finite.device):
        divisor = None if clip_norm is None else ((norm + 1e-6) / clip_norm).clamp(min=1.0)
        fused_adam_step(optimizer, finite=finite, divisor=divisor)
    elif finite:
        if clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
        optimizer.step()
    return finite
