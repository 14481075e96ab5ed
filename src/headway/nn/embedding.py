"""Token embeddings (Vaswani et al. 2017, section 3.4)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["TokenEmbedding"]


class TokenEmbedding(nn.Module):
    """A table of V vectors of width D; looked up, they are multiplied by sqrt(d_model), unless ``scaled`` is False.

    The table starts normal with standard deviation d_model^-0.5 (the authors' tensor2tensor), so that scaled embeddings
    have unit variance beside the positions and the tied output projection starts with logits of unit variance.
    """

    def __init__(self, vocab_size: int, d_model: int, *, scaled: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)
        self.scale = d_model**0.5 if scaled else 1.0

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """The vector of each token, times sqrt(d_model) where scaled."""
        embedded: Tensor = F.embedding(tokens, self.weight) * self.scale
        return embedded
