"""A convolution over neighbouring positions, with a residual connection.

As Kim (2014, section 2) reads n-grams off word vectors:

    x_s + Dropout(max(0, b + sum_k W_k x_{s + k}))      k from -(w - 1) / 2 to (w - 1) / 2

so that what follows meets each token together with its neighbours. Beyond the ends of a text, and where there is
padding, x is zero.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from headway.errors import ConfigError
from headway.nn.dropout import Dropout

__all__ = ["ResidualConvolution"]


class ResidualConvolution(nn.Module):
    """Add to each position what its ``width`` (odd) neighbours, itself among them, say together."""

    def __init__(self, d_model: int, width: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        if width % 2 == 0:
            raise ConfigError(f"a convolution of width {width} has no middle; choose an odd width, such as 3")
        self.convolution = nn.Conv1d(d_model, d_model, width, padding=width // 2)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"] | None = None) -> Float[Tensor, "B S D"]:
        """``mask`` is True where there is no padding; None: nowhere is any."""
        if mask is not None:
            x = x * mask.unsqueeze(2)
        together: Tensor = self.dropout(F.relu(self.convolution(x.transpose(1, 2)).transpose(1, 2)))
        return x + together
