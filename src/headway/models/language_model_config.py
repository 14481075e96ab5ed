"""The options and weight initialization shared by decoder-only and masked language models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field
from torch import nn

from headway.models.base import ArchitectureConfig
from headway.nn.block_config import (
    ActivationKind,
    BlockConfig,
    InnerWidth,
    ModelWidth,
    NumHeads,
    PositionKind,
    SublayerDropout,
)
from headway.nn.blocks import CausalBlock, EncoderBlock
from headway.nn.embedding import TokenEmbedding
from headway.nn.positions import LearnedPositions, RelativeBias

_INITIAL_STD = 0.02


class LanguageModelConfig(BlockConfig, ArchitectureConfig):
    """The options of a Transformer with one stack of blocks, one embedding and one output projection."""

    d_model: ModelWidth = 384
    num_heads: NumHeads = 6
    d_ff: InnerWidth = 1536
    dropout: SublayerDropout = 0.1
    activation: ActivationKind = "gelu"
    positions: PositionKind = "learned"
    scale_embedding: bool = Field(False, description="Whether embeddings are multiplied by sqrt(d_model).")
    tie: Literal["target", "none"] = Field(
        "target", description="Whether embedding and output projection share their weight (target) or not (none)."
    )


def initialize_weights(model: nn.Module, scaled_blocks: Iterable[nn.Module]) -> None:
    """Initialize weights as in GPT-2 and BERT, normally with standard deviation 0.02, and biases to zero.

    In ``scaled_blocks``, the standard deviation of each sub-layer's last matrix is divided by the square root of the
    number of sub-layers, because their outputs are added (Radford et al. 2019, section 2.3).
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding | TokenEmbedding):
            nn.init.normal_(module.weight, std=_INITIAL_STD)
        elif isinstance(module, LearnedPositions | RelativeBias):
            nn.init.normal_(module.table, std=_INITIAL_STD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    blocks = list(scaled_blocks)
    for block in blocks:
        assert isinstance(block, CausalBlock | EncoderBlock)
        for layer in (block.attention.output, block.feed_forward.outer):
            nn.init.normal_(layer.weight, std=_INITIAL_STD * (2 * len(blocks)) ** -0.5)
