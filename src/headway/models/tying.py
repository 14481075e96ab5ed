"""The two embeddings and the output projection, which may share one matrix.

The paper (3.4) ties all three, following Press and Wolf (2017). That requires a joint vocabulary.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from headway.errors import ConfigError
from headway.nn.embedding import TokenEmbedding

__all__ = ["Tie", "output_projection", "token_embeddings"]

Tie = Literal["all", "target", "none"]


def token_embeddings(
    tie: Tie, source_vocab_size: int, target_vocab_size: int, width: int, *, scaled: bool = True
) -> tuple[TokenEmbedding, TokenEmbedding]:
    """Return the embeddings of source and target, which are the same module if ``tie`` is "all".

    Raises:
        ConfigError: ``tie`` is "all", but the vocabularies differ in size.
    """
    if tie == "all" and source_vocab_size != target_vocab_size:
        raise ConfigError(
            f"tie = 'all' needs one vocabulary for both sides, but source has {source_vocab_size} and target "
            f"{target_vocab_size} tokens; share one, or set tie to 'target' or 'none'"
        )
    source = TokenEmbedding(source_vocab_size, width, scaled=scaled)
    return source, source if tie == "all" else TokenEmbedding(target_vocab_size, width, scaled=scaled)


def output_projection(tie: Tie, target: TokenEmbedding, width: int, *, bias: bool) -> nn.Linear:
    """Return the projection from states of ``width`` to logits: the target embeddings, or a new matrix if untied."""
    projection = nn.Linear(width, len(target.weight), bias=bias)
    if bias:
        nn.init.zeros_(projection.bias)
    if tie == "none":
        nn.init.xavier_uniform_(projection.weight)
    else:
        projection.weight = target.weight
    return projection
