"""Muon (Jordan et al. 2024): momentum with orthogonal update matrices.

The update of a matrix is its momentum U S V^T with all singular values replaced by about 1, U V^T, so that no direction
dominates. Five steps of a Newton-Schulz iteration compute it from matrix products only. The update is scaled to a root
mean square of 0.2, like a typical Adam update (Liu et al. 2025, "Muon is Scalable for LLM Training", equation 4), so
learning rates and weight decays tuned for AdamW also work for Muon.

Queries, keys and values are three linear maps that share one matrix (see
:class:`~headway.nn.attention.MultiHeadAttention`), and each gets a separate orthogonal update, except in runs that
started before this was introduced.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.hardware import has_fast_bfloat16

# Coefficients of a quintic polynomial that maps singular values in (0, 1] close to 1 when iterated a few times (Jordan
# et al. 2024).
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
_SMALLEST_NORM = 1e-7
_ADAM_UPDATE = 0.2  # root mean square of a typical Adam update


class Muon(torch.optim.Optimizer):
    """Muon for the groups with ``orthogonal`` = True, which contain only matrices, and AdamW for all other groups.

    Args:
        groups: Parameter groups, each with ``orthogonal`` and ``weight_decay``. If a group has ``heights``, its
            matrices are split into parts with these numbers of rows, and each part gets a separate orthogonal update.
        momentum: Muon: decay rate of the Nesterov momentum.
        betas: AdamW: decay rates of the two moments.
        epsilon: AdamW: constant added to the square root of the second moment.

    Attributes:
        uses_bfloat16: Whether updates are orthogonalized in bfloat16. None means yes if bfloat16 is fast on the device.
    """

    uses_bfloat16: bool | None = None

    def __init__(
        self, groups: Iterable[dict[str, Any]], *, momentum: float, betas: tuple[float, float], epsilon: float
    ) -> None:
        defaults = {"lr": 0.0, "momentum": momentum, "betas": betas, "eps": epsilon, "weight_decay": 0.0}
        # "capturable" keeps the step counters on the device of the weights, even after they are restored.
        super().__init__(groups, defaults | {"orthogonal": False, "heights": None, "capturable": True})
        self._others = [group for group in self.param_groups if not group["orthogonal"]]
        adam_groups = [{"params": group["params"], "weight_decay": group["weight_decay"]} for group in self._others]
        self._adam = torch.optim.AdamW(adam_groups, betas=betas, eps=epsilon, fused=True) if adam_groups else None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is ever passed
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            if group["orthogonal"]:
                self._step_orthogonal([weight for weight in group["params"] if weight.grad is not None], group)
        if self._adam is not None:
            for group, adam_group in zip(self._others, self._adam.param_groups, strict=True):
                adam_group["lr"] = group["lr"]
            self._adam.state = self.state  # checkpoints contain the moments of all weights
            self._adam.step()

    def _step_orthogonal(self, weights: list[nn.Parameter], group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for weight in weights:
            state, gradient = self.state[weight], weight.grad
            assert gradient is not None
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(weight)
            state["momentum"].lerp_(gradient, 1 - group["momentum"])
            update = gradient.lerp(state["momentum"], group["momentum"])
            heights = group["heights"] or [len(weight)]
            for both in zip(torch.split(weight, heights), torch.split(update, heights), strict=True):
                by_shape[both[0].shape].append(both)
        for shape, group_updates in by_shape.items():
            in_bfloat16 = has_fast_bfloat16(weights[0].device) if self.uses_bfloat16 is None else self.uses_bfloat16
            updates = orthogonalize(torch.stack([update for _, update in group_updates]), in_bfloat16=in_bfloat16)
            rate = group["lr"] * _ADAM_UPDATE * math.sqrt(max(shape))
            for (part, _), update in zip(group_updates, updates, strict=True):
                part.mul_(1 - group["lr"] * group["weight_decay"]).add_(update.to(part.dtype), alpha=-rate)


def orthogonalize(matrices: Float[Tensor, "B M N"], *, in_bfloat16: bool) -> Float[Tensor, "B M N"]:
    """Return approximately U V^T for each matrix U S V^T: the singular values of the result are between 0.7 and 1.2."""
    is_wide = matrices.size(1) <= matrices.size(2)
    x: Tensor = matrices if is_wide else matrices.mT
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=_SMALLEST_NORM)
    if in_bfloat16:
        x = x.bfloat16()
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if is_wide else x.mT
