"""Label-smoothed cross-entropy (Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4).

With the smoothing eps, the target y and a prior u over the V tokens, the reference distribution is

    q(k) = (1 - eps) [k = y] + eps u(k)

and the loss of one position is H(q, p) = -sum_k q(k) log p(k) = KL(q || p) + H(q), where p is the softmax of the
logits. The prior is uniform, 1 / V, as in the paper, or given (unigram frequencies, say). Select the real targets
first: padding has no place here.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["label_smoothed_cross_entropy", "projected_cross_entropy"]

_CHUNK_ROWS = 512  # logits in memory at a time: 512 x V


def label_smoothed_cross_entropy(
    logits: Float[Tensor, "N V"],
    targets: Int[Tensor, " N"],
    smoothing: float = 0.0,
    prior: Float[Tensor, " V"] | None = None,
) -> Float[Tensor, " N"]:
    """H(q, p) in nats for each of N positions: the definition, in float32.

    ``prior`` must sum to one; None is the uniform distribution.
    """
    logits = logits.float()
    normaliser = logits.logsumexp(-1)
    target_logits = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    if not smoothing:
        return normaliser - target_logits
    prior_logits = logits.mean(-1) if prior is None else logits @ prior
    return normaliser - torch.lerp(target_logits, prior_logits, smoothing)


def projected_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " N"],
    smoothing: float = 0.0,
    prior: Float[Tensor, " V"] | None = None,
) -> Float[Tensor, ""]:
    """The sum of :func:`label_smoothed_cross_entropy` over ``hidden @ weight.T``, without holding all those logits.

    The logits of a large vocabulary are the largest tensor of a training step, and in float32 they are read and written
    many times. Here they are made for a few rows at a time; since the loss is a sum, its gradient, softmax(logits) - q,
    is known at once, and what is kept for the backward pass is as small as ``hidden`` and ``weight``. The prior's part
    of both is a product with one vector, ``prior @ weight``. Products are computed in autocast's type where it is on.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    if prior is None:
        prior = torch.full((weight.size(0),), 1 / weight.size(0))
    arguments = (hidden.to(dtype), weight, targets, smoothing, prior.to(weight.device, torch.float32))
    with torch.autocast(device, enabled=False):
        if not torch.is_grad_enabled():
            return _sum_and_gradients(*arguments, with_gradients=False)[0]
        loss: Tensor = _ProjectedCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    return loss


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Loss forward, and in the same sweep the gradients with respect to ``hidden`` and ``weight``."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, prior: Tensor) -> Tensor:
        total, *gradients = _sum_and_gradients(hidden, weight, targets, smoothing, prior, with_gradients=True)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        # A scalar keeps its own precision in the product: rounded to bfloat16 it would scale the two differently.
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_output, grad_weight * grad_output, None, None, None


def _sum_and_gradients(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, prior: Tensor, *, with_gradients: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss, and its gradients with respect to ``hidden`` and ``weight`` (or zeros)."""
    cast = weight.to(hidden.dtype)
    total = torch.zeros((), device=hidden.device)
    grad_hidden, grad_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
    for start in range(0, hidden.size(0), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        target = targets[rows].unsqueeze(1)
        logits = hidden[rows] @ cast.T
        probabilities = torch.softmax(logits, -1, dtype=torch.float32)
        # log sum exp = z_k - log p_k for every k; the largest p cannot underflow.
        normaliser = logits.amax(-1).float() - probabilities.amax(-1).log()
        total += (normaliser - (1 - smoothing) * logits.gather(1, target).squeeze(1).float()).sum()
        if with_gradients:
            probabilities.scatter_add_(1, target, probabilities.new_full(target.shape, smoothing - 1))
            error = probabilities.to(hidden.dtype)
            grad_hidden[rows] = error @ cast
            grad_weight += error.T @ hidden[rows]
    if smoothing:
        mean_weight = prior @ weight.float()
        hidden_sum = hidden.sum(0, dtype=torch.float32)
        total -= smoothing * hidden_sum @ mean_weight
        if with_gradients:
            grad_hidden -= (smoothing * mean_weight).to(hidden.dtype)
            grad_weight -= smoothing * torch.outer(prior, hidden_sum)
    return total, grad_hidden, grad_weight
