"""Positions (Vaswani et al. 2017, section 3.5).

    PE(pos, 2i)   = sin(pos / 10000^(2i / d_model))
    PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model))

or a learned vector for each position (Gehring et al. 2017), with which the paper found nearly identical results.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.errors import ConfigError, LengthError

__all__ = ["LearnedPositions", "SinusoidalPositions", "sinusoids"]


def sinusoids(
    length: int,
    d_model: int,
    *,
    interleaved: bool = True,
    offset: int = 0,
    base: float = 10000.0,
    last_exponent: bool = False,
) -> Float[Tensor, "T D"]:
    """The sinusoidal encodings of positions offset .. offset + length - 1, one a row, in float32.

    ``interleaved`` puts sines on even and cosines on odd dimensions as the paper does; otherwise all sines come first
    (tensor2tensor, Marian). ``last_exponent`` spaces the exponents from 0 to 1 inclusive (tensor2tensor: i / (d/2 -
    1)), where the paper's stop at 1 - 2/d. With an odd d_model there is one sine more than there are cosines.
    """
    sines = (d_model + 1) // 2
    steps = torch.arange(sines, dtype=torch.float64)
    exponents = steps / max(d_model // 2 - 1, 1) if last_exponent else 2 * steps / d_model
    positions = torch.arange(offset, offset + length, dtype=torch.float64).unsqueeze(1)
    angles = positions * base**-exponents
    sine, cosine = angles.sin(), angles[:, : d_model // 2].cos()
    if not interleaved:
        return torch.cat([sine, cosine], dim=1).float()
    table = torch.empty(length, d_model, dtype=torch.float64)
    table[:, 0::2] = sine
    table[:, 1::2] = cosine
    return table.float()


class SinusoidalPositions(nn.Module):
    """Add sinusoidal encodings to embeddings. No weights and no limit: the table grows with the longest sequence seen.

    The options are those of :func:`sinusoids`.
    """

    table: Tensor

    def __init__(
        self,
        d_model: int,
        *,
        interleaved: bool = True,
        offset: int = 0,
        base: float = 10000.0,
        last_exponent: bool = False,
    ) -> None:
        super().__init__()
        self.d_model, self.interleaved, self.offset, self.base = d_model, interleaved, offset, base
        self.last_exponent = last_exponent
        self.register_buffer("table", self._rows(256), persistent=False)

    def _rows(self, length: int) -> Tensor:
        return sinusoids(
            length,
            self.d_model,
            interleaved=self.interleaved,
            offset=self.offset,
            base=self.base,
            last_exponent=self.last_exponent,
        )

    def forward(self, x: Float[Tensor, "B T D"], start: int = 0) -> Float[Tensor, "B T D"]:
        """x[:, t] + PE(start + t)."""
        end = start + x.size(1)
        self.reserve(end)
        return x + self.table[start:end]

    def at(self, x: Float[Tensor, "B D"], positions: Int[Tensor, " B"]) -> Float[Tensor, "B D"]:
        """x[b] + PE(positions[b]) for positions that the table already covers (:meth:`reserve`)."""
        return x + self.table[positions]

    def reserve(self, length: int) -> None:
        """Make the table cover positions below ``length``."""
        if length > self.table.size(0):
            self.table = self._rows(2 ** math.ceil(math.log2(length))).to(self.table)


class LearnedPositions(nn.Module):
    """Add a learned vector per position below ``max_length``; beyond it, :class:`LengthError` is raised."""

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        if max_length < 1:
            raise ConfigError(f"max_length = {max_length}: learned positions need at least 1")
        self.max_length = max_length
        self.table = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)

    def forward(self, x: Float[Tensor, "B T D"], start: int = 0) -> Float[Tensor, "B T D"]:
        """x[:, t] + table[start + t]."""
        self.reserve(start + x.size(1))
        return x + self.table[start : start + x.size(1)]

    def at(self, x: Float[Tensor, "B D"], positions: Int[Tensor, " B"]) -> Float[Tensor, "B D"]:
        """x[b] + table[positions[b]] for positions below ``max_length`` (:meth:`reserve` checks)."""
        return x + self.table[positions]

    def reserve(self, length: int) -> None:
        """Check that positions below ``length`` exist."""
        if length > self.max_length:
            raise LengthError(
                f"a sequence of {length} tokens is longer than the {self.max_length} positions that this model has "
                "learned; split the text, or train with a larger max_length or with sinusoidal positions, "
                "which have no limit"
            )
