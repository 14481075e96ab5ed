"""Pooling: reduce the encoder's vectors at all positions to one vector for the whole sequence, for a classifier.

    mean, max     mean or maximum of each component over the positions that are not padding
    mean_max      mean and maximum, concatenated (Howard and Ruder 2018, section 3.3, without their last state)
    first, last   the vector at the first position, the symbol prepended to the text (Devlin et al. 2019), or at the
                  last position that is not padding
    attention     the mean weighted by softmax(u^T tanh(W x_s + b)) over the positions s
                  (Yang et al. 2016, equations 5 to 7)

Masks have shape (B, S). True means that a position is included, and None means that all positions are included. A row
without included positions is pooled to zeros. Dimensions: B batch, S positions, D model, P pooled width.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headway.nn.arguments import check_floats
from headway.nn.attention import apply_observers, masked_softmax
from headway.nn.masks import check_mask

PoolingKind = Literal["mean", "max", "mean_max", "first", "last", "attention"]


class Pooling(nn.Module):
    """Pooling without learned weights. ``width`` is the pooled width P."""

    def __init__(self, kind: Literal["mean", "max", "mean_max", "first", "last"], d_model: int) -> None:
        super().__init__()
        self.kind = kind
        self.width = 2 * d_model if kind == "mean_max" else d_model

    def extra_repr(self) -> str:
        """Return the text that ``print(model)`` shows in parentheses."""
        return self.kind

    def forward(self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"] | None = None) -> Float[Tensor, "B P"]:
        """Return one pooled vector per row."""
        check_floats("x", x, "batch", "length", self.width // 2 if self.kind == "mean_max" else self.width)
        check_mask("mask", mask, *x.shape[:2])
        match self.kind:
            case "mean":
                return _mean(x, mask)
            case "max":
                return _max(x, mask)
            case "mean_max":
                return torch.cat([_mean(x, mask), _max(x, mask)], dim=1)
            case "first":
                return _at(x, mask, 0)
            case "last":
                return _at(x, mask, -1)


class AttentionPooling(nn.Module):
    """The mean over positions, weighted by the softmax of their scores with a learned query, the vector u.

    :func:`~headway.nn.attention.observe_attention` observes or replaces the (B, 1, 1, S) weights.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.width = d_model
        self.inner = nn.Linear(d_model, d_model)
        self.question = nn.Linear(d_model, 1, bias=False)
        for layer in (self.inner, self.question):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.inner.bias)

    def forward(self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"] | None = None) -> Float[Tensor, "B D"]:
        """Return one pooled vector per row."""
        check_floats("x", x, "batch", "length", self.width)
        check_mask("mask", mask, *x.shape[:2])
        scores = self.question(torch.tanh(self.inner(x))).squeeze(2)
        weights = apply_observers(self, masked_softmax(scores, mask)[:, None, None])
        pooled: Tensor = (weights.squeeze(1) @ x).squeeze(1)
        return pooled


def _mean(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return x.mean(1)
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
    return (weights.to(x.dtype).unsqueeze(1) @ x).squeeze(1)


def _max(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return x.amax(1)
    counts = mask.any(1, keepdim=True)
    return x.masked_fill((~mask & counts).unsqueeze(2), -math.inf).amax(1) * counts


def _at(x: Tensor, mask: Tensor | None, end: Literal[0, -1]) -> Tensor:
    """Return the vector at the first or the last included position."""
    if mask is None:
        return x[:, end]
    order = torch.arange(x.size(1), device=x.device)
    place = (mask * (order + 1 if end else x.size(1) - order)).argmax(1)
    return x[torch.arange(len(x), device=x.device), place] * mask.any(1, keepdim=True)
