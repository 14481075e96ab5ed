"""The options that decoder-only and masked language models share, with the defaults of a small size."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headway.nn.blocks import (
    ActivationKind,
    BlockConfig,
    InnerWidth,
    ModelWidth,
    NumHeads,
    PositionKind,
    SublayerDropout,
)

INITIAL_STD = 0.02  # of the normal distribution that weights are drawn from, as in GPT-2 and BERT


class LanguageModelConfig(BlockConfig):
    """The options of a Transformer with one stack of blocks, one embedding and one output projection."""

    d_model: ModelWidth = 384
    num_heads: NumHeads = 6
    d_ff: InnerWidth = 1536
    dropout: SublayerDropout = 0.1
    activation: ActivationKind = "gelu"
    positions: PositionKind = "learned"
    scale_embedding: bool = Field(False, description="Whether embeddings are multiplied by sqrt(d_model).")
    tie: Literal["target", "none"] = Field(
        "target", description="Whether embedding and output projection are one matrix (target) or two (none)."
    )
