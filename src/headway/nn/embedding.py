"""Token embeddings (Vaswani et al. 2017, section 3.4)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["TokenEmbedding"]


class TokenEmbedding(nn.Module):
    """A table of V vectors of width D. A lookup multiplies them by sqrt(d_model) unless ``scaled`` is False.

    The table is initialized from a normal distribution with standard deviation d_model^-0.5, as in the authors'
    tensor2tensor. Scaled embeddings then have unit variance, and so do the initial logits of a tied output projection.
    """

    def __init__(self, vocab_size: int, d_model: int, *, scaled: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)
        self.scale = d_model**0.5 if scaled else 1.0

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the vector of each token, times sqrt(d_model) if scaled."""
        embedded: Tensor = F.embedding(tokens, self.weight) * self.scale
        return embedded
