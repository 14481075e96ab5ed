"""Norms before linear layers in 8-bit integers: gains and biases move into the layer that follows.

A layer norm or RMSNorm that feeds only a linear layer computes n(x) * g + b, and the layer then computes
W (n(x) * g + b) + c. For any factors r, this is the same function as

    W' (n(x) * g') + c',   g' = r,   W' = W diag(g / r),   c' = c + W b.

In floating point, the choice of r hardly matters. In 8-bit integers it does: all numbers of an input row share one
scale, so a few large gains leave only a few levels for all other channels. Pretrained language models have such gains.

We choose r[k] = |g[k]| * mean |W[:, k]|, which makes the columns of W' equally large, so that the gain of a channel is
proportional to its share of the outputs. Models that compute the same function with different gains therefore get the
same integers. (r = 1, which moves the whole gain into W, would also move the small gains by which models reduce
channels that are large in the residual stream. These channels would then be large in the inputs.) SmoothQuant (Xiao et
al. 2023) also divides inputs and multiplies weights, but needs samples of the inputs.

A norm can be folded only if its output feeds nothing but linear layers. The output of a post-norm is also the residual
stream.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.nn.norms import RMSNorm


def fold_norm(
    norm: nn.Module, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None
) -> tuple[nn.LayerNorm | RMSNorm, Float[Tensor, "N K"], Float[Tensor, " N"] | None]:
    """Return a norm, and the weight and bias of the linear layer after it, that together compute the same function.

    The given norm and weights are not modified.
    """
    assert isinstance(norm, (nn.LayerNorm, RMSNorm)), f"unknown norm {type(norm).__name__}"
    weight, gain, shift = weight.detach(), norm.weight.detach(), cast("Tensor | None", getattr(norm, "bias", None))
    if shift is not None:
        moved = weight @ shift.detach()
        bias = moved if bias is None else bias.detach() + moved
    share = gain.abs() * weight.abs().mean(0)
    # A channel without influence gets zero weights. NaN is kept, so that damaged weights are detected.
    weight = weight * torch.where(share == 0, 0.0, gain / share)
    return norm_with_gain(norm, share), weight, bias


def norm_with_gain(norm: nn.LayerNorm | RMSNorm, gain: Float[Tensor, " K"]) -> nn.LayerNorm | RMSNorm:
    """Return a norm of the same type as ``norm``, with the given gains and without a bias."""
    changed: nn.LayerNorm | RMSNorm
    if isinstance(norm, RMSNorm):
        changed = RMSNorm(len(gain), norm.epsilon)
    else:
        changed = nn.LayerNorm(len(gain), norm.eps, bias=False)
    changed.weight = nn.Parameter(gain, requires_grad=False)
    return changed
