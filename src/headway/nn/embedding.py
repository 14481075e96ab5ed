"""Token embeddings, and the output projection, which may share their weight (Vaswani et al. 2017, section 3.4).

The paper ties both embeddings and the projection, following Press and Wolf (2017). This requires a joint vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from headway.errors import ConfigError
from headway.nn.arguments import check_ids, check_integers

Tie = Annotated[
    Literal["all", "target", "inputs", "none"],
    Field(
        description="Which layers share their weights: both embeddings and the output projection (all), target "
        "embedding and output projection (target), both embeddings (inputs), or none."
    ),
]


def pad_sequences(sequences: Sequence[Sequence[int]], pad: int, device: torch.device) -> Int[Tensor, "B S"]:
    """Return the sequences as the rows of one tensor, padded on the right with ``pad``."""
    longest = max(map(len, sequences), default=0)
    rows = [[*sequence, *[pad] * (longest - len(sequence))] for sequence in sequences]
    return torch.tensor(rows, dtype=torch.long, device=device).view(len(rows), longest)


class TokenEmbedding(nn.Module):
    """A table of V vectors of width D. Embeddings are multiplied by sqrt(d_model) unless ``scaled`` is False.

    The table is initialized from a normal distribution with standard deviation d_model^-0.5, as in the authors'
    tensor2tensor. Scaled embeddings then have unit variance, and so do the initial logits of a tied output projection.
    """

    def __init__(self, vocab_size: int, d_model: int, *, scaled: bool = True) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)
        self.scale = d_model**0.5 if scaled else 1.0

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the vector of each token, multiplied by sqrt(d_model) if embeddings are scaled."""
        check_integers("tokens", tokens, "batch", "length")
        try:
            embedded: Tensor = F.embedding(tokens, self.weight) * self.scale
        except IndexError:
            check_ids("tokens", tokens, self.vocab_size)
            raise
        return embedded


def token_embeddings(
    tie: Tie, source_vocab_size: int, target_vocab_size: int, width: int, *, scaled: bool = True
) -> tuple[TokenEmbedding, TokenEmbedding]:
    """Return the source and target embeddings, which are the same module if ``tie`` is "all" or "inputs".

    Raises:
        ConfigError: The embeddings are shared, but the vocabularies differ in size.
    """
    if (shared := tie in ("all", "inputs")) and source_vocab_size != target_vocab_size:
        raise ConfigError(
            f"tie = {tie!r} needs one vocabulary for both sides, but the source has {source_vocab_size} and the target "
            f"{target_vocab_size} tokens; use a joint vocabulary, or set tie to 'target' or 'none'"
        )
    source = TokenEmbedding(source_vocab_size, width, scaled=scaled)
    return source, source if shared else TokenEmbedding(target_vocab_size, width, scaled=scaled)


def output_projection(tie: Tie, target_embedding: TokenEmbedding, width: int, *, bias: bool) -> nn.Linear:
    """Return the projection from states of ``width`` to logits. Its weight is the target embedding if they are tied."""
    projection = nn.Linear(width, target_embedding.vocab_size, bias=bias)
    if bias:
        nn.init.zeros_(projection.bias)
    if tie in ("none", "inputs"):
        nn.init.xavier_uniform_(projection.weight)
    else:
        projection.weight = target_embedding.weight
    return projection
