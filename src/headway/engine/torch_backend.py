"""The backend for searches in float32 or bfloat16, which uses PyTorch's operations on any device.

The output projection finds the top tokens without a softmax over the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headway.decode.ranking import NextTokens, topk_ordered
from headway.engine.attention import attention_weights, scaled_dot_product_attention
from headway.engine.local_attention import local_attention
from headway.engine.prompts import PromptRows, prompt_attention
from headway.engine.rows import DecodingStep, SourceRows, StepRows
from headway.engine.shortlist import ShortlistWeights
from headway.nn.attention import KeysValues, restrict_to_window
from headway.nn.blocks import NoNorm, PostNorm, PreNorm
from headway.nn.cache import KVCache, LayerSpec
from headway.nn.masks import causal_mask
from headway.nn.norms import RMSNorm
from headway.nn.positions import RelativeBias
from headway.text.base import PAD

Rows = Any  # (R, K), in the backend's representation, which only the backend and its layers access
Layer = Callable[[Rows], Rows]
OutputLayer = Callable[[Rows, Rows], Rows]  # maps a sub-layer's inner result and the residual to the sub-layer's output
Activation = Callable[[Tensor], Tensor]
ResidualWrapper = PostNorm | PreNorm | NoNorm

_BLOCK = 64  # number of tokens in a block; blocks are first ranked by their largest logits
_CHUNK = 128 * _BLOCK  # number of tokens whose logits are computed at a time (8 MiB for 256 rows, which fit a cache)
_RANKED_TOGETHER = 1 << 19  # up to this many logits (2 MiB), all chunks are ranked together
_LOG2_E = math.log2(math.e)
_LEAST = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class HeadLayout:
    """The layout of rows that contain concatenated queries, keys and values, as computed by one matrix product.

    Attributes:
        num_heads: Number of query heads, H.
        num_kv_heads: Number of key and value heads, G.
        widths: Widths of queries, keys and values, for all heads together.
        output_width: Width of the concatenated outputs of all heads.
    """

    num_heads: int
    num_kv_heads: int
    widths: tuple[int, int, int]
    output_width: int

    def split(self, x: Float[Tensor, "B T _"]) -> list[Float[Tensor, "B T _ _"]]:
        """Return views of queries (B, T, H, K), keys (B, T, G, K) and values (B, T, G, U)."""
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        parts = torch.split(x, list(self.widths), dim=-1)
        return [torch.unflatten(part, -1, (count, -1)) for part, count in zip(parts, heads, strict=True)]

    def split_by_head(self, x: Float[Tensor, "B T _"]) -> list[Float[Tensor, "B H T _"]]:
        """Return copies of queries, keys and values with equal numbers of heads, in the layout (B, H, T, _)."""
        repeats = (1, *[self.num_heads // self.num_kv_heads] * 2)
        parts = zip(self.split(x), repeats, strict=True)
        return [(part if n == 1 else part.repeat_interleave(n, 2)).transpose(1, 2).contiguous() for part, n in parts]


@dataclass(frozen=True)
class PlainBlock:
    """The layers of a block that consists only of norms, linear layers and attention.

    Attributes:
        norms: The norm before each sub-layer, or None.
        first_layers: The first layer of each sub-layer. It computes queries, keys and values in self-attention, but
            only queries in cross-attention. In the feed-forward sub-layer, it includes the activation.
        last_layers: The last layer of each sub-layer.
        layouts: The layout of each attention sub-layer.
        query_scale: Factor by which self-attention multiplies its queries after the projection.
    """

    norms: tuple[Layer | None, ...]
    first_layers: tuple[Layer, ...]
    last_layers: tuple[OutputLayer, ...]
    layouts: tuple[HeadLayout, ...]
    query_scale: float = 1.0


@runtime_checkable
class _Block(Protocol):
    def as_plain_block(self) -> PlainBlock | None:
        """Return the block's layers, or None if the block contains parts that :class:`PlainBlock` does not support."""


@runtime_checkable
class EncodingBlock(_Block, Protocol):
    """A block of an encoder."""

    def __call__(self, x: Rows, sources: SourceRows) -> Rows:
        """Apply the block to the rows of all sequences."""


@runtime_checkable
class DecodingBlock(_Block, Protocol):
    """A block of a decoder."""

    def __call__(self, x: Rows, layer: int, step: DecodingStep) -> Rows:
        """Apply the block, whose index in the decoder is ``layer``, to each row's new token."""


class TorchBackend:
    """Builds layers with weights in ``dtype``, and computes attention. Rows are tensors of this data type.

    Attention takes queries, keys and values in a layer's :class:`HeadLayout`. The other dimensions are defined in
    :mod:`headway.nn.cache`.
    """

    batch_per_thread = False
    masked_must_be_finite = True  # whether attention multiplies masked cache entries by 0
    has_single_rows = False  # whether a sequence has only one row in its first step

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def to_rows(self, x: Float[Tensor, "R K"]) -> Rows:
        """Convert a tensor to the backend's representation of rows."""
        return x.to(self.dtype)

    def parameters_of(self, layer: nn.Linear) -> tuple[Float[Tensor, "N K"], Float[Tensor, " N"] | None]:
        """Return the weight and bias of a trained layer, from which this backend builds its own layer."""
        return layer.weight, layer.bias

    def scale_outputs(
        self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None, scale: Float[Tensor, " N"]
    ) -> tuple[Float[Tensor, "N K"], Float[Tensor, " N"] | None]:
        """Return the weight and bias of a layer whose outputs are multiplied by ``scale``."""
        return weight * scale.unsqueeze(1), None if bias is None else bias * scale

    def concatenate_layers(
        self, layers: Sequence[tuple[Float[Tensor, "_ K"], Float[Tensor, " _"] | None]]
    ) -> tuple[Float[Tensor, "N K"], Float[Tensor, " N"] | None]:
        """Return the weight and bias of one layer that computes several ``layers``. Either all have a bias or none."""
        biases = [bias for _, bias in layers if bias is not None]
        return torch.cat([weight for weight, _ in layers]), torch.cat(biases) if biases else None

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

    def output_layer(self, layer: nn.Linear, wrapper: ResidualWrapper) -> OutputLayer:
        """Return the last layer of a sub-layer, including the residual connection and the norm after it."""
        product = self.linear(*self.parameters_of(layer))
        norm = self.norm(wrapper.norm) if isinstance(wrapper, PostNorm) else None
        if not wrapper.residual:
            return lambda x, _: product(x) if norm is None else norm(product(x))
        if norm is None:
            return lambda x, residual: product(x).add_(residual)
        return lambda x, residual: norm(product(x).add_(residual))

    def norm(self, module: nn.Module) -> Layer | None:
        """Return a norm, or None for the identity."""
        if isinstance(module, nn.Identity):
            return None
        if isinstance(module, RMSNorm):
            scale, added = module.weight.detach().to(self.dtype), module.epsilon
            return lambda x: F.rms_norm(x, scale.shape, scale, added)
        assert isinstance(module, nn.LayerNorm), f"unknown norm {type(module).__name__}"
        shape, epsilon, bias = module.normalized_shape, module.eps, cast("Tensor | None", module.bias)
        weight = module.weight.detach().to(self.dtype)
        bias = None if bias is None else bias.detach().to(self.dtype)
        return lambda x: F.layer_norm(x, shape, weight, bias, epsilon)

    def fold_norm(
        self, norm: nn.Module | None, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None
    ) -> tuple[nn.Module | None, Float[Tensor, "N K"], Float[Tensor, " N"] | None]:
        """Fold a norm into the only layer that it feeds if this backend benefits. Return norm, weight and bias.

        The returned norm and layer together compute the same function. A norm of None means that there is no norm.
        """
        return norm, weight, bias

    def output_projection(self, projection: nn.Linear) -> OutputProjection:
        """Return the output projection to the whole vocabulary."""
        return TorchOutputProjection(projection, self.linear)

    def shortlist_projection(self, projection: nn.Linear) -> ShortlistProjection:
        """Return the output projection to each sequence's shortlist."""
        return TorchShortlistProjection(projection, self.dtype)

    def apply_gate(self, rows: Rows, activation: Activation) -> Rows:
        """Return the activation of each row's first half, multiplied by the second half."""
        gate, inner = rows.chunk(2, dim=1)
        return activation(gate) * inner

    def transform_heads(
        self, rows: Rows, layout: HeadLayout, sequence_rows: int, transforms: Sequence[Callable[[Tensor], Tensor]]
    ) -> None:
        """Transform queries and keys in place. ``transforms`` contains a function of (B, T, H, K) for each of them.

        Each sequence has ``sequence_rows`` rows.
        """
        parts = layout.split(rows.view(-1, sequence_rows, rows.size(1)))
        for part, transform in zip(parts, transforms, strict=False):
            part.copy_(transform(part))

    def kv_spec(self, heads: int, key_width: int, value_width: int) -> LayerSpec:
        """Return the shape of a layer's keys and values in the cache."""
        return LayerSpec(heads, key_width, value_width)

    def prefix_entries(self, cache: KVCache, rows: StepRows) -> Any:
        """Return the entries to which each row may attend, in the representation of :meth:`prefix_attention`."""
        return self.memory_entries(cache)

    def memory_entries(self, cache: KVCache) -> Any:
        """Return the entries to which each beam may attend, in the representation of :meth:`cross_attention`.

        In this class, the result is a mask to add to the scores, with 0 or -inf, or None if nothing is masked.
        """
        mask = cache.mask
        if mask is None:
            return None
        return torch.zeros(mask.shape, dtype=self.dtype, device=mask.device).masked_fill_(~mask, -math.inf).unsqueeze(1)

    def self_attention(
        self,
        rows: Rows,
        layout: HeadLayout,
        sources: SourceRows,
        window: tuple[int, int] | None = None,
        relative_bias: RelativeBias | None = None,
    ) -> Rows:
        """Return the self-attention of each position, restricted to the ``window`` if given.

        The queries must not be scaled yet.
        """
        padded = torch.unflatten(sources.pad(torch.as_tensor(rows)), 0, (len(sources.lengths), -1))
        query, key, value = layout.split_by_head(padded)
        mask = None
        if window is not None or sources.padded_indices is not None:
            positions = torch.arange(key.size(2), device=key.device)
            mask = (positions < torch.tensor(sources.lengths, device=key.device).unsqueeze(1))[:, None, None]
        if relative_bias is not None:
            inside = restrict_to_window(None, window, query[:, 0])
            visible = mask if mask is None or inside is None else mask & inside
            bias = relative_bias.biases_for_length(key.size(2)).to(query.dtype)
            attended = (attention_weights(query, key, visible, bias=bias) @ value).transpose(1, 2)
        elif window is not None and mask is not None:
            attended = local_attention(query, KeysValues(key, value), mask.squeeze(1), window)
        else:
            attended = scaled_dot_product_attention(query, key, value, mask).transpose(1, 2)
        return self.to_rows(sources.unpad(attended.flatten(2).flatten(0, 1)))

    def causal_attention(
        self,
        rows: Rows,
        layout: HeadLayout,
        prompts: PromptRows,
        window: tuple[int, int] | None,
        relative_bias: RelativeBias | None = None,
    ) -> Rows:
        """Return the causal attention of each position, restricted to the ``window`` if given.

        The queries must already be scaled. Padding is on the right, so no other position attends to it.
        """
        if prompts.positions is not None:
            query, key, value = (part.squeeze(1) for part in layout.split(rows.unsqueeze(1)))
            return prompt_attention(query, key, value, prompts, window, relative_bias).flatten(1)
        query, key, value = layout.split_by_head(torch.unflatten(rows, 0, (len(prompts.spans), -1)))
        length, mask = key.size(2), None
        if relative_bias is not None or (window is not None and length > window[0] + 1):
            mask = restrict_to_window(causal_mask(length, key.device), window, query[:, 0])
        if relative_bias is not None and mask is not None:
            mask = relative_bias.biases_for_length(length).to(query.dtype).masked_fill(~mask, -math.inf)
        attended = F.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, scale=1.0)
        return attended.transpose(1, 2).reshape(len(rows), -1)

    def write_prompts(
        self, rows: Rows, layout: HeadLayout, prompts: PromptRows, prefix_kv: KVCache, layer: int
    ) -> None:
        """Store a layer's keys and values of whole prompts, which are the newest sequences in the cache."""
        if prompts.positions is None:
            _, key, value = layout.split(torch.unflatten(rows, 0, (len(prompts.spans), -1)))
            prefix_kv.write(layer, key.transpose(1, 2), value.transpose(1, 2))
            return
        slots, longest = prefix_kv.newest_slots(len(prompts.spans)).tolist(), prompts.max_length
        _, *parts = layout.split(rows.unsqueeze(1))
        for buffer, part in zip((prefix_kv.keys[layer], prefix_kv.values[layer]), parts, strict=True):
            by_slot = torch.unflatten(buffer, 0, (-1, layout.num_kv_heads))
            for span in prompts.spans:
                stored = by_slot[slots[span.prompt]]
                stored[:, : span.shared] = by_slot[slots[span.shared_with], :, : span.shared]
                stored[:, span.shared : span.length] = part[span.own_rows].squeeze(1).transpose(0, 1)
                stored[:, span.length : longest] = 0  # these entries are masked, but must be finite

    def prefix_attention(self, rows: Rows, layout: HeadLayout, layer: int, step: DecodingStep) -> Rows:
        """Append each row's key and value to the cache, and return the row's attention over its prefix."""
        cache = step.prefix_kv
        query, key, value = layout.split(torch.unflatten(rows, 0, (cache.num_sequences, cache.beams)))
        stored = cache.append(layer, key.transpose(1, 2), value.transpose(1, 2))
        return _attend(query, *stored, step.prefix_entries, step.relative_bias)

    def write_memory(self, rows: Rows, widths: Sequence[int], memory_kv: KVCache, sources: SourceRows) -> None:
        """Store the keys and values of all layers, which are concatenated in ``rows``, for the newest sequences."""
        by_sequence = torch.unflatten(sources.pad(rows), 0, (len(sources.lengths), -1))
        heads = memory_kv.spec.kv_heads
        parts = [torch.unflatten(part, -1, (heads, -1)) for part in torch.split(by_sequence, list(widths), dim=-1)]
        for layer in range(memory_kv.num_layers):
            memory_kv.write(layer, *(part.transpose(1, 2) for part in parts[2 * layer : 2 * layer + 2]))

    def cross_attention(self, query: Rows, layout: HeadLayout, layer: int, step: DecodingStep) -> Rows:
        """Return the attention of each row over the memory of its sequence."""
        assert step.memory_kv is not None
        keys, values = step.memory_kv.entries(layer)
        by_head = query.view(step.memory_kv.num_sequences, -1, layout.num_heads, keys.size(2))
        return _attend(by_head, keys, values, step.memory_entries)

    def encoder(self, blocks: Sequence[EncodingBlock]) -> Callable[[Rows, SourceRows], Rows]:
        """Return a function that applies the blocks of an encoder in order."""

        def apply(x: Rows, sources: SourceRows) -> Rows:
            for block in blocks:
                x = block(x, sources)
            return x

        return apply

    def decoder(self, blocks: Sequence[DecodingBlock]) -> Callable[[Rows, DecodingStep], Rows]:
        """Return a function that applies the blocks of a decoder in order."""

        def apply(x: Rows, step: DecodingStep) -> Rows:
            for layer, block in enumerate(blocks):
                x = block(x, layer, step)
            return x

        return apply


def _attend(
    query: Float[Tensor, "B W H K"],
    keys: Float[Tensor, "BG C K"],
    values: Float[Tensor, "BG C U"],
    bias: Float[Tensor, "B 1 #W C"] | None,
    relative_bias: Float[Tensor, "B H W C"] | None = None,
) -> Float[Tensor, "R HU"]:
    """Return softmax(Q K^T + bias + relative_bias) V for all beams of each sequence, with the heads concatenated.

    The queries must already be scaled. PyTorch's fused kernels are slow for so few queries per sequence, but two
    batched products of contiguous matrices are fast.
    """
    sequences, beams, heads, width = query.shape
    kv_heads = len(keys) // sequences if sequences else heads
    # The queries of all beams that share a key head are multiplied in one product.
    grouped = query.view(sequences, beams, kv_heads, heads // kv_heads, width).transpose(1, 2)
    scores = torch.bmm(grouped.reshape(len(keys), -1, width), keys.transpose(1, 2))
    if bias is not None:
        scores.view(*grouped.shape[:4], -1).add_(bias.unsqueeze(3))
    if relative_bias is not None:
        scores.view(*grouped.shape[:4], -1).add_(torch.unflatten(relative_bias, 1, (kv_heads, -1)).transpose(2, 3))
    attended = torch.bmm(scores.softmax(-1), values)
    return attended.view(*grouped.shape[:4], -1).transpose(1, 2).reshape(sequences * beams, -1)


@runtime_checkable
class OutputProjection(Protocol):
    """The output projection of rows (R, D) in the backend's representation."""

    def logits(self, hidden: Any) -> Float[Tensor, "R V"]:
        """Return all logits, in float32."""

    def top_k(self, hidden: Any, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return the same tokens as :func:`~headway.decode.ranking.top_tokens` for all logits."""


@runtime_checkable
class ShortlistProjection(Protocol):
    """The output projection to each sequence's own shortlist (:class:`~headway.engine.shortlist.Shortlist`).

    The gathered weights of a sequence contain one row for each token of its shortlist, and are padded with zeros.
    """

    def gather(self, tokens: Int[Tensor, "B U"]) -> ShortlistWeights:
        """Return the output weights of each sequence's tokens. ``tokens`` is sorted and padded with zeros."""

    def top_k(self, hidden: Any, weights: ShortlistWeights, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return the top tokens of each row. The probabilities in a sequence's shortlist sum to 1."""


class TorchShortlistProjection:
    """The output projection to each sequence's shortlist, computed by batched matrix products in ``dtype``."""

    def __init__(self, projection: nn.Linear, dtype: torch.dtype) -> None:
        bias: Tensor | None = projection.bias
        self._weight = projection.weight.detach().to(dtype)
        self._bias = (projection.weight.new_zeros(len(self._weight)) if bias is None else bias.detach()).float()

    def gather(self, tokens: Int[Tensor, "B U"]) -> ShortlistWeights:
        """Return the tokens with their weights and biases."""
        return ShortlistWeights([tokens.unsqueeze(2), self._weight[tokens], self._bias[tokens].unsqueeze(2)])

    def top_k(
        self, hidden: Float[Tensor, "R D"], weights: ShortlistWeights, k: int, banned: Sequence[int], eos: int
    ) -> NextTokens:
        """Return the top tokens of each row within its sequence's shortlist."""
        weights.compact()
        tokens, weight, bias = weights.tensors
        rows = torch.unflatten(hidden, 0, (len(tokens), -1))
        logits = (rows @ weight.transpose(1, 2)).float() + bias.transpose(1, 2)
        ids = tokens.transpose(1, 2).expand(logits.shape)
        log_probs = logits.masked_fill_(ids == PAD, -math.inf).log_softmax(2).flatten(0, 1)
        ids = ids.flatten(0, 1)
        eos_log_prob = log_probs.masked_fill(ids != eos, -math.inf).amax(1)
        excluded = torch.tensor(banned, dtype=torch.long, device=ids.device)
        top_log_probs, order = topk_ordered(
            log_probs.masked_fill(torch.isin(ids, excluded), -math.inf), min(k, ids.size(1))
        )
        return NextTokens(ids.gather(1, order), top_log_probs, eos_log_prob)


class TorchOutputProjection:
    """The output projection, computed in chunks of the vocabulary. ``linear`` builds a layer from weight and bias."""

    def __init__(
        self, projection: nn.Linear, linear: Callable[[Tensor, Tensor | None], Callable[[Tensor], Tensor]]
    ) -> None:
        self._linear = linear
        self._size, self._device = projection.weight.size(0), projection.weight.device
        # On a GPU, there is only one chunk, because chunks do not stay in the GPU's cache.
        chunk = self._size if self._device.type == "cuda" else _CHUNK
        self._starts = range(0, self._size, chunk)
        bias: Tensor | None = projection.bias  # may be None, contrary to PyTorch's annotations
        self._chunks = [
            self._layer(projection.weight[start : start + chunk], None if bias is None else bias[start : start + chunk])
            for start in self._starts
        ]

    def _layer(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        missing = -len(weight) % _BLOCK  # number of rows that complete the last block; the ranking excludes them
        if missing:
            weight = F.pad(weight, (0, 0, 0, missing))
            bias = None if bias is None else F.pad(bias, (0, missing))
        return self._linear(weight, bias)

    def logits(self, hidden: Float[Tensor, "R D"]) -> Float[Tensor, "R V"]:
        """Return all logits, in float32."""
        return torch.cat([chunk(hidden).float() for chunk in self._chunks], dim=1)[:, : self._size]

    def top_k(self, hidden: Float[Tensor, "R D"], k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return the same as :func:`~headway.decode.ranking.top_tokens`, except for ties between over ``k`` blocks."""
        banned = tuple(banned)
        sums: list[Tensor] = []  # logarithms of sums of exponentials
        values: list[Tensor] = []
        tokens: list[Tensor] = []
        eos_logit = None
        for start, logits in self._logits_by_chunk(hidden):
            excluded = _excluded(banned, start, logits.size(1), self._device)
            if 0 <= eos - start < logits.size(1):
                eos_logit = logits[:, eos - start].clone()
            if self._size - start < logits.size(1):
                logits[:, self._size - start :].fill_(-math.inf)
            if excluded is not None:
                sums.append(logits[:, excluded])  # banned tokens keep their share of the probability
                logits.index_fill_(1, excluded, -math.inf)
            blocks = torch.unflatten(logits, 1, (-1, _BLOCK))
            maxima, chosen = blocks.amax(2).topk(min(k, blocks.size(1)), dim=1)
            chosen = chosen.sort(1).values.unsqueeze(2)  # sorted by index, so that ties keep their order
            values.append(blocks.gather(1, chosen.expand(-1, -1, _BLOCK)).flatten(1))
            offsets = torch.arange(start, start + _BLOCK, device=logits.device)
            tokens.append((chosen * _BLOCK + offsets).flatten(1))
            largest = maxima[:, :1].clamp(min=_LEAST)  # otherwise, a chunk without allowed tokens would give NaN
            powers = logits.sub_(largest).mul_(_LOG2_E).exp2_()  # twice as fast as exp, which calls MKL
            sums.append(powers.sum(1, keepdim=True).log_().add_(largest))
        assert eos_logit is not None
        normalizer = torch.cat(sums, dim=1).logsumexp(1, keepdim=True)
        top_log_probs, order = topk_ordered(torch.cat(values, dim=1), min(k, self._size))
        ids = torch.cat(tokens, dim=1).gather(1, order)
        return NextTokens(ids, top_log_probs - normalizer, eos_logit - normalizer.squeeze(1))

    def _logits_by_chunk(self, hidden: Float[Tensor, "R D"]) -> Iterator[tuple[int, Float[Tensor, "R _"]]]:
        """Yield the first token and the logits of each chunk, or of all chunks together if they fit the cache.

        Ranking a few rows takes almost no time, so fewer calls are faster.
        """
        computed = (chunk(hidden).float() for chunk in self._chunks)
        if len(hidden) * self._size <= _RANKED_TOGETHER:
            yield 0, torch.cat(list(computed), dim=1)
        else:
            yield from zip(self._starts, computed, strict=True)


@lru_cache(maxsize=256)  # large enough for a few sets of banned tokens per chunk
def _excluded(banned: tuple[int, ...], start: int, size: int, device: torch.device) -> Tensor | None:
    """Return the banned tokens from ``start`` to ``start + size``, sorted and relative to ``start``."""
    inside = sorted({token - start for token in banned if start <= token < start + size})
    return torch.tensor(inside, device=device) if inside else None
