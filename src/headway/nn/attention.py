"""Attention (Vaswani et al. 2017, section 3.2).

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V                                (equation 1)
    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O                             (section 3.2.2)
        where head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)

Symbols: d_model is ``d_model``, h ``num_heads``, d_k ``d_key``, d_v ``d_value`` (both per head). Dimensions: B batch, T
query positions, S key positions, H heads, K width of a query or key, U width of a value, D model.

In self-attention, queries, keys and values come from one sequence. In the decoder's attention over the encoder, queries
come from the decoder, and keys and values come from the encoder's output, the memory (section 3.2.3). Some expositions
take queries and keys from the encoder; the paper does not, and neither do we.

A query that may not attend to any key yields zeros, not NaN.

Variants, all disabled by default: score functions other than the scaled dot product (:mod:`headway.nn.scores`), a
hidden layer in the projections of queries and keys, rotary positions and relative biases
(:mod:`headway.nn.positions`), and restricted self-attention (section 4), which considers "only a neighborhood of size r
in the input sequence centered around the respective output position". A window (before, after) is such a neighborhood
of r = before + 1 + after positions.

Attention weights can be observed or replaced during a model's forward pass. Each layer passes its weights through
:func:`apply_observers`, which does nothing unless the calling thread is inside :func:`observe_attention` or
:func:`record_attention`. Observers belong to one thread. Unlike with module hooks, threads that share a model do not
observe each other's passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Literal, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headway.errors import ConfigError
from headway.nn.arguments import check_floats, input_width
from headway.nn.dropout import Dropout
from headway.nn.masks import Causal, DocumentMask, Mask, check_mask
from headway.nn.norms import RMSNorm
from headway.nn.positions import RelativeBias, RotaryPositions
from headway.nn.scores import make_score


def attention_weights(
    query: Float[Tensor, "*b T K"],
    key: Float[Tensor, "*b S _"],
    mask: Bool[Tensor, "..."] | None = None,
    score: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Float[Tensor, "*b T S"]:
    """Return softmax(Q K^T / sqrt(d_k)) over the keys that ``mask`` allows.

    ``mask`` broadcasts to (..., T, S), and True means "may attend". ``score`` (:func:`~headway.nn.scores.make_score`)
    replaces the scaled dot product. Each row sums to one, or to zero if the query may not attend to any key.
    """
    check_floats("query", query, ..., "queries", "width")
    check_floats("key", key, *query.shape[:-2], "keys", query.size(-1) if score is None else "width")
    check_mask("mask", mask, *query.shape[:-1], key.size(-2))
    return masked_softmax(attention_scores(query, key, score), mask)


def attention_scores(
    query: Float[Tensor, "*b T K"],
    key: Float[Tensor, "*b S _"],
    score: Callable[[Tensor, Tensor], Tensor] | None = None,
    bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b T S"]:
    """Return Q K^T / sqrt(d_k), or the result of ``score`` if given, plus ``bias``."""
    scores = query * query.size(-1) ** -0.5 @ key.transpose(-2, -1) if score is None else score(query, key)
    return scores if bias is None else scores + bias


def masked_softmax(scores: Float[Tensor, "*b T S"], mask: Bool[Tensor, "..."] | None) -> Float[Tensor, "*b T S"]:
    """Return the softmax over the keys that ``mask`` allows. Masked keys get a score of minus infinity."""
    if mask is None:
        return scores.softmax(-1)
    # A completely masked row would become NaN. So it is unmasked for the softmax, and its weights are set to zero.
    attends = mask.any(-1, keepdim=True)
    bias = torch.zeros(mask.shape, dtype=scores.dtype, device=mask.device).masked_fill(~mask & attends, -math.inf)
    return (scores + bias).softmax(-1) * attends


def scaled_dot_product_attention(
    query: Float[Tensor, "*b T K"],
    key: Float[Tensor, "*b S K"],
    value: Float[Tensor, "*b S U"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b T U"]:
    """Return softmax(Q K^T / sqrt(d_k)) V (equation 1): for each query, the mean of the values, weighted by the
    softmax of the query's scores with the keys.

    ``mask`` is boolean, broadcasts to (..., T, S), and True means "may attend".
    """
    weights = attention_weights(query, key, mask)
    check_floats("value", value, *key.shape[:-1], "width")
    return weights @ value


@dataclass(frozen=True)
class KeysValues:
    """Projected keys and values of all heads, computed once for a memory or stored between decoding steps.

    Keys are already rotated to their positions if positions are rotary, and prepared for the score function. Prepared
    keys may be wider or narrower than queries (:meth:`headway.nn.scores.ScoreFunction.prepare`).
    """

    keys: Float[Tensor, "B H S K"]
    values: Float[Tensor, "B H S U"]

    def repeat_for_queries(self, queries_per_key: int) -> KeysValues:
        """Repeat each head for the neighboring query heads that share it."""
        if queries_per_key == 1:
            return self
        return KeysValues(*(x.repeat_interleave(queries_per_key, 1) for x in (self.keys, self.values)))


class MultiHeadAttention(nn.Module):
    """Attention with ``num_heads`` heads, each with its own learned projections (section 3.2.2).

    :func:`~headway.nn.attention.observe_attention` observes or replaces the (B, H, T, S) weights.

    Args:
        d_model: Width of inputs and outputs.
        num_heads: Number of heads.
        num_kv_heads: Number of key and value heads. num_heads / num_kv_heads neighboring query heads share each of them
            (grouped-query attention; Ainslie et al. 2023). Default: num_heads, as in the paper.
        d_key: Width of a head's queries and keys. Default: d_model / num_heads, as in the paper.
        d_value: Width of a head's values. Default: d_model / num_heads.
        dropout: Dropout probability on the attention weights. The paper does not apply dropout to them.
        bias: Whether the projections to queries, keys and values have a bias, as in most implementations. The paper's
            projections have no bias.
        output_bias: Whether the output projection has a bias. Default: the same as ``bias``.
        score: Name of the score function. If the function has weights, each head has its own.
        qk_projection: "hidden" replaces the linear projections of queries and of keys with
            W_2 max(0, W_1 x + b_1) + b_2. The hidden layer is as wide as the queries or keys of all heads.
        qk_norm_epsilon: If given, the queries and keys of each head pass through an RMSNorm with this epsilon (Henry et
            al. 2020; as in Qwen3).
        rotary: Rotates the queries and keys of self-attention to their positions. Cross-attention is never rotary.
        relative_bias: Adds biases to the scores of self-attention. Cross-attention has no positions.
        window: Numbers (before, after) of preceding and following positions that a position may attend to in
            self-attention, in addition to itself. None means all positions. Cross-attention is never restricted.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        d_key: int | None = None,
        d_value: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        output_bias: bool | None = None,
        score: str = "scaled_dot",
        qk_projection: Literal["linear", "hidden"] = "linear",
        qk_norm_epsilon: float | None = None,
        rotary: RotaryPositions | bool | None = None,
        relative_bias: RelativeBias | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        if (d_key is None or d_value is None) and d_model % num_heads:
            raise ConfigError(
                f"num_heads = {num_heads} does not divide d_model = {d_model}; "
                "choose a divisor, or set d_key and d_value"
            )
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        if num_heads % self.num_kv_heads:
            raise ConfigError(f"num_kv_heads = {num_kv_heads} does not divide num_heads = {num_heads}")
        self.queries_per_key = num_heads // self.num_kv_heads
        self.d_key = d_key or d_model // num_heads
        self.d_value = d_value or d_model // num_heads
        self.widths = (num_heads * self.d_key, self.num_kv_heads * self.d_key, self.num_kv_heads * self.d_value)
        # One matrix projects queries, keys and values, so that self-attention needs only one product. The state dict
        # stores the three parts under separate names.
        self.projection = nn.Linear(d_model, sum(self.widths), bias=bias)
        self.output = nn.Linear(num_heads * self.d_value, d_model, bias=bias if output_bias is None else output_bias)
        self.score = None if score == "scaled_dot" else make_score(score, self.d_key, num_heads)
        hidden = qk_projection == "hidden"
        self.query_outer = nn.Linear(self.widths[0], self.widths[0], bias=bias) if hidden else None
        self.key_outer = nn.Linear(self.widths[1], self.widths[1], bias=bias) if hidden else None
        self.query_norm = None if qk_norm_epsilon is None else RMSNorm(self.d_key, qk_norm_epsilon)
        self.key_norm = None if qk_norm_epsilon is None else RMSNorm(self.d_key, qk_norm_epsilon)
        self.rotary = RotaryPositions(self.d_key) if rotary is True else rotary or None
        self.relative_bias = relative_bias
        self.window = window
        self.dropout = Dropout(dropout)
        self.register_state_dict_post_hook(_split_projection)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_join_projection)  # type: ignore[no-untyped-call]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize each matrix Xavier-uniformly for its own shape (Glorot and Bengio 2010), and biases to zero."""
        outer = [layer for layer in (self.output, self.query_outer, self.key_outer) if layer is not None]
        for weight in (*torch.split(self.projection.weight, list(self.widths)), *(layer.weight for layer in outer)):
            nn.init.xavier_uniform_(weight)
        for bias in (self.projection.bias, *(layer.bias for layer in outer)):
            if bias is not None:
                nn.init.zeros_(bias)

    @property
    def is_positional(self) -> bool:
        """Whether a query's attention weights depend on its position in the sequence, apart from the mask."""
        return self.rotary is not None or self.relative_bias is not None or self.window is not None

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"] | None = None,
        *,
        mask: Mask | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend from x to itself, or to ``memory`` if given. ``mask`` broadcasts to (B, T, S)."""
        self.check_arguments(x, memory, mask=mask)
        if memory is None:
            return self.attend_to_itself(*self.project(x), restrict_to_window(mask, self.window, x))
        return self.attend(self.project_queries(x), self.project_memory(memory), mask)

    def check_arguments(self, x: Tensor, memory: Tensor | None = None, **masks: Mask | None) -> None:
        """Raise :class:`~headway.errors.ShapeError` if :meth:`forward` does not accept these arguments.

        The keyword of the mask is its name in the message.
        """
        width = input_width(self.projection)
        check_floats("x", x, "batch", "length", width)
        if memory is not None:
            check_floats("memory", memory, x.size(0), "length", width)
        for name, mask in masks.items():
            check_mask(name, mask, x.size(0), x.size(1), (x if memory is None else memory).size(1))

    def project(
        self, x: Float[Tensor, "B T D"], positions: Int[Tensor, " B"] | None = None
    ) -> tuple[Float[Tensor, "B H T K"], KeysValues]:
        """Return the queries, keys and values of one sequence.

        The sequence begins at position 0. If ``positions`` is given, as in a decoding step, row b begins at
        ``positions[b]``; in this case, call ``rotary.reserve(largest position + 1)`` first if positions are rotary.
        """
        self.check_arguments(x)
        query, key, value = torch.split(self.projection(x), list(self.widths), dim=-1)
        query, key = self._query_heads(query), self._key_heads(key)
        if self.rotary is not None:
            query, key = (
                self.rotary(y) if positions is None else self.rotary.rotate_at(y, positions) for y in (query, key)
            )
        return query, KeysValues(self._prepared(key), _split_heads(value, self.num_kv_heads))

    def project_queries(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T K"]:
        """Return the queries of x for attention to a memory."""
        self.check_arguments(x)
        return self._query_heads(self._part(x, 0, self.widths[0]))

    def project_memory(self, memory: Float[Tensor, "B S D"]) -> KeysValues:
        """Return the keys and values of a memory."""
        check_floats("memory", memory, "batch", "length", input_width(self.projection))
        joined = self._part(memory, self.widths[0], sum(self.widths))
        key, value = torch.split(joined, list(self.widths[1:]), dim=-1)
        return KeysValues(self._prepared(self._key_heads(key)), _split_heads(value, self.num_kv_heads))

    def attend_to_itself(
        self, query: Float[Tensor, "B H T K"], kv: KeysValues, mask: Mask | None = None
    ) -> Float[Tensor, "B T D"]:
        """Call :meth:`attend` with the results of :meth:`project`, and with the relative biases if there are any."""
        bias = None if self.relative_bias is None else self.relative_bias.biases_for_length(query.size(2))
        return self.attend(query, kv, mask, bias)

    def attend(
        self,
        query: Float[Tensor, "B H T K"],
        kv: KeysValues,
        mask: Mask | None = None,
        bias: Float[Tensor, "*#B H T S"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend from projected queries to keys and values, concatenate the heads and project them.

        ``bias`` is added to the scores.
        """
        check_mask("mask", mask, query.size(0), query.size(2), kv.keys.size(2))
        mask = None if mask is None else add_head_dim(mask, query)
        kv = kv.repeat_for_queries(self.queries_per_key)
        weights = apply_observers(self, masked_softmax(self.scores(query, kv.keys, bias), mask))
        return self.merge_heads(self.dropout(weights) @ kv.values)

    def scores(
        self,
        query: Float[Tensor, "B H T K"],
        key: Float[Tensor, "B H S _"],
        bias: Float[Tensor, "*#B H T S"] | None = None,
    ) -> Float[Tensor, "B H T S"]:
        """Return the scores of projected queries and prepared keys, before the mask and softmax."""
        return attention_scores(query, key, None if self.score is None else self.score.compare, bias)

    def merge_heads(self, heads: Float[Tensor, "B H T U"]) -> Float[Tensor, "B T D"]:
        """Concatenate the heads and project them: Concat(head_1, ..., head_h) W^O."""
        joined: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return joined

    def _part(self, x: Tensor, start: int, end: int) -> Tensor:
        bias = self.projection.bias
        return F.linear(x, self.projection.weight[start:end], None if bias is None else bias[start:end])

    def _query_heads(self, x: Float[Tensor, "B T _"]) -> Float[Tensor, "B H T K"]:
        return _split_heads(_transformed(x, self.query_outer), self.num_heads, self.query_norm)

    def _key_heads(self, x: Float[Tensor, "B S _"]) -> Float[Tensor, "B H S K"]:
        return _split_heads(_transformed(x, self.key_outer), self.num_kv_heads, self.key_norm)

    def _prepared(self, key: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H S _"]:
        return key if self.score is None else self.score.prepare(key)


@overload
def restrict_to_window(
    mask: DocumentMask, window: tuple[int, int] | None, x: Float[Tensor, "B T D"]
) -> DocumentMask: ...
@overload
def restrict_to_window(
    mask: Bool[Tensor, "..."] | None, window: tuple[int, int] | None, x: Float[Tensor, "B T D"]
) -> Bool[Tensor, "..."] | None: ...
@overload
def restrict_to_window(mask: Mask | None, window: tuple[int, int] | None, x: Float[Tensor, "B T D"]) -> Mask | None: ...
def restrict_to_window(mask: Mask | None, window: tuple[int, int] | None, x: Float[Tensor, "B T D"]) -> Mask | None:
    """Return ``mask`` restricted to the keys inside the window around each position of ``x``."""
    if window is None:
        return mask
    if isinstance(mask, DocumentMask):
        return mask.restrict_to_window(window[0])
    if isinstance(mask, Causal):
        mask = mask.to_tensor(x.size(1), x.device)
    positions = torch.arange(x.size(1), device=x.device)
    distance = positions - positions.unsqueeze(1)
    inside = (distance >= -window[0]) & (distance <= window[1])
    return inside if mask is None else inside & mask


def add_head_dim(mask: Mask, query: Float[Tensor, "*b T K"]) -> Bool[Tensor, "..."]:
    """Convert a mask that broadcasts to (B, T, S) to a tensor with an additional head dimension."""
    if isinstance(mask, Causal):
        mask = mask.to_tensor(query.size(-2), query.device)
    elif isinstance(mask, DocumentMask):
        mask = mask.to_tensor()
    return (mask if mask.dim() > 1 else mask.unsqueeze(0)).unsqueeze(-3)


def _transformed(x: Float[Tensor, "B T _"], outer: nn.Linear | None) -> Float[Tensor, "B T _"]:
    """Return ``x``, or ``outer(relu(x))`` if there is a hidden layer."""
    return x if outer is None else outer(F.relu(x))


def _split_heads(x: Float[Tensor, "B T _"], count: int, norm: nn.Module | None = None) -> Float[Tensor, "B H T _"]:
    heads = torch.unflatten(x, -1, (count, -1))
    return (heads if norm is None else norm(heads)).transpose(1, 2)


_PARTS = ("query", "key", "value")


def _split_projection(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object) -> None:
    """Store query, key and value under separate names, because the names in a state dict are an API."""
    assert isinstance(module, MultiHeadAttention)
    for kind in ("weight", "bias"):
        joined = state.pop(f"{prefix}projection.{kind}", None)
        if joined is not None:
            for name, part in zip(_PARTS, joined.split(module.widths), strict=True):
                state[f"{prefix}{name}.{kind}"] = part


def _join_projection(
    module: nn.Module, state: dict[str, Any], prefix: str, _metadata: object, _strict: object, *_lists: object
) -> None:
    """Invert :func:`_split_projection`. PyTorch reports missing names."""
    for kind in ("weight", "bias"):
        names = [f"{prefix}{name}.{kind}" for name in _PARTS]
        if all(name in state for name in names):
            state[f"{prefix}projection.{kind}"] = torch.cat([state.pop(name) for name in names])


AttentionObserver = Callable[[nn.Module, Tensor], Tensor | None]

# The observers of each thread, keyed by thread identifier. This is a dictionary rather than a context variable, because
# torch.compile can trace the check for an empty dictionary.
_observers: dict[int, tuple[AttentionObserver, ...]] = {}


@contextmanager
def observe_attention(observer: AttentionObserver) -> Iterator[None]:
    """Inside this context, call ``observer(layer, weights)`` whenever an attention layer runs in this thread.

    The weights have shape (B, H, T, S). If the observer returns a tensor, the layer uses this tensor instead of its own
    weights. Observers can be nested: an inner observer receives the weights that the outer observers return.
    """
    thread = get_ident()
    outer = _observers.get(thread, ())
    _observers[thread] = (*outer, observer)
    try:
        yield
    finally:
        _observers[thread] = outer
        if not outer:
            del _observers[thread]


@contextmanager
def record_attention(layer: nn.Module) -> Iterator[list[Float[Tensor, "B H T S"]]]:
    """Append the weights of ``layer`` to the yielded list each time the layer runs in this thread."""
    seen: list[Tensor] = []

    def record(module: nn.Module, weights: Tensor) -> None:
        if module is layer:
            seen.append(weights)

    with observe_attention(record):
        yield seen


def attention_is_observed() -> bool:
    """Return whether an observer is active in this thread."""
    return bool(_observers) and get_ident() in _observers


def apply_observers(layer: nn.Module, weights: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    """Pass ``weights`` to this thread's observers, and return the weights that ``layer`` must use."""
    if not _observers:
        return weights
    for observer in _observers.get(get_ident(), ()):
        replaced = observer(layer, weights)
        weights = weights if replaced is None else replaced
    return weights
