"""The blocks of a Transformer, laid out for speed: functions of rows, with weights that a precision has prepared."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from headway.inference.precision import Preparer
from headway.nn.attention import MultiHeadAttention, scaled_dot_product_attention
from headway.nn.blocks import DecoderBlock, EncoderBlock, FeedForward, GatedFeedForward, NoNorm, PostNorm, PreNorm
from headway.nn.prefix_tree import PrefixTree, attend

__all__ = ["DecoderLayer", "EncoderLayer", "MemoryProjection", "Turn", "norm"]

Turn = Callable[[Tensor], Tensor]


def norm(module: nn.Module, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """A layer norm in ``dtype``, or nothing where the stack has none."""
    if not isinstance(module, nn.LayerNorm):
        return lambda x: x
    shape, eps = module.normalized_shape, module.eps
    weight, bias = module.weight.detach().to(dtype), module.bias.detach().to(dtype)
    return lambda x: F.layer_norm(x, shape, weight, bias, eps)


def _residual(module: nn.Module, dtype: torch.dtype) -> Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]:
    """What stands around a sub-layer; the sum is taken in place of the sub-layer's output."""
    assert isinstance(module, (PostNorm, PreNorm, NoNorm))
    before = norm(module.norm if isinstance(module, PreNorm) else nn.Identity(), dtype)
    after = norm(module.norm if isinstance(module, PostNorm) else nn.Identity(), dtype)
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
    def __init__(self, module: nn.Module, prepare: Preparer) -> None:
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


class EncoderLayer:
    """A block of the encoder, on the rows of all sentences; ``mask`` (B, 1, 1, S) is True at tokens."""

    def __init__(self, block: EncoderBlock, prepare: Preparer) -> None:
        attention = block.attention
        self._prepare, self._heads, self._widths = prepare, attention.num_heads, list(attention.widths)
        self._rotary = attention.rotary
        self._projection, self._output = prepare.module(attention.projection), prepare.module(attention.output)
        self._feed_forward = _FeedForward(block.feed_forward, prepare)
        self._around_attention = _residual(block.attention_residual, prepare.dtype)
        self._around_feed_forward = _residual(block.feed_forward_residual, prepare.dtype)

    def __call__(self, x: Float[Tensor, "BS D"], mask: Tensor, sentences: int) -> Float[Tensor, "BS D"]:
        """The rows of so many ``sentences``, one after the other."""
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


class DecoderLayer:
    """A block of the decoder, on one new token of each row."""

    def __init__(self, block: DecoderBlock, prepare: Preparer) -> None:
        attention, cross = block.attention, block.cross_attention
        self._prepare, self._heads, self._widths = prepare, attention.num_heads, list(attention.widths)
        self._projection, self._output = prepare.linear(*_query_scaled(attention)), prepare.module(attention.output)
        weight, bias = _query_scaled(cross)
        queries = cross.widths[0]
        self._cross_query = prepare.linear(weight[:queries], None if bias is None else bias[:queries])
        self._cross_output = prepare.module(cross.output)
        self._feed_forward = _FeedForward(block.feed_forward, prepare)
        self._around_attention = _residual(block.attention_residual, prepare.dtype)
        self._around_cross = _residual(block.cross_attention_residual, prepare.dtype)
        self._around_feed_forward = _residual(block.feed_forward_residual, prepare.dtype)

    def __call__(
        self,
        x: Float[Tensor, "R D"],
        prefix: PrefixTree,
        index: int,
        turn: Turn | None,
        memory: tuple[Tensor, Tensor],
        memory_bias: Tensor | None,
    ) -> Float[Tensor, "R D"]:
        """``index`` is the block's number, by which the prefixes know it; ``turn`` is for rotary positions."""
        x = self._around_attention(x, lambda x: self._attention(x, prefix, index, turn))
        x = self._around_cross(x, lambda x: self._cross_attention(x, prefix.beams, memory, memory_bias))
        return self._around_feed_forward(x, self._feed_forward)

    def _attention(self, x: Tensor, prefix: PrefixTree, index: int, turn: Turn | None) -> Tensor:
        projected = self._projection(self._prepare.rows(x)).view(-1, prefix.beams, sum(self._widths))
        query, key, value = _by_head(projected, self._widths, self._heads)
        if turn is not None:
            query, key = turn(query), turn(key)
        keys, values = prefix.extend(index, key, value)
        return self._output(self._prepare.rows(attend(query, keys, values, prefix.step_bias)))

    def _cross_attention(self, x: Tensor, beams: int, memory: tuple[Tensor, Tensor], bias: Tensor | None) -> Tensor:
        query = self._cross_query(self._prepare.rows(x)).view(-1, beams, self._heads, self._widths[0] // self._heads)
        return self._cross_output(self._prepare.rows(attend(query, *memory, bias)))


class MemoryProjection:
    """Keys and values of the memory for all decoder blocks, by one product."""

    def __init__(self, attentions: list[MultiHeadAttention], prepare: Preparer) -> None:
        self._prepare, self._heads = prepare, attentions[0].num_heads
        self._widths = [width for attention in attentions for width in attention.widths[1:]]
        weights = [attention.projection.weight[attention.widths[0] :] for attention in attentions]
        biases = [attention.projection.bias[attention.widths[0] :] for attention in attentions]
        self._linear = prepare.linear(torch.cat(weights), torch.cat(biases))

    def __call__(self, memory: Float[Tensor, "B S D"]) -> list[tuple[Tensor, Tensor]]:
        """Of each block, keys (B * H, S, K) and values (B * H, S, U), as :func:`attend` wants them."""
        projected = self._linear(self._prepare.rows(memory.flatten(0, 1))).view(*memory.shape[:2], -1)
        parts = _by_head(projected, self._widths, self._heads)
        ready = [part.transpose(1, 2).flatten(0, 1) for part in parts]
        return list(zip(ready[::2], ready[1::2], strict=True))


def _by_head(x: Float[Tensor, "B T _"], widths: list[int], heads: int) -> list[Float[Tensor, "B T H _"]]:
    """Parts of ``widths`` that were computed side by side, each with its heads apart."""
    return [part.view(*part.shape[:-1], heads, -1) for part in torch.split(x, widths, dim=-1)]
