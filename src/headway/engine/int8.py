"""The backend for searches in 8-bit integers, which uses the compiled kernels (:mod:`headway.kernels`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Float32, Int, Int8
from torch import Tensor, nn
from torch.nn import functional as F

from headway.decode.ranking import NextTokens, top_tokens
from headway.engine.int8_blocks import (
    Bits,
    CacheEntries,
    CompiledBlocks,
    Indices,
    contiguous_entries,
    empty_keys_values,
    kv_bits,
)
from headway.engine.norm_folding import fold_norm
from headway.engine.prompts import PromptRows, prompt_attention
from headway.engine.rows import DecodingStep, SourceRows, StepRows
from headway.engine.shortlist import ShortlistWeights
from headway.engine.torch_backend import (
    Activation,
    DecodingBlock,
    EncodingBlock,
    HeadLayout,
    Layer,
    OutputLayer,
    OutputProjection,
    ResidualWrapper,
    Rows,
    ShortlistProjection,
    TorchBackend,
)
from headway.kernels.activations import gelu_tanh
from headway.kernels.decode_attention import attend, padded_width, write_keys_and_values, write_kv
from headway.kernels.int8_gemm import BLOCK, accumulator_init, pack_weight_rows, quantize_weight
from headway.kernels.int8_linear import LayerNormParams, QuantizedLinear, quantize_rows
from headway.kernels.jit import uses_one_thread
from headway.kernels.vocab_topk import topk_logits, topk_projection, topk_projection_per_sentence
from headway.nn import blocks
from headway.nn.blocks import PostNorm
from headway.nn.cache import KVCache, LayerSpec
from headway.nn.norms import RMSNorm
from headway.nn.positions import RelativeBias

Array = npt.NDArray[np.float32]

# Up to this source length, the kernel computes self-attention; beyond it, PyTorch's products are faster. The choice and
# the rounding depend only on the sequence's own length, never on the padding.
_KERNEL_LENGTH = 64
_MAX_TOP_K = 64  # the largest k that the kernel supports
# Minimum number of elements in keys and values for several threads. Reading fewer is as fast as starting the threads.
_MIN_PARALLEL_KV = 1 << 18
_ROWS_TOGETHER = 16  # up to this many rows, threads compute all logits together before ranking them


class Int8Backend(TorchBackend):
    """A CPU backend with weights in 8-bit integers and everything else in float32.

    Rows are NumPy arrays. Keys and values are stored as 16-bit floats. The results of a row depend only on its own
    sequence, bit for bit.
    """

    batch_per_thread = True
    masked_must_be_finite = False
    has_single_rows = True

    def __init__(self) -> None:
        self.dtype = torch.float16  # data type of stored keys and values

    def to_rows(self, x: Float[Tensor, "R K"]) -> Rows:  # noqa: D102
        return x.float().contiguous().numpy()

    def linear(  # noqa: D102
        self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, activation: Activation | None = None
    ) -> Layer:
        relu = activation is F.relu
        layer = self.quantized_linear(weight, bias, relu=relu)
        if activation is None or relu:
            return layer
        if activation is blocks.gelu_tanh:
            return lambda x: gelu_tanh(layer(x))
        return lambda x: activation(torch.from_numpy(layer(x))).numpy()

    def output_layer(self, layer: nn.Linear, wrapper: ResidualWrapper) -> OutputLayer:  # noqa: D102
        norm = _norm(wrapper.norm) if isinstance(wrapper, PostNorm) else None
        product = self.quantized_linear(*self.parameters_of(layer), norm=norm)
        return product if wrapper.residual else (lambda x, _: product(x))

    def norm(self, module: nn.Module) -> Layer | None:  # noqa: D102
        return _norm(module)  # type: ignore[return-value]  # mypy overlooks that this tuple can be called

    def fold_norm(  # noqa: D102
        self, norm: nn.Module | None, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None
    ) -> tuple[nn.Module | None, Float[Tensor, "N K"], Float[Tensor, " N"] | None]:
        if norm is None or isinstance(norm, nn.Identity):
            return norm, weight, bias
        return fold_norm(norm, weight, bias)

    def quantized_linear(
        self,
        weight: Float[Tensor, "N K"],
        bias: Float[Tensor, " N"] | None,
        *,
        relu: bool = False,
        norm: LayerNormParams | None = None,
    ) -> QuantizedLinear:
        """Return the layer x W^T + b in 8-bit integers, followed by ReLU or by the residual connection and ``norm``."""
        return QuantizedLinear(_array(weight), None if bias is None else _array(bias), relu=relu, norm=norm)

    def output_projection(self, projection: nn.Linear) -> OutputProjection:  # noqa: D102
        return Int8OutputProjection(self.quantized_linear(*self.parameters_of(projection)))

    def shortlist_projection(self, projection: nn.Linear) -> ShortlistProjection:  # noqa: D102
        bias = cast("Tensor | None", projection.bias)
        return Int8ShortlistProjection(
            *quantize_weight(_array(projection.weight)), None if bias is None else _array(bias)
        )

    def apply_gate(self, rows: Rows, activation: Activation) -> Rows:  # noqa: D102
        return super().apply_gate(torch.from_numpy(rows), activation).numpy()

    def transform_heads(  # noqa: D102
        self, rows: Rows, layout: HeadLayout, sequence_rows: int, transforms: Sequence[Callable[[Tensor], Tensor]]
    ) -> None:
        super().transform_heads(torch.from_numpy(rows), layout, sequence_rows, transforms)

    def kv_spec(self, heads: int, key_width: int, value_width: int) -> LayerSpec:  # noqa: D102
        return LayerSpec(heads, padded_width(key_width), padded_width(value_width))

    def prefix_entries(self, cache: KVCache, rows: StepRows) -> CacheEntries:  # noqa: D102
        entries, newest = (rows.beams_to_rows(x.flatten(0, 1)).numpy() for x in (cache.table, cache.newest))
        ends = cache.lengths.numpy()
        starts = np.zeros_like(ends) if cache.window is None else np.maximum(ends - cache.window, 0)
        return CacheEntries(cache.slots.numpy(), entries, np.stack([starts, ends], 1), newest)

    def memory_entries(self, cache: KVCache) -> CacheEntries:  # noqa: D102
        return contiguous_entries(cache.slots.numpy(), cache.lengths.numpy(), cache.keys.size(2))

    def self_attention(  # noqa: D102
        self,
        rows: Rows,
        layout: HeadLayout,
        sources: SourceRows,
        window: tuple[int, int] | None = None,
        relative_bias: RelativeBias | None = None,
    ) -> Rows:
        assert relative_bias is None, "search_support.py lists no relative bias for int8"
        if window is not None:
            return super().self_attention(rows, layout, sources, window)
        rows[:, : layout.widths[0]] *= np.float32((layout.widths[0] // layout.num_heads) ** -0.5)
        spans, lengths = sources.spans, np.array(sources.lengths)
        out = np.empty((len(rows), layout.output_width), dtype=np.float32)
        for first, end in spans[lengths > _KERNEL_LENGTH]:
            query, key, value = layout.split_by_head(torch.from_numpy(rows[None, first:end]))
            heads_out = torch.bmm(torch.bmm(query[0], key[0].mT).softmax(-1), value[0])
            out[first:end] = heads_out.transpose(0, 1).flatten(1).numpy()
        is_short = lengths <= _KERNEL_LENGTH
        if is_short.any():
            self._short_self_attention(rows, layout, sources, is_short, out)
        return out

    def _short_self_attention(
        self, rows: Array, layout: HeadLayout, sources: SourceRows, is_short: npt.NDArray[np.bool_], out: Array
    ) -> None:
        """Write the self-attention of the short sentences to ``out``."""
        spans, lengths = sources.spans[is_short], np.array(sources.lengths)[is_short]
        count, longest = len(lengths), int(lengths.max())
        keys, values = empty_keys_values(count, longest, layout.num_kv_heads, layout.widths[1:])
        entries = contiguous_entries(np.arange(count), lengths, longest)
        _write_keys_values(rows, layout, keys, values, entries.slots, spans, sources.positions.numpy())
        _attend(rows, layout, keys, values, spans, entries, out)

    def causal_attention(  # noqa: D102
        self,
        rows: Rows,
        layout: HeadLayout,
        prompts: PromptRows,
        window: tuple[int, int] | None,
        relative_bias: RelativeBias | None = None,
    ) -> Rows:
        assert relative_bias is None, "search_support.py lists no relative bias for int8"
        # Compute in blocks even if prompts share no prefix, so that sharing does not change the rounding.
        query, key, value = (part.squeeze(1) for part in layout.split(torch.from_numpy(rows).unsqueeze(1)))
        return prompt_attention(query, key, value, prompts, window).flatten(1).numpy()

    def write_prompts(  # noqa: D102
        self, rows: Rows, layout: HeadLayout, prompts: PromptRows, prefix_kv: KVCache, layer: int
    ) -> None:
        keys, values = (stored[layer] for stored in prefix_kv.convert_once(kv_bits))
        slots = prefix_kv.newest_slots(len(prompts.spans)).numpy()
        if prompts.positions is None:
            count, length = len(slots), len(rows) // len(slots)
            first = length * np.arange(count)
            spans, positions = np.stack([first, first + length], 1), np.tile(np.arange(length), count)
            _write_keys_values(rows, layout, keys, values, slots, spans, positions)
            return
        for span in prompts.spans:
            for stored in (keys, values):
                by_slot = stored.reshape(-1, layout.num_kv_heads, *stored.shape[1:])
                by_slot[slots[span.prompt], :, : span.shared] = by_slot[slots[span.shared_with], :, : span.shared]
            if span.length > span.shared:
                slot = slots[span.prompt : span.prompt + 1]
                span_rows = np.array([[span.own_rows.start, span.own_rows.stop]])
                _write_keys_values(rows, layout, keys, values, slot, span_rows, prompts.positions.numpy())

    def prefix_attention(self, rows: Rows, layout: HeadLayout, layer: int, step: DecodingStep) -> Rows:  # noqa: D102
        entries, spans = step.prefix_entries, step.rows.spans
        keys, values = (stored[layer] for stored in step.prefix_kv.convert_once(kv_bits))
        _write_keys_values(rows, layout, keys, values, entries.slots, spans, entries.newest)
        out = np.empty((len(rows), layout.output_width), dtype=np.float32)
        _attend(rows, layout, keys, values, spans, entries, out)
        return out

    def write_memory(self, rows: Rows, widths: Sequence[int], memory_kv: KVCache, sources: SourceRows) -> None:  # noqa: D102
        column, slots, heads = 0, memory_kv.newest_slots(len(sources.lengths)).numpy(), memory_kv.spec.kv_heads
        stored, positions = memory_kv.convert_once(kv_bits), sources.positions.numpy()
        for layer in range(memory_kv.num_layers):
            for kv, width in zip(stored, widths[2 * layer :], strict=False):
                write_kv(rows, column, width // heads, heads, kv[layer], slots, sources.spans, positions)
                column += width

    def cross_attention(self, query: Rows, layout: HeadLayout, layer: int, step: DecodingStep) -> Rows:  # noqa: D102
        assert step.memory_kv is not None
        keys, values = (stored[layer] for stored in step.memory_kv.convert_once(kv_bits))
        out = np.empty((len(query), layout.output_width), dtype=np.float32)
        _attend(query, layout, keys, values, step.rows.spans, step.memory_entries, out)
        return out

    def encoder(self, blocks: Sequence[EncodingBlock]) -> Callable[[Rows, SourceRows], Rows]:  # noqa: D102
        one_by_one, compiled = super().encoder(blocks), CompiledBlocks.from_blocks(blocks)

        def apply(x: Rows, sources: SourceRows) -> Rows:
            if compiled is None or max(sources.lengths) > _KERNEL_LENGTH or not uses_one_thread():
                return one_by_one(x, sources)
            return compiled.encode(x, sources.spans, _own_entries(sources))

        return apply

    def decoder(self, blocks: Sequence[DecodingBlock]) -> Callable[[Rows, DecodingStep], Rows]:  # noqa: D102
        one_by_one, compiled = super().decoder(blocks), CompiledBlocks.from_blocks(blocks)
        if compiled is None:
            return one_by_one
        return lambda x, step: compiled.decode(x, step) if uses_one_thread() else one_by_one(x, step)


def _own_entries(sources: SourceRows) -> CacheEntries:
    """Return the cache entries of sentences, each of which has its own slot."""
    lengths = np.array(sources.lengths)
    return contiguous_entries(np.arange(len(lengths)), lengths, int(lengths.max()), sources.positions.numpy())


def _write_keys_values(
    rows: Array, layout: HeadLayout, keys: Bits, values: Bits, slots: Indices, spans: Indices, entries: Indices
) -> None:
    """Copy the keys and values of each row to its entry (R,) of the cache."""
    write_keys_and_values(rows, layout.widths, layout.num_kv_heads, keys, values, slots, spans, entries)


def _attend(
    rows: Array, layout: HeadLayout, keys: Bits, values: Bits, spans: Indices, entries: CacheEntries, out: Array
) -> None:
    """Write the attention of the rows in ``spans`` to ``out``."""
    heads, slots, longest = layout.num_heads, entries.slots, entries.position_ranges[:, 1].max(initial=0)
    parallel = len(slots) > 1 and len(slots) * longest * (layout.widths[1] + layout.widths[2]) >= _MIN_PARALLEL_KV
    compute, key_width = attend if parallel else attend.serial, layout.widths[0] // heads
    stored = keys, values, slots, spans, entries.entries, entries.position_ranges
    compute(rows, heads, layout.num_kv_heads, key_width, *stored, out)


class Int8OutputProjection:
    """The output projection in 8-bit integers."""

    def __init__(self, layer: QuantizedLinear) -> None:
        self._layer = layer

    def logits(self, hidden: Rows) -> Float[Tensor, "R V"]:
        """Return all logits."""
        return torch.from_numpy(self._layer(hidden))

    def top_k(self, hidden: Rows, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return the top tokens of each row that are not ``banned``, and the log-probability of EOS."""
        layer, rows = self._layer, len(hidden)
        k = min(k, layer.out_features)
        if not 0 < k <= _MAX_TOP_K:
            return top_tokens(self.logits(hidden), k, banned, eos)
        results, excluded = _empty_results(rows, k), np.array(banned, dtype=np.int64)
        if rows <= _ROWS_TOGETHER:
            topk_logits(layer(hidden), excluded, eos, *results)
        else:
            quantized = quantize_rows(hidden, layer.padded_in_features)
            topk_projection(*quantized, layer.addresses, layer.out_features, excluded, eos, *results)
        return _next_tokens(*results)


class Int8ShortlistProjection:
    """The output projection to shortlists. Its logits equal those of :class:`Int8OutputProjection`."""

    def __init__(
        self, levels: Int8[npt.NDArray[np.int8], "V D"], scale: Float32[Array, " V"], bias: Float32[Array, " V"] | None
    ) -> None:
        self._levels, self._scale = levels, scale
        self._bias = np.zeros_like(scale) if bias is None else bias
        self._accumulator_init = accumulator_init(levels)

    def gather(self, tokens: Int[Tensor, "B U"]) -> ShortlistWeights:
        """Return the tokens, weights, initial accumulators, scales and biases, in blocks of tokens."""
        blocks = torch.unflatten(F.pad(tokens, (0, -tokens.size(1) % BLOCK)), 1, (-1, BLOCK))
        indices = blocks.numpy()
        parts = (
            pack_weight_rows(self._levels, indices),
            self._accumulator_init[indices],
            self._scale[indices],
            self._bias[indices],
        )
        return ShortlistWeights([blocks, *(torch.from_numpy(part) for part in parts)])

    def top_k(self, hidden: Rows, weights: ShortlistWeights, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return the top tokens of each row within its sequence's shortlist."""
        tokens, *layers = (part.numpy() for part in weights.tensors)
        k = min(k, tokens.shape[1] * BLOCK)
        results, excluded = _empty_results(len(hidden), k), np.array(banned, dtype=np.int64)
        slots = weights.slots.numpy()
        quantized = quantize_rows(hidden, 4 * layers[0].shape[2])
        topk_projection_per_sentence(*quantized, tuple(layers), tokens, slots, excluded, eos, *results)
        return _next_tokens(*results)


def _empty_results(rows: int, k: int) -> tuple[Array, npt.NDArray[np.int64], Array]:
    """Return uninitialized arrays for log-probabilities and tokens (R, k) and for log-probabilities of EOS (R,)."""
    return np.empty((rows, k), np.float32), np.empty((rows, k), np.int64), np.empty(rows, np.float32)


def _next_tokens(log_probs: Array, tokens: npt.NDArray[np.int64], eos_log_prob: Array) -> NextTokens:
    return NextTokens(*(torch.from_numpy(array) for array in (tokens, log_probs, eos_log_prob)))


def _array(x: Tensor) -> Array:
    return x.detach().float().contiguous().numpy()


def _norm(module: nn.Module) -> LayerNormParams | None:
    if isinstance(module, nn.Identity):
        return None
    if isinstance(module, RMSNorm):
        return LayerNormParams(_array(module.weight), np.zeros(0, np.float32), module.epsilon)
    assert isinstance(module, nn.LayerNorm), f"unknown norm {type(module).__name__}"
    weight, bias = module.weight, cast("Tensor | None", module.bias)
    return LayerNormParams(_array(weight), _array(torch.zeros_like(weight) if bias is None else bias), module.eps)
