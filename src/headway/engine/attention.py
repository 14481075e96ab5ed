"""Fast multi-head attention with the same results as :mod:`headway.nn.attention`.

In training on a CPU, one operation with its own backward pass computes all heads. It adds the projection biases while
it splits the heads, scales scores inside the softmax, and writes the gradients of queries, keys and values directly
into the projection's gradient. In all other cases, attention uses a compiled softmax, or PyTorch's fused attention if
that is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from headway.engine.arrays import as_array, kernels_support, parameter_as_array
from headway.engine.linear import linear, uses_training_kernels
from headway.nn import attention as plain
from headway.nn.attention import KeysValues, MultiHeadAttention, add_head_dim, apply_observers, attention_is_observed
from headway.nn.dropout import Dropout, draw_seed
from headway.nn.masks import Causal, DocumentMask, Mask
from headway.torch_internals import has_hooks, softmax_backward


class KernelMultiHeadAttention(MultiHeadAttention):
    """:class:`~headway.nn.attention.MultiHeadAttention` with fast kernels.

    In training, one operation computes all heads if the kernels support the options and inputs. Otherwise, the fast
    version of each part is used. If attention is observed, the weights are computed explicitly. In evaluation mode, an
    observer that does not replace the weights leaves the result bitwise unchanged.
    """

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"] | None = None,
        *,
        mask: Mask | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend from x to itself, or to ``memory`` if given. ``mask`` broadcasts to (B, T, S)."""
        if mask is None or not self._is_one_operation(x, x if memory is None else memory, mask):
            return super().forward(x, memory, mask=mask)
        from headway.kernels.bf16_gemm import supports_width  # imports Numba

        weight, bias = self.projection.weight, self.projection.bias
        in_bfloat16 = supports_width(self.d_key) and uses_training_kernels(x, weight) and not self.dropout.p
        split = len(weight) if memory is None else self.widths[0]
        # The float32 kernels add the bias later, but a rotation needs it first.
        bias_in_product = bias is not None and (in_bfloat16 or self.rotary is not None)
        first, second = (bias[:split], bias[split:]) if bias_in_product else (None, None)
        projected = linear(x, weight if memory is None else weight[:split], first)
        other = None if memory is None else linear(memory, weight[split:], second)
        if self.rotary is not None:
            self.rotary.reserve(x.size(1))
            arguments = (projected, self.rotary.table[: x.size(1)], self.num_heads)
            projected = cast(Tensor, _Rotation.apply(*arguments))  # type: ignore[no-untyped-call]
        if in_bfloat16:
            heads = attend_in_bfloat16(projected, other, mask, self.num_heads)
        else:
            added = weight.new_zeros(len(weight)) if bias is None or bias_in_product else bias
            heads = attend_by_kernels(projected, other, added, mask, self.num_heads, self.dropout)
        joined: Tensor = self.output(heads)
        return joined

    def attend(
        self,
        query: Float[Tensor, "B H T K"],
        kv: KeysValues,
        mask: Mask | None = None,
        bias: Float[Tensor, "*#B H T S"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend from projected queries to keys and values, concatenate the heads and project them."""
        if isinstance(mask, Tensor):
            mask = add_head_dim(mask, query)
        needs_weights = self.score is not None or bias is not None or (self.training and self.dropout.p > 0)
        if needs_weights or attention_is_observed():
            repeated = kv.repeat_for_queries(self.queries_per_key)
            score = None if self.score is None else self.score.compare
            weights = attention_weights(query, repeated.keys, mask, score, bias)
            used = apply_observers(self, weights)
            if used is not weights or needs_weights or not _fused_is_faster(query, kv.keys):
                return self.merge_heads(self.dropout(used) @ repeated.values)
        return self.merge_heads(scaled_dot_product_attention(query, kv.keys, kv.values, mask))

    def _is_one_operation(self, x: Tensor, source: Tensor, mask: Mask) -> bool:
        """Return whether the training kernels support the options of this layer and these inputs."""
        return (
            self.training
            and kernels_support(x)
            and kernels_support(source)
            and unfused_scores_part(self) is None
            and not unfused_training_parts(self)
            and not attention_is_observed()
            and not has_hooks(self.projection, self.dropout)
            and all(parameter.dtype == torch.float32 for parameter in self.projection.parameters())
            and not _fused_is_faster(source, source)
            and _kernels_support_mask(mask, x, source)
        )


def unfused_scores_part(layer: MultiHeadAttention) -> str | None:
    """Return the name of a part that forces a layer to compute scores and weights in separate steps, or None."""
    return next((name for name in ("score", "relative_bias") if getattr(layer, name) is not None), None)


def unfused_training_parts(layer: MultiHeadAttention) -> list[str]:
    """Return the names of the parts that force a fast layer to use several operations in training instead of one."""
    names = ("query_outer", "key_outer", "query_norm", "key_norm")
    parts = [name for name in names if getattr(layer, name) is not None]
    return parts if len(set(layer.widths)) == 1 else [*parts, "unequal widths"]


def _kernels_support_mask(mask: Mask, x: Float[Tensor, "B T D"], source: Float[Tensor, "B S D"]) -> bool:
    """Return whether the training kernels support the mask's type and shape."""
    if isinstance(mask, Causal):
        return source is x
    if isinstance(mask, DocumentMask):
        return source is x and mask.first_keys.shape == x.shape[:2]
    sizes = (1, len(x)), (1, x.size(1)), (source.size(1),)
    return mask.dim() == 3 and all(size in fitting for size, fitting in zip(mask.shape, sizes, strict=True))


def attention_weights(
    query: Float[Tensor, "*b T K"],
    key: Float[Tensor, "*b S _"],
    mask: Mask | None = None,
    score: Callable[[Tensor, Tensor], Tensor] | None = None,
    bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*b T S"]:
    """Compute :func:`headway.nn.attention.attention_weights`, with a compiled softmax if all heads share one mask.

    ``bias`` is added to the scores.
    """
    if mask is None and bias is None:
        return plain.attention_weights(query, key, None, score)
    scores = plain.attention_scores(query, key, score, bias)
    if mask is None:
        return scores.softmax(-1)
    if not isinstance(mask, Tensor):
        if kernels_support(scores):
            arguments = (scores.contiguous(), _mask_for_kernels(mask, len(scores), scores.size(2)))
            return cast(Tensor, _MaskedSoftmax.apply(*arguments))  # type: ignore[no-untyped-call]
        return plain.masked_softmax(scores, add_head_dim(mask, query))
    by_sentence = mask.unsqueeze(0) if mask.dim() == 3 else mask
    fits = scores.dim() == by_sentence.dim() == 4 and by_sentence.size(1) == 1 and by_sentence.size(3) == scores.size(3)
    if fits and kernels_support(scores):
        arguments = (scores.contiguous(), by_sentence[:, 0])
        return cast(Tensor, _MaskedSoftmax.apply(*arguments))  # type: ignore[no-untyped-call]
    return plain.masked_softmax(scores, mask)


def scaled_dot_product_attention(
    query: Float[Tensor, "*b T K"],
    key: Float[Tensor, "*g S K"],
    value: Float[Tensor, "*g S U"],
    mask: Mask | None = None,
) -> Float[Tensor, "*b T U"]:
    """Compute :func:`headway.nn.attention.scaled_dot_product_attention`, with PyTorch's fused kernels if faster.

    Keys and values may have fewer heads than queries; neighboring query heads then share a key and value head. Without
    a mask or with a :class:`~headway.nn.masks.Causal` mask, PyTorch can choose flash attention (Dao et al. 2022), which
    does not store scores. On a GPU, flash attention does not accept mask tensors.
    """
    fused = _fused_is_faster(query, key)
    may_be_flash = fused and (mask is None or isinstance(mask, Causal))
    queries_per_key = query.size(-3) // key.size(-3) if query.dim() > 3 else 1
    # If flash attention is not possible, PyTorch computes grouped heads with a slow implementation that stores all
    # scores.
    is_grouped = queries_per_key > 1 and may_be_flash and not (query.is_cuda and query.dtype == torch.float32)
    if queries_per_key > 1 and not is_grouped:
        key, value = (x.repeat_interleave(queries_per_key, -3) for x in (key, value))
    if may_be_flash:
        causal = mask is not None
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=is_grouped)
    if mask is None or not fused:
        return attention_weights(query, key, mask) @ value
    if isinstance(mask, DocumentMask):
        if query.is_cuda or torch.compiler.is_compiling():
            return F.scaled_dot_product_attention(query, key, value, attn_mask=add_head_dim(mask, query))
        documents = _document_bounds(mask)
        if documents is None:
            return attention_weights(query, key, mask) @ value
        return _attend_by_document(query, key, value, documents)
    assert isinstance(mask, Tensor)
    mask = mask if mask.dim() > 1 else mask.unsqueeze(0)  # PyTorch requires at least two dimensions
    attends = mask.any(-1, keepdim=True)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask | ~attends) * attends


def _document_bounds(mask: DocumentMask) -> list[list[int]] | None:
    """Return, for each row, the positions at which documents begin, followed by the row's length.

    Returns None if a window restricts the mask. Without a window, all queries of a document have the same first key.
    """
    first, positions = mask.first_keys, mask.query_positions
    begins = first == positions
    if not bool((begins | (first == first.roll(1, 1))).all()):
        return None
    return [[*positions[row].tolist(), first.size(1)] for row in begins]


def _attend_by_document(
    query: Float[Tensor, "B H T K"],
    key: Float[Tensor, "B H T K"],
    value: Float[Tensor, "B H T U"],
    documents: Sequence[Sequence[int]],
) -> Float[Tensor, "B H T U"]:
    """Return the causal attention within each document, computed one document at a time."""
    rows = []
    for row, bounds in enumerate(documents):
        sizes = [end - begin for begin, end in pairwise(bounds)]
        parts = zip(*(torch.split(x[row : row + 1], sizes, 2) for x in (query, key, value)), strict=True)
        attended = [F.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in parts]
        rows.append(torch.cat(attended, 2))
    return torch.cat(rows)


def _fused_is_faster(query: Tensor, key: Tensor) -> bool:
    """Return whether PyTorch's fused attention is faster: always on CUDA, and on a CPU with at least 1,024 keys.

    Measured for forward and backward passes on 2 cores (AVX-512): with S = 16 and K = 64 in bfloat16, the fused
    backward pass takes several times as long as the explicit one. Near S = 1,000 they are equally fast. The threshold
    is fixed rather than timed at run time, so that runs are reproducible.
    """
    return query.is_cuda or key.size(-2) >= 1024


class _MaskedSoftmax(torch.autograd.Function):
    """Replace scores (B, H, T, S) in place with the attention weights.

    ``mask`` is (B or 1, T or 1, S), or contains the first keys (B, T) of a :class:`~headway.nn.masks.DocumentMask`.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor) -> Tensor:
        from headway.kernels.softmax import masked_softmax_  # imports Numba

        masked_softmax_(as_array(scores), mask.contiguous().numpy())
        ctx.mark_dirty(scores)
        ctx.save_for_backward(scores)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return softmax_backward(grad_output, weights), None


def attend_by_kernels(
    projected: Float[Tensor, "B T P"],
    memory: Float[Tensor, "B S M"] | None,
    bias: Float[Tensor, " W"],
    mask: Bool[Tensor, "#B #T S"] | Causal | DocumentMask,
    num_heads: int,
    dropout: Dropout | None = None,
) -> Float[Tensor, "B T C"]:
    """Return the concatenated outputs of all heads.

    ``projected`` contains queries, keys and values of equal width, concatenated. If ``memory`` is given, ``projected``
    contains only the queries, and ``memory`` contains the keys and values. ``bias`` (float32) is added to queries, keys
    and values. ``dropout`` is applied to the attention weights. Kernels must support the other tensors
    (:func:`~headway.engine.arrays.kernels_support`).
    """
    threshold = dropout.threshold if dropout is not None and dropout.p else 0
    seed = int(draw_seed()) if threshold else 0
    arguments = (projected, memory, bias, _mask_for_kernels(mask, *projected.shape[:2]), num_heads, seed, threshold)
    return cast(Tensor, _Attention.apply(*arguments))  # type: ignore[no-untyped-call]


def _mask_for_kernels(mask: Mask, rows: int, length: int) -> Tensor:
    """Return the mask for ``rows`` x ``length`` queries as the tensor that :mod:`headway.kernels.softmax` expects."""
    if isinstance(mask, Causal):
        return torch.zeros(rows, length, dtype=torch.int64)  # the first key of each query
    return mask.first_keys if isinstance(mask, DocumentMask) else mask


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        memory: Tensor | None,
        bias: Tensor,
        mask: Tensor,
        num_heads: int,
        seed: int,
        threshold: int,
    ) -> Tensor:
        from headway.kernels.softmax import masked_softmax_  # imports Numba

        batch, length, _ = projected.shape
        width = len(bias) // 3
        if memory is None:
            parts = _split_heads(projected, bias, num_heads, 3)
        else:
            parts = (
                *_split_heads(projected, bias[:width], num_heads, 1),
                *_split_heads(memory, bias[width:], num_heads, 2),
            )
        query, key, value = parts
        weights = torch.bmm(query, key.mT)
        ctx.num_heads, ctx.is_self, ctx.scale = num_heads, memory is None, query.size(-1) ** -0.5
        by_sentence = weights.view(batch, num_heads, length, key.size(1))
        masked_softmax_(as_array(by_sentence), mask.contiguous().numpy(), ctx.scale)
        ctx.seed, ctx.threshold = seed, threshold
        ctx.save_for_backward(query, key, value, weights)
        used = _dropped(weights, seed, threshold)
        return torch.bmm(used, value).view(batch, num_heads, length, width // num_heads).transpose(1, 2).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        from headway.kernels.softmax import softmax_backward_

        query, key, value, weights = ctx.saved_tensors
        grad = torch.unflatten(grad_output, -1, (ctx.num_heads, -1)).transpose(1, 2).flatten(0, 1)
        errors = _dropped(torch.bmm(grad, value.mT), ctx.seed, ctx.threshold)
        softmax_backward_(as_array(errors.flatten(0, 1)), as_array(weights.flatten(0, 1)), ctx.scale)
        sides = [grad.new_empty(3, *query.shape)]
        if not ctx.is_self:
            sides = [grad.new_empty(1, *query.shape), grad.new_empty(2, *key.shape)]
        query_grad, key_grad, value_grad = (part for side in sides for part in side)
        torch.bmm(errors, key, out=query_grad)
        torch.bmm(errors.mT, query, out=key_grad)
        torch.bmm(_dropped(weights, ctx.seed, ctx.threshold).mT, grad, out=value_grad)
        projected_grads, bias_grads = zip(*(_merge_heads(side, ctx.num_heads) for side in sides), strict=True)
        other_grad = None if ctx.is_self else projected_grads[1]
        return projected_grads[0], other_grad, torch.cat(bias_grads), None, None, None, None


def _dropped(x: Tensor, seed: int, threshold: int) -> Tensor:
    """Return x with dropout applied, or x itself if ``threshold`` is 0. Equal arguments drop the same elements."""
    if not threshold:
        return x
    from headway.kernels.dropout import dropout  # imports Numba

    out = torch.empty_like(x)
    dropout(as_array(x.view(-1)), as_array(out.view(-1)), seed, threshold)
    return out


def attend_in_bfloat16(
    projected: Float[Tensor, "B T P"],
    memory: Float[Tensor, "B S M"] | None,
    mask: Bool[Tensor, "#B #T S"] | Causal | DocumentMask,
    num_heads: int,
) -> Float[Tensor, "B T C"]:
    """Like :func:`attend_by_kernels`, but in bfloat16, with one kernel for each of the forward and backward passes.

    The projections must already include their bias. :func:`~headway.kernels.bf16_gemm.supports_width` must return True
    for the head width.
    """
    arguments = (projected, memory, _mask_for_kernels(mask, *projected.shape[:2]), num_heads)
    return cast(Tensor, _BFloat16Attention.apply(*arguments))  # type: ignore[no-untyped-call]


class _Rotation(torch.autograd.Function):
    """Rotate the queries and keys in ``projected``, which contains queries, keys and values of equal width.

    ``table`` (T, 2, K) contains the factors of :class:`~headway.nn.positions.RotaryPositions`.
    """

    @staticmethod
    def forward(ctx: Any, projected: Tensor, table: Tensor, num_heads: int) -> Tensor:
        ctx.save_for_backward(table)
        ctx.num_heads = num_heads
        return _rotated(projected, table[:, 0], table[:, 1], num_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (table,) = ctx.saved_tensors
        return _rotated(grad_output, table[:, 0], -table[:, 1], ctx.num_heads), None, None


def _rotated(projected: Tensor, cosine: Tensor, sine: Tensor, num_heads: int) -> Tensor:
    from headway.kernels.rotation import rotate_heads  # imports Numba

    projected = projected.contiguous()
    out = torch.empty_like(projected)
    angles = as_array(cosine.contiguous()), as_array(sine.contiguous())
    rotate_heads(as_array(projected), *angles, 2 * num_heads, as_array(out))
    return out


class _BFloat16Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, memory: Tensor | None, mask: Tensor, num_heads: int) -> Tensor:
        from headway.kernels.bf16_attention import attention_forward  # imports Numba
        from headway.kernels.llvm import LANES

        queries = projected.contiguous()
        side = queries if memory is None else memory.contiguous()
        batch, length, total = queries.shape
        width = total // 3 if memory is None else total
        ctx.columns = (0, width, 2 * width) if memory is None else (0, 0, width)
        ctx.scale = (width // num_heads) ** -0.5
        padding = -side.size(1) % LANES
        if mask.dtype == torch.bool:
            mask = F.pad(mask, (0, padding))
        weights = queries.new_empty(batch, num_heads, length, side.size(1) + padding)
        out = queries.new_empty(batch, length, width)
        attention_forward(
            *(as_array(queries), as_array(side), ctx.columns, mask.contiguous().numpy(), ctx.scale),
            *(as_array(weights), as_array(out)),
        )
        ctx.save_for_backward(queries, None if memory is None else side, weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        from headway.kernels.bf16_attention import attention_backward

        queries, memory, weights = ctx.saved_tensors
        side = queries if memory is None else memory
        queries_grad = torch.empty_like(queries)
        memory_grad = queries_grad if memory is None else torch.empty_like(memory)
        attention_backward(
            *(as_array(grad_output.contiguous()), as_array(queries), as_array(side), ctx.columns, ctx.scale),
            *(as_array(weights), as_array(queries_grad), as_array(memory_grad)),
        )
        return queries_grad, None if memory is None else memory_grad, None, None


def _split_heads(
    merged: Float[Tensor, "B T _"], bias: Float[Tensor, " _"], num_heads: int, parts: int
) -> tuple[Float[Tensor, "R T K"], ...]:
    """Add ``bias``, and return each part as one matrix per head."""
    from headway.kernels.head_layout import split_heads

    batch, length, width = merged.shape
    split = merged.new_empty(parts, batch * num_heads, length, width // (parts * num_heads))
    split_heads(as_array(merged.contiguous()), parameter_as_array(bias), as_array(split))
    return split.unbind(0)


def _merge_heads(split: Float[Tensor, "P R T K"], num_heads: int) -> tuple[Float[Tensor, "B T _"], Float[Tensor, " _"]]:
    """Return the parts with their heads concatenated, and the bias gradient, which is the sum over all positions."""
    from headway.kernels.head_layout import merge_heads

    parts, rows, length, width = split.shape
    merged = split.new_empty(rows // num_heads, length, parts * num_heads * width)
    return merged, torch.from_numpy(merge_heads(as_array(split), as_array(merged)))
