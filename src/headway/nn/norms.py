"""Root-mean-square layer normalization (Zhang and Sennrich 2019). Layer normalization itself is ``torch.nn.LayerNorm``.

    RMSNorm(x) = x / sqrt(mean(x_i^2) + epsilon) * g

Unlike layer normalization, it does not subtract a mean and has no bias.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.nn.arguments import check_floats


class RMSNorm(nn.Module):
    """Divide each vector by its root mean square, and multiply it by a learned vector.

    The result is computed in float32 and rounded once to the input's data type.
    """

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Normalize each vector."""
        check_floats("x", x, ..., *self.weight.shape)
        y = x.float()
        inverse = (y.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return (y * inverse * self.weight).to(x.dtype)
