"""Attention (Vaswani et al. 2017, section 3.2).

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V                                (equation 1)
    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O                             (section 3.2.2)
        where head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)

Symbols: d_model is ``d_model``, h ``num_heads``, d_k ``d_key``, d_v ``d_value`` (both per head). Dimensions: B batch, T
query positions, S key positions, H heads, K width of a query or key, U width of a value, D model.

Which tensors play which part: in self-attention queries, keys and values come from one sequence; in the decoder's
attention over the encoder, queries come from the decoder, keys and values from the encoder's output, the memory
(section 3.2.3). Some expositions take queries and keys from the encoder: the paper does not, nor do we.

Several kernels compute the one function; :func:`_fused_kernel_pays` and, for training, ``_is_plain`` choose, and tests
prove them equal. A query that may attend to nothing yields zeros, not NaN.

Variants, all off by default: other score functions in place of the scaled product (:mod:`headway.nn.scores`), which are
computed plainly; a hidden layer in the projections of queries and keys; rotary positions (:mod:`headway.nn.positions`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from headway.errors import ConfigError
from headway.kernels.arrays import numbers, takes
from headway.nn.dropout import Dropout
from headway.nn.heads import attend_by_kernels, attend_in_pairs
from headway.nn.linear import BLOCK, Linear, linear, trains_by_kernels
from headway.nn.positions import RotaryPositions
from headway.nn.scores import ScoreKind, make_score

__all__ = ["KeysValues", "MultiHeadAttention", "attention_weights", "scaled_dot_product_attention"]


def attention_weights(
    query: Float[Tensor, "*b T K"],
    key: Float[Tensor, "*b S _"],
    mask: Bool[Tensor, "..."] | None = None,
    score: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Float[Tensor, "*b T S"]:
    """softmax(Q K^T / sqrt(d_k)) over the keys that ``mask`` (broadcast to (..., T, S), True: may attend) allows.

    ``score`` (:func:`~headway.nn.scores.make_score`) may take the place of the scaled product. Each row sums to one, or
    to zero where a query may attend to nothing.
    """
    if score is None:
        scores = torch.matmul(query * query.size(-1) ** -0.5, key.transpose(-2, -1))
    else:
        scores = score(query, key)
    if mask is None:
        return scores.softmax(-1)
    if (opened := _for_kernel(scores, mask)) is not None:
        return cast(Tensor, _MaskedSoftmax.apply(scores.contiguous(), opened))  # type: ignore[no-untyped-call]
    attends = mask.any(-1, keepdim=True)
    if mask.device.type == "cpu" and not torch.compiler.is_compiling() and attends.all():
        # Almost always; but to ask a GPU its host would have to wait, and a compiled graph has no branches.
        return (scores + _as_bias(mask, scores.dtype)).softmax(-1)
    # A row that is masked throughout is opened, so that its softmax is finite, and then emptied.
    return (scores + _as_bias(mask | ~attends, scores.dtype)).softmax(-1) * attends


def _for_kernel(scores: Tensor, mask: Bool[Tensor, "..."]) -> Bool[Tensor, "#B #T S"] | None:
    """The mask for :mod:`headway.kernels.softmax`, where that can compute the weights: all heads have the same."""
    mask = mask.unsqueeze(0) if mask.dim() == 3 else mask
    fits = scores.dim() == mask.dim() == 4 and mask.size(1) == 1 and mask.size(3) == scores.size(3)
    return mask[:, 0].contiguous() if fits and takes(scores) else None


class _MaskedSoftmax(torch.autograd.Function):
    """Scores (B, H, T, S) become their weights, in place; ``mask`` (B or 1, T or 1, S)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor) -> Tensor:
        from headway.kernels.softmax import replace_by_weights  # imports Numba

        replace_by_weights(numbers(scores), mask.numpy())
        ctx.mark_dirty(scores)
        ctx.save_for_backward(scores)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return torch._softmax_backward_data(grad_output, weights, -1, weights.dtype), None


def _as_bias(mask: Bool[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """0 where the mask is True, minus infinity elsewhere: what the paper adds to the scores."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)


def scaled_dot_product_attention(
    query: Float[Tensor, "*b T K"],
    key: Float[Tensor, "*b S K"],
    value: Float[Tensor, "*b S U"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b T U"]:
    """softmax(Q K^T / sqrt(d_k)) V (equation 1): each query's mean of the values, weighted by its match with the keys.

    ``mask`` is boolean, broadcasts to (..., T, S), and True means "may attend". :func:`attention_weights` gives the
    weights.
    """
    if not _fused_kernel_pays(query, key):
        return attention_weights(query, key, mask) @ value
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value)
    attends = mask.any(-1, keepdim=True)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask | ~attends) * attends


def _fused_kernel_pays(query: Tensor, key: Tensor) -> bool:
    """Whether PyTorch's fused kernel beats the explicit product: always on CUDA, on a CPU from about 1,000 keys on.

    Measured with forward and backward on 2 cores (AVX-512): at S = 16, K = 64 in bfloat16 the fused backward takes
    several times as long as the explicit one; the balance turns near S = 1,000. A fixed rule, never a timing: runs stay
    repeatable.
    """
    return query.is_cuda or key.size(-2) >= 1024


@dataclass(frozen=True)
class KeysValues:
    """Keys and values of all heads, ready to be attended to: computed once a memory, or kept between decoding steps.

    Ready means that keys are turned to their positions where those are rotary, and prepared for the score function; a
    key that is so prepared may have another width than a query (:meth:`headway.nn.scores.Score.prepare`).
    """

    keys: Float[Tensor, "B H S K"]
    values: Float[Tensor, "B H S U"]


class MultiHeadAttention(nn.Module):
    """Attention of ``num_heads`` heads, each in its own learned projection (section 3.2.2).

    ``d_key`` and ``d_value`` are per head and default to d_model / num_heads, as in the paper; they need not be equal.
    The projections of query, key and value lie in one matrix, so that self-attention needs one product; in the state
    dict they stand under their own names (``query``, ``key``, ``value``). The paper writes the projections without a
    bias; ``bias=True`` adds one, as most implementations do.

    The weights are observed through ``self.weights``, an identity: a forward hook on it sees every (B, H, T, S) weight
    matrix, and without a hook it costs nothing. A hook that only looks changes no bit while evaluating (training
    without one takes :mod:`headway.nn.heads`, which rounds otherwise); one that returns other weights has them used.
    ``dropout`` acts on the weights; the paper has none there.

    ``score`` is the score function, with weights of its own for each head where it has any. ``qk_projection`` "hidden"
    puts a hidden layer, W_2 max(0, W_1 x + b_1) + b_2 as wide as all heads' queries, in the place of the linear
    projections of queries and of keys. ``rotary`` turns queries and keys to their positions in attention of a sequence
    to itself; in attention to a memory there is no such turn.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        d_key: int | None = None,
        d_value: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        score: ScoreKind = "scaled_dot",
        qk_projection: Literal["linear", "hidden"] = "linear",
        rotary: bool = False,
    ) -> None:
        super().__init__()
        if (d_key is None or d_value is None) and d_model % num_heads:
            raise ConfigError(
                f"num_heads = {num_heads} does not divide d_model = {d_model}; "
                "choose a divisor, or set d_key and d_value"
            )
        self.num_heads = num_heads
        self.d_key = d_key or d_model // num_heads
        self.d_value = d_value or d_model // num_heads
        self.widths = (num_heads * self.d_key, num_heads * self.d_key, num_heads * self.d_value)
        self.projection = nn.Linear(d_model, sum(self.widths), bias=bias)
        self.output = Linear(num_heads * self.d_value, d_model, bias=bias)
        self.score = None if score == "scaled_dot" else make_score(score, self.d_key, num_heads)
        hidden = qk_projection == "hidden"
        self.query_outer = nn.Linear(self.widths[0], self.widths[0], bias=bias) if hidden else None
        self.key_outer = nn.Linear(self.widths[1], self.widths[1], bias=bias) if hidden else None
        self.rotary = RotaryPositions(self.d_key) if rotary else None
        self.weights = nn.Identity()
        self.dropout = Dropout(dropout)
        self.register_state_dict_post_hook(_split_projection)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_join_projection)  # type: ignore[no-untyped-call]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform matrices (Glorot and Bengio 2010), each projection by its own shape; zero biases."""
        outer = [layer for layer in (self.output, self.query_outer, self.key_outer) if layer is not None]
        for weight in (*torch.split(self.projection.weight, list(self.widths)), *(layer.weight for layer in outer)):
            nn.init.xavier_uniform_(weight)
        for bias in (self.projection.bias, *(layer.bias for layer in outer)):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend from x to itself, or to ``memory`` where one is given. ``mask`` broadcasts to (B, T, S)."""
        if mask is not None and self._is_plain(x, x if memory is None else memory, mask):
            weight, bias = self.projection.weight, self.projection.bias
            split = len(weight) if memory is None else self.widths[0]
            in_pairs = self.d_key % BLOCK == 0 and trains_by_kernels(x, weight)
            first, second = (None, None) if bias is None or not in_pairs else (bias[:split], bias[split:])
            projected = linear(x, weight if memory is None else weight[:split], first)
            other = None if memory is None else linear(memory, weight[split:], second)
            if in_pairs:
                together: Tensor = self.output(attend_in_pairs(projected, other, mask, self.num_heads))
                return together
            bias = weight.new_zeros(len(weight)) if bias is None else bias
            if takes(projected):
                joined: Tensor = self.output(attend_by_kernels(projected, other, bias, mask, self.num_heads))
                return joined
        if memory is not None:
            return self.attend(self.queries(x), self.keys_values(memory), mask)
        query, kv = self.project(x)
        return self.attend(query, kv, mask)

    def project(
        self, x: Float[Tensor, "B T D"], positions: Int[Tensor, " B"] | None = None
    ) -> tuple[Float[Tensor, "B H T K"], KeysValues]:
        """Queries, and keys with values, of one sequence by one product.

        It begins at position 0, unless ``positions`` tells where each row is, as in a step of decoding; there rotary
        positions must be covered already: ``rotary.reserve(longest + 1)``.
        """
        query, key, value = torch.split(self.projection(x), list(self.widths), dim=-1)
        query, key = self._heads(_transformed(query, self.query_outer)), self._heads(_transformed(key, self.key_outer))
        if self.rotary is not None:
            query, key = (
                self.rotary(part) if positions is None else self.rotary.at(part, positions) for part in (query, key)
            )
        return query, KeysValues(self._prepared(key), self._heads(value))

    def queries(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T K"]:
        """The queries of x alone, to a memory."""
        return self._heads(_transformed(self._part(x, 0, self.widths[0]), self.query_outer))

    def keys_values(self, memory: Float[Tensor, "B S D"]) -> KeysValues:
        """The keys and values of a memory alone."""
        joined = self._part(memory, self.widths[0], sum(self.widths))
        key, value = torch.split(joined, list(self.widths[1:]), dim=-1)
        return KeysValues(self._prepared(self._heads(_transformed(key, self.key_outer))), self._heads(value))

    def attend(
        self, query: Float[Tensor, "B H T K"], kv: KeysValues, mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Attention of projected queries over keys and values, heads concatenated and projected back."""
        if mask is not None:
            mask = (mask if mask.dim() > 1 else mask.unsqueeze(0)).unsqueeze(-3)
        plain = self.score is not None or (self.training and self.dropout.p > 0)
        if plain or self.weights._forward_hooks:
            score = None if self.score is None else self.score.compare
            weights = attention_weights(query, kv.keys, mask, score)
            observed = self.weights(weights)
            if observed is weights and not plain and _fused_kernel_pays(query, kv.keys):
                # What is computed without a hook.
                heads = scaled_dot_product_attention(query, kv.keys, kv.values, mask)
            else:
                heads = self.dropout(observed) @ kv.values
        else:
            heads = scaled_dot_product_attention(query, kv.keys, kv.values, mask)
        joined: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return joined

    def _is_plain(self, x: Tensor, memory: Tensor, mask: Tensor) -> bool:
        """Whether :mod:`headway.nn.heads` computes all that is asked for."""
        varied = (self.score, self.query_outer, self.rotary, self.weights._forward_hooks or None)
        return (
            self.training
            and takes(memory)
            and not any(varied)
            and len(set(self.widths)) == 1
            and all(parameter.dtype == torch.float32 for parameter in self.projection.parameters())
            and not self.dropout.p
            and not _fused_kernel_pays(memory, memory)
            and mask.dim() == 3
            and mask.size(0) in (1, len(x))
            and mask.size(1) in (1, x.size(1))
            and mask.size(2) == memory.size(1)
        )

    def _part(self, x: Tensor, start: int, end: int) -> Tensor:
        bias = self.projection.bias
        return F.linear(x, self.projection.weight[start:end], None if bias is None else bias[start:end])

    def _heads(self, x: Float[Tensor, "B T _"]) -> Float[Tensor, "B H T _"]:
        return torch.unflatten(x, -1, (self.num_heads, -1)).transpose(1, 2)

    def _prepared(self, key: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H S _"]:
        return key if self.score is None else self.score.prepare(key)


def _transformed(x: Float[Tensor, "B T _"], outer: nn.Linear | None) -> Float[Tensor, "B T _"]:
    """``x``, or what ``outer`` makes of it as a hidden layer."""
    return x if outer is None else outer(F.relu(x))


_PARTS = ("query", "key", "value")


def _split_projection(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    """Put query, key and value under their own names: the names of a state dict are an API."""
    assert isinstance(module, MultiHeadAttention)
    for kind in ("weight", "bias"):
        joined = state.pop(f"{prefix}projection.{kind}", None)
        if joined is not None:
            for name, part in zip(_PARTS, joined.split(module.widths), strict=True):
                state[f"{prefix}{name}.{kind}"] = part


def _join_projection(
    module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object, _strict: object, *_lists: object
) -> None:
    """The inverse of :func:`_split_projection`; names that are missing are left for PyTorch to report."""
    for kind in ("weight", "bias"):
        names = [f"{prefix}{name}.{kind}" for name in _PARTS]
        if all(name in state for name in names):
            state[f"{prefix}projection.{kind}"] = torch.cat([state.pop(name) for name in names])
