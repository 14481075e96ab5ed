"""Attention of all heads as one operation: what training on a CPU computes, with its own way back.

The same products as :func:`headway.nn.attention.scaled_dot_product_attention` (Vaswani et al. 2017, equation 1), from
the projections as one product leaves them. Their bias is added as heads are laid out one after the other, as the
products read them, both ways; scores are scaled inside the softmax; and the gradients of queries, keys and values are
written where they belong in the gradient of the projection.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from headway.kernels.arrays import numbers, seen

_PLACES = 16  # whose weights fill a vector

__all__ = ["attend_by_kernels", "attend_in_pairs"]


def attend_by_kernels(
    projected: Float[Tensor, "B T P"],
    memory: Float[Tensor, "B S M"] | None,
    bias: Float[Tensor, " W"],
    mask: Bool[Tensor, "#B #T S"],
    num_heads: int,
) -> Float[Tensor, "B T C"]:
    """The heads' outputs side by side.

    ``projected`` holds queries, keys and values side by side, equally wide; with a ``memory``, it holds the queries,
    and the memory keys and values. To all three ``bias`` is added, of float32. The others are of a type that kernels
    take.
    """
    return cast(Tensor, _Attention.apply(projected, memory, bias, mask, num_heads))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, memory: Tensor | None, bias: Tensor, mask: Tensor, num_heads: int
    ) -> Tensor:
        from headway.kernels.softmax import replace_by_weights  # imports Numba

        batch, length, _ = projected.shape
        width = len(bias) // 3
        if memory is None:
            parts = _apart(projected, bias, num_heads, 3)
        else:
            parts = (
                *_apart(projected, bias[:width], num_heads, 1),
                *_apart(memory, bias[width:], num_heads, 2),
            )
        query, key, value = parts
        weights = torch.bmm(query, key.mT)
        ctx.num_heads, ctx.joined, ctx.scale = num_heads, memory is None, query.size(-1) ** -0.5
        by_sentence = weights.view(batch, num_heads, length, key.size(1))
        replace_by_weights(numbers(by_sentence), mask.contiguous().numpy(), ctx.scale)
        ctx.save_for_backward(query, key, value, weights)
        return torch.bmm(weights, value).view(batch, num_heads, length, width // num_heads).transpose(1, 2).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        from headway.kernels.softmax import replace_by_gradient

        query, key, value, weights = ctx.saved_tensors
        grad = torch.unflatten(grad_output, -1, (ctx.num_heads, -1)).transpose(1, 2).flatten(0, 1)
        errors = torch.bmm(grad, value.mT)
        replace_by_gradient(numbers(errors.flatten(0, 1)), numbers(weights.flatten(0, 1)), ctx.scale)
        sides = [grad.new_empty(3, *query.shape)]
        if not ctx.joined:
            sides = [grad.new_empty(1, *query.shape), grad.new_empty(2, *key.shape)]
        of_query, of_key, of_value = (part for side in sides for part in side)
        torch.bmm(errors, key, out=of_query)
        torch.bmm(errors.mT, query, out=of_key)
        torch.bmm(weights.mT, grad, out=of_value)
        of_projected, of_bias = zip(*(_joined(side, ctx.num_heads) for side in sides), strict=True)
        return of_projected[0], None if ctx.joined else of_projected[1], torch.cat(of_bias), None, None


def attend_in_pairs(
    projected: Float[Tensor, "B T P"],
    memory: Float[Tensor, "B S M"] | None,
    mask: Bool[Tensor, "#B #T S"],
    num_heads: int,
) -> Float[Tensor, "B T C"]:
    """The same in bfloat16, of projections that have their bias, by one kernel each way, a head at a time.

    Heads are a multiple of 32 numbers wide, and the processor has what :mod:`headway.kernels.pairs` needs.
    """
    return cast(Tensor, _InPairs.apply(projected, memory, mask, num_heads))  # type: ignore[no-untyped-call]


class _InPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, memory: Tensor | None, mask: Tensor, num_heads: int) -> Tensor:
        from headway.kernels.heads_in_pairs import attend  # imports Numba

        queries = projected.contiguous()
        side = queries if memory is None else memory.contiguous()
        batch, length, total = queries.shape
        width = total // 3 if memory is None else total
        ctx.at = (0, width, 2 * width) if memory is None else (0, 0, width)
        ctx.scale = (width // num_heads) ** -0.5
        filling = -side.size(1) % _PLACES
        opened = F.pad(mask, (0, filling)).contiguous()
        weights = queries.new_empty(batch, num_heads, length, side.size(1) + filling)
        out = queries.new_empty(batch, length, width)
        attend(
            *(numbers(queries), numbers(side), ctx.at, opened.numpy(), ctx.scale),
            *(numbers(weights), numbers(out)),
        )
        ctx.save_for_backward(queries, None if memory is None else side, weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        from headway.kernels.heads_in_pairs import attend_back

        queries, memory, weights = ctx.saved_tensors
        side = queries if memory is None else memory
        of_queries = torch.empty_like(queries)
        of_memory = of_queries if memory is None else torch.empty_like(memory)
        attend_back(
            *(numbers(grad_output.contiguous()), numbers(queries), numbers(side), ctx.at, ctx.scale),
            *(numbers(weights), numbers(of_queries), numbers(of_memory)),
        )
        return of_queries, None if memory is None else of_memory, None, None


def _apart(
    joined: Float[Tensor, "B T _"], bias: Float[Tensor, " _"], num_heads: int, parts: int
) -> tuple[Float[Tensor, "R T K"], ...]:
    """The heads of each part, B * H one after the other."""
    from headway.kernels.heads import part

    batch, length, width = joined.shape
    apart = joined.new_empty(parts, batch * num_heads, length, width // (parts * num_heads))
    part(numbers(joined.contiguous()), seen(bias), numbers(apart))
    return apart.unbind(0)


def _joined(apart: Float[Tensor, "P R T K"], num_heads: int) -> tuple[Float[Tensor, "B T _"], Float[Tensor, " _"]]:
    """All heads side by side, and the gradient of what was added to all positions."""
    from headway.kernels.heads import join

    parts, rows, length, width = apart.shape
    joined = apart.new_empty(rows // num_heads, length, parts * num_heads * width)
    return joined, torch.from_numpy(join(numbers(apart), numbers(joined)))
