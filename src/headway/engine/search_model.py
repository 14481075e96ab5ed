"""The fastest form of a model for search: it computes the same function as the trained model, with rearranged weights.

It differs from :class:`~headway.models.transformer.Transformer` in the following ways, which make it faster:

- Weights are prepared once for a precision: float32, bfloat16, or 8-bit integers with compiled kernels
  (:mod:`headway.kernels`).
- The keys and values of the memory come from one product for all decoder blocks.
- The scale of the queries, 1 / sqrt(d_k), is part of their projection.
- In 8-bit integers, the gains and biases of norms that feed only linear layers are part of these layers
  (:mod:`headway.engine.norm_folding`).
- A language model does not compute the outputs of the last block for a prompt, of which it needs only keys and values.
- On a CPU, beginnings that several prompts of a batch share are computed once.
- The top tokens are found without a softmax over the vocabulary: logits are computed, ranked and summed in chunks that
  fit the processor's cache.

float32 is the reference: its results agree with the model's up to rounding. Dropout and hooks are not converted, so
code that observes attention must use the model itself. A model is converted only if all its options and modules are
listed here. All other models are searched in their own form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import headway.kernels as kernels
from headway.decode.inference import in_inference_mode
from headway.decode.protocol import SearchModel, Step
from headway.decode.ranking import NextTokens
from headway.engine.decoding_step import DecodingStep, StepRows
from headway.engine.prompts import PromptRows
from headway.engine.shortlist import Shortlist, ShortlistWeights
from headway.engine.source_rows import SourceRows
from headway.engine.torch_backend import (
    Activation,
    HeadLayout,
    Layer,
    OutputProjection,
    PlainBlock,
    Rows,
    TorchBackend,
)
from headway.errors import ConfigError
from headway.hardware import has_fast_bfloat16
from headway.models.decoder_only import DecoderOnly, PrefixState
from headway.models.transformer import Transformer
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import (
    CausalBlock,
    CausalStack,
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
from headway.nn.norms import RMSNorm
from headway.nn.positions import LearnedPositions, NoPositions, RotaryPositions, SinusoidalPositions
from headway.torch_internals import has_forward_hooks, hooks_are_visible

Precision = Literal["auto", "float32", "bfloat16", "int8"]
ModelT = TypeVar("ModelT", bound=Transformer | DecoderOnly)

_ANY = None
# Every field of the configuration, with the values that the conversion supports. If a model has a field that is not
# listed, it is not converted.
_SUPPORTED: dict[str, tuple[Any, ...] | None] = {
    "kind": ("transformer", "decoder_only"),
    **dict.fromkeys(("d_model", "num_heads", "d_key", "d_value", "d_ff", "encoder_layers", "decoder_layers"), _ANY),
    **dict.fromkeys(("dropout", "attention_dropout", "feed_forward_dropout", "layer_dropout"), _ANY),  # for training
    "activation": ("relu", "gelu", "gelu_tanh", "silu", "glu", "reglu", "geglu", "swiglu"),
    "norm": ("post", "pre", "none"),
    "norm_kind": ("layer", "rms"),
    "norm_epsilon": _ANY,
    "bias": ("all", "qkv", "none"),
    "num_kv_heads": _ANY,
    "qk_norm": (False, True),
    "parallel": (False, True),
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
        *(DecoderOnly, CausalStack, CausalBlock),
        *(FeedForward, GatedFeedForward, PostNorm, PreNorm, NoNorm, Dropout, TokenEmbedding),
        *(LearnedPositions, NoPositions, RotaryPositions, SinusoidalPositions),
        *(nn.Linear, nn.LayerNorm, RMSNorm, nn.Identity, nn.ModuleList),
    }
)
_ACTIVATIONS: tuple[Activation, ...] = (F.relu, F.gelu, gelu_tanh, F.silu, F.sigmoid)


def choose_precision(name: Precision, device: torch.device) -> Precision:
    """Return ``name``, or the fastest precision on this machine if ``name`` is "auto".

    The fastest is int8 on a CPU if the compiled kernels run (:mod:`headway.kernels`), otherwise bfloat16 if the
    hardware multiplies it, otherwise float32. Raises :class:`ConfigError` if int8 is requested but cannot run.
    """
    if name == "int8" and device.type != "cpu":
        raise ConfigError(f"precision int8 does not exist on {device.type}; use --device cpu or --precision auto")
    int8 = name in ("auto", "int8") and device.type == "cpu" and kernels.available()
    if name == "int8" and not int8:
        raise ConfigError(
            f"precision int8 cannot run: {kernels.unavailable_reason()}; use 'auto', 'bfloat16' or 'float32'"
        )
    if name != "auto":
        return name
    if int8:
        return "int8"
    return fastest_float_precision(device)


def fastest_float_precision(device: torch.device) -> Precision:
    """Return bfloat16 if the hardware multiplies it fast, otherwise float32."""
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
    if reason is None and _plain_type(model) is Transformer:
        return SearchTransformer(model, precision, shortlist=shortlist)
    if shortlist is not None:
        raise ConfigError(f"cannot use a shortlist: {reason or 'only translation models have shortlists'}")
    if reason is None:
        return SearchDecoderOnly(model, precision)
    found: SearchModel[Any] = model
    return found


def unsupported_reason(model: Any) -> str | None:
    """Return why a model cannot be converted for search (it then searches in its own form), or None if it can."""
    if _plain_type(model) not in (Transformer, DecoderOnly):
        kind = getattr(getattr(model, "config", None), "kind", type(model).__name__)
        return (
            f"{kind} models have no form that is optimized for search; the model searches in its own form, in float32"
        )
    ending = "has no form that is optimized for search; the model searches in its own form, in float32"
    if not hooks_are_visible():
        return f"a model whose hooks this version of PyTorch does not show {ending}"
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
        if has_forward_hooks(module):
            return f"{name or 'the model'}, with a hook that must be called, {ending}"
    return None


def describe_search_form(model: Any) -> str:
    """Describe whether searches use an optimized form of ``model``, and if not, why."""
    if reason := unsupported_reason(model):
        return f"plain: {reason}"
    if reason := kernels.unavailable_reason():
        return f"optimized, in float32 or bfloat16; not in int8 ({reason})"
    return "optimized, in float32, bfloat16 or int8"


def _plain_type(module: object) -> type:
    """Return the class of a module, or its original class if :mod:`headway.engine` has replaced it."""
    found = type(module)
    while found.__module__.startswith("headway.engine."):
        found = found.__mro__[1]
    return found


class _FeedForwardLayer:
    """A feed-forward sub-layer: the norm before it, its layers, the residual connection and the norm after it."""

    def __init__(self, module: nn.Module, wrapper: nn.Module, backend: TorchBackend) -> None:
        assert isinstance(module, (FeedForward, GatedFeedForward))
        self._backend, norm = backend, _norm_before(wrapper)
        self.gate: Activation | None = None
        if isinstance(module, GatedFeedForward):
            self.gate, both = module.activation, [module.gate, module.inner]
            weight, bias = torch.cat([layer.weight for layer in both]), _joined_bias(both)
            self.norm, self.inner = _norm_and_linear(backend, norm, weight, bias)
        else:
            inner = module.inner
            self.norm, self.inner = _norm_and_linear(backend, norm, inner.weight, inner.bias, module.activation)
        self.output = backend.output_layer(module.outer, wrapper)  # type: ignore[arg-type]

    def __call__(self, x: Rows, residual: Rows | None = None) -> Rows:
        """Apply the sub-layer to ``x``. The residual connection adds ``residual``, by default ``x``."""
        rows = self.inner(_apply(self.norm, x))
        if self.gate is not None:
            rows = self._backend.gate(rows, self.gate)
        return self.output(rows, x if residual is None else residual)


class _SelfAttentionLayer:
    """A sub-layer of self-attention. If it is ``scaled``, the projection scales the queries."""

    def __init__(self, module: MultiHeadAttention, wrapper: nn.Module, backend: TorchBackend, *, scaled: bool) -> None:
        self.layout = _layout(module)
        self.rotary, self.window, self._backend = module.rotary, module.window, backend
        weight, bias = _scaled_projection(module) if scaled else (module.projection.weight, module.projection.bias)
        self.norm, self.projection = _norm_and_linear(backend, _norm_before(wrapper), weight, bias)
        self.output = backend.output_layer(module.output, wrapper)  # type: ignore[arg-type]
        self._query_norm, self._key_norm = module.query_norm, module.key_norm
        self._query_scale = module.d_key**-0.5 if scaled else 1.0
        self.missing_scale = 1.0 if scaled else module.d_key**-0.5

    @property
    def is_plain(self) -> bool:
        """Whether nothing but a scale is applied to queries and keys between the projection and attention."""
        return self.rotary is None and self._query_norm is None

    def encode(self, x: Rows, sources: SourceRows) -> Rows:
        """Attend from all positions of each sequence to all of them."""
        rotary, rotation = self.rotary, None
        if rotary is not None:
            rotary.reserve(max(sources.lengths))
            rotation = lambda heads: rotary.rotate_at(heads, sources.positions)  # noqa: E731
        rows = self._transform(self.projection(_apply(self.norm, x)), 1, rotation)
        return self.output(self._backend.self_attention(rows, self.layout, sources, self.window), x)

    def prefill(self, x: Rows, prompts: PromptRows, prefix_kv: KVCache, layer: int, *, only_store: bool) -> Rows:
        """Attend from all positions of each prompt to those before it, and store keys and values in ``prefix_kv``."""
        rotary, positions, backend = self.rotary, prompts.positions, self._backend
        if rotary is None or positions is None:
            rotation, sequence_rows = self._rotate_all(), len(x) // len(prompts.spans)
        else:
            rotary.reserve(prompts.max_length)
            rotation, sequence_rows = (lambda heads: rotary.rotate_at(heads, positions)), 1
        rows = self._transform(self.projection(_apply(self.norm, x)), sequence_rows, rotation)
        backend.write_prompts(rows, self.layout, prompts, prefix_kv, layer)
        if only_store:
            return x
        return self.output(backend.causal_attention(rows, self.layout, prompts, self.window), x)

    def step(self, x: Rows, layer: int, step: DecodingStep) -> Rows:
        """Attend from one new position of each row."""
        rows = self._transform(self.projection(_apply(self.norm, x)), 1, step.rotation)
        return self.output(self._backend.prefix_attention(rows, self.layout, layer, step), x)

    def _rotate_all(self) -> Activation | None:
        rotary = self.rotary
        return None if rotary is None else lambda x: rotary(x.transpose(1, 2)).transpose(1, 2)

    def _transform(self, rows: Rows, sequence_rows: int, rotation: Activation | None) -> Rows:
        """Norm and rotate the queries and keys in ``rows``."""
        query_norm, key_norm = self._query_norm, self._key_norm
        if query_norm is not None and key_norm is not None:
            norms = (lambda heads: query_norm(heads) * self._query_scale, key_norm)
            self._backend.transform_heads(rows, self.layout, sequence_rows, norms)
        if rotation is not None:
            self._backend.transform_heads(rows, self.layout, sequence_rows, (rotation, rotation))
        return rows


class _EncoderLayer:
    """An encoder block, applied to the rows of all sequences."""

    def __init__(self, block: EncoderBlock, backend: TorchBackend) -> None:
        self._attention = _SelfAttentionLayer(block.attention, block.attention_residual, backend, scaled=False)
        self._feed_forward = _FeedForwardLayer(block.feed_forward, block.feed_forward_residual, backend)

    def __call__(self, x: Rows, sources: SourceRows) -> Rows:
        """Apply the block."""
        return self._feed_forward(self._attention.encode(x, sources))

    def plain(self) -> PlainBlock | None:
        """Return the layers of the block, or None if it contains anything else."""
        has_window = self._attention.window is not None
        return None if has_window else _plain_self_attention_block(self._attention, self._feed_forward)


class _DecoderLayer:
    """A decoder block, applied to one new token of each row."""

    def __init__(self, block: DecoderBlock, backend: TorchBackend) -> None:
        cross = block.cross_attention
        self._backend = backend
        self._attention = _SelfAttentionLayer(block.attention, block.attention_residual, backend, scaled=True)
        self._layout = _layout(cross)
        weight, bias = _scaled_projection(cross)
        queries, norm = cross.widths[0], _norm_before(block.cross_attention_residual)
        bias = None if bias is None else bias[:queries]
        self._norm, self._query = _norm_and_linear(backend, norm, weight[:queries], bias)
        self._query_norm, self._query_scale = cross.query_norm, cross.d_key**-0.5
        self._output = backend.output_layer(cross.output, block.cross_attention_residual)
        self._feed_forward = _FeedForwardLayer(block.feed_forward, block.feed_forward_residual, backend)

    def __call__(self, x: Rows, layer: int, step: DecodingStep) -> Rows:
        """Apply the block, which is the decoder's number ``layer``."""
        x = self._attention.step(x, layer, step)
        query = self._query(_apply(self._norm, x))
        norm, layout = self._query_norm, self._layout
        if norm is not None:
            _transform_each_head(self._backend, query, layout.num_heads, lambda heads: norm(heads) * self._query_scale)
        return self._feed_forward(self._output(self._backend.cross_attention(query, layout, layer, step), x))

    def plain(self) -> PlainBlock | None:
        """Return the layers of the block, or None if it contains anything else."""
        attention, feed_forward = self._attention, self._feed_forward
        if not attention.is_plain or self._query_norm is not None or feed_forward.gate is not None:
            return None
        return PlainBlock(
            norms=(attention.norm, self._norm, feed_forward.norm),
            linear=(attention.projection, self._query, feed_forward.inner),
            output=(attention.output, self._output, feed_forward.output),
            layouts=(attention.layout, self._layout),
        )


class _CausalLayer:
    """A causal block of a language model, applied to whole prompts or to one new token of each row."""

    def __init__(self, block: CausalBlock, backend: TorchBackend) -> None:
        self._attention = _SelfAttentionLayer(block.attention, block.attention_residual, backend, scaled=True)
        self._feed_forward = _FeedForwardLayer(block.feed_forward, block.feed_forward_residual, backend)
        self._parallel = block.parallel

    def prefill(self, x: Rows, prompts: PromptRows, prefix_kv: KVCache, layer: int, *, only_store: bool) -> Rows:
        """Apply the block to prompts, and store their keys and values, or do only that."""
        attended = self._attention.prefill(x, prompts, prefix_kv, layer, only_store=only_store)
        return x if only_store else self._feed_forward(x if self._parallel else attended, attended)

    def __call__(self, x: Rows, layer: int, step: DecodingStep) -> Rows:
        """Apply the block, which is the decoder's number ``layer``, to a new token of each row."""
        attended = self._attention.step(x, layer, step)
        return self._feed_forward(x if self._parallel else attended, attended)

    def plain(self) -> PlainBlock | None:
        """Return the layers of the block, or None if it contains anything else."""
        return None if self._parallel else _plain_self_attention_block(self._attention, self._feed_forward)


def _plain_self_attention_block(attention: _SelfAttentionLayer, feed_forward: _FeedForwardLayer) -> PlainBlock | None:
    """Return the layers of a block without cross-attention, or None if it contains anything else."""
    if not attention.is_plain or feed_forward.gate is not None:
        return None
    return PlainBlock(
        norms=(attention.norm, feed_forward.norm),
        linear=(attention.projection, feed_forward.inner),
        output=(attention.output, feed_forward.output),
        layouts=(attention.layout,),
        query_scale=attention.missing_scale,
    )


def _layout(attention: MultiHeadAttention) -> HeadLayout:
    width = attention.num_heads * attention.d_value
    return HeadLayout(attention.num_heads, attention.num_kv_heads, attention.widths, width)


def _scaled_projection(attention: MultiHeadAttention) -> tuple[Tensor, Tensor | None]:
    """Return the joint projection's weight and bias, with 1 / sqrt(d_k) in the rows of the queries.

    Queries that are normed are scaled after their norm.
    """
    bias: Tensor | None = attention.projection.bias
    if attention.query_norm is not None:
        return attention.projection.weight, bias
    scale = torch.ones(sum(attention.widths), device=attention.projection.weight.device)
    scale[: attention.widths[0]] = attention.d_key**-0.5
    return attention.projection.weight * scale.unsqueeze(1), None if bias is None else bias * scale


def _transform_each_head(backend: TorchBackend, rows: Rows, heads: int, transform: Activation) -> None:
    """Transform rows (R, H * K) in place, each head on its own."""
    backend.transform_heads(rows, HeadLayout(heads, 1, (rows.shape[1], 0, 0), 0), 1, [transform])


def _joined_bias(layers: Sequence[nn.Linear]) -> Tensor | None:
    """Return the biases of layers one after the other, or None if they have none."""
    return None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])


def _norm_before(wrapper: nn.Module) -> nn.Module | None:
    """Return the norm before a sub-layer, or None."""
    return wrapper.norm if isinstance(wrapper, PreNorm) else None


def _norm_and_linear(
    backend: TorchBackend,
    norm: nn.Module | None,
    weight: Float[Tensor, "N K"],
    bias: Float[Tensor, " N"] | None,
    activation: Activation | None = None,
) -> tuple[Layer | None, Layer]:
    """Return a norm, or None, and the linear layer after it."""
    norm, weight, bias = backend.fold_norm(norm, weight, bias)
    return None if norm is None else backend.norm(norm), backend.linear(weight, bias, activation)


def _norm_and_projection(
    backend: TorchBackend, norm: nn.Module, projection: nn.Linear
) -> tuple[Layer | None, nn.Linear]:
    """Return the final norm of a stack, and the output projection after it, which is a copy if the norm is folded."""
    folded_norm, weight, bias = backend.fold_norm(norm, projection.weight, projection.bias)
    if weight is not projection.weight:
        projection = nn.Linear(weight.size(1), weight.size(0), bias=bias is not None, device="meta")
        projection.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            projection.bias = nn.Parameter(bias, requires_grad=False)
    assert folded_norm is not None
    return backend.norm(folded_norm), projection


def _apply(norm: Layer | None, x: Rows) -> Rows:
    return x if norm is None else norm(x)


@dataclass
class _State:
    """The state between decoding steps: the keys and values of the prefixes and of the memory, and the shortlists."""

    prefix_kv: KVCache
    memory_kv: KVCache
    memory_entries: Any = None  # in the form that the backend's attention takes
    shortlist_weights: ShortlistWeights | None = None


class _ConvertedModel(Generic[ModelT]):
    """Base class of the search models: the model that they were converted from, and the backend that computes.

    Raises:
        ConfigError: The model cannot be converted (:func:`unsupported_reason`), or the machine does not support the
            precision.
    """

    def __init__(self, model: ModelT, precision: Precision) -> None:
        if reason := unsupported_reason(model):
            raise ConfigError(reason)
        self.precision = choose_precision(precision, model.device)
        self._model: ModelT = model
        self._backend = _backend(self.precision)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._model.device

    @property
    def max_length(self) -> int | None:
        """The longest sequence that the positions allow, in tokens with EOS or BOS. None means no limit."""
        return self._model.max_length

    @property
    def batch_per_thread(self) -> bool:
        """Whether several batches should be decoded at once, each in a thread (:func:`~headway.decode.search_all`)."""
        return self._backend.batch_per_thread

    def to_rows(self, x: Float[Tensor, "R K"]) -> Rows:
        """Return rows in the backend's representation."""
        return self._backend.to_rows(x)

    def explain_nan(self, state: _State | PrefixState) -> str | None:
        """Return why predictions after ``state`` are NaN although all weights are finite, or None if they are not."""
        if self._backend.dtype != torch.float16 or not all(each.isfinite().all() for each in self._model.parameters()):
            return None
        fault = "exceed the range of the 16-bit floats in which int8 decoding stores them; use precision 'float32'"
        if isinstance(state, _State) and state.memory_kv.first_layer_with_nan() is not None:
            return f"keys or values of the source {fault}"
        layer = state.prefix_kv.first_layer_with_nan()
        return None if layer is None else f"keys or values in decoder layer {layer + 1} {fault}"

    def _new_cache(self, num_layers: int, attention: MultiHeadAttention, window: int | None = None) -> KVCache:
        """Return an empty cache for layers like ``attention``."""
        backend = self._backend
        spec = backend.kv_spec(attention.num_kv_heads, attention.d_key, attention.d_value)
        dtype, reads_masked = backend.dtype, backend.reads_masked
        return KVCache(num_layers, spec, dtype=dtype, device=self.device, window=window, reads_masked=reads_masked)

    def _step_rows(self, prefix_kv: KVCache) -> StepRows:
        """Return the rows of the next step."""
        num_new = prefix_kv.num_new if self._backend.has_single_rows else 0
        return StepRows(prefix_kv.num_sequences, prefix_kv.beams, num_new)


class SearchTransformer(_ConvertedModel[Transformer]):
    """A search model with the current weights of ``model``. For the arguments, see :func:`to_search_model`.

    Raises:
        ConfigError: The model cannot be converted (:func:`unsupported_reason`), or the shortlist is for another model.
    """

    def __init__(
        self, model: Transformer, precision: Precision = "float32", *, shortlist: Shortlist | None = None
    ) -> None:
        super().__init__(model, precision)
        if shortlist is not None:
            shortlist.check(model.source_embedding.weight.size(0), model.target_embedding.weight.size(0))
        backend = self._backend
        with torch.inference_mode():
            encoder = [block for block in model.encoder.blocks if isinstance(block, EncoderBlock)]
            decoder = [block for block in model.decoder.blocks if isinstance(block, DecoderBlock)]
            self._encoder = backend.encoder([_EncoderLayer(block, backend) for block in encoder])
            self._decoder = backend.decoder([_DecoderLayer(block, backend) for block in decoder])
            cross = [block.cross_attention for block in decoder]
            self._memory_widths = [width for attention in cross for width in attention.widths[1:]]
            weight = torch.cat([attention.projection.weight[attention.widths[0] :] for attention in cross])
            bias = None
            if model.config.bias != "none":
                bias = torch.cat([attention.projection.bias[attention.widths[0] :] for attention in cross])
            self._encoder_norm, self._memory_projection = _norm_and_linear(backend, model.encoder.norm, weight, bias)
            self._key_norms = [attention.key_norm for attention in cross]
            self._memory_heads = cross[0].num_kv_heads
            self._decoder_norm, projection = _norm_and_projection(backend, model.decoder.norm, model.projection)
            self.projection = backend.output_projection(projection)
            self._shortlist = shortlist
            self.shortlist_projection = backend.shortlist_projection(projection) if shortlist else None
        self._rotary = decoder[0].attention.rotary

    @property
    def vocabulary_size(self) -> int:
        """The size of the target vocabulary, V."""
        return self._model.projection.out_features

    @in_inference_mode
    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> _State:
        """Encode the sources and begin decoding, with ``beams`` rows for each source."""
        decoder = self._model.decoder
        block, layers = decoder.blocks[0], len(decoder.blocks)
        assert isinstance(block, DecoderBlock)
        state = _State(
            self._new_cache(layers, block.attention, decoder.window), self._new_cache(layers, block.cross_attention)
        )
        self._admit(state, sources, beams)
        return state

    @in_inference_mode
    def admit(self, state: _State, sources: Sequence[Sequence[int]]) -> None:
        """Encode more sources and append them to ``state``, with the same number of rows for each source."""
        self._admit(state, sources, state.prefix_kv.beams)

    def _admit(self, state: _State, sources: Sequence[Sequence[int]], beams: int) -> None:
        backend, lengths = self._backend, [len(source) for source in sources]
        source_rows = SourceRows.pack(lengths, self.device)
        source = pad_sequences(sources, self._model.pad, self.device)
        x = backend.to_rows(source_rows.unpad(self._model.embed_source(source).flatten(0, 1)))
        x = self._encoder(x, source_rows)
        if self._encoder_norm is not None:
            x = self._encoder_norm(x)
        state.memory_kv.admit(lengths, beams=1)
        backend.write_memory(self._memory_rows(x), self._memory_widths, state.memory_kv, source_rows)
        state.memory_entries = backend.memory_entries(state.memory_kv)
        state.prefix_kv.admit([0] * len(sources), beams=beams)
        if self._shortlist is not None and self.shortlist_projection is not None:
            listed = self.shortlist_projection.gather(self._shortlist.allowed_tokens(sources).to(self.device))
            if state.shortlist_weights is None:
                state.shortlist_weights = listed
            else:
                state.shortlist_weights.append(listed)

    def _memory_rows(self, x: Rows) -> Rows:
        """Return the keys and values of the memory for all layers, side by side."""
        rows, column = self._memory_projection(x), 0
        for layer, norm in enumerate(self._key_norms):
            keys, values = self._memory_widths[2 * layer : 2 * layer + 2]
            if norm is not None:
                heads = self._memory_heads
                _transform_each_head(self._backend, rows[:, column : column + keys], heads, norm)
            column += keys + values
        return rows

    @in_inference_mode
    def step(self, state: _State, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next. The attention weights are never returned."""
        prefix = state.prefix_kv
        self._model.target_positions.reserve(prefix.current_max_length + 1)
        step_rows = self._step_rows(prefix)
        positions = step_rows.distinct(prefix.lengths.repeat_interleave(prefix.beams))
        rotation = _rotation(self._rotary, positions, prefix)
        x = self._backend.to_rows(self._model.embed_target_at(step_rows.distinct(tokens), positions))
        prefix.advance(step_rows.num_new)
        entries, memory = self._backend.prefix_entries(prefix, step_rows), (state.memory_kv, state.memory_entries)
        x = self._decoder(x, DecodingStep(step_rows, prefix, entries, *memory, rotation))
        return _HiddenStep(self, x if self._decoder_norm is None else self._decoder_norm(x), step_rows, state)

    @in_inference_mode
    def select(self, state: _State, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None) -> None:
        """Make row i continue the old row ``rows[i]`` of its sequence. Keep only ``sequences``; None keeps all."""
        state.prefix_kv.select(rows, sequences)
        if sequences is not None:
            state.memory_kv.select(sequences, sequences)
            state.memory_entries = self._backend.memory_entries(state.memory_kv)
            if state.shortlist_weights is not None:
                state.shortlist_weights.keep(sequences)


class _ProjectedStep(Step):
    """A prediction from the last hidden states, which computes logits or only the top tokens on request."""

    def __init__(self, projection: OutputProjection, hidden: Rows, rows: StepRows) -> None:
        self.attention = None
        self._projection, self._hidden, self._rows = projection, hidden, rows

    @in_inference_mode
    def logits(self) -> Float[Tensor, "R V"]:
        """Return the logits of all tokens."""
        return self._rows.expand(self._projection.logits(self._hidden))

    @in_inference_mode
    def top_k(self, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return the ``k`` most probable tokens of each row that are not ``banned``, and the log-probability of EOS."""
        return self._rows.expand_tokens(self._projection.top_k(self._hidden, k, banned, eos))


class _HiddenStep(_ProjectedStep):
    """A prediction within the sequences' shortlists, if there are any."""

    def __init__(self, model: SearchTransformer, hidden: Rows, rows: StepRows, state: _State) -> None:
        super().__init__(model.projection, hidden, rows)
        self._model, self._state = model, state

    @in_inference_mode
    def top_k(self, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return the ``k`` most probable tokens of each row that are not ``banned``, and the log-probability of EOS."""
        shortlist_projection, listed = self._model.shortlist_projection, self._state.shortlist_weights
        if shortlist_projection is not None and listed is not None:
            hidden = self._model.to_rows(self._rows.expand(torch.as_tensor(self._hidden)))
            return shortlist_projection.top_k(hidden, listed, k, banned, eos)
        return super().top_k(k, banned, eos)

    @in_inference_mode
    def allowed(self) -> Bool[Tensor, "B V"] | None:
        """Return a mask of the tokens in each sequence's shortlist, or None if there is no shortlist."""
        if self._state.shortlist_weights is None:
            return None
        tokens = self._state.shortlist_weights.tensors[0][self._state.shortlist_weights.slots].flatten(1)
        allowed = torch.zeros(len(tokens), self._model.vocabulary_size, dtype=torch.bool, device=tokens.device)
        allowed.scatter_(1, tokens, True)[:, 0] = False  # token 0 pads the lists
        return allowed


class SearchDecoderOnly(_ConvertedModel[DecoderOnly]):
    """A search model with the current weights of a decoder-only ``model``, whose sources are prompts."""

    def __init__(self, model: DecoderOnly, precision: Precision = "float32") -> None:
        super().__init__(model, precision)
        backend = self._backend
        blocks = [block for block in model.decoder.blocks if isinstance(block, CausalBlock)]
        with torch.inference_mode():
            self._layers = [_CausalLayer(block, backend) for block in blocks]
            self._decoder = backend.decoder(self._layers)
            norm, projection = _norm_and_projection(backend, model.decoder.norm, model.projection)
            self._norm = norm or (lambda x: x)
            self._projection = backend.output_projection(projection)
        self._rotary = blocks[0].attention.rotary

    @in_inference_mode
    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> PrefixState:
        """Read the prompts and begin decoding, with ``beams`` rows for each."""
        decoder = self._model.decoder
        block = decoder.blocks[0]
        assert isinstance(block, CausalBlock)
        state = PrefixState(self._new_cache(len(decoder.blocks), block.attention, decoder.window))
        self._admit(state, sources, beams)
        return state

    @in_inference_mode
    def admit(self, state: PrefixState, sources: Sequence[Sequence[int]]) -> None:
        """Read more prompts and append them to ``state``, with as many rows each as the others have."""
        self._admit(state, sources, state.prefix_kv.beams)

    def _admit(self, state: PrefixState, sources: Sequence[Sequence[int]], beams: int) -> None:
        lengths = [len(source) for source in sources]
        state.prefix_kv.admit(lengths, beams=beams)
        if not any(lengths):
            return
        prompts = PromptRows.pack(sources, self._model.pad, self.device)
        positions = None if prompts.positions is None else prompts.positions.unsqueeze(1)
        self._model.positions.reserve(max(lengths))  # given positions, embed reserves only one
        x = self._backend.to_rows(self._model.embed(prompts.tokens, positions).flatten(0, 1))
        for number, layer in enumerate(self._layers):
            only_store = number == len(self._layers) - 1  # no output of the last block is needed
            x = layer.prefill(x, prompts, state.prefix_kv, number, only_store=only_store)

    @in_inference_mode
    def step(self, state: PrefixState, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next. ``Step.attention`` is None: there is no source."""
        prefix = state.prefix_kv
        self._model.positions.reserve(prefix.current_max_length + 1)
        step_rows = self._step_rows(prefix)
        positions = step_rows.distinct(prefix.lengths.repeat_interleave(prefix.beams))
        rotation = _rotation(self._rotary, positions, prefix)
        x = self._backend.to_rows(self._model.embed_next(step_rows.distinct(tokens), positions))
        prefix.advance(step_rows.num_new)
        entries = self._backend.prefix_entries(prefix, step_rows)
        x = self._decoder(x, DecodingStep(step_rows, prefix, entries, rotation=rotation))
        return _ProjectedStep(self._projection, self._norm(x), step_rows)

    @in_inference_mode
    def select(self, state: PrefixState, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None) -> None:
        """Make row i continue the old row ``rows[i]`` of its sequence. Keep only ``sequences``; None keeps all."""
        state.prefix_kv.select(rows, sequences)


def _rotation(rotary: RotaryPositions | None, positions: Int[Tensor, " R"], prefix_kv: KVCache) -> Activation | None:
    """Return the rotation of queries and keys at the position of each row, if positions are rotary."""
    if rotary is None:
        return None
    rotary.reserve(prefix_kv.current_max_length + 1)
    return lambda x: rotary.rotate_at(x, positions)


def _backend(precision: Precision) -> TorchBackend:
    if precision == "int8":
        from headway.engine.int8 import Int8Backend  # imports Numba

        return Int8Backend()
    return TorchBackend(torch.bfloat16 if precision == "bfloat16" else torch.float32)
