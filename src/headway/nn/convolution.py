"""A convolution over neighboring positions, with a residual connection.

The convolution detects n-grams in word vectors, as in Kim (2014, section 2):

    x_s + Dropout(max(0, b + sum_k W_k x_{s + k}))      k from -(w - 1) / 2 to (w - 1) / 2

The layers above then process each token together with its neighbors. x is zero beyond the ends of a text and at
padding.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from headway.errors import ConfigError
from headway.nn.arguments import check_floats
from headway.nn.dropout import Dropout
from headway.nn.masks import check_mask


class ResidualConvolution(nn.Module):
    """Add a ReLU convolution over the ``width`` positions centered on each position. ``width`` must be odd."""

    def __init__(self, d_model: int, width: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        if width % 2 == 0:
            raise ConfigError(f"a convolution of width {width} has no center; choose an odd width, such as 3")
        self.convolution = nn.Conv1d(d_model, d_model, width, padding=width // 2)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"] | None = None) -> Float[Tensor, "B S D"]:
        """Apply the convolution. ``mask`` is True at tokens and False at padding. None means no padding."""
        check_floats("x", x, "batch", "length", self.convolution.in_channels)
        check_mask("mask", mask, *x.shape[:2])
        if mask is not None:
            x = x * mask.unsqueeze(2)
        together: Tensor = self.dropout(F.relu(self.convolution(x.transpose(1, 2)).transpose(1, 2)))
        return x + together
