"""The layers of the search models in :mod:`headway.engine.search_model`, which a backend builds from trained layers."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.engine.prompts import PromptRows
from headway.engine.rows import DecodingStep, SourceRows
from headway.engine.torch_backend import Activation, HeadLayout, Layer, PlainBlock, Rows, TorchBackend
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import CausalBlock, DecoderBlock, EncoderBlock, FeedForward, GatedFeedForward, PreNorm
from headway.nn.cache import KVCache


class _FeedForwardLayer:
    """A feed-forward sub-layer with the norm before it, the residual connection and the norm after it."""

    def __init__(self, module: nn.Module, wrapper: nn.Module, backend: TorchBackend) -> None:
        assert isinstance(module, (FeedForward, GatedFeedForward))
        self._backend, norm = backend, norm_before(wrapper)
        self.gate: Activation | None = None
        if isinstance(module, GatedFeedForward):
            self.gate = module.activation
            weight, bias = backend.concatenate_layers(
                [backend.parameters_of(layer) for layer in (module.gate, module.inner)]
            )
            self.norm, self.inner = build_norm_and_linear(backend, norm, weight, bias)
        else:
            weight, bias = backend.parameters_of(module.inner)
            self.norm, self.inner = build_norm_and_linear(backend, norm, weight, bias, module.activation)
        self.output = backend.output_layer(module.outer, wrapper)  # type: ignore[arg-type]

    def __call__(self, x: Rows, residual: Rows | None = None) -> Rows:
        """Apply the sub-layer to ``x``. The residual connection adds ``residual``, which defaults to ``x``."""
        rows = self.inner(apply_norm(self.norm, x))
        if self.gate is not None:
            rows = self._backend.apply_gate(rows, self.gate)
        return self.output(rows, x if residual is None else residual)


class _SelfAttentionLayer:
    """A self-attention sub-layer. If ``scaled``, the projection also scales the queries."""

    def __init__(self, module: MultiHeadAttention, wrapper: nn.Module, backend: TorchBackend, *, scaled: bool) -> None:
        self.layout = _layout(module)
        self.rotary, self.window, self._backend = module.rotary, module.window, backend
        self._relative_bias = module.relative_bias
        weight, bias = _scaled_projection(module, backend) if scaled else backend.parameters_of(module.projection)
        self.norm, self.projection = build_norm_and_linear(backend, norm_before(wrapper), weight, bias)
        self.output = backend.output_layer(module.output, wrapper)  # type: ignore[arg-type]
        self._query_norm, self._key_norm = module.query_norm, module.key_norm
        self._query_scale = module.d_key**-0.5 if scaled else 1.0
        self.missing_scale = 1.0 if scaled else module.d_key**-0.5

    @property
    def is_plain(self) -> bool:
        """Whether queries, keys and scores are at most scaled, without a rotation, norm or bias."""
        return self.rotary is None and self._query_norm is None and self._relative_bias is None

    def encode(self, x: Rows, sources: SourceRows) -> Rows:
        """Attend from all positions of each sequence to all positions of the same sequence."""
        rotary, rotation = self.rotary, None
        if rotary is not None:
            rotary.reserve(max(sources.lengths))
            rotation = lambda heads: rotary.rotate_at(heads, sources.positions)  # noqa: E731
        rows = self._transform(self.projection(apply_norm(self.norm, x)), 1, rotation)
        bias = self._relative_bias
        return self.output(self._backend.self_attention(rows, self.layout, sources, self.window, bias), x)

    def prefill(self, x: Rows, prompts: PromptRows, prefix_kv: KVCache, layer: int, *, only_store: bool) -> Rows:
        """Apply causal attention to whole prompts, and store their keys and values in ``prefix_kv``.

        If ``only_store`` is set, only the keys and values are computed, and ``x`` is returned.
        """
        rotary, positions, backend = self.rotary, prompts.positions, self._backend
        if rotary is None or positions is None:
            rotation, sequence_rows = self._rotate_all(), len(x) // len(prompts.spans)
        else:
            rotary.reserve(prompts.max_length)
            rotation, sequence_rows = (lambda heads: rotary.rotate_at(heads, positions)), 1
        rows = self._transform(self.projection(apply_norm(self.norm, x)), sequence_rows, rotation)
        backend.write_prompts(rows, self.layout, prompts, prefix_kv, layer)
        if only_store:
            return x
        return self.output(backend.causal_attention(rows, self.layout, prompts, self.window, self._relative_bias), x)

    def step(self, x: Rows, layer: int, step: DecodingStep) -> Rows:
        """Attend from each row's new position to its prefix."""
        rows = self._transform(self.projection(apply_norm(self.norm, x)), 1, step.rotation)
        return self.output(self._backend.prefix_attention(rows, self.layout, layer, step), x)

    def _rotate_all(self) -> Activation | None:
        rotary = self.rotary
        return None if rotary is None else lambda x: rotary(x.transpose(1, 2)).transpose(1, 2)

    def _transform(self, rows: Rows, sequence_rows: int, rotation: Activation | None) -> Rows:
        """Apply the norms and the rotation to the queries and keys in ``rows``."""
        query_norm, key_norm = self._query_norm, self._key_norm
        if query_norm is not None and key_norm is not None:
            norms = (lambda heads: query_norm(heads) * self._query_scale, key_norm)
            self._backend.transform_heads(rows, self.layout, sequence_rows, norms)
        if rotation is not None:
            self._backend.transform_heads(rows, self.layout, sequence_rows, (rotation, rotation))
        return rows


class EncoderLayer:
    """An encoder block, applied to the rows of all sequences."""

    def __init__(self, block: EncoderBlock, backend: TorchBackend) -> None:
        self._attention = _SelfAttentionLayer(block.attention, block.attention_residual, backend, scaled=False)
        self._feed_forward = _FeedForwardLayer(block.feed_forward, block.feed_forward_residual, backend)

    def __call__(self, x: Rows, sources: SourceRows) -> Rows:
        """Apply the block."""
        return self._feed_forward(self._attention.encode(x, sources))

    def as_plain_block(self) -> PlainBlock | None:
        """Return the block's layers, or None if the block contains parts that :class:`PlainBlock` does not support."""
        has_window = self._attention.window is not None
        return None if has_window else _plain_self_attention_block(self._attention, self._feed_forward)


class DecoderLayer:
    """A decoder block, applied to each row's new token."""

    def __init__(self, block: DecoderBlock, backend: TorchBackend) -> None:
        cross = block.cross_attention
        self._backend = backend
        self._attention = _SelfAttentionLayer(block.attention, block.attention_residual, backend, scaled=True)
        self._layout = _layout(cross)
        weight, bias = _scaled_projection(cross, backend)
        queries, norm = cross.widths[0], norm_before(block.cross_attention_residual)
        bias = None if bias is None else bias[:queries]
        self._norm, self._query = build_norm_and_linear(backend, norm, weight[:queries], bias)
        self._query_norm, self._query_scale = cross.query_norm, cross.d_key**-0.5
        self._output = backend.output_layer(cross.output, block.cross_attention_residual)
        self._feed_forward = _FeedForwardLayer(block.feed_forward, block.feed_forward_residual, backend)

    def __call__(self, x: Rows, layer: int, step: DecodingStep) -> Rows:
        """Apply the block, whose index in the decoder is ``layer``."""
        x = self._attention.step(x, layer, step)
        query = self._query(apply_norm(self._norm, x))
        norm, layout = self._query_norm, self._layout
        if norm is not None:
            transform_each_head(self._backend, query, layout.num_heads, lambda heads: norm(heads) * self._query_scale)
        return self._feed_forward(self._output(self._backend.cross_attention(query, layout, layer, step), x))

    def as_plain_block(self) -> PlainBlock | None:
        """Return the block's layers, or None if the block contains parts that :class:`PlainBlock` does not support."""
        attention, feed_forward = self._attention, self._feed_forward
        if not attention.is_plain or self._query_norm is not None or feed_forward.gate is not None:
            return None
        return PlainBlock(
            norms=(attention.norm, self._norm, feed_forward.norm),
            first_layers=(attention.projection, self._query, feed_forward.inner),
            last_layers=(attention.output, self._output, feed_forward.output),
            layouts=(attention.layout, self._layout),
        )


class CausalLayer:
    """A causal block of a language model, applied to whole prompts or to each row's new token."""

    def __init__(self, block: CausalBlock, backend: TorchBackend) -> None:
        self._attention = _SelfAttentionLayer(block.attention, block.attention_residual, backend, scaled=True)
        self._feed_forward = _FeedForwardLayer(block.feed_forward, block.feed_forward_residual, backend)
        self._parallel = block.parallel

    def prefill(self, x: Rows, prompts: PromptRows, prefix_kv: KVCache, layer: int, *, only_store: bool) -> Rows:
        """Apply the block to prompts, and store their keys and values. ``only_store`` skips the block's output."""
        attended = self._attention.prefill(x, prompts, prefix_kv, layer, only_store=only_store)
        return x if only_store else self._feed_forward(x if self._parallel else attended, attended)

    def __call__(self, x: Rows, layer: int, step: DecodingStep) -> Rows:
        """Apply the block, whose index in the decoder is ``layer``, to each row's new token."""
        attended = self._attention.step(x, layer, step)
        return self._feed_forward(x if self._parallel else attended, attended)

    def as_plain_block(self) -> PlainBlock | None:
        """Return the block's layers, or None if the block contains parts that :class:`PlainBlock` does not support."""
        return None if self._parallel else _plain_self_attention_block(self._attention, self._feed_forward)


def _plain_self_attention_block(attention: _SelfAttentionLayer, feed_forward: _FeedForwardLayer) -> PlainBlock | None:
    """Return the layers of a block without cross-attention, or None if :class:`PlainBlock` does not support them."""
    if not attention.is_plain or feed_forward.gate is not None:
        return None
    return PlainBlock(
        norms=(attention.norm, feed_forward.norm),
        first_layers=(attention.projection, feed_forward.inner),
        last_layers=(attention.output, feed_forward.output),
        layouts=(attention.layout,),
        query_scale=attention.missing_scale,
    )


def _layout(attention: MultiHeadAttention) -> HeadLayout:
    width = attention.num_heads * attention.d_value
    return HeadLayout(attention.num_heads, attention.num_kv_heads, attention.widths, width)


def _scaled_projection(attention: MultiHeadAttention, backend: TorchBackend) -> tuple[Tensor, Tensor | None]:
    """Return the joint projection's weight and bias, with the query rows multiplied by 1 / sqrt(d_k).

    If queries are normalized, the rows stay unchanged, because queries are then scaled after their norm.
    """
    weight, bias = backend.parameters_of(attention.projection)
    if attention.query_norm is not None:
        return weight, bias
    scale = torch.ones(sum(attention.widths), device=weight.device)
    scale[: attention.widths[0]] = attention.d_key**-0.5
    return backend.scale_outputs(weight, bias, scale)


def transform_each_head(backend: TorchBackend, rows: Rows, heads: int, transform: Activation) -> None:
    """Transform rows (R, H * K) in place, each head separately."""
    backend.transform_heads(rows, HeadLayout(heads, 1, (rows.shape[1], 0, 0), 0), 1, [transform])


def norm_before(wrapper: nn.Module) -> nn.Module | None:
    """Return the norm before a sub-layer, or None."""
    return wrapper.norm if isinstance(wrapper, PreNorm) else None


def build_norm_and_linear(
    backend: TorchBackend,
    norm: nn.Module | None,
    weight: Float[Tensor, "N K"],
    bias: Float[Tensor, " N"] | None,
    activation: Activation | None = None,
) -> tuple[Layer | None, Layer]:
    """Build a norm and the linear layer after it. The built norm is None if ``norm`` is None or the identity."""
    norm, weight, bias = backend.fold_norm(norm, weight, bias)
    return None if norm is None else backend.norm(norm), backend.linear(weight, bias, activation)


def build_norm_and_projection(
    backend: TorchBackend, norm: nn.Module, projection: nn.Linear
) -> tuple[Layer | None, nn.Linear]:
    """Return a stack's final norm and the output projection, which is a copy if the norm is folded into it."""
    unfolded, bias = backend.parameters_of(projection)
    folded_norm, weight, bias = backend.fold_norm(norm, unfolded, bias)
    if weight is not unfolded:
        projection = nn.Linear(weight.size(1), weight.size(0), bias=bias is not None, device="meta")
        projection.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            projection.bias = nn.Parameter(bias, requires_grad=False)
    assert folded_norm is not None
    return backend.norm(folded_norm), projection


def apply_norm(norm: Layer | None, x: Rows) -> Rows:
    """Apply ``norm``, or return x if ``norm`` is None."""
    return x if norm is None else norm(x)
