"""Parts of :mod:`headway.nn.blocks` whose dropout, sum, bias and ReLU are one compiled pass in training on a CPU."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from headway.engine.arrays import supports
from headway.engine.dropout import dropout_add, relu_dropout
from headway.engine.linear import linear
from headway.engine.replacement import has_hooks
from headway.nn.blocks import FeedForward, NoNorm, PostNorm, PreNorm


class KernelFeedForward(FeedForward):
    """:class:`~headway.nn.blocks.FeedForward` with ReLU."""

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Transform each position."""
        if not self.training or not supports(x) or has_hooks(self.inner, self.dropout):
            return super().forward(x)
        inner = relu_dropout(self.dropout, linear(x, self.inner.weight), self.inner.bias)
        transformed: Tensor = self.outer(inner)
        return transformed


class KernelPostNorm(PostNorm):
    """:class:`~headway.nn.blocks.PostNorm` with a residual connection."""

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Apply ``sublayer``."""
        normed: Tensor = self.norm(_add(self, x, sublayer(x)))
        return normed


class KernelPreNorm(PreNorm):
    """:class:`~headway.nn.blocks.PreNorm` with a residual connection."""

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Apply ``sublayer``."""
        return _add(self, x, sublayer(self.norm(x)))


class KernelNoNorm(NoNorm):
    """:class:`~headway.nn.blocks.NoNorm` with a residual connection."""

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Apply ``sublayer``."""
        return _add(self, x, sublayer(x))


def _add(module: PostNorm | PreNorm | NoNorm, x: Tensor, y: Tensor) -> Tensor:
    """Return x + Dropout(y)."""
    if not has_hooks(module.dropout):
        return dropout_add(module.dropout, y, x)
    dropped: Tensor = module.dropout(y)
    return x + dropped
