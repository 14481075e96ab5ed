"""The losses of :mod:`headway.nn.loss`, computed from hidden states without storing the logits of a whole batch.

For a large vocabulary, the logits are the largest tensor of a training step, and in float32 they would be read and
written many times. Here, only the logits of some rows are in memory at a time. The loss is a sum, so its gradient,
softmax(logits) - q, can be computed immediately and overwrites the logits. The tensors that are stored for the backward
pass have the sizes of ``hidden`` and ``weight``. The prior contributes to the loss and to the gradients only through a
product with one vector, ``prior @ weight``. Matrix products are computed in autocast's data type if autocast is
enabled, and the softmax in float32 (float64 for float64 inputs).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headway.engine.arrays import as_array, kernels_support
from headway.engine.linear import (
    PackedWeight,
    add_weight_gradient,
    kernels_can_multiply,
    sum_rows,
    zeros_for_gradient,
)
from headway.nn.loss import distillation_loss, label_smoothed_cross_entropy


def logit_chunk_sizes(device: str) -> tuple[int, int]:
    """Return the maximum number of rows of logits in memory on a device of this type, and of rows in float32.

    On a CPU, both fit the processor's cache. Compiled kernels convert only one row at a time to float32.
    """
    return (1024, 256) if device == "cpu" else (4096, 4096)


def projected_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " N"],
    smoothing: float = 0.0,
    prior: Float[Tensor, " V"] | None = None,
    bias: Float[Tensor, " V"] | None = None,
) -> Float[Tensor, ""]:
    """Return the sum of :func:`headway.nn.loss.label_smoothed_cross_entropy` over the logits ``hidden`` W^T + b."""
    return _projected_loss(hidden.unsqueeze(1), weight, bias, targets, smoothing, prior, 0.0)


def projected_r_drop(
    hidden1: Float[Tensor, "N D"],
    hidden2: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " N"],
    smoothing: float,
    alpha: float,
    bias: Float[Tensor, " V"] | None = None,
    prior: Float[Tensor, " V"] | None = None,
) -> Float[Tensor, ""]:
    """Return the sum of :func:`headway.nn.loss.r_drop_loss` over the logits of two passes.

    With ``alpha`` = 0, it is the mean of the two passes' cross-entropies.
    """
    return _projected_loss(torch.stack((hidden1, hidden2), 1), weight, bias, targets, smoothing, prior, alpha)


def projected_log_probs(
    hidden: Float[Tensor, "N D"], projection: nn.Module, targets: Int[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """Return the log-probability of each target in nats. ``projection`` computes logits from hidden states."""
    rows = logit_chunk_sizes(hidden.device.type)[1]
    parts = zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
    return torch.cat([-label_smoothed_cross_entropy(projection(part), target) for part, target in parts])


def projected_distillation_loss(
    hidden: Float[Tensor, "N D"],
    projection: nn.Module,
    teacher_hidden: Float[Tensor, "N E"],
    teacher_projection: nn.Module,
    temperature: float,
) -> Float[Tensor, ""]:
    """Return the sum of :func:`headway.nn.loss.distillation_loss` over the logits that the projections compute.

    Logits are computed for some rows at a time, and recomputed in the backward pass.
    """

    def loss(hidden: Tensor, teacher_hidden: Tensor) -> Tensor:
        return distillation_loss(projection(hidden), teacher_projection(teacher_hidden), temperature).sum()

    rows = logit_chunk_sizes(hidden.device.type)[0]
    parts = zip(torch.split(hidden, rows), torch.split(teacher_hidden, rows), strict=True)
    losses: list[Tensor] = [checkpoint(loss, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
    return torch.stack(losses).sum()


def _projected_loss(
    hidden: Float[Tensor, "N P D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, " V"] | None,
    targets: Int[Tensor, " N"],
    smoothing: float,
    prior: Float[Tensor, " V"] | None,
    alpha: float,
) -> Float[Tensor, ""]:
    """Return the summed loss of one or two passes (P = 1 or 2)."""
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    wide = torch.promote_types(dtype, torch.float32)
    uniform = torch.full((weight.size(0),), 1 / weight.size(0), device=weight.device, dtype=wide)
    prior = uniform if prior is None else prior.to(weight.device, wide)
    arguments = (hidden.to(dtype), weight, bias, targets, smoothing, prior, alpha)
    with torch.autocast(device, enabled=False):
        if not torch.is_grad_enabled():
            return _sum_and_gradients(*arguments, with_gradients=False)[0]
        loss: Tensor = _ProjectedLoss.apply(*arguments)  # type: ignore[no-untyped-call]
    return loss


class _ProjectedLoss(torch.autograd.Function):
    """Compute the loss and, in the same pass, its gradients with respect to ``hidden``, ``weight`` and ``bias``."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        prior: Tensor,
        alpha: float,
    ) -> Tensor:
        total, *gradients = _sum_and_gradients(
            hidden, weight, bias, targets, smoothing, prior, alpha, with_gradients=True
        )
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        # These products keep the scalar's precision. Rounding it to bfloat16 would scale the gradients differently.
        gradients = (None if gradient is None else gradient * grad_output for gradient in ctx.saved_tensors)
        return *gradients, None, None, None, None


def _sum_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
    prior: Tensor,
    alpha: float,
    *,
    with_gradients: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the summed loss and its gradients with respect to ``hidden``, ``weight`` and ``bias``.

    Without ``with_gradients``, only the loss is valid. Softmax and sums are computed in the prior's data type.
    """
    passes = hidden.size(1)
    by_kernel = passes == 1 and kernels_support(hidden)
    packed = PackedWeight(weight) if hidden.dtype == torch.bfloat16 and kernels_can_multiply(hidden, weight) else None
    cast = weight.to(hidden.dtype) if packed is None else weight
    cast_bias = None if bias is None else bias.to(hidden.dtype)
    total = prior.new_zeros(())
    grad_hidden = torch.zeros_like(hidden)
    grad_weight = torch.zeros_like(weight, dtype=prior.dtype) if packed is None else zeros_for_gradient(weight)
    grad_bias = None if bias is None else torch.zeros_like(bias, dtype=prior.dtype)
    chunk, block = (rows // passes for rows in logit_chunk_sizes(hidden.device.type))
    for start in range(0, hidden.size(0), chunk):
        rows = slice(start, start + chunk)
        x = hidden[rows].flatten(0, 1)
        product = F.linear(x, cast, cast_bias) if packed is None else packed.linear(x, bias)
        logits = product.view(-1, passes, len(weight))
        if by_kernel:
            from headway.kernels.softmax import cross_entropy_  # imports Numba

            total += cross_entropy_(as_array(logits.flatten(0, 1)), targets[rows].numpy(), smoothing)
        else:
            for part, target in zip(torch.split(logits, block), torch.split(targets[rows], block), strict=True):
                total += _replace_by_error(part, target.view(-1, 1, 1), smoothing, alpha, prior.dtype)
        if with_gradients:
            errors = logits.flatten(0, 1)
            if packed is None:
                torch.mm(errors, cast, out=grad_hidden[rows].flatten(0, 1))
                grad_weight[: len(weight)] += errors.T @ x
                if grad_bias is not None:
                    grad_bias += errors.sum(0, dtype=prior.dtype)
            else:
                grad_hidden[rows] = packed.input_gradient(errors).view_as(grad_hidden[rows])
                add_weight_gradient(grad_weight, errors, x)
                if grad_bias is not None:
                    grad_bias += sum_rows(errors)
    if smoothing:
        mean_weight = prior @ weight.to(prior.dtype)
        hidden_sum = hidden.sum((0, 1), dtype=prior.dtype) / passes
        total -= smoothing * hidden_sum @ mean_weight
        if bias is not None and grad_bias is not None:
            total -= smoothing * len(hidden) * (prior @ bias.to(prior.dtype))
            grad_bias -= smoothing * len(hidden) * prior
        if with_gradients:
            grad_hidden -= (smoothing / passes * mean_weight).to(hidden.dtype)
            grad_weight[: len(weight)].addr_(prior, hidden_sum, alpha=-smoothing)
    if bias is not None and grad_bias is not None:
        grad_bias = grad_bias.to(bias.dtype)
    return total, grad_hidden, grad_weight[: len(weight)].to(weight.dtype), grad_bias


def _replace_by_error(
    logits: Float[Tensor, "R P V"], target: Int[Tensor, "R 1 1"], smoothing: float, alpha: float, dtype: torch.dtype
) -> Float[Tensor, ""]:
    """Return the loss of some rows without the prior's part, and replace their logits with this loss's gradient."""
    passes = logits.size(1)
    scores, target = logits.to(dtype), target.expand(-1, passes, 1)
    probabilities = scores.softmax(-1)
    # log sum exp = z_k - log p_k for every k. We use the largest p, because it cannot underflow.
    normalizer = scores.amax(-1, keepdim=True) - probabilities.amax(-1, keepdim=True).log()
    loss = (normalizer - (1 - smoothing) * scores.gather(-1, target)).sum() / passes
    if passes == 1:
        error = probabilities
    else:
        first, second = probabilities.unbind(1)
        ratio = (scores - normalizer).diff(dim=1).squeeze(1).neg_()  # log p1 - log p2
        divergence, reverse = (first * ratio).sum(-1, keepdim=True), -(second * ratio).sum(-1, keepdim=True)
        loss += alpha / 4 * (divergence + reverse).sum()
        error = torch.empty_like(probabilities)
        # d KL(p1 || p2) / d z1 = p1 (log p1 - log p2 - KL(p1 || p2)), d KL(p2 || p1) / d z1 = p1 - p2
        error[:, 0] = (first * (1 / 2 + alpha / 4 * (1 + ratio - divergence))).sub_(second, alpha=alpha / 4)
        error[:, 1] = (second * (1 / 2 + alpha / 4 * (1 - ratio - reverse))).sub_(first, alpha=alpha / 4)
    error.scatter_add_(-1, target, error.new_full(target.shape, (smoothing - 1) / passes))
    logits.copy_(error)
    return loss
