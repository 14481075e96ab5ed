"""Compute the input of a model's first attention layer, whose first head is drawn with its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headway.errors import ConfigError
from headway.nn.attention import MultiHeadAttention, restrict_to_window
from headway.nn.blocks import CausalBlock, EncoderBlock, PreNorm
from headway.nn.masks import causal_mask


@dataclass(frozen=True)
class HeadInput:
    """An attention layer of a "causal" or "encoder" block, its input, the input's tokens, and the attention mask."""

    block_kind: str
    layer: MultiHeadAttention
    x: Float[Tensor, "T D"]
    tokens: list[int]
    mask: Bool[Tensor, "#T T"]


@torch.inference_mode()
def first_attention(model: Any, tokens: list[int]) -> HeadInput:
    """Return the attention layer of the first block (in a Transformer, of the encoder), and its input for ``tokens``.

    Raises:
        ConfigError: The model has no blocks.
    """
    block: Any = next((part for part in model.modules() if isinstance(part, EncoderBlock | CausalBlock)), None)
    if block is None:
        raise ConfigError(f"a model of kind {model.config.kind} has no blocks with heads; choose the level model")
    row, causal = torch.tensor([tokens]), isinstance(block, CausalBlock)
    x = model.embed_source(row) if hasattr(model, "embed_source") else model.embed(row)
    if hasattr(model, "encoder_tokens"):
        row = model.encoder_tokens(row)
    visible = row != model.pad if getattr(model.config, "masked", True) else torch.ones_like(row, dtype=torch.bool)
    if getattr(model, "convolution", None) is not None:
        x = model.convolution(x, visible)
    x = block.attention_residual.norm(x) if isinstance(block.attention_residual, PreNorm) else x
    seen: Any = visible & causal_mask(x.size(1))[0] if causal else visible
    mask = restrict_to_window(seen, block.attention.window, x)
    return HeadInput("causal" if causal else "encoder", block.attention, x[0], row[0].tolist(), mask)
