"""The blocks of a Transformer, laid out for speed: functions of rows, with weights that a precision has prepared."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.engine.preparer import Activation, Layer, Preparer, Rows
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import DecoderBlock, EncoderBlock, FeedForward, GatedFeedForward, NoNorm, PostNorm, PreNorm
from headway.nn.prefix_tree import PrefixTree
from headway.nn.sentence_buffers import SentenceBuffers

__all__ = ["DecoderLayer", "EncoderLayer", "MemoryProjection"]


class _Sublayer:
    """A sub-layer between its norms: ``inner`` computes what its last layer reads."""

    def __init__(self, last: nn.Linear, around: nn.Module, prepare: Preparer) -> None:
        assert isinstance(around, (PostNorm, PreNorm, NoNorm))
        self._before = prepare.norm(around.norm if isinstance(around, PreNorm) else nn.Identity())
        self._ending = prepare.ending(last, around)

    def __call__(self, x: Rows, inner: Layer) -> Rows:
        return self._ending(inner(self._before(x)), x)


class _FeedForward:
    """The position-wise network but for its last layer."""

    def __init__(self, module: nn.Module, prepare: Preparer) -> None:
        assert isinstance(module, (FeedForward, GatedFeedForward))
        self.outer = module.outer
        self._prepare = prepare
        self._activation: Activation | None = None
        if isinstance(module, GatedFeedForward):
            self._activation = module.activation
            weight, bias = (torch.cat([getattr(x, name) for x in (module.gate, module.inner)]) for name in _PARAMETERS)
            self._inner = prepare.linear(weight, bias)
        else:
            self._inner = prepare.linear(module.inner.weight, module.inner.bias, module.activation)

    def __call__(self, x: Rows) -> Rows:
        inner = self._inner(x)
        return inner if self._activation is None else self._prepare.gate(inner, self._activation)


_PARAMETERS = ("weight", "bias")


def _query_scaled(attention: MultiHeadAttention) -> tuple[Tensor, Tensor | None]:
    """The joint projection's weight and bias with 1 / sqrt(d_k) in the queries' rows."""
    scale = torch.ones(sum(attention.widths), device=attention.projection.weight.device)
    scale[: attention.widths[0]] = attention.d_key**-0.5
    bias = attention.projection.bias
    return attention.projection.weight * scale.unsqueeze(1), None if bias is None else bias * scale


class EncoderLayer:
    """A block of the encoder, on the rows of all sentences; ``mask`` (B, 1, 1, S) is True at tokens."""

    def __init__(self, block: EncoderBlock, prepare: Preparer) -> None:
        attention = block.attention
        self._prepare, self._heads, self._widths = prepare, attention.num_heads, list(attention.widths)
        self._rotary = attention.rotary
        self._projection = prepare.linear(attention.projection.weight, attention.projection.bias)
        self._feed_forward = _FeedForward(block.feed_forward, prepare)
        self._around_attention = _Sublayer(attention.output, block.attention_residual, prepare)
        self._around_feed_forward = _Sublayer(self._feed_forward.outer, block.feed_forward_residual, prepare)

    def __call__(self, x: Rows, mask: Tensor) -> Rows:
        """The rows of all sentences, one after the other."""
        x = self._around_attention(x, lambda x: self._attention(x, mask))
        return self._around_feed_forward(x, self._feed_forward)

    def _attention(self, x: Rows, mask: Tensor) -> Rows:
        rows, rotary = self._projection(x), self._rotary
        if rotary is not None:
            self._prepare.turn(
                *(rows, self._widths, self._heads, mask.size(3)), lambda x: rotary(x.transpose(1, 2)).transpose(1, 2)
            )
        return self._prepare.self_attention(rows, self._widths, self._heads, mask)


class DecoderLayer:
    """A block of the decoder, on one new token of each row."""

    def __init__(self, block: DecoderBlock, prepare: Preparer) -> None:
        attention, cross = block.attention, block.cross_attention
        self._prepare, self._heads, self._widths = prepare, attention.num_heads, list(attention.widths)
        self._projection = prepare.linear(*_query_scaled(attention))
        weight, bias = _query_scaled(cross)
        self._cross = list(cross.widths)
        queries = cross.widths[0]
        self._cross_query = prepare.linear(weight[:queries], None if bias is None else bias[:queries])
        self._feed_forward = _FeedForward(block.feed_forward, prepare)
        self._around_attention = _Sublayer(attention.output, block.attention_residual, prepare)
        self._around_cross = _Sublayer(cross.output, block.cross_attention_residual, prepare)
        self._around_feed_forward = _Sublayer(self._feed_forward.outer, block.feed_forward_residual, prepare)

    def __call__(
        self,
        x: Rows,
        prefix: PrefixTree,
        index: int,
        turn: Activation | None,
        memory: SentenceBuffers,
        memory_bias: Tensor | None,
    ) -> Rows:
        """``index`` is the block's number, by which the prefixes know it; ``turn`` is for rotary positions."""
        x = self._around_attention(x, lambda x: self._attention(x, prefix, index, turn))
        x = self._around_cross(
            x, lambda x: self._prepare.cross_attention(self._cross_query(x), self._cross, memory, index, memory_bias)
        )
        return self._around_feed_forward(x, self._feed_forward)

    def _attention(self, x: Rows, prefix: PrefixTree, index: int, turn: Activation | None) -> Rows:
        rows = self._projection(x)
        if turn is not None:
            self._prepare.turn(rows, self._widths, self._heads, prefix.beams, turn)
        return self._prepare.prefix_attention(rows, self._widths, prefix, index)


class MemoryProjection:
    """Keys and values of the memory for all decoder blocks, by one product."""

    def __init__(self, attentions: list[MultiHeadAttention], prepare: Preparer) -> None:
        self._prepare, self._heads = prepare, attentions[0].num_heads
        self._widths = [width for attention in attentions for width in attention.widths[1:]]
        weights = [attention.projection.weight[attention.widths[0] :] for attention in attentions]
        biases = [attention.projection.bias[attention.widths[0] :] for attention in attentions]
        self._linear = prepare.linear(torch.cat(weights), torch.cat(biases))

    def __call__(self, memory: Rows, sentences: int) -> SentenceBuffers:
        """Of each block, keys (B * H, S, K) and values (B * H, S, U)."""
        parts = self._prepare.memory(self._linear(memory), self._widths, self._heads, sentences)
        return SentenceBuffers(parts, self._heads)
