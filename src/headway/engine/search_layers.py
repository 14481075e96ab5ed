"""The blocks of a search model, made of a backend's parts (:mod:`headway.engine.torch_backend`).

Rows contain the positions of all sequences one after the other. The scale of the queries, 1 / sqrt(d_k), is part of
their projection where a block decodes step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headway.engine.torch_backend import Activation, HeadLayout, Rows, TorchBackend
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import CausalBlock, DecoderBlock, EncoderBlock, FeedForward, GatedFeedForward, PreNorm
from headway.nn.cache import KVCache


class FeedForwardLayer:
    """A feed-forward sub-layer: the norm before it, its layers, the residual connection and the norm after it."""

    def __init__(self, module: nn.Module, wrapper: nn.Module, backend: TorchBackend) -> None:
        assert isinstance(module, (FeedForward, GatedFeedForward))
        self._backend, self._norm = backend, norm_before(wrapper, backend)
        self._gate: Activation | None = None
        if isinstance(module, GatedFeedForward):
            self._gate = module.activation
            self._inner = backend.linear(
                torch.cat([module.gate.weight, module.inner.weight]), joined_bias([module.gate, module.inner])
            )
        else:
            self._inner = backend.linear(module.inner.weight, module.inner.bias, module.activation)
        self._output = backend.output_layer(module.outer, wrapper)  # type: ignore[arg-type]

    def __call__(self, x: Rows, residual: Rows | None = None) -> Rows:
        """Apply the sub-layer to ``x``. The residual connection adds ``residual``, by default ``x``."""
        inner = self._inner(self._norm(x))
        if self._gate is not None:
            inner = self._backend.gate(inner, self._gate)
        return self._output(inner, x if residual is None else residual)


class SelfAttentionLayer:
    """A sub-layer of self-attention. If it is ``scaled``, the projection scales the queries."""

    def __init__(self, module: MultiHeadAttention, wrapper: nn.Module, backend: TorchBackend, *, scaled: bool) -> None:
        self.layout = HeadLayout(module.num_heads, module.num_kv_heads, module.widths)
        self.rotary, self._window, self._backend = module.rotary, module.window, backend
        self._norm = norm_before(wrapper, backend)
        weight, bias = scaled_projection(module) if scaled else (module.projection.weight, module.projection.bias)
        self._projection = backend.linear(weight, bias)
        self._output = backend.output_layer(module.output, wrapper)  # type: ignore[arg-type]
        self._query_norm, self._key_norm = module.query_norm, module.key_norm
        self._query_scale = module.d_key**-0.5 if scaled else 1.0

    def encode(self, x: Rows, lengths: Sequence[int]) -> Rows:
        """Attend from all positions of each sequence to all of them."""
        rows = self._project(x, len(x) // len(lengths), self._rotate_all())
        return self._output(self._backend.self_attention(rows, self.layout, lengths, self._window), x)

    def prefill(self, x: Rows, lengths: Sequence[int], prefix_kv: KVCache, layer: int, *, only_store: bool) -> Rows:
        """Attend from all positions of each prompt to those before it, and store keys and values in ``prefix_kv``."""
        rows, backend = self._project(x, len(x) // len(lengths), self._rotate_all()), self._backend
        backend.write_prompts(rows, self.layout, prefix_kv, layer, len(lengths))
        if only_store:
            return x
        return self._output(backend.causal_attention(rows, self.layout, lengths, self._window), x)

    def step(self, x: Rows, prefix_kv: KVCache, layer: int, mask: Any, rotation: Activation | None) -> Rows:
        """Attend from one new position of each row. ``rotation`` applies rotary positions, if there are any."""
        rows = self._project(x, prefix_kv.beams, rotation)
        return self._output(self._backend.prefix_attention(rows, self.layout, prefix_kv, layer, mask), x)

    def _rotate_all(self) -> Activation | None:
        rotary = self.rotary
        return None if rotary is None else lambda x: rotary(x.transpose(1, 2)).transpose(1, 2)

    def _project(self, x: Rows, sequence_rows: int, rotation: Activation | None) -> Rows:
        rows, query_norm, key_norm = self._projection(self._norm(x)), self._query_norm, self._key_norm
        if query_norm is not None and key_norm is not None:
            norms = (lambda heads: query_norm(heads) * self._query_scale, key_norm)
            self._backend.transform_heads(rows, self.layout, sequence_rows, norms)
        if rotation is not None:
            self._backend.transform_heads(rows, self.layout, sequence_rows, (rotation, rotation))
        return rows


class EncoderLayer:
    """An encoder block, applied to the rows of all sequences, including padding."""

    def __init__(self, block: EncoderBlock, backend: TorchBackend) -> None:
        self._attention = SelfAttentionLayer(block.attention, block.attention_residual, backend, scaled=False)
        self._feed_forward = FeedForwardLayer(block.feed_forward, block.feed_forward_residual, backend)

    def __call__(self, x: Rows, lengths: Sequence[int]) -> Rows:
        """Apply the block."""
        return self._feed_forward(self._attention.encode(x, lengths))


class DecoderLayer:
    """A decoder block, applied to one new token of each row."""

    def __init__(self, block: DecoderBlock, backend: TorchBackend) -> None:
        cross = block.cross_attention
        self._backend = backend
        self._attention = SelfAttentionLayer(block.attention, block.attention_residual, backend, scaled=True)
        self._layout = HeadLayout(cross.num_heads, cross.num_kv_heads, cross.widths)
        weight, bias = scaled_projection(cross)
        queries = cross.widths[0]
        self._query = backend.linear(weight[:queries], None if bias is None else bias[:queries])
        self._query_norm, self._query_scale = cross.query_norm, cross.d_key**-0.5
        self._norm = norm_before(block.cross_attention_residual, backend)
        self._output = backend.output_layer(cross.output, block.cross_attention_residual)
        self._feed_forward = FeedForwardLayer(block.feed_forward, block.feed_forward_residual, backend)

    def __call__(
        self,
        x: Rows,
        prefix_kv: KVCache,
        memory_kv: KVCache,
        layer: int,
        *,
        mask: Any,
        memory_mask: Any,
        rotation: Activation | None,
    ) -> Rows:
        """Apply the block. The masks are those of the backend, and ``rotation`` applies rotary positions, if any."""
        x = self._attention.step(x, prefix_kv, layer, mask, rotation)
        query, norm = self._query(self._norm(x)), self._query_norm
        if norm is not None:
            transform_each_head(
                self._backend, query, self._layout.num_heads, lambda heads: norm(heads) * self._query_scale
            )
        x = self._output(self._backend.cross_attention(query, self._layout, memory_kv, layer, memory_mask), x)
        return self._feed_forward(x)


class CausalLayer:
    """A causal block of a language model, applied to whole prompts or to one new token of each row."""

    def __init__(self, block: CausalBlock, backend: TorchBackend) -> None:
        self.attention = SelfAttentionLayer(block.attention, block.attention_residual, backend, scaled=True)
        self._feed_forward = FeedForwardLayer(block.feed_forward, block.feed_forward_residual, backend)
        self._parallel = block.parallel

    def prefill(self, x: Rows, lengths: Sequence[int], prefix_kv: KVCache, layer: int, *, only_store: bool) -> Rows:
        """Apply the block to prompts, and store their keys and values, or do only that."""
        attended = self.attention.prefill(x, lengths, prefix_kv, layer, only_store=only_store)
        return x if only_store else self._feed_forward(x if self._parallel else attended, attended)

    def step(self, x: Rows, prefix_kv: KVCache, layer: int, mask: Any, rotation: Activation | None) -> Rows:
        """Apply the block to a new token of each row."""
        attended = self.attention.step(x, prefix_kv, layer, mask, rotation)
        return self._feed_forward(x if self._parallel else attended, attended)


def scaled_projection(attention: MultiHeadAttention) -> tuple[Tensor, Tensor | None]:
    """Return the joint projection's weight and bias, with 1 / sqrt(d_k) in the rows of the queries.

    Queries that are normed are scaled after their norm.
    """
    bias: Tensor | None = attention.projection.bias
    if attention.query_norm is not None:
        return attention.projection.weight, bias
    scale = torch.ones(sum(attention.widths), device=attention.projection.weight.device)
    scale[: attention.widths[0]] = attention.d_key**-0.5
    return attention.projection.weight * scale.unsqueeze(1), None if bias is None else bias * scale


def transform_each_head(backend: TorchBackend, rows: Rows, heads: int, transform: Activation) -> None:
    """Transform rows (R, H * K) in place, each head on its own."""
    backend.transform_heads(rows, HeadLayout(heads, 1, (rows.shape[1], 0, 0)), 1, [transform])


def joined_bias(layers: Sequence[nn.Linear]) -> Tensor | None:
    """Return the biases of layers one after the other, or None if they have none."""
    return None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])


def norm_before(wrapper: nn.Module, backend: TorchBackend) -> Callable[[Rows], Rows]:
    """Return the norm before a sub-layer, or the identity if there is none."""
    norm = backend.norm(wrapper.norm) if isinstance(wrapper, PreNorm) else None
    return norm or (lambda x: x)
