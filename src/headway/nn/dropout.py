"""Dropout (Srivastava et al. 2014), placed as in Vaswani et al. 2017, section 5.4.

Each call draws a seed from PyTorch's global generator, and its mask depends only on this seed: the i-th element is
dropped if the i-th 16 bits of SplitMix64 (Steele, Lea and Flood 2014) are below ``p`` * 2^16. So the mask does not
depend on the number of threads, and it can be recomputed instead of stored.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headway.errors import ConfigError

_LEVELS = 2**16  # number of values of an element's 16 random bits

# The constants of SplitMix64 as int64, because PyTorch multiplies int64 modulo 2^64.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
_SIGN_BITS = 0x8000800080008000 - 2**64  # the sign bits of the four 16-bit numbers in a word


class Dropout(nn.Module):
    """In training, set each element to zero with probability ``p``, and scale the others by 1 / (1 - p).

    ``p`` is rounded to a multiple of 2^-16.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ConfigError(f"dropout = {p}: expected a probability of at least 0 and less than 1")
        self.p = p

    def extra_repr(self) -> str:
        """Return the text that ``print(model)`` shows in parentheses."""
        return f"p={self.p}"

    @property
    def threshold(self) -> int:
        """``p`` * 2^16. An element is dropped if its 16-bit random number is below this value."""
        return min(round(self.p * _LEVELS), _LEVELS - 1)

    def forward(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Apply dropout to ``x`` in training mode. Return ``x`` itself in evaluation mode."""
        if not self.training or not self.p:
            return x
        keep = keep_mask(x, self.threshold, draw_seed())
        return torch.where(keep, x * (_LEVELS / (_LEVELS - self.threshold)), 0)


class LockedDropout(nn.Module):
    """Dropout with one mask for all elements along dimension ``dim``.

    With ``dim=1``, the mask is the same at all positions of a sequence: variational dropout for recurrent layers (Gal
    and Ghahramani 2016). With ``dim=2``, whole vectors are dropped.
    """

    def __init__(self, p: float = 0.0, dim: int = 1) -> None:
        super().__init__()
        self.dropout, self.dim = Dropout(p), dim

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Apply dropout to ``x`` in training mode. Return ``x`` itself in evaluation mode."""
        if not self.training or not self.dropout.p:
            return x
        shape = [1 if dim == self.dim else size for dim, size in enumerate(x.shape)]
        mask: Tensor = self.dropout(x.new_ones(shape))
        return x * mask


def draw_seed() -> Int[Tensor, ""]:
    """Draw the seed of a mask from PyTorch's global CPU generator."""
    return torch.empty((), dtype=torch.int64, device="cpu").random_()


def keep_mask(x: Float[Tensor, "*b"], threshold: int, seed: Int[Tensor, ""]) -> Bool[Tensor, "*b"]:
    """Return a mask of the elements of x to keep. Each element is True with probability 1 - ``threshold`` / 2^16.

    Each 64-bit word of SplitMix64 determines four elements, the first by its lowest 16 bits.
    """
    words = -(-x.numel() // 4)
    state = torch.arange(1, words + 1, device=x.device) * _GAMMA + seed
    word = (state ^ _shift_right(state, 30)) * _MIX[0]
    word = (word ^ _shift_right(word, 27)) * _MIX[1]
    word = word ^ _shift_right(word, 31)
    # PyTorch compares signed numbers. With their sign bits flipped, they have the same order as the unsigned numbers.
    bits = (word ^ _SIGN_BITS).view(torch.int16)[: x.numel()].view(x.shape)
    return bits >= threshold - _LEVELS // 2


def _shift_right(word: Int[Tensor, " N"], count: int) -> Int[Tensor, " N"]:
    """Shift int64 numbers right and fill in zeros. PyTorch's own shift copies the sign bit instead."""
    return (word >> count) & ((1 << (64 - count)) - 1)
