"""The feed-forward layer with ReLU, whose bias, ReLU and dropout are one compiled pass in training on a CPU."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from headway.engine.dropout import relu_dropout
from headway.engine.linear import linear
from headway.engine.replacement import has_hooks
from headway.kernels.arrays import takes
from headway.nn.blocks import FeedForward

__all__ = ["KernelFeedForward"]


class KernelFeedForward(FeedForward):
    """:class:`~headway.nn.blocks.FeedForward` with ReLU."""

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Transform each position."""
        if not self.training or not takes(x) or has_hooks(self.inner, self.dropout):
            return super().forward(x)
        inner = relu_dropout(self.dropout, linear(x, self.inner.weight), self.inner.bias)
        transformed: Tensor = self.outer(inner)
        return transformed
