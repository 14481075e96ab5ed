"""Masks: boolean tensors in which True means "may attend" (Vaswani et al. 2017, sections 3.1 and 3.2.3).

The paper masks by "setting to minus infinity" the scores of illegal connections; the attention layers do that with the
False entries. Masks broadcast over (B, T, S): batch, query position, key position. They combine with ``&``.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def padding_mask(tokens: Int[Tensor, "B S"], pad: int) -> Bool[Tensor, "B 1 S"]:
    """Return the mask with which every query may attend to every key that is not padding."""
    return (tokens != pad).unsqueeze(1)


def causal_mask(length: int, device: torch.device | str | None = None) -> Bool[Tensor, "1 T T"]:
    """Return the mask with which position t attends to positions up to and including t, never to later outputs."""
    return torch.ones(1, length, length, dtype=torch.bool, device=device).tril()
