"""The Transformer made for translating: the same function as the model that was trained, laid out for speed.

What differs from :class:`~headway.models.transformer.Transformer`, and why it is faster:

- Weights are prepared once for a precision: float32, bfloat16, or 8-bit integers (:mod:`headway.nn.quantized`).
- The prefixes of a beam are a tree that is never reordered (:mod:`headway.nn.prefix_tree`). The memory's keys and
  values, kept once a sentence, come from one product for all decoder blocks.
- The queries' scale 1 / sqrt(d_k) is part of their projection.
- :meth:`InferenceTransformer.best` ranks tokens without a softmax over the vocabulary: parts of it are computed, ranked
  and summed while they are in the processor's cache.

float32 is the reference: it agrees with the model to rounding. Dropout and taps are not here: this is no module, and
what observes attention uses the model itself. So does a model with options that :func:`unsupported` names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headway.decode.ranking import Best, top
from headway.errors import ConfigError
from headway.hardware import computes_bfloat16
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.attention import MultiHeadAttention, scaled_dot_product_attention
from headway.nn.blocks import DecoderBlock, EncoderBlock, FeedForward, GatedFeedForward, NoNorm, PostNorm, PreNorm
from headway.nn.masks import padding_mask
from headway.nn.prefix_tree import PrefixTree, attend
from headway.nn.quantized import Int8Linear, int8_supported, quantize_rows
from headway.text.tokenizer import EOS

__all__ = ["InferenceState", "InferenceTransformer", "Precision", "choose_precision", "unsupported"]

Precision = Literal["auto", "float32", "bfloat16", "int8"]

_BLOCK = 64  # tokens that are ranked by the greatest of them first
_PART = 128 * _BLOCK  # tokens whose logits are computed at a time: with 256 rows, 8 MiB, which a cache holds
_AT_ONCE = 1 << 19  # logits that are ranked at once; 2 MiB
_LEAST = torch.finfo(torch.float32).min

_Turn = Callable[[Tensor], Tensor]
_Rows = Any  # rows as the products of a precision read them: a tensor, or QuantizedRows


def choose_precision(name: Precision, device: torch.device) -> Precision:
    """The precision for "auto", or the one asked for, if this machine has it.

    The rule: on a CPU int8 where PyTorch has its integer products; else, and on a GPU, bfloat16 where the hardware
    multiplies it; else float32.
    """
    int8 = device.type == "cpu" and int8_supported()
    if name == "int8" and not int8:
        raise ConfigError(
            "precision int8: this machine has no integer products for it (they need PyTorch on an x86 processor); "
            "use 'auto', 'bfloat16' or 'float32'"
        )
    if name != "auto":
        return name
    if int8:
        return "int8"
    return "bfloat16" if computes_bfloat16(device) else "float32"


def unsupported(config: TransformerConfig) -> str | None:
    """Why there is no :class:`InferenceTransformer` of such a model, which then decodes itself; None: there is one."""
    plain: dict[str, str] = {"score": "scaled_dot", "qk_projection": "linear"}
    for name, supported in plain.items():
        if getattr(config, name) != supported:
            return (
                f"{name} = {getattr(config, name)!r} has no form that is laid out for speed (only {supported!r} has); "
                "the model itself can decode, in float32"
            )
    return None


class InferenceState:
    """What is kept between steps, for R rows over B sentences: all prefixes, and each layer's view of the memory."""

    def __init__(
        self, memory: list[tuple[Tensor, Tensor]], memory_bias: Float[Tensor, "B 1 1 S"] | None, heads: int
    ) -> None:
        self.memory = memory  # of each layer, keys (B * H, S, K) and values (B * H, S, U)
        self.memory_bias = memory_bias  # 0 where a source has a token, -inf on its padding; None: no padding
        keys, values = memory[0]
        self._heads = heads
        sentences = keys.size(0) // heads
        self.prefix = PrefixTree(sentences, len(memory), torch.unflatten(keys, 0, (-1, heads)), values.size(2))
        self.positions: Int[Tensor, " R"] = torch.zeros(sentences, dtype=torch.long, device=keys.device)
        self.longest = 0

    def select(self, rows: Int[Tensor, " R2"], sentences: Int[Tensor, " B2"] | None = None) -> None:
        """Row i continues what row ``rows[i]`` was, of the same sentence; only ``sentences`` stay (None: all)."""
        self.positions = self.positions[rows]
        self.prefix.select(rows, sentences)
        if sentences is not None:
            self.longest = int(self.positions.max()) if len(rows) else 0
            self.memory = [(self._of(keys, sentences), self._of(values, sentences)) for keys, values in self.memory]
            if self.memory_bias is not None:
                self.memory_bias = self.memory_bias[sentences]

    def join(self, other: InferenceState) -> None:
        """Append the sentences of ``other``, which must have as many rows each."""
        width = max(self.memory[0][0].size(1), other.memory[0][0].size(1))
        self.memory_bias = torch.cat([self._bias(width), other._bias(width)])
        self.memory = [
            (
                torch.cat([_lengthened(mine[0], width), _lengthened(theirs[0], width)]),
                torch.cat([_lengthened(mine[1], width), _lengthened(theirs[1], width)]),
            )
            for mine, theirs in zip(self.memory, other.memory, strict=True)
        ]
        self.prefix.join(other.prefix)
        self.positions = torch.cat([self.positions, other.positions])
        self.longest = max(self.longest, other.longest)

    def _of(self, buffer: Tensor, sentences: Int[Tensor, " B2"]) -> Tensor:
        return torch.unflatten(buffer, 0, (-1, self._heads))[sentences].flatten(0, 1)

    def _bias(self, width: int) -> Float[Tensor, "B 1 1 S"]:
        keys = self.memory[0][0]
        bias = self.memory_bias
        if bias is None:
            bias = keys.new_zeros(keys.size(0) // self._heads, 1, 1, keys.size(1))
        return F.pad(bias, (0, width - bias.size(3)), value=-math.inf)


def _lengthened(x: Float[Tensor, "BH S K"], length: int) -> Float[Tensor, "BH S2 K"]:
    return F.pad(x, (0, 0, 0, length - x.size(1)))


class InferenceTransformer:
    """A :class:`~headway.decode.protocol.RankingModel` with the weights of ``model`` as they are now.

    Args:
        model: Where the weights come from. Some are used in place and some are copied: when they change, make another.
        precision: Of the matrix products; see :func:`choose_precision`.
        end: The end symbol, whose probability :meth:`best` reports.

    Raises:
        ConfigError: The model has an option that :func:`unsupported` names.
    """

    def __init__(self, model: Transformer, precision: Precision = "float32", *, end: int = EOS) -> None:
        if reason := unsupported(model.config):
            raise ConfigError(reason)
        self._model = model
        self._end = end
        device = model.projection.weight.device
        self.precision = choose_precision(precision, device)
        prepare = _preparer(self.precision)
        self._dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        self._heads = model.config.num_heads
        with torch.no_grad():
            encoder = [block for block in model.encoder.blocks if isinstance(block, EncoderBlock)]
            decoder = [block for block in model.decoder.blocks if isinstance(block, DecoderBlock)]
            self._encoder = [_EncoderLayer(block, prepare, self._dtype) for block in encoder]
            self._decoder = [_DecoderLayer(block, prepare, self._dtype) for block in decoder]
            self._rotary = decoder[0].attention.rotary
            self._encoder_norm = _norm(model.encoder.norm, self._dtype)
            self._decoder_norm = _norm(model.decoder.norm, self._dtype)
            self._memory = _MemoryProjection([block.cross_attention for block in decoder], prepare)
            self._vocabulary = _Vocabulary(model.projection, prepare)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._model.projection.weight.device

    @property
    def max_length(self) -> int | None:
        """As in the model."""
        return self._model.max_length

    def encode(self, source: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        """The memory."""
        sentences, length = source.shape
        mask = padding_mask(source, self._model.pad).unsqueeze(1)
        x = self._model.embed_source(source).to(self._dtype).flatten(0, 1)
        for layer in self._encoder:
            x = layer(x, mask, sentences)
        return self._encoder_norm(x).view(sentences, length, -1)

    @torch.inference_mode()
    def start(self, source: Int[Tensor, "B S"]) -> InferenceState:
        """Encode the sources; one row for each."""
        memory = self._memory(self.encode(source))
        padding = source == self._model.pad
        bias = None
        if padding.any():
            bias = torch.zeros(padding.shape, dtype=self._dtype, device=source.device)
            bias = bias.masked_fill_(padding, -math.inf)[:, None, None]
        return InferenceState(memory, bias, self._heads)

    @torch.inference_mode()
    def advance(self, state: InferenceState, tokens: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """Append one token to each row and return the logits of the next."""
        return self._vocabulary.logits(self._step(state, tokens))

    @torch.inference_mode()
    def best(self, state: InferenceState, tokens: Int[Tensor, " R"], count: int, forbidden: Sequence[int]) -> Best:
        """Append one token to each row and return the ``count`` best next ones."""
        return self._vocabulary.best(self._step(state, tokens), count, tuple(forbidden), self._end)

    def _step(self, state: InferenceState, tokens: Int[Tensor, " R"]) -> Float[Tensor, "R D"]:
        """The decoder's output at each row's next position."""
        self._model.target_positions.reserve(state.longest + 1)
        x = self._model.embed_target_at(tokens, state.positions).to(self._dtype)
        turn = self._turn(state)
        prefix = state.prefix
        prefix.open_step()
        for index, (layer, memory) in enumerate(zip(self._decoder, state.memory, strict=True)):
            x = layer(x, prefix, index, turn, memory, state.memory_bias)
        prefix.close_step()
        state.positions = state.positions + 1
        state.longest += 1
        return self._decoder_norm(x)

    def _turn(self, state: InferenceState) -> _Turn | None:
        """What turns queries and keys (B, W, H, .) to their rows' positions, if those are rotary."""
        rotary, positions = self._rotary, state.positions
        if rotary is None:
            return None
        rotary.reserve(state.longest + 1)
        return lambda x: rotary.at(x.flatten(0, 1).unsqueeze(2), positions).view(x.shape)


_Linear = Callable[[_Rows], Tensor]


class _Preparer:
    """How a precision keeps weights, and how it reads rows."""

    def __init__(self, dtype: torch.dtype, int8: bool) -> None:
        self._dtype, self._int8 = dtype, int8

    def linear(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None) -> _Linear:
        """A layer that computes x W^T + b."""
        if self._int8:
            return Int8Linear(weight, bias)
        weight = weight.detach().to(self._dtype)
        bias = None if bias is None else bias.detach().to(self._dtype)
        return lambda x: F.linear(x, weight, bias)

    def module(self, layer: nn.Linear) -> _Linear:
        """The same of a layer."""
        return self.linear(layer.weight, layer.bias)

    def rows(self, x: Float[Tensor, "R K"]) -> _Rows:
        """What :meth:`linear` reads."""
        return quantize_rows(x) if self._int8 else x


def _preparer(precision: Precision) -> _Preparer:
    return _Preparer(torch.bfloat16 if precision == "bfloat16" else torch.float32, precision == "int8")


def _norm(module: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """A layer norm in ``dtype``, or nothing where the stack has none."""
    if not isinstance(module, nn.LayerNorm):
        return lambda x: x
    shape, eps = module.normalized_shape, module.eps
    weight, bias = module.weight.detach().to(dtype), module.bias.detach().to(dtype)
    return lambda x: F.layer_norm(x, shape, weight, bias, eps)


def _residual(module: nn.Module, dtype: torch.dtype) -> Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]:
    """What stands around a sub-layer; the sum is taken in place of the sub-layer's output."""
    assert isinstance(module, (PostNorm, PreNorm, NoNorm))
    before = _norm(module.norm if isinstance(module, PreNorm) else nn.Identity(), dtype)
    after = _norm(module.norm if isinstance(module, PostNorm) else nn.Identity(), dtype)
    if module.residual:
        return lambda x, sublayer: after(sublayer(before(x)).add_(x))
    return lambda x, sublayer: after(sublayer(before(x)))


def _query_scaled(attention: MultiHeadAttention) -> tuple[Tensor, Tensor | None]:
    """The joint projection's weight and bias with 1 / sqrt(d_k) in the queries' rows."""
    scale = torch.ones(sum(attention.widths), device=attention.projection.weight.device)
    scale[: attention.widths[0]] = attention.d_key**-0.5
    bias = attention.projection.bias
    return attention.projection.weight * scale.unsqueeze(1), None if bias is None else bias * scale


class _FeedForward:
    def __init__(self, module: nn.Module, prepare: _Preparer) -> None:
        assert isinstance(module, (FeedForward, GatedFeedForward))
        self._prepare = prepare
        self._gated = isinstance(module, GatedFeedForward)
        self._activation = _in_place(module.activation)
        layers = [module.gate, module.inner] if isinstance(module, GatedFeedForward) else [module.inner]
        self._inner = prepare.linear(
            torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])
        )
        self._outer = prepare.module(module.outer)

    def __call__(self, x: Tensor) -> Tensor:
        inner = self._inner(self._prepare.rows(x))
        if self._gated:
            gate, inner = inner.chunk(2, dim=1)
            inner = self._activation(gate) * inner
        else:
            inner = self._activation(inner)
        return self._outer(self._prepare.rows(inner))


def _in_place(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return F.relu_ if activation is F.relu else activation


class _EncoderLayer:
    def __init__(self, block: EncoderBlock, prepare: _Preparer, dtype: torch.dtype) -> None:
        attention = block.attention
        self._prepare, self._heads, self._widths = prepare, attention.num_heads, list(attention.widths)
        self._rotary = attention.rotary
        self._projection, self._output = prepare.module(attention.projection), prepare.module(attention.output)
        self._feed_forward = _FeedForward(block.feed_forward, prepare)
        self._around_attention = _residual(block.attention_residual, dtype)
        self._around_feed_forward = _residual(block.feed_forward_residual, dtype)

    def __call__(self, x: Float[Tensor, "BS D"], mask: Tensor, sentences: int) -> Float[Tensor, "BS D"]:
        x = self._around_attention(x, lambda x: self._attention(x, mask, sentences))
        return self._around_feed_forward(x, self._feed_forward)

    def _attention(self, x: Tensor, mask: Tensor, sentences: int) -> Tensor:
        projected = self._projection(self._prepare.rows(x)).view(sentences, -1, sum(self._widths))
        parts = _by_head(projected, self._widths, self._heads)
        query, key, value = (part.transpose(1, 2).contiguous() for part in parts)
        if self._rotary is not None:
            query, key = self._rotary(query), self._rotary(key)
        heads = scaled_dot_product_attention(query, key, value, mask)
        return self._output(self._prepare.rows(heads.transpose(1, 2).reshape(len(x), -1)))


class _DecoderLayer:
    def __init__(self, block: DecoderBlock, prepare: _Preparer, dtype: torch.dtype) -> None:
        attention, cross = block.attention, block.cross_attention
        self._prepare, self._heads, self._widths = prepare, attention.num_heads, list(attention.widths)
        self._projection, self._output = prepare.linear(*_query_scaled(attention)), prepare.module(attention.output)
        weight, bias = _query_scaled(cross)
        queries = cross.widths[0]
        self._cross_query = prepare.linear(weight[:queries], None if bias is None else bias[:queries])
        self._cross_output = prepare.module(cross.output)
        self._feed_forward = _FeedForward(block.feed_forward, prepare)
        self._around_attention = _residual(block.attention_residual, dtype)
        self._around_cross = _residual(block.cross_attention_residual, dtype)
        self._around_feed_forward = _residual(block.feed_forward_residual, dtype)

    def __call__(
        self,
        x: Float[Tensor, "R D"],
        prefix: PrefixTree,
        index: int,
        turn: _Turn | None,
        memory: tuple[Tensor, Tensor],
        memory_bias: Tensor | None,
    ) -> Float[Tensor, "R D"]:
        x = self._around_attention(x, lambda x: self._attention(x, prefix, index, turn))
        x = self._around_cross(x, lambda x: self._cross_attention(x, prefix.beams, memory, memory_bias))
        return self._around_feed_forward(x, self._feed_forward)

    def _attention(self, x: Tensor, prefix: PrefixTree, index: int, turn: _Turn | None) -> Tensor:
        projected = self._projection(self._prepare.rows(x)).view(-1, prefix.beams, sum(self._widths))
        query, key, value = _by_head(projected, self._widths, self._heads)
        if turn is not None:
            query, key = turn(query), turn(key)
        keys, values = prefix.extend(index, key, value)
        return self._output(self._prepare.rows(attend(query, keys, values, prefix.step_bias)))

    def _cross_attention(self, x: Tensor, beams: int, memory: tuple[Tensor, Tensor], bias: Tensor | None) -> Tensor:
        query = self._cross_query(self._prepare.rows(x)).view(-1, beams, self._heads, self._widths[0] // self._heads)
        return self._cross_output(self._prepare.rows(attend(query, *memory, bias)))


class _MemoryProjection:
    """Keys and values of the memory for all decoder blocks, by one product."""

    def __init__(self, attentions: list[MultiHeadAttention], prepare: _Preparer) -> None:
        self._prepare, self._heads = prepare, attentions[0].num_heads
        self._widths = [width for attention in attentions for width in attention.widths[1:]]
        weights = [attention.projection.weight[attention.widths[0] :] for attention in attentions]
        biases = [attention.projection.bias[attention.widths[0] :] for attention in attentions]
        self._linear = prepare.linear(torch.cat(weights), torch.cat(biases))

    def __call__(self, memory: Float[Tensor, "B S D"]) -> list[tuple[Tensor, Tensor]]:
        projected = self._linear(self._prepare.rows(memory.flatten(0, 1))).view(*memory.shape[:2], -1)
        parts = _by_head(projected, self._widths, self._heads)
        ready = [part.transpose(1, 2).flatten(0, 1) for part in parts]  # (B * H, S, .), as :func:`attend` wants them
        return list(zip(ready[::2], ready[1::2], strict=True))


def _by_head(x: Float[Tensor, "B T _"], widths: list[int], heads: int) -> list[Float[Tensor, "B T H _"]]:
    """Parts of ``widths`` that were computed side by side, each with its heads apart."""
    return [part.view(*part.shape[:-1], heads, -1) for part in torch.split(x, widths, dim=-1)]


class _Vocabulary:
    """The output projection, in parts of the vocabulary."""

    def __init__(self, projection: nn.Linear, prepare: _Preparer) -> None:
        self._prepare = prepare
        self._size, self._device = projection.weight.size(0), projection.weight.device
        starts = range(0, self._size, _PART)
        bias: Tensor | None = projection.bias  # PyTorch's annotations leave out that there may be none
        self._parts = [
            self._part(projection.weight[start : start + _PART], None if bias is None else bias[start : start + _PART])
            for start in starts
        ]
        self._forbidden: dict[tuple[tuple[int, ...], int, int], Tensor | None] = {}

    def _part(self, weight: Tensor, bias: Tensor | None) -> _Linear:
        missing = -len(weight) % _BLOCK  # rows that make the last block whole; they are ruled out where it is ranked
        if missing:
            weight = F.pad(weight, (0, 0, 0, missing))
            bias = None if bias is None else F.pad(bias, (0, missing))
        return self._prepare.linear(weight, bias)

    def logits(self, hidden: Float[Tensor, "R D"]) -> Float[Tensor, "R V"]:
        """All logits, in float32."""
        rows = self._prepare.rows(hidden)
        return torch.cat([part(rows).float() for part in self._parts], dim=1)[:, : self._size]

    def best(self, hidden: Float[Tensor, "R D"], count: int, forbidden: tuple[int, ...], end: int) -> Best:
        """As :func:`~headway.decode.ranking.best_of` of the logits; ties between more than ``count`` blocks are cut."""
        rows = self._prepare.rows(hidden)
        sums: list[Tensor] = []  # of exponentials, as logarithms
        values: list[Tensor] = []
        tokens: list[Tensor] = []
        ending = None
        for start, logits in self._pieces(rows, len(hidden)):
            ruled_out = self._ruled_out(forbidden, start, logits.size(1))
            if 0 <= end - start < logits.size(1):
                ending = logits[:, end - start].clone()
            if self._size - start < logits.size(1):
                logits[:, self._size - start :] = -math.inf
            if ruled_out is not None:
                sums.append(logits[:, ruled_out])  # they are not chosen, but have their share of the probability
                logits.index_fill_(1, ruled_out, -math.inf)
            blocks = torch.unflatten(logits, 1, (-1, _BLOCK))
            maxima, chosen = blocks.amax(2).topk(min(count, blocks.size(1)), dim=1)
            chosen = chosen.sort(1).values.unsqueeze(2)  # by index, so that ties stay in order, and padding comes last
            values.append(blocks.gather(1, chosen.expand(-1, -1, _BLOCK)).flatten(1))
            tokens.append((chosen * _BLOCK + self._offsets(start, logits.device)).flatten(1))
            largest = maxima[:, :1].clamp(min=_LEAST)  # -inf, where a part has no token left, would make NaN
            sums.append(logits.sub_(largest).exp_().sum(1, keepdim=True).log_().add_(largest))
        assert ending is not None
        normalizer = torch.cat(sums, dim=1).logsumexp(1, keepdim=True)
        found, places = top(torch.cat(values, dim=1), min(count, self._size))
        return Best(found - normalizer, torch.cat(tokens, dim=1).gather(1, places), ending - normalizer.squeeze(1))

    def _pieces(self, rows: _Rows, count: int) -> Iterator[tuple[int, Float[Tensor, "R _"]]]:
        """The logits with the first token of each piece: a part each, or all in one where a cache holds that.

        Few rows are ranked in no time, and what counts is in how many calls.
        """
        computed = (part(rows).float() for part in self._parts)
        if count * self._size <= _AT_ONCE:
            yield 0, torch.cat(list(computed), dim=1)
        else:
            yield from zip(range(0, self._size, _PART), computed, strict=True)

    def _offsets(self, start: int, device: torch.device) -> Tensor:
        return torch.arange(start, start + _BLOCK, device=device)

    def _ruled_out(self, forbidden: tuple[int, ...], start: int, size: int) -> Tensor | None:
        """The forbidden tokens of a piece, each once, counted from its first."""
        key = (forbidden, start, size)
        if key not in self._forbidden:
            inside = sorted({token - start for token in forbidden if start <= token < start + size})
            self._forbidden[key] = torch.tensor(inside, device=self._device) if inside else None
        return self._forbidden[key]
