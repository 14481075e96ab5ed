"""Search models: fast versions of trained models that compute the same function with rearranged weights.

They differ from the models in :mod:`headway.models` in the following ways, which make them faster:

- Weights are prepared once for a precision: float32, bfloat16, or 8-bit integers with compiled kernels
  (:mod:`headway.kernels`).
- One matrix product computes the keys and values of the memory for all decoder blocks.
- The query scale, 1 / sqrt(d_k), is part of the query projection.
- In 8-bit integers, the gains and biases of norms that feed only linear layers are part of these layers
  (:mod:`headway.engine.norm_folding`).
- A language model does not compute the last block's output for prompts, because only its keys and values are needed.
- On a CPU, prefixes that several prompts of a batch share are computed once.
- The top tokens are found without a softmax over the vocabulary: logits are computed, ranked and summed in chunks that
  fit the processor's cache.

float32 is the reference: its results agree with the model's up to rounding. Dropout and hooks are not converted, so
code that observes attention must use the model itself. A model is converted only if all its options and modules are
supported (:mod:`headway.engine.search_support`). All other models are searched without conversion.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.decode.inference import in_inference_mode
from headway.decode.protocol import SearchModel, Step
from headway.decode.ranking import NextTokens
from headway.engine.prompts import PromptRows
from headway.engine.rows import DecodingStep, SourceRows, StepRows
from headway.engine.search_layers import (
    CausalLayer,
    DecoderLayer,
    EncoderLayer,
    apply_norm,
    build_norm_and_linear,
    build_norm_and_projection,
    transform_each_head,
)
from headway.engine.search_support import Precision, original_type, search_precision, unsupported_reason
from headway.engine.shortlist import Shortlist, ShortlistWeights
from headway.engine.torch_backend import Activation, Layer, OutputProjection, Rows, TorchBackend
from headway.errors import ConfigError
from headway.models.decoder_only import DecoderOnly, PrefixState
from headway.models.transformer import Transformer
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import CausalBlock, DecoderBlock, EncoderBlock
from headway.nn.cache import KVCache
from headway.nn.embedding import pad_sequences
from headway.nn.positions import RelativeBias, RotaryPositions

ModelT = TypeVar("ModelT", bound=Transformer | DecoderOnly)
StateT = TypeVar("StateT", bound=PrefixState)


def to_search_model(
    model: Any, precision: Precision = "float32", *, shortlist: Shortlist | None = None
) -> SearchModel[Any]:
    """Convert a model to its fastest version for search. A model that cannot be converted is returned unchanged.

    Args:
        model: A model that can be searched. The converted model shares some weights and copies others, so the model
            must be converted again after further training.
        precision: Precision of the matrix products; see :func:`~headway.engine.search_support.choose_precision`.
            Models that cannot be converted use their own precision.
        shortlist: The shortlist that restricts the tokens of translations. None means the whole vocabulary.

    Raises:
        ConfigError: The shortlist was made for another model, or it is given for a model that cannot be converted.
    """
    reason = unsupported_reason(model)
    if reason is None and original_type(model) is Transformer:
        return SearchTransformer(model, precision, shortlist=shortlist)
    if shortlist is not None:
        raise ConfigError(f"cannot use a shortlist: {reason or 'only translation models have shortlists'}")
    if reason is None:
        return SearchDecoderOnly(model, precision)
    unchanged: SearchModel[Any] = model
    return unchanged


class _ConvertedModel(ABC, Generic[ModelT, StateT]):
    """Base class of the search models, which decode with layers built by a backend.

    Raises:
        ConfigError: The model cannot be converted (:func:`~headway.engine.search_support.unsupported_reason`), or the
            model or the machine does not support the precision.
    """

    def __init__(self, model: ModelT, precision: Precision, backend: TorchBackend | None) -> None:
        if reason := unsupported_reason(model):
            raise ConfigError(reason)
        self.precision = search_precision(model, precision, model.device)
        self._model: ModelT = model
        self._backend = backend or _backend(model, self.precision)
        self._decoder: Callable[[Rows, DecodingStep], Rows]
        self._decoder_norm: Layer | None
        self._rotary: RotaryPositions | None
        self._relative_bias: RelativeBias | None

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._model.device

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length that the positions support, in tokens including EOS or BOS. None means no limit."""
        return self._model.max_length

    @property
    def batch_per_thread(self) -> bool:
        """Whether to decode several batches in parallel, one per thread (:func:`~headway.decode.search_all`)."""
        return self._backend.batch_per_thread

    def to_rows(self, x: Float[Tensor, "R K"]) -> Rows:
        """Return rows in the backend's representation."""
        return self._backend.to_rows(x)

    @in_inference_mode
    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> StateT:
        """Encode the sources and begin decoding, with ``beams`` rows for each source."""
        state = self._new_state()
        self._admit(state, sources, beams)
        return state

    @in_inference_mode
    def admit(self, state: StateT, sources: Sequence[Sequence[int]]) -> None:
        """Encode more sources and append them to ``state``, with the same number of rows for each source."""
        self._admit(state, sources, state.prefix_kv.beams)

    @in_inference_mode
    def step(self, state: StateT, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next. Attention weights are never returned."""
        prefix = state.prefix_kv
        self._reserve_positions(prefix.current_max_length + 1)
        step_rows = StepRows(prefix.num_sequences, prefix.beams, prefix.num_new if self._backend.has_single_rows else 0)
        positions = step_rows.beams_to_rows(prefix.lengths.repeat_interleave(prefix.beams))
        rotation = _rotation(self._rotary, positions, prefix)
        x = self._backend.to_rows(self._embed(step_rows.beams_to_rows(tokens), positions))
        prefix.advance(step_rows.num_new)
        entries, bias = self._backend.prefix_entries(prefix, step_rows), None
        if self._relative_bias is not None:
            newest = (prefix.lengths - 1).view(-1, 1, 1)
            bias = self._relative_bias(prefix.entry_positions - newest).to(self._backend.dtype)
        x = self._decoder(x, DecodingStep(step_rows, prefix, entries, *self._memory(state), rotation, bias))
        return self._predict(apply_norm(self._decoder_norm, x), step_rows, state)

    @in_inference_mode
    def reorder_rows(
        self, state: StateT, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None
    ) -> None:
        """Make row i continue the old row ``rows[i]`` of its sequence. Keep only ``sequences``; None keeps all."""
        state.prefix_kv.select(rows, sequences)
        if sequences is not None:
            self._keep_sources(state, sequences)

    def explain_nan(self, state: StateT) -> str | None:
        """Return why predictions after ``state`` are NaN despite finite weights, or None if there is no such reason."""
        if self._backend.dtype != torch.float16 or not all(
            parameter.isfinite().all() for parameter in self._model.parameters() if not parameter.is_meta
        ):
            return None
        fault = "exceed the range of the 16-bit floats in which int8 decoding stores them; use precision 'float32'"
        memory_kv, _ = self._memory(state)
        if memory_kv is not None and memory_kv.first_layer_with_nan() is not None:
            return f"keys or values of the source {fault}"
        layer = state.prefix_kv.first_layer_with_nan()
        return None if layer is None else f"keys or values in decoder layer {layer + 1} {fault}"

    @abstractmethod
    def _new_state(self) -> StateT:
        """Return a state without sequences."""

    @abstractmethod
    def _admit(self, state: StateT, sources: Sequence[Sequence[int]], beams: int) -> None:
        """Encode sources and append them to ``state``, with ``beams`` rows for each source."""

    @abstractmethod
    def _reserve_positions(self, length: int) -> None:
        """Extend the position table to at least ``length`` positions."""

    @abstractmethod
    def _embed(self, tokens: Int[Tensor, " R"], positions: Int[Tensor, " R"]) -> Float[Tensor, "R D"]:
        """Return the embeddings of tokens at these positions."""

    @abstractmethod
    def _predict(self, hidden: Rows, step_rows: StepRows, state: StateT) -> Step:
        """Return the prediction from the last hidden states."""

    def _memory(self, state: StateT) -> tuple[KVCache | None, Any]:
        """Return the keys and values of the sources, and their entries in the backend's representation."""
        return None, None

    def _keep_sources(self, state: StateT, sequences: Int[Tensor, " B2"]) -> None:
        """Remove the data of all sources except those of ``sequences`` from ``state``."""

    def _new_cache(self, num_layers: int, attention: MultiHeadAttention, window: int | None = None) -> KVCache:
        """Return an empty cache for layers with the same head sizes as ``attention``."""
        backend = self._backend
        spec = backend.kv_spec(attention.num_kv_heads, attention.d_key, attention.d_value)
        return KVCache(
            num_layers,
            spec,
            dtype=backend.dtype,
            device=self.device,
            window=window,
            masked_must_be_finite=backend.masked_must_be_finite,
        )


@dataclass
class _MemoryState(PrefixState):
    """The state between decoding steps: the keys and values of the prefixes and of the memory, and the shortlists."""

    memory_kv: KVCache
    memory_entries: Any = None  # in the backend's representation
    shortlist_weights: ShortlistWeights | None = None


class SearchTransformer(_ConvertedModel[Transformer, _MemoryState]):
    """A search model with the current weights of ``model``. See :func:`to_search_model` for the arguments.

    ``backend`` builds the layers. By default, the precision determines the backend.

    Raises:
        ConfigError: The model cannot be converted (:func:`~headway.engine.search_support.unsupported_reason`), or the
            shortlist was made for another model.
    """

    def __init__(
        self,
        model: Transformer,
        precision: Precision = "float32",
        *,
        shortlist: Shortlist | None = None,
        backend: TorchBackend | None = None,
    ) -> None:
        super().__init__(model, precision, backend)
        if shortlist is not None:
            shortlist.check_vocabulary_sizes(model.source_embedding.vocab_size, model.target_embedding.vocab_size)
        backend = self._backend
        with torch.inference_mode():
            encoder = [block for block in model.encoder.blocks if isinstance(block, EncoderBlock)]
            decoder = [block for block in model.decoder.blocks if isinstance(block, DecoderBlock)]
            self._encoder = backend.encoder([EncoderLayer(block, backend) for block in encoder])
            self._decoder = backend.decoder([DecoderLayer(block, backend) for block in decoder])
            cross = [block.cross_attention for block in decoder]
            self._memory_widths = [width for attention in cross for width in attention.widths[1:]]
            weight, bias = backend.concatenate_layers([_memory_parameters(backend, attention) for attention in cross])
            self._encoder_norm, self._memory_projection = build_norm_and_linear(
                backend, model.encoder.norm, weight, bias
            )
            self._key_norms = [attention.key_norm for attention in cross]
            self._memory_heads = cross[0].num_kv_heads
            self._decoder_norm, projection = build_norm_and_projection(backend, model.decoder.norm, model.projection)
            self.projection = backend.output_projection(projection)
            self._shortlist = shortlist
            self.shortlist_projection = backend.shortlist_projection(projection) if shortlist else None
        self._rotary, self._relative_bias = decoder[0].attention.rotary, decoder[0].attention.relative_bias

    @property
    def vocabulary_size(self) -> int:
        """Size of the target vocabulary, V."""
        return self._model.projection.out_features

    def _new_state(self) -> _MemoryState:
        decoder = self._model.decoder
        block, layers = decoder.blocks[0], len(decoder.blocks)
        assert isinstance(block, DecoderBlock)
        return _MemoryState(
            self._new_cache(layers, block.attention, decoder.window), self._new_cache(layers, block.cross_attention)
        )

    def _admit(self, state: _MemoryState, sources: Sequence[Sequence[int]], beams: int) -> None:
        """Encode the sources and append them to ``state``."""
        backend, lengths = self._backend, [len(source) for source in sources]
        source_rows = SourceRows.pack(lengths, self.device)
        source = pad_sequences(sources, self._model.pad, self.device)
        x = backend.to_rows(source_rows.unpad(self._model.embed_source(source).flatten(0, 1)))
        x = apply_norm(self._encoder_norm, self._encoder(x, source_rows))
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
                transform_each_head(self._backend, rows[:, column : column + keys], heads, norm)
            column += keys + values
        return rows

    def _reserve_positions(self, length: int) -> None:
        self._model.target_positions.reserve(length)

    def _embed(self, tokens: Int[Tensor, " R"], positions: Int[Tensor, " R"]) -> Float[Tensor, "R D"]:
        return self._model.embed_target_at(tokens, positions)

    def _memory(self, state: _MemoryState) -> tuple[KVCache, Any]:
        return state.memory_kv, state.memory_entries

    def _predict(self, hidden: Rows, step_rows: StepRows, state: _MemoryState) -> Step:
        return _HiddenStep(self, hidden, step_rows, state)

    def _keep_sources(self, state: _MemoryState, sequences: Int[Tensor, " B2"]) -> None:
        state.memory_kv.select(sequences, sequences)
        state.memory_entries = self._backend.memory_entries(state.memory_kv)
        if state.shortlist_weights is not None:
            state.shortlist_weights.select(sequences)


class _ProjectedStep(Step):
    """A prediction from the last hidden states that computes all logits or only the top tokens on request."""

    def __init__(self, projection: OutputProjection, hidden: Rows, rows: StepRows) -> None:
        self.attention = None
        self._projection, self._hidden, self._rows = projection, hidden, rows

    @in_inference_mode
    def logits(self) -> Float[Tensor, "R V"]:
        """Return the logits of all tokens."""
        return self._rows.rows_to_beams(self._projection.logits(self._hidden))

    @in_inference_mode
    def top_k(self, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return the ``k`` most probable tokens of each row that are not ``banned``, and the log-probability of EOS."""
        return self._rows.next_tokens_to_beams(self._projection.top_k(self._hidden, k, banned, eos))


class _HiddenStep(_ProjectedStep):
    """A prediction that is restricted to the sequences' shortlists, if there are any."""

    def __init__(self, model: SearchTransformer, hidden: Rows, rows: StepRows, state: _MemoryState) -> None:
        super().__init__(model.projection, hidden, rows)
        self._model, self._state = model, state

    @in_inference_mode
    def top_k(self, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return the ``k`` most probable tokens of each row that are not ``banned``, and the log-probability of EOS."""
        shortlist_projection, listed = self._model.shortlist_projection, self._state.shortlist_weights
        if shortlist_projection is not None and listed is not None:
            hidden = self._model.to_rows(self._rows.rows_to_beams(torch.as_tensor(self._hidden)))
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


class SearchDecoderOnly(_ConvertedModel[DecoderOnly, PrefixState]):
    """A search model with the current weights of a decoder-only ``model``. Its sources are prompts."""

    def __init__(
        self, model: DecoderOnly, precision: Precision = "float32", *, backend: TorchBackend | None = None
    ) -> None:
        super().__init__(model, precision, backend)
        backend = self._backend
        blocks = [block for block in model.decoder.blocks if isinstance(block, CausalBlock)]
        with torch.inference_mode():
            self._layers = [CausalLayer(block, backend) for block in blocks]
            self._decoder = backend.decoder(self._layers)
            self._decoder_norm, projection = build_norm_and_projection(backend, model.decoder.norm, model.projection)
            self._projection = backend.output_projection(projection)
        self._rotary, self._relative_bias = blocks[0].attention.rotary, blocks[0].attention.relative_bias

    def _new_state(self) -> PrefixState:
        decoder = self._model.decoder
        block = decoder.blocks[0]
        assert isinstance(block, CausalBlock)
        return PrefixState(self._new_cache(len(decoder.blocks), block.attention, decoder.window))

    def _admit(self, state: PrefixState, sources: Sequence[Sequence[int]], beams: int) -> None:
        """Process the prompts and append them to ``state``."""
        lengths = [len(source) for source in sources]
        state.prefix_kv.admit(lengths, beams=beams)
        if not any(lengths):
            return
        prompts = PromptRows.pack(sources, self._model.pad, self.device)
        positions = None if prompts.positions is None else prompts.positions.unsqueeze(1)
        # ``embed`` would reserve only one position, because it is called with given positions.
        self._model.positions.reserve(max(lengths))
        x = self._backend.to_rows(self._model.embed(prompts.tokens, positions).flatten(0, 1))
        for number, layer in enumerate(self._layers):
            only_store = number == len(self._layers) - 1  # the output of the last block is not needed
            x = layer.prefill(x, prompts, state.prefix_kv, number, only_store=only_store)

    def _reserve_positions(self, length: int) -> None:
        self._model.positions.reserve(length)

    def _embed(self, tokens: Int[Tensor, " R"], positions: Int[Tensor, " R"]) -> Float[Tensor, "R D"]:
        return self._model.embed_next(tokens, positions)

    def _predict(self, hidden: Rows, step_rows: StepRows, state: PrefixState) -> Step:
        return _ProjectedStep(self._projection, hidden, step_rows)


def _memory_parameters(backend: TorchBackend, attention: MultiHeadAttention) -> tuple[Tensor, Tensor | None]:
    """Return the weight and bias that project a memory to keys and values."""
    weight, bias = backend.parameters_of(attention.projection)
    queries = attention.widths[0]
    return weight[queries:], None if bias is None else bias[queries:]


def _rotation(rotary: RotaryPositions | None, positions: Int[Tensor, " R"], prefix_kv: KVCache) -> Activation | None:
    """Return the function that rotates queries and keys to each row's position, or None if positions are not rotary."""
    if rotary is None:
        return None
    rotary.reserve(prefix_kv.current_max_length + 1)
    return lambda x: rotary.rotate_at(x, positions)


def _backend(model: Transformer | DecoderOnly, precision: Precision) -> TorchBackend:
    if precision == "int8":
        from headway.engine.int8 import Int8Backend  # imports Numba
        from headway.engine.stored_int8 import StoredInt8Backend

        return Int8Backend() if model.int8_weights is None else StoredInt8Backend(model.int8_weights)
    return TorchBackend(torch.bfloat16 if precision == "bfloat16" else torch.float32)
