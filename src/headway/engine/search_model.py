"""The fastest form of a model for search: it computes the same function as the trained model, with rearranged weights.

It differs from :class:`~headway.models.transformer.Transformer` in the following ways, which make it faster:

- Weights are prepared once for a precision: float32, bfloat16, or 8-bit integers with compiled kernels
  (:mod:`headway.kernels`).
- The keys and values of the memory come from one product for all decoder blocks.
- The scale of the queries, 1 / sqrt(d_k), is part of their projection.
- The top tokens are found without a softmax over the vocabulary: logits are computed, ranked and summed in chunks that
  fit the processor's cache.

float32 is the reference: its results agree with the model's up to rounding. Dropout and hooks are not converted, so
code that observes attention must use the model itself. A model is converted only if all its options and modules are
listed here. All other models are searched in their own form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import headway.kernels as kernels
from headway.decode.protocol import SearchModel, Step
from headway.decode.ranking import NextTokens
from headway.engine.shortlist import Shortlist, ShortlistWeights
from headway.engine.torch_backend import Activation, Rows, TorchBackend
from headway.errors import ConfigError
from headway.hardware import has_fast_bfloat16
from headway.models.transformer import Transformer
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import (
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    EncoderStack,
    FeedForward,
    GatedFeedForward,
    NoNorm,
    PostNorm,
    PreNorm,
    gelu_tanh,
)
from headway.nn.cache import KVCache
from headway.nn.dropout import Dropout
from headway.nn.embedding import TokenEmbedding, pad_sequences
from headway.nn.positions import LearnedPositions, NoPositions, RotaryPositions, SinusoidalPositions

Precision = Literal["auto", "float32", "bfloat16", "int8"]

_ANY = None
# Every field of the configuration, with the values that the conversion supports. If a model has a field that is not
# listed, it is not converted.
_SUPPORTED: dict[str, tuple[Any, ...] | None] = {
    "kind": ("transformer",),
    **dict.fromkeys(("d_model", "num_heads", "d_key", "d_value", "d_ff", "encoder_layers", "decoder_layers"), _ANY),
    **dict.fromkeys(("dropout", "attention_dropout", "feed_forward_dropout", "layer_dropout"), _ANY),  # for training
    "activation": ("relu", "gelu", "gelu_tanh", "silu", "glu", "reglu", "geglu", "swiglu"),
    "norm": ("post", "pre", "none"),
    "norm_kind": ("layer",),
    "norm_epsilon": _ANY,
    "bias": ("all",),
    "num_kv_heads": (None,),
    "qk_norm": (False,),
    **dict.fromkeys(("rotary_base", "rotary_fraction", "rotary_scaling"), _ANY),
    "residual": (True, False),
    "score": ("scaled_dot",),
    "qk_projection": ("linear",),
    "positions": ("sinusoidal", "learned", "rotary", "none"),
    **dict.fromkeys(("max_length", "encoder_window", "decoder_window"), _ANY),
    "sinusoid_layout": ("interleaved", "halves"),
    "sinusoid_spacing": ("paper", "inclusive"),
    "position_offset": _ANY,
    "scale_embedding": (True, False),
    "embedding_norm": (True, False),
    "output_bias": (True, False),
    "tie": ("all", "target", "none"),
}
_MODULES: frozenset[type[nn.Module]] = frozenset(
    {
        *(Transformer, EncoderStack, DecoderStack, EncoderBlock, DecoderBlock, MultiHeadAttention),
        *(FeedForward, GatedFeedForward, PostNorm, PreNorm, NoNorm, Dropout, TokenEmbedding),
        *(LearnedPositions, NoPositions, RotaryPositions, SinusoidalPositions),
        *(nn.Linear, nn.LayerNorm, nn.Identity, nn.ModuleList),
    }
)
_ACTIVATIONS: tuple[Activation, ...] = (F.relu, F.gelu, gelu_tanh, F.silu, F.sigmoid)


def choose_precision(name: Precision, device: torch.device) -> Precision:
    """Return ``name``, or the fastest precision on this machine if ``name`` is "auto".

    The fastest is int8 on a CPU if the compiled kernels run (:mod:`headway.kernels`), otherwise bfloat16 if the
    hardware multiplies it, otherwise float32. Raises :class:`ConfigError` if int8 is requested but cannot run.
    """
    int8 = name in ("auto", "int8") and device.type == "cpu" and kernels.available()
    if name == "int8" and not int8:
        raise ConfigError(
            "precision int8 needs an x86 processor with AVX2 and the package numba; use 'auto', 'bfloat16' or 'float32'"
        )
    if name != "auto":
        return name
    if int8:
        return "int8"
    return "bfloat16" if has_fast_bfloat16(device) else "float32"


def to_search_model(
    model: Any, precision: Precision = "float32", *, shortlist: Shortlist | None = None
) -> SearchModel[Any]:
    """Convert a model to its fastest form for search. A model that cannot be converted is returned unchanged.

    Args:
        model: A search model. If it is converted, some weights are shared and some are copied, so it must be converted
            again after further training.
        precision: Precision of the matrix products; see :func:`choose_precision`. Models that are not converted use
            their own precision.
        shortlist: The shortlist from which translations take their tokens. None means the whole vocabulary.

    Raises:
        ConfigError: The shortlist was made for another model, or the model cannot be converted and has a shortlist.
    """
    reason = unsupported_reason(model)
    if reason is None:
        return SearchTransformer(model, precision, shortlist=shortlist)
    if shortlist is not None:
        raise ConfigError(f"cannot use a shortlist: {reason}")
    found: SearchModel[Any] = model
    return found


def unsupported_reason(model: Any) -> str | None:
    """Return why a model cannot be converted for search (it then searches in its own form), or None if it can."""
    if _plain_type(model) is not Transformer:
        kind = getattr(getattr(model, "config", None), "kind", type(model).__name__)
        return (
            f"{kind} models have no form that is optimized for search; the model searches in its own form, in float32"
        )
    ending = "has no form that is optimized for search; the model searches in its own form, in float32"
    for name in type(model.config).model_fields:
        value = getattr(model.config, name)
        values = _SUPPORTED.get(name, ())
        if values is not _ANY and value not in values:
            return f"{name} = {value!r} {ending}"
    for name, module in model.named_modules():
        if _plain_type(module) not in _MODULES:
            return f"{name}, a {type(module).__name__}, {ending}"
        if (
            isinstance(module, MultiHeadAttention)
            and (module.score, module.query_outer, module.key_outer) != (None,) * 3
        ):
            return f"{name}, an attention layer with a non-default score function or a hidden layer, {ending}"
        if isinstance(module, (FeedForward, GatedFeedForward)) and module.activation not in _ACTIVATIONS:
            return f"{name}, with the activation {module.activation}, {ending}"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"{name or 'the model'}, with a hook that must be called, {ending}"
    return None


def describe_search_form(model: Any) -> str:
    """Describe whether searches use an optimized form of ``model``, and if not, why."""
    reason = unsupported_reason(model)
    return "optimized, in float32, bfloat16 or int8" if reason is None else f"plain: {reason}"


def _plain_type(module: object) -> type:
    """Return the class of a module, or its original class if :mod:`headway.engine` has replaced it."""
    found = type(module)
    while found.__module__.startswith("headway.engine."):
        found = found.__mro__[1]
    return found


class _FeedForwardLayer:
    """A feed-forward sub-layer without its last linear layer."""

    def __init__(self, module: nn.Module, backend: TorchBackend) -> None:
        assert isinstance(module, (FeedForward, GatedFeedForward))
        self.outer = module.outer
        self._backend = backend
        self._gate: Activation | None = None
        if isinstance(module, GatedFeedForward):
            self._gate = module.activation
            weight, bias = (torch.cat([getattr(x, name) for x in (module.gate, module.inner)]) for name in _PARAMETERS)
            self._inner = backend.linear(weight, bias)
        else:
            self._inner = backend.linear(module.inner.weight, module.inner.bias, module.activation)

    def __call__(self, x: Rows) -> Rows:
        inner = self._inner(x)
        return inner if self._gate is None else self._backend.gate(inner, self._gate)


_PARAMETERS = ("weight", "bias")


def _scaled_projection(attention: MultiHeadAttention) -> tuple[Tensor, Tensor | None]:
    """Return the joint projection's weight and bias, with 1 / sqrt(d_k) in the rows of the queries."""
    scale = torch.ones(sum(attention.widths), device=attention.projection.weight.device)
    scale[: attention.widths[0]] = attention.d_key**-0.5
    bias: Tensor | None = attention.projection.bias
    return attention.projection.weight * scale.unsqueeze(1), None if bias is None else bias * scale


def _norm_before(wrapper: nn.Module, backend: TorchBackend) -> Callable[[Rows], Rows]:
    norm = backend.norm(wrapper.norm) if isinstance(wrapper, PreNorm) else None
    return norm or (lambda x: x)


class _EncoderLayer:
    """An encoder block, applied to the rows of all sequences, including padding."""

    def __init__(self, block: EncoderBlock, backend: TorchBackend) -> None:
        attention = block.attention
        self._backend, self._heads, self._widths = backend, attention.num_heads, list(attention.widths)
        self._rotary, self._window = attention.rotary, attention.window
        self._projection = backend.linear(attention.projection.weight, attention.projection.bias)
        self._feed_forward = _FeedForwardLayer(block.feed_forward, backend)
        self._norms = [_norm_before(x, backend) for x in (block.attention_residual, block.feed_forward_residual)]
        self._attention_output = backend.output_layer(attention.output, block.attention_residual)
        self._feed_forward_output = backend.output_layer(self._feed_forward.outer, block.feed_forward_residual)

    def __call__(self, x: Rows, lengths: Sequence[int]) -> Rows:
        rows, rotary = self._projection(self._norms[0](x)), self._rotary
        if rotary is not None:
            self._backend.rotate(
                *(rows, self._widths, self._heads, len(rows) // len(lengths)),
                lambda x: rotary(x.transpose(1, 2)).transpose(1, 2),
            )
        attended = self._backend.self_attention(rows, self._widths, self._heads, lengths, self._window)
        x = self._attention_output(attended, x)
        return self._feed_forward_output(self._feed_forward(self._norms[1](x)), x)


class _DecoderLayer:
    """A decoder block, applied to one new token of each row."""

    def __init__(self, block: DecoderBlock, backend: TorchBackend) -> None:
        attention, cross = block.attention, block.cross_attention
        self._backend, self._heads = backend, attention.num_heads
        self._widths, self._cross_widths = list(attention.widths), list(cross.widths)
        self._projection = backend.linear(*_scaled_projection(attention))
        weight, bias = _scaled_projection(cross)
        queries = cross.widths[0]
        self._cross_query = backend.linear(weight[:queries], None if bias is None else bias[:queries])
        self._feed_forward = _FeedForwardLayer(block.feed_forward, backend)
        wrappers = block.attention_residual, block.cross_attention_residual, block.feed_forward_residual
        self._norms = [_norm_before(wrapper, backend) for wrapper in wrappers]
        self._attention_output = backend.output_layer(attention.output, block.attention_residual)
        self._cross_output = backend.output_layer(cross.output, block.cross_attention_residual)
        self._feed_forward_output = backend.output_layer(self._feed_forward.outer, block.feed_forward_residual)

    def __call__(self, x: Rows, state: _State, layer: int, mask: Any, rotation: Activation | None) -> Rows:
        """Apply the block. ``mask`` is the mask of the prefixes, and ``rotation`` applies rotary positions, if any."""
        backend, prefix, memory = self._backend, state.prefix_kv, state.memory_kv
        rows = self._projection(self._norms[0](x))
        if rotation is not None:
            backend.rotate(rows, self._widths, self._heads, prefix.beams, rotation)
        x = self._attention_output(backend.prefix_attention(rows, self._widths, prefix, layer, mask), x)
        query = self._cross_query(self._norms[1](x))
        x = self._cross_output(backend.cross_attention(query, self._cross_widths, memory, layer, state.memory_mask), x)
        return self._feed_forward_output(self._feed_forward(self._norms[2](x)), x)


@dataclass
class _State:
    """The state between decoding steps: the keys and values of the prefixes and of the memory, and the shortlists."""

    prefix_kv: KVCache
    memory_kv: KVCache
    memory_mask: Any = None  # in the form that the backend's attention takes
    shortlist_weights: ShortlistWeights | None = None


class SearchTransformer:
    """A search model with the current weights of ``model``. For the arguments, see :func:`to_search_model`.

    Raises:
        ConfigError: The model cannot be converted (:func:`unsupported_reason`), or the shortlist is for another model.
    """

    def __init__(
        self, model: Transformer, precision: Precision = "float32", *, shortlist: Shortlist | None = None
    ) -> None:
        if reason := unsupported_reason(model):
            raise ConfigError(reason)
        if shortlist is not None:
            shortlist.check(model.source_embedding.weight.size(0), model.target_embedding.weight.size(0))
        self.precision = choose_precision(precision, model.device)
        self._model, self._backend = model, backend = model, _backend(self.precision)
        with torch.inference_mode():
            encoder = [block for block in model.encoder.blocks if isinstance(block, EncoderBlock)]
            decoder = [block for block in model.decoder.blocks if isinstance(block, DecoderBlock)]
            self._encoder = [_EncoderLayer(block, backend) for block in encoder]
            self._decoder = [_DecoderLayer(block, backend) for block in decoder]
            self._encoder_norm, self._decoder_norm = backend.norm(model.encoder.norm), backend.norm(model.decoder.norm)
            cross = [block.cross_attention for block in decoder]
            self._memory_widths = [width for attention in cross for width in attention.widths[1:]]
            self._memory_projection = backend.linear(
                torch.cat([attention.projection.weight[attention.widths[0] :] for attention in cross]),
                torch.cat([attention.projection.bias[attention.widths[0] :] for attention in cross]),
            )
            self.projection = backend.output_projection(model.projection)
            self._shortlist = shortlist
            self.shortlist_projection = backend.shortlist_projection(model.projection) if shortlist else None
        self._rotary = decoder[0].attention.rotary
        self._layers = [
            [backend.kv_spec(x.num_heads, x.d_key, x.d_value) for x in group]
            for group in ([block.attention for block in decoder], cross)
        ]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._model.device

    @property
    def max_length(self) -> int | None:
        """The longest sequence that the positions allow, in tokens including EOS. None means no limit."""
        return self._model.max_length

    @property
    def vocabulary_size(self) -> int:
        """The size of the target vocabulary, V."""
        return self._model.projection.out_features

    @property
    def batch_per_thread(self) -> bool:
        """Whether several batches should be decoded at once, each in a thread (:func:`~headway.decode.search_all`)."""
        return self._backend.batch_per_thread

    @torch.inference_mode()
    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> _State:
        """Encode the sources and begin decoding, with ``beams`` rows for each source."""
        window = self._model.decoder.window
        prefix, memory = (
            KVCache(layers, dtype=self._backend.dtype, device=self.device, window=each)
            for layers, each in zip(self._layers, (window, None), strict=True)
        )
        state = _State(prefix, memory)
        self._admit(state, sources, beams)
        return state

    @torch.inference_mode()
    def admit(self, state: _State, sources: Sequence[Sequence[int]]) -> None:
        """Encode more sources and append them to ``state``, with the same number of rows for each source."""
        self._admit(state, sources, state.prefix_kv.beams)

    def _admit(self, state: _State, sources: Sequence[Sequence[int]], beams: int) -> None:
        backend, lengths = self._backend, [len(source) for source in sources]
        source = pad_sequences(sources, self._model.pad, self.device)
        x = backend.to_rows(self._model.embed_source(source).flatten(0, 1))
        for layer in self._encoder:
            x = layer(x, lengths)
        if self._encoder_norm is not None:
            x = self._encoder_norm(x)
        state.memory_kv.admit(lengths, beams=1)
        backend.write_memory(self._memory_projection(x), self._memory_widths, state.memory_kv, len(sources))
        state.memory_mask = backend.mask(state.memory_kv)
        state.prefix_kv.admit([0] * len(sources), beams=beams)
        if self._shortlist is not None and self.shortlist_projection is not None:
            listed = self.shortlist_projection.gather(self._shortlist.allowed_tokens(sources).to(self.device))
            if state.shortlist_weights is None:
                state.shortlist_weights = listed
            else:
                state.shortlist_weights.append(listed)

    @torch.inference_mode()
    def step(self, state: _State, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next. The attention weights are never returned."""
        prefix, positions, rotation = state.prefix_kv, state.prefix_kv.lengths, None
        self._model.target_positions.reserve(prefix.current_max_length + 1)
        if self._rotary is not None:
            self._rotary.reserve(prefix.current_max_length + 1)
            rotary = self._rotary
            rotation = lambda x: rotary.rotate_at(x, positions)  # noqa: E731
        of_rows = positions if prefix.beams == 1 else positions.repeat_interleave(prefix.beams)
        x = self._backend.to_rows(self._model.embed_target_at(tokens, of_rows))
        prefix.advance()
        mask = self._backend.mask(prefix)
        for layer, block in enumerate(self._decoder):
            x = block(x, state, layer, mask, rotation)
        return _HiddenStep(self, x if self._decoder_norm is None else self._decoder_norm(x), state)

    @torch.inference_mode()
    def select(self, state: _State, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None) -> None:
        """Make row i continue the old row ``rows[i]`` of its sequence. Keep only ``sequences``; None keeps all."""
        state.prefix_kv.select(rows, sequences)
        if sequences is not None:
            state.memory_kv.select(sequences, sequences)
            state.memory_mask = self._backend.mask(state.memory_kv)
            if state.shortlist_weights is not None:
                state.shortlist_weights.keep(sequences)


class _HiddenStep(Step):
    """A prediction from the decoder's last hidden states, which computes logits or only the top tokens on request."""

    def __init__(self, model: SearchTransformer, hidden: Rows, state: _State) -> None:
        self.attention = None
        self._model, self._hidden, self._state = model, hidden, state

    @torch.inference_mode()
    def logits(self) -> Float[Tensor, "R V"]:
        """Return the logits of all tokens."""
        return self._model.projection.logits(self._hidden)

    @torch.inference_mode()
    def top_k(self, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return the ``k`` most probable tokens of each row that are not ``banned``, and the log-probability of EOS."""
        shortlist_projection, listed = self._model.shortlist_projection, self._state.shortlist_weights
        if shortlist_projection is not None and listed is not None:
            return shortlist_projection.top_k(self._hidden, listed, k, banned, eos)
        return self._model.projection.top_k(self._hidden, k, banned, eos)

    @torch.inference_mode()
    def allowed(self) -> Bool[Tensor, "B V"] | None:
        """Return a mask of the tokens in each sequence's shortlist, or None if there is no shortlist."""
        if self._state.shortlist_weights is None:
            return None
        tokens = self._state.shortlist_weights.tensors[0][self._state.shortlist_weights.slots].flatten(1)
        allowed = torch.zeros(len(tokens), self._model.vocabulary_size, dtype=torch.bool, device=tokens.device)
        allowed.scatter_(1, tokens, True)[:, 0] = False  # token 0 pads the lists
        return allowed


def _backend(precision: Precision) -> TorchBackend:
    if precision == "int8":
        from headway.engine.int8 import Int8Backend  # imports Numba

        return Int8Backend()
    return TorchBackend(torch.bfloat16 if precision == "bfloat16" else torch.float32)
