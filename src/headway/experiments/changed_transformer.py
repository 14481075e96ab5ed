"""Transformers with changes that texts describe and no model of Headway has, registered only while the pool is trained.

smaller_queries_and_keys      With unscaled dot products (``score = "dot"``), their projections begin smaller by
                              d_k^(1/4) each, so that scores begin as in scaled attention.
feed_forward_over_positions   The encoder's self-attention is replaced by a feed-forward layer that mixes positions,
                              x W_1 and W_2 apply to the positions of each unit (Tolstikhin et al. 2021, section 2).
                              It has as many weights, which do not depend on the content of the sentence.
feed_forward_first            In decoder blocks, the feed-forward layer comes before the attention over the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from headway.models.registry import Architecture
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import DecoderBlock, NoNorm, xavier_linear

MAX_LENGTH = 128  # positions that a feed-forward layer mixes; its hidden layer is twice as wide
Change = Literal["smaller_queries_and_keys", "feed_forward_over_positions", "feed_forward_first"]


class ChangedTransformerConfig(TransformerConfig):
    """The options of a Transformer, and the change."""

    kind: Literal["changed_transformer"] = Field(  # type: ignore[assignment]
        "changed_transformer", description="The architecture."
    )
    change: Change = Field("feed_forward_first", description="The change.")


class PositionFeedForward(nn.Module):
    """W_2 max(0, W_1 x + b_1) + b_2 over the positions of each unit. Padding counts as 0."""

    relative_bias = None

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = xavier_linear(MAX_LENGTH, 2 * MAX_LENGTH), xavier_linear(2 * MAX_LENGTH, MAX_LENGTH)

    def check_arguments(self, x: Tensor, *, mask: Tensor | None = None) -> None:
        """Accept everything, as the block checks the arguments of attention."""

    def forward(self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B 1 S"] | None = None) -> Float[Tensor, "B S D"]:
        """Mix the positions of each unit. ``mask`` is True where a token is."""
        length = x.size(1)
        read = x if mask is None else x * mask.transpose(1, 2)
        hidden = F.relu(F.linear(read.transpose(1, 2), self.inner.weight[:, :length], self.inner.bias))
        return F.linear(hidden, self.outer.weight[:length], self.outer.bias[:length]).transpose(1, 2)


class _AfterFeedForward(nn.Module):
    """The residual connection of a sub-layer, after the sub-layer of feed-forward."""

    def __init__(self, block: DecoderBlock) -> None:
        super().__init__()
        self.feed_forward, self.feed_forward_residual = block.feed_forward, block.feed_forward_residual
        self.residual = block.cross_attention_residual

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        result: Tensor = self.residual(self.feed_forward_residual(x, self.feed_forward), sublayer)
        return result


class ChangedTransformer(Transformer):
    """A Transformer with one of the changes that the module's docstring lists."""

    config: ChangedTransformerConfig

    def __init__(self, config: ChangedTransformerConfig, source_vocab_size: int, target_vocab_size: int) -> None:
        super().__init__(config, source_vocab_size, target_vocab_size)
        match config.change:
            case "smaller_queries_and_keys":
                for attention in (part for part in self.modules() if isinstance(part, MultiHeadAttention)):
                    with torch.no_grad():
                        attention.projection.weight[: sum(attention.widths[:2])] *= attention.d_key**-0.25
            case "feed_forward_over_positions":
                for block in self.encoder.blocks:
                    block.attention = PositionFeedForward()
            case "feed_forward_first":
                for block in self.decoder.blocks:
                    assert isinstance(block, DecoderBlock)
                    block.cross_attention_residual = _AfterFeedForward(block)  # type: ignore[assignment]
                    block.feed_forward = nn.Identity()  # type: ignore[assignment]
                    block.feed_forward_residual = NoNorm(0.0, residual=False)

    @property
    def max_length(self) -> int | None:
        """The maximum sequence length, which a feed-forward layer over positions limits."""
        return MAX_LENGTH if self.config.change == "feed_forward_over_positions" else super().max_length


ARCHITECTURE = Architecture(ChangedTransformerConfig, ChangedTransformer, "translates")
