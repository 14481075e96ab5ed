"""Masks: boolean tensors in which True means "may attend" (Vaswani et al. 2017, sections 3.1 and 3.2.3).

The paper masks illegal connections by "setting to minus infinity" their scores; the attention layers do this wherever
the mask is False. Masks broadcast over (B, T, S): batch, query position, key position. They combine with ``&``.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def padding_mask(tokens: Int[Tensor, "B S"], pad: int) -> Bool[Tensor, "B 1 S"]:
    """Return a mask that lets every query attend to every key that is not padding."""
    return (tokens != pad).unsqueeze(1)


def causal_mask(length: int, device: torch.device | str | None = None) -> Bool[Tensor, "1 T T"]:
    """Return a mask that lets position t attend to positions up to and including t, but not to later ones."""
    return torch.ones(1, length, length, dtype=torch.bool, device=device).tril()
