"""The parts of a search model in float32 or bfloat16, computed by PyTorch's operations on any device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from headway.engine.attention import scaled_dot_product_attention
from headway.engine.vocabulary import ListedProjection, OutputProjection, TorchListedProjection, TorchOutputProjection
from headway.nn.blocks import NoNorm, PostNorm, PreNorm
from headway.nn.cache import KVCache, LayerSpec

Rows = Any  # (R, K), in the backend's own representation, which only its methods and layers read
Layer = Callable[[Rows], Rows]
Activation = Callable[[Tensor], Tensor]
Residual = PostNorm | PreNorm | NoNorm


class TorchBackend:
    """Builds layers with weights in ``dtype``, and computes attention. Rows are tensors of that type.

    Attention reads queries, keys and values side by side in the rows, as one product computes them: ``widths`` are
    theirs, all heads together. Dimensions are those of :mod:`headway.nn.cache`.
    """

    batch_per_thread = False

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def rows(self, x: Float[Tensor, "R K"]) -> Rows:
        """Return the rows of a tensor."""
        return x.to(self.dtype)

    def linear(
        self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, activation: Activation | None = None
    ) -> Layer:
        """Return the layer x W^T + b, followed by the activation."""
        weight = weight.detach().to(self.dtype)
        bias = None if bias is None else bias.detach().to(self.dtype)
        if activation is None:
            return lambda x: F.linear(x, weight, bias)
        activate = F.relu_ if activation is F.relu else activation
        return lambda x: activate(F.linear(x, weight, bias))

    def output(self, layer: nn.Linear, wrapper: Residual) -> Callable[[Rows, Rows], Rows]:
        """Return the last layer of a sub-layer with its residual connection and norm: a function of (x, residual)."""
        product = self.linear(layer.weight, layer.bias)
        norm = self.norm(wrapper.norm) if isinstance(wrapper, PostNorm) else None
        if not wrapper.residual:
            return lambda x, _: product(x) if norm is None else norm(product(x))
        if norm is None:
            return lambda x, residual: product(x).add_(residual)
        return lambda x, residual: norm(product(x).add_(residual))

    def norm(self, module: nn.Module) -> Layer | None:
        """Return a layer norm, or None for the identity."""
        if isinstance(module, nn.Identity):
            return None
        assert isinstance(module, nn.LayerNorm), f"unknown norm {type(module).__name__}"
        shape, epsilon = module.normalized_shape, module.eps
        weight, bias = module.weight.detach().to(self.dtype), module.bias.detach().to(self.dtype)
        return lambda x: F.layer_norm(x, shape, weight, bias, epsilon)

    def output_projection(self, projection: nn.Linear) -> OutputProjection:
        """Return the projection to the vocabulary."""
        return TorchOutputProjection(projection, self.linear)

    def listed_projection(self, projection: nn.Linear) -> ListedProjection:
        """Return the projection to each sequence's own shortlist."""
        return TorchListedProjection(projection, self.dtype)

    def gate(self, rows: Rows, activation: Activation) -> Rows:
        """Return the activation of the first half of each row times the second half."""
        gate, inner = rows.chunk(2, dim=1)
        return activation(gate) * inner

    def rotate(
        self, rows: Rows, widths: Sequence[int], heads: int, rows_each: int, rotation: Callable[[Tensor], Tensor]
    ) -> None:
        """Rotate queries and keys in place, ``rows_each`` of each sequence; ``rotation`` takes (B, T, H, K)."""
        for part in _by_head(rows.view(-1, rows_each, rows.size(1)), widths, heads)[:2]:
            part.copy_(rotation(part))

    def layer_spec(self, heads: int, key_width: int, value_width: int) -> LayerSpec:
        """Return the shape of a layer's keys and values in the cache."""
        return LayerSpec(heads, key_width, value_width)

    def mask(self, cache: KVCache) -> Any:
        """Return which entries of the cache each beam may attend to, as attention takes it: 0 or -inf, or None."""
        mask = cache.mask
        if mask is None:
            return None
        return torch.zeros(mask.shape, dtype=self.dtype, device=mask.device).masked_fill_(~mask, -math.inf).unsqueeze(1)

    def self_attention(self, rows: Rows, widths: Sequence[int], heads: int, lengths: Sequence[int]) -> Rows:
        """Return the attention of each position over its own sequence; the queries are not scaled yet."""
        parts = _by_head(torch.unflatten(rows, 0, (len(lengths), -1)), widths, heads)
        query, key, value = (part.transpose(1, 2).contiguous() for part in parts)
        mask = None
        if min(lengths) < key.size(2):
            positions = torch.arange(key.size(2), device=key.device)
            mask = (positions < torch.tensor(lengths, device=key.device).unsqueeze(1))[:, None, None]
        return scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).reshape(len(rows), -1)

    def prefix_attention(self, rows: Rows, widths: Sequence[int], prefix: KVCache, layer: int, mask: Any) -> Rows:
        """Append each row's key and value to the cache and return the attention over the row's prefix."""
        of_beams = torch.unflatten(rows, 0, (prefix.num_sequences, prefix.beams))
        query, key, value = _by_head(of_beams, widths, prefix.layers[layer].kv_heads)
        return _attend(query, *prefix.append(layer, key.transpose(1, 2), value.transpose(1, 2)), mask)

    def write_memory(self, rows: Rows, widths: Sequence[int], memory: KVCache, count: int) -> None:
        """Store keys and values of all layers, side by side in the rows, for the ``count`` newest sequences."""
        parts = _by_head(torch.unflatten(rows, 0, (count, -1)), widths, memory.layers[0].kv_heads)
        for layer in range(len(memory.layers)):
            memory.write(layer, *(part.transpose(1, 2) for part in parts[2 * layer : 2 * layer + 2]))

    def cross_attention(self, query: Rows, widths: Sequence[int], memory: KVCache, layer: int, mask: Any) -> Rows:
        """Return the attention of each row over its sequence's memory."""
        keys, values = memory.entries(layer)
        heads = memory.layers[layer].kv_heads
        return _attend(query.view(memory.num_sequences, -1, heads, keys.size(2)), keys, values, mask)


def _by_head(x: Float[Tensor, "B T _"], widths: Sequence[int], heads: int) -> list[Float[Tensor, "B T H _"]]:
    """Return parts of ``widths`` that lie side by side, each divided into heads."""
    return [torch.unflatten(part, -1, (heads, -1)) for part in torch.split(x, list(widths), dim=-1)]


def _attend(
    query: Float[Tensor, "B W H K"],
    keys: Float[Tensor, "BH C K"],
    values: Float[Tensor, "BH C U"],
    bias: Float[Tensor, "B 1 #W C"] | None,
) -> Float[Tensor, "R HU"]:
    """Return softmax(Q K^T + bias) V for the beams of each sequence together, heads concatenated.

    The queries are scaled already. PyTorch's fused kernels are slow for so few queries per sequence; two batched
    products of contiguous matrices are not.
    """
    sequences, beams, heads, _ = query.shape
    scores = torch.bmm(query.transpose(1, 2).reshape(sequences * heads, beams, -1), keys.transpose(1, 2))
    if bias is not None:
        scores.view(sequences, heads, beams, -1).add_(bias)
    attended = torch.bmm(scores.softmax(-1), values)
    return attended.view(sequences, heads, beams, -1).transpose(1, 2).reshape(sequences * beams, -1)
