"""The top tokens of a row of logits, exactly and fast.

A search needs the few most probable tokens of each row, in order. They are found in blocks: each of the ``count``
largest values lies in one of the ``count`` blocks with the largest maxima, so only those blocks are sorted.
Log-probabilities are read from a log-softmax, which PyTorch computes in one pass over each row, in three quarters of
the time that ``logsumexp`` takes (PyTorch 2.13, AVX2, one thread, 128 rows of 8,000).

Ties: of equal values the lowest index comes first, on every device and however a row is divided into blocks. PyTorch's
``topk`` promises no order, so values are compared by integer keys that contain the index. NaN comes before everything
else, so that damaged weights are noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["NextTokens", "top_tokens", "topk_ordered"]

_FEW = 64  # up to this many values, sorting is faster than building keys
_BLOCK = 64  # tokens; near the square root of (usual vocabulary size / beam size)
_FEW_BANNED = 8  # up to this many banned tokens, it is cheaper to rank and drop them than to copy the logits


@dataclass(frozen=True)
class NextTokens:
    """The most probable next tokens of each row, best first, and the log-probability of EOS, in nats.

    Probabilities are over the whole vocabulary. Banned tokens are left out; if fewer than C tokens are left, the rest
    have log-probability -inf.
    """

    tokens: Int[Tensor, "R C"]
    log_probs: Float[Tensor, "R C"]
    eos_log_prob: Float[Tensor, " R"]


def top_tokens(logits: Float[Tensor, "R V"], count: int, banned: Sequence[int], eos: int) -> NextTokens:
    """Return the ``count`` most probable tokens of each row that are not ``banned`` (all, if there are fewer)."""
    logits = logits.float()
    log_probs = logits.log_softmax(-1)
    count = min(count, logits.size(1))
    if not banned:
        tokens = topk_ordered(logits, count)[1]
        return NextTokens(tokens, log_probs.gather(1, tokens), log_probs[:, eos])
    excluded = torch.tensor(list(banned), device=logits.device)
    if len(banned) > _FEW_BANNED:
        tokens = topk_ordered(logits.index_fill(1, excluded, -torch.inf), count)[1]
    else:
        tokens = topk_ordered(logits, min(count + len(banned), logits.size(1)))[1]
        # A stable sort moves the banned tokens to the end and keeps the order of the others.
        order = _is_in(tokens, excluded).to(torch.uint8).sort(dim=1, stable=True).indices
        tokens = tokens.gather(1, order[:, :count])
    values = log_probs.gather(1, tokens).masked_fill(_is_in(tokens, excluded), -torch.inf)
    return NextTokens(tokens, values, log_probs[:, eos])


def _is_in(tokens: Int[Tensor, "R C"], some: Int[Tensor, " F"]) -> Bool[Tensor, "R C"]:
    return (tokens.unsqueeze(2) == some).any(2)


def topk_ordered(values: Float[Tensor, "*b N"], count: int) -> tuple[Float[Tensor, "*b C"], Int[Tensor, "*b C"]]:
    """Return the ``count`` largest values of the last dimension and their indices, in order.

    Of equal values the lowest index comes first.
    """
    size = values.size(-1)
    if size <= 4 * _BLOCK * count:
        indices = _top_indices(values, count)
        return values.gather(-1, indices), indices
    whole = size // _BLOCK
    maxima = torch.unflatten(values[..., : whole * _BLOCK], -1, (whole, _BLOCK)).amax(-1)
    if size % _BLOCK:
        maxima = torch.cat([maxima, values[..., whole * _BLOCK :].amax(-1, keepdim=True)], dim=-1)
    blocks = _top_indices(maxima, min(count, maxima.size(-1))).sort(-1).values  # by index, so that ties stay in order
    inside = (blocks.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK, device=values.device)).flatten(-2)
    found = values.gather(-1, inside.clamp(max=size - 1)).masked_fill(inside >= size, -torch.inf)
    order = _top_indices(found, count)
    return found.gather(-1, order), inside.gather(-1, order)


def _top_indices(values: Float[Tensor, "*b N"], count: int) -> Int[Tensor, "*b C"]:
    """Indices of the ``count`` largest values. Ties are broken by unique integer keys: the value in the high bits, the
    index in the low bits."""
    size = values.size(-1)
    if count == 1:
        return values.argmax(-1, keepdim=True)  # documented behavior: the first of equal values, and NaN before all
    if size <= _FEW:
        return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]  # NaN first, too
    bits = (values.float() + 0.0).view(torch.int32)  # -0 becomes 0
    bits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # gives the integers the order of the floats
    bits = bits.masked_fill(values.isnan(), 0x7FFFFFFF)
    keys = (bits.long() << 32) | torch.arange(size - 1, -1, -1, device=values.device)
    return size - 1 - (keys.topk(count, dim=-1).values & 0xFFFFFFFF)
