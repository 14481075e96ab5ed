"""How weights are kept for inference, and what is computed with them, by PyTorch's operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from headway.engine.attention import scaled_dot_product_attention
from headway.engine.vocabulary import SentenceVocabulary, TorchSentenceVocabulary, TorchVocabulary, Vocabulary
from headway.nn.blocks import NoNorm, PostNorm, PreNorm
from headway.nn.prefix_tree import PrefixTree, attend
from headway.nn.sentence_buffers import SentenceBuffers

__all__ = ["Activation", "Layer", "Preparer", "Residual", "Rows", "by_head"]

Rows = Any  # (R, K), as a preparer keeps them: only its own methods and layers read them
Layer = Callable[[Rows], Rows]
Activation = Callable[[Tensor], Tensor]
Residual = PostNorm | PreNorm | NoNorm


class Preparer:
    """The parts of a model in float32 or bfloat16, on any device; rows are tensors of ``dtype``.

    Attention reads queries, keys and values side by side in rows, as one product gives them: ``widths`` are theirs, all
    heads together.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def rows(self, x: Float[Tensor, "R K"]) -> Rows:
        """A tensor's rows."""
        return x.to(self.dtype)

    def linear(
        self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, activation: Activation | None = None
    ) -> Layer:
        """A layer: x W^T + b, and the activation of it."""
        weight = weight.detach().to(self.dtype)
        bias = None if bias is None else bias.detach().to(self.dtype)
        if activation is None:
            return lambda x: F.linear(x, weight, bias)
        activate = F.relu_ if activation is F.relu else activation
        return lambda x: activate(F.linear(x, weight, bias))

    def ending(self, layer: nn.Linear, around: Residual) -> Callable[[Rows, Rows], Rows]:
        """The last layer of a sub-layer and what stands around that: a function of its input and the sub-layer's."""
        product = self.linear(layer.weight, layer.bias)
        after = self.norm(around.norm) if isinstance(around, PostNorm) else nn.Identity()
        if around.residual:
            return lambda x, entered: after(product(x).add_(entered))
        return lambda x, entered: after(product(x))

    def norm(self, module: nn.Module) -> Layer:
        """A layer norm, or nothing where the stack has none."""
        if not isinstance(module, nn.LayerNorm):
            return lambda x: x
        shape, epsilon = module.normalized_shape, module.eps
        weight, bias = module.weight.detach().to(self.dtype), module.bias.detach().to(self.dtype)
        return lambda x: F.layer_norm(x, shape, weight, bias, epsilon)

    def vocabulary(self, projection: nn.Linear) -> Vocabulary:
        """The output projection."""
        return TorchVocabulary(projection, self.linear)

    def sentence_vocabulary(self, projection: nn.Linear) -> SentenceVocabulary:
        """That of each sentence's own tokens."""
        return TorchSentenceVocabulary(projection, self.dtype)

    def gate(self, rows: Rows, activation: Activation) -> Rows:
        """The activation of the first half of each row times the second."""
        gate, inner = rows.chunk(2, dim=1)
        return activation(gate) * inner

    def turn(self, rows: Rows, widths: Sequence[int], heads: int, beside: int, turn: Activation) -> None:
        """Turn queries and keys to their positions, ``beside`` rows of a sentence; ``turn`` takes (B, T, H, .)."""
        for part in by_head(rows.view(-1, beside, rows.size(1)), widths, heads)[:2]:
            part.copy_(turn(part))

    def self_attention(self, rows: Rows, widths: Sequence[int], heads: int, mask: Bool[Tensor, "B 1 1 S"]) -> Rows:
        """Of each position over its whole sentence, by queries that are not scaled yet."""
        parts = by_head(rows.view(mask.size(0), -1, rows.size(1)), widths, heads)
        query, key, value = (part.transpose(1, 2).contiguous() for part in parts)
        return scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).reshape(len(rows), -1)

    def prefix_attention(self, rows: Rows, widths: Sequence[int], prefix: PrefixTree, layer: int) -> Rows:
        """Of each row's new position over its prefix, which its key and value join."""
        query, key, value = by_head(rows.view(-1, prefix.beams, rows.size(1)), widths, prefix.slots.heads)
        return attend(query, *prefix.extend(layer, key, value), prefix.step_bias)

    def memory(self, rows: Rows, widths: Sequence[int], heads: int, sentences: int) -> list[Float[Tensor, "BH S _"]]:
        """Parts of ``widths`` by sentence and head, each matrix in one piece."""
        parts = by_head(rows.view(sentences, -1, rows.size(1)), widths, heads)
        return [part.transpose(1, 2).flatten(0, 1).contiguous() for part in parts]

    def cross_attention(
        self,
        query: Rows,
        widths: Sequence[int],
        memory: SentenceBuffers,
        layer: int,
        bias: Float[Tensor, "B 1 1 S"] | None,
    ) -> Rows:
        """Of each row over its sentence's memory."""
        memory.settle()
        keys, values = memory.tensors[2 * layer : 2 * layer + 2]
        return attend(query.view(len(memory.homes), -1, memory.heads, keys.size(2)), keys, values, bias)


def by_head(x: Float[Tensor, "B T _"], widths: Sequence[int], heads: int) -> list[Float[Tensor, "B T H _"]]:
    """Parts of ``widths`` that were computed side by side, each with its heads apart."""
    return [part.view(*part.shape[:-1], heads, -1) for part in torch.split(x, list(widths), dim=-1)]
