"""The blocks of the encoder and decoder stacks (Vaswani et al. 2017, figure 1, sections 3.1 and 3.3).

An encoder block consists of self-attention, followed by feed-forward. A decoder block consists of masked
self-attention, attention over the encoder's memory (queries from the decoder, keys and values from the memory), and
feed-forward. Some expositions order the decoder's sub-layers differently; we follow the paper.

Each sub-layer is combined with a residual connection, dropout on the sub-layer's output and layer normalization, in one
of two orders, or without the norm:

    post-norm   LayerNorm(x + Dropout(Sublayer(x)))     the paper, section 3.1 with 5.4
    pre-norm    x + Dropout(Sublayer(LayerNorm(x)))     Wang et al. 2019, Xiong et al. 2020; a norm follows the stack
    none        x + Dropout(Sublayer(x))

RMSNorm (Zhang and Sennrich 2019) can replace LayerNorm. The residual connection, "x +", can also be omitted, for
experiments on its effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from headway.nn.arguments import Size, check_floats, input_width
from headway.nn.attention import KeysValues, MultiHeadAttention, restrict_to_window
from headway.nn.block_config import Activation, BlockConfig, Gate, PlainActivation
from headway.nn.cache import KVCache, LayerSpec
from headway.nn.dropout import Dropout
from headway.nn.masks import Causal, DocumentMask, Mask
from headway.nn.norms import RMSNorm
from headway.nn.positions import RelativeBias, RotaryPositions


def gelu_tanh(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return the tanh approximation of GELU (Hendrycks and Gimpel 2016, section 2), which GPT-2 uses."""
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
}
_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": F.sigmoid,
    "reglu": F.relu,
    "geglu": F.gelu,
    "geglu_tanh": gelu_tanh,
    "swiglu": F.silu,
}


def _self_attention(config: BlockConfig, *, causal: bool, window: tuple[int, int] | None) -> MultiHeadAttention:
    """Return a new self-attention sub-layer."""
    bias = None
    if config.positions == "relative_bias":
        bias = RelativeBias(
            config.num_heads,
            num_buckets=config.relative_buckets,
            max_distance=config.relative_max_distance,
            bidirectional=not causal,
        )
    return _attention(config, rotary=_rotary(config), relative_bias=bias, window=window)


def _attention(config: BlockConfig, **positions: Any) -> MultiHeadAttention:
    """Return a new attention sub-layer. Cross-attention takes no ``positions``."""
    return MultiHeadAttention(
        config.d_model,
        config.num_heads,
        num_kv_heads=config.num_kv_heads,
        d_key=config.d_key,
        d_value=config.d_value,
        dropout=config.attention_dropout,
        bias=config.bias != "none",
        output_bias=config.bias == "all",
        score=config.score,
        qk_projection=config.qk_projection,
        qk_norm_epsilon=config.norm_epsilon if config.qk_norm else None,
        **positions,
    )


def _rotary(config: BlockConfig) -> RotaryPositions | None:
    if config.positions != "rotary":
        return None
    width = config.d_key or config.d_model // config.num_heads
    return RotaryPositions(
        width, base=config.rotary_base, rotated=round(width * config.rotary_fraction), scaling=config.rotary_scaling
    )


def _feed_forward(config: BlockConfig) -> FeedForward | GatedFeedForward:
    options: dict[str, Any] = {"dropout": config.feed_forward_dropout, "bias": config.bias == "all"}
    kind = FeedForward if config.activation in _ACTIVATIONS else GatedFeedForward
    return kind(config.d_model, config.d_ff, activation=cast("Any", config.activation), **options)


def _residual(config: BlockConfig) -> PostNorm | PreNorm | NoNorm:
    if config.norm == "none":
        return NoNorm(config.dropout, residual=config.residual)
    kind = PostNorm if config.norm == "post" else PreNorm
    return kind(config.d_model, config.dropout, residual=config.residual, norm=make_norm(config))


def make_norm(config: BlockConfig) -> nn.LayerNorm | RMSNorm:
    """Return a new norm of the configured kind and width d_model."""
    if config.norm_kind == "rms":
        return RMSNorm(config.d_model, config.norm_epsilon)
    return nn.LayerNorm(config.d_model, config.norm_epsilon, bias=config.bias == "all")


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 at each position separately (equation 2). GELU or SiLU can replace ReLU.

    This is equivalent to two convolutions with kernel size 1 over the sequence. ``dropout`` is applied to the inner
    layer, unlike in the paper.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: PlainActivation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.inner = xavier_linear(d_model, d_ff, bias=bias)
        self.outer = xavier_linear(d_ff, d_model, bias=bias)
        self.activation = _ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Apply the feed-forward network to each position."""
        check_floats("x", x, ..., input_width(self.inner))
        transformed: Tensor = self.outer(self.dropout(self.activation(self.inner(x))))
        return transformed


class GatedFeedForward(nn.Module):
    """(gate(x W_1 + b_1) * (x V + c)) W_2 + b_2, where gate is sigmoid, ReLU, GELU or SiLU (Shazeer 2020).

    The tanh approximation of GELU, as in T5, is also available.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Gate = "swiglu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.gate = xavier_linear(d_model, d_ff, bias=bias)
        self.inner = xavier_linear(d_model, d_ff, bias=bias)
        self.outer = xavier_linear(d_ff, d_model, bias=bias)
        self.activation = _GATES[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Apply the feed-forward network to each position."""
        check_floats("x", x, ..., input_width(self.inner))
        transformed: Tensor = self.outer(self.dropout(self.apply_gate(self.gate(x), self.inner(x))))
        return transformed

    def apply_gate(self, gate: Float[Tensor, "*b F"], x: Float[Tensor, "*b F"]) -> Float[Tensor, "*b F"]:
        """Return the activation of ``gate``, multiplied by x."""
        return self.activation(gate) * x


def activation_function(kind: Activation) -> Callable[[Tensor], Tensor]:
    """Return the activation function of this name, for a plain or gated feed-forward layer."""
    return (_ACTIVATIONS | _GATES)[kind]


def xavier_linear(in_features: int, out_features: int, *, bias: bool = True) -> nn.Linear:
    """Return a linear layer with Xavier-uniform weights and, if ``bias`` is True, a bias of zeros."""
    layer = nn.Linear(in_features, out_features, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class _NormedResidual(nn.Module):
    """Base class of residual connections with a norm."""

    def __init__(
        self,
        d_model: int,
        dropout: float,
        *,
        residual: bool = True,
        norm: nn.LayerNorm | RMSNorm | None = None,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model) if norm is None else norm
        self.dropout = Dropout(dropout)
        self.residual = residual

    @property
    def width(self) -> Size:
        """The width that the norm expects, or a word if the norm may expect any width."""
        weight = self.norm.weight if isinstance(self.norm, nn.LayerNorm | RMSNorm) else None
        return "width" if weight is None else weight.size(-1)


class PostNorm(_NormedResidual):
    """LayerNorm(x + Dropout(Sublayer(x))), the paper's residual connection. ``residual`` = False omits "x +"."""

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Apply ``sublayer`` to x, then dropout, the residual connection and the norm."""
        check_floats("x", x, "batch", "length", self.width)
        y = self.dropout(sublayer(x))
        normed: Tensor = self.norm(x + y if self.residual else y)
        return normed


class PreNorm(_NormedResidual):
    """x + Dropout(Sublayer(LayerNorm(x))), with an unnormalized residual path. ``residual`` = False omits "x +"."""

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Apply the norm, ``sublayer`` and dropout to x, then the residual connection."""
        check_floats("x", x, "batch", "length", self.width)
        y: Tensor = self.dropout(sublayer(self.norm(x)))
        return x + y if self.residual else y


class NoNorm(nn.Module):
    """x + Dropout(Sublayer(x)). ``residual`` = False omits "x +"."""

    def __init__(self, dropout: float, *, residual: bool = True) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.residual = residual

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Apply ``sublayer`` to x, then dropout and the residual connection."""
        check_floats("x", x, "batch", "length", "width")
        y: Tensor = self.dropout(sublayer(x))
        return x + y if self.residual else y


class _SelfAttentionBlock(nn.Module):
    """Self-attention, followed by feed-forward."""

    def __init__(self, config: BlockConfig, *, causal: bool, window: tuple[int, int] | None) -> None:
        super().__init__()
        self.attention = _self_attention(config, causal=causal, window=window)
        self.attention_residual = _residual(config)
        self.feed_forward, self.feed_forward_residual = _feed_forward(config), _residual(config)

    def forward(self, x: Float[Tensor, "B T D"], mask: Mask | None = None) -> Float[Tensor, "B T D"]:
        """Apply the block. ``mask`` is True for the keys that a query may attend to."""
        self.attention.check_arguments(x, mask=mask)
        return self._run(x, partial(self.attention, mask=mask))

    def _run(self, x: Float[Tensor, "B T D"], attend: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Apply ``attend``, which computes self-attention, and the feed-forward layer, with residual connections."""
        x = self.attention_residual(x, attend)
        transformed: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return transformed


class EncoderBlock(_SelfAttentionBlock):
    """Self-attention, followed by feed-forward (section 3.1)."""

    def __init__(self, config: BlockConfig) -> None:
        size = config.encoder_window
        super().__init__(config, causal=False, window=None if size is None else (size // 2, (size - 1) // 2))


class CausalBlock(_SelfAttentionBlock):
    """Causal self-attention, followed by feed-forward: a decoder block without a memory, for language models.

    The block was introduced by Liu et al. 2018 and Radford et al. 2018 ("Improving Language Understanding by Generative
    Pre-Training", section 3.1). The mask passed to :meth:`forward` must be causal. If ``parallel``, both sub-layers
    take the block's input (Wang and Komatsuzaki 2021, "GPT-J-6B"; as in GPT-NeoX):
    x + Attention(Norm(x)) + FeedForward(Norm(x)).
    """

    def __init__(self, config: BlockConfig, *, parallel: bool = False) -> None:
        super().__init__(config, causal=True, window=_causal_window(config))
        self.parallel = parallel

    def _run(self, x: Float[Tensor, "B T D"], attend: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        if not self.parallel:
            return super()._run(x, attend)
        first, second = self.attention_residual, self.feed_forward_residual
        assert isinstance(first, PreNorm)
        assert isinstance(second, PreNorm)
        attended, transformed = attend(first.norm(x)), self.feed_forward(second.norm(x))
        total: Tensor = x + first.dropout(attended) + second.dropout(transformed)
        return total

    def prefill(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "#B T T"] | Causal
    ) -> tuple[Float[Tensor, "B T D"], KeysValues]:
        """Apply the block to whole prompts. Return its output, and the keys and values to store in a cache."""
        stored: list[KeysValues] = []

        def attend(x: Tensor) -> Tensor:
            query, kv = self.attention.project(x)
            stored.append(kv)
            return self.attention.attend_to_itself(query, kv, restrict_to_window(mask, self.attention.window, x))

        return self._run(x, attend), stored[0]

    def step(self, x: Float[Tensor, "B W D"], prefix_kv: KVCache, layer: int) -> Float[Tensor, "B W D"]:
        """Compute one more position of each beam.

        ``prefix_kv`` contains the earlier positions and has already been advanced. The beams of a sequence are the
        query positions of one batch entry.
        """
        return self._run(x, partial(_attend_to_prefix, self.attention, prefix_kv, layer))


def _causal_window(config: BlockConfig) -> tuple[int, int] | None:
    return None if config.decoder_window is None else (config.decoder_window - 1, 0)


def _attend_to_prefix(
    attention: MultiHeadAttention, prefix_kv: KVCache, layer: int, x: Float[Tensor, "B W D"]
) -> Float[Tensor, "B W D"]:
    """Add each beam's newest position to ``prefix_kv``, and attend from this position to all positions of the beam."""
    if attention.rotary is not None:
        attention.rotary.reserve(prefix_kv.current_max_length)
    query, new = attention.project(x, prefix_kv.lengths - 1)
    stored = prefix_kv.append(layer, new.keys, new.values)
    keys, values = (torch.unflatten(tensor, 0, (len(x), -1)) for tensor in stored)
    bias = None
    if attention.relative_bias is not None:
        newest = (prefix_kv.lengths - 1).view(-1, 1, 1)
        bias = attention.relative_bias(prefix_kv.entry_positions - newest)
    return attention.attend(query, KeysValues(keys, values), prefix_kv.mask, bias)


class DecoderBlock(nn.Module):
    """Masked self-attention, attention over the memory, and feed-forward (section 3.1)."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.attention = _self_attention(config, causal=True, window=_causal_window(config))
        self.attention_residual = _residual(config)
        self.cross_attention = _attention(config)
        self.cross_attention_residual = _residual(config)
        self.feed_forward, self.feed_forward_residual = _feed_forward(config), _residual(config)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "#B T T"] | Causal,
        memory_mask: Bool[Tensor, "#B #T S"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Apply the block to all target positions at once. ``mask`` must be causal."""
        self.attention.check_arguments(x, mask=mask)
        self.cross_attention.check_arguments(x, memory, memory_mask=memory_mask)
        x = self.attention_residual(x, partial(self.attention, mask=mask))
        x = self.cross_attention_residual(x, partial(self.cross_attention, memory=memory, mask=memory_mask))
        transformed: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return transformed

    def step(
        self, x: Float[Tensor, "B W D"], prefix_kv: KVCache, memory_kv: KVCache, layer: int
    ) -> Float[Tensor, "B W D"]:
        """Decode one more position of each beam.

        ``prefix_kv`` contains the earlier positions and has already been advanced. The beams of a sequence are the
        query positions of one batch entry.
        """

        def attend_to_memory(x: Tensor) -> Tensor:
            query = self.cross_attention.project_queries(x)
            keys, values = (torch.unflatten(stored, 0, (len(x), -1)) for stored in memory_kv.entries(layer))
            return self.cross_attention.attend(query, KeysValues(keys, values), memory_kv.mask)

        x = self.attention_residual(x, partial(_attend_to_prefix, self.attention, prefix_kv, layer))
        x = self.cross_attention_residual(x, attend_to_memory)
        transformed: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return transformed


class _Stack(nn.Module):
    """Blocks applied in order. A final norm follows pre-norm blocks, because their outputs are not normalized.

    All blocks share the relative bias of the first block.
    """

    def __init__(self, blocks: Sequence[_SelfAttentionBlock | DecoderBlock], config: BlockConfig) -> None:
        super().__init__()
        self.layer_dropout = config.layer_dropout
        for block in blocks:
            block.attention.relative_bias = blocks[0].attention.relative_bias
        self.blocks = nn.ModuleList(blocks)
        self.norm = make_norm(config) if config.norm == "pre" else nn.Identity()

    def run(self, x: Float[Tensor, "B T D"], *context: Tensor | Causal | DocumentMask | None) -> Float[Tensor, "B T D"]:
        """Call each block with x and ``context``. Training may skip whole blocks (LayerDrop; Fan et al. 2020).

        Random numbers come from the CPU generator, so that they depend only on the step's seed and do not synchronize
        with a GPU.
        """
        drops = self.training and self.layer_dropout > 0
        for block in self.blocks:
            if not (drops and float(torch.rand((), device="cpu")) < self.layer_dropout):
                x = block(x, *context)
        normed: Tensor = self.norm(x)
        return normed


class EncoderStack(_Stack):
    """N encoder blocks (6 in the paper), with a final norm if the blocks are pre-norm.

    ``block_config`` maps a block's index to the block's config. By default, all blocks use ``config``.
    """

    def __init__(
        self, num_layers: int, config: BlockConfig, *, block_config: Callable[[int], BlockConfig] | None = None
    ) -> None:
        configs = map(block_config, range(num_layers)) if block_config else [config] * num_layers
        super().__init__(list(map(EncoderBlock, configs)), config)

    def forward(self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "#B #S S"] | None = None) -> Float[Tensor, "B S D"]:
        """Return the memory, which contains one vector for each position."""
        return self.run(x, mask)


class DecoderStack(_Stack):
    """N decoder blocks (6 in the paper), with a final norm if the blocks are pre-norm."""

    def __init__(self, num_layers: int, config: BlockConfig) -> None:
        super().__init__([DecoderBlock(config) for _ in range(num_layers)], config)
        self.window = config.decoder_window

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "#B T T"] | Causal,
        memory_mask: Bool[Tensor, "#B #T S"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the hidden states from which the output projection predicts each next token."""
        return self.run(x, memory, mask, memory_mask)

    def project_memory(self, memory: Float[Tensor, "B S D"]) -> list[KeysValues]:
        """Return the keys and values of the memory for each block."""
        return [block.cross_attention.project_memory(memory) for block in self._blocks()]

    def make_caches(self, keys_values: list[KeysValues]) -> tuple[KVCache, KVCache]:
        """Return two empty caches for :meth:`step`: one for prefixes, and one for memories like ``keys_values``."""
        return _cache_for(keys_values, self.window), _cache_for(keys_values)

    def step(self, x: Float[Tensor, "B W D"], prefix_kv: KVCache, memory_kv: KVCache) -> Float[Tensor, "B W D"]:
        """Append one more position of each beam to ``prefix_kv``, and return the hidden states of these positions."""
        prefix_kv.advance()
        for layer, block in enumerate(self._blocks()):
            x = block.step(x, prefix_kv, memory_kv, layer)
        normed: Tensor = self.norm(x)
        return normed

    def _blocks(self) -> list[DecoderBlock]:
        return cast("list[DecoderBlock]", list(self.blocks))


class CausalStack(_Stack):
    """The body of a decoder-only language model: N causal blocks, with a final norm if the blocks are pre-norm."""

    def __init__(self, num_layers: int, config: BlockConfig, *, parallel: bool = False) -> None:
        super().__init__([CausalBlock(config, parallel=parallel) for _ in range(num_layers)], config)
        self.window = config.decoder_window

    def forward(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "#B T T"] | Causal | DocumentMask
    ) -> Float[Tensor, "B T D"]:
        """Return the hidden states from which the output projection predicts each next token.

        ``mask`` must be causal.
        """
        return self.run(x, mask)

    def prefill(self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "#B T T"] | Causal) -> list[KeysValues]:
        """Return the keys and values of whole prompts for each block."""
        stored = []
        for block in self._blocks():
            x, kv = block.prefill(x, mask)
            stored.append(kv)
        return stored

    def make_cache(self, stored: Sequence[KeysValues]) -> KVCache:
        """Return an empty cache for keys and values shaped like the results of :meth:`prefill`."""
        return _cache_for(stored, self.window)

    def step(self, x: Float[Tensor, "B W D"], prefix_kv: KVCache) -> Float[Tensor, "B W D"]:
        """Append one more position of each beam to ``prefix_kv``, and return the hidden states of these positions."""
        prefix_kv.advance()
        for layer, block in enumerate(self._blocks()):
            x = block.step(x, prefix_kv, layer)
        normed: Tensor = self.norm(x)
        return normed

    def _blocks(self) -> list[CausalBlock]:
        return cast("list[CausalBlock]", list(self.blocks))


def _cache_for(stored: Sequence[KeysValues], window: int | None = None) -> KVCache:
    """Return an empty cache for keys and values of these shapes, one for each layer."""
    keys, values = stored[0].keys, stored[0].values
    spec = LayerSpec(keys.size(1), keys.size(3), values.size(3))
    return KVCache(len(stored), spec, dtype=keys.dtype, device=keys.device, window=window)
