"""Restricted self-attention in O(n r) time and memory: blocks of queries attend only to keys inside their windows.

The plain implementation (:func:`headway.nn.attention.restrict_to_window`) computes the scores of all n^2 pairs and
masks the pairs outside the window. Here, a sequence is divided into blocks of c neighboring queries. With a window of
``before`` and ``after`` positions, the queries of a block attend to at most c + before + after keys, so
n (c + before + after) scores are computed. A mask excludes pairs in a block that are outside the window. The results
equal the plain implementation's up to rounding.

Dimensions: N blocks, C queries per block, J = C + before + after keys per block.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.engine.attention import KernelMultiHeadAttention, scaled_dot_product_attention
from headway.nn.attention import KeysValues, attention_is_observed, restrict_to_window
from headway.nn.masks import Causal, DocumentMask, Mask

_MIN_BLOCK = 32  # minimum number of queries per block; with fewer, the matrix products would be too small
# A sequence is divided into blocks if it has at least this many times as many keys as a block. Measured for forward and
# backward passes on 2 cores (AVX-512): blocks and whole sequences are equally fast at a factor between 2 and 3.
_MIN_LENGTH = 3


class LocalMultiHeadAttention(KernelMultiHeadAttention):
    """:class:`~headway.nn.attention.MultiHeadAttention` with a window, computed in blocks if the sequence is long.

    Sequences are not divided if attention is observed, because observers receive the (B, H, T, S) weights of whole
    sequences, or if dropout is applied to the weights, because it draws a random number for each weight.
    """

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"] | None = None,
        *,
        mask: Mask | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend from x to itself, or to ``memory`` if given. ``mask`` broadcasts to (B, T, S)."""
        if memory is not None:
            return super().forward(x, memory, mask=mask)
        assert self.window is not None
        length = x.size(1)
        if (
            length < _MIN_LENGTH * (_block_size(self.window) + sum(self.window))
            or attention_is_observed()
            or (self.training and self.dropout.p > 0)
        ):
            return super().forward(x, mask=restrict_to_window(mask, self.window, x))
        query, kv = self.project(x)
        bias = None if self.relative_bias is None else self.relative_bias(_distances(self.window, x.device))
        attended = self.attend(*_divide(query, kv, mask, self.window), bias)
        return torch.unflatten(attended, 0, (len(x), -1)).flatten(1, 2)[:, :length]


def local_attention(
    query: Float[Tensor, "B H T K"], kv: KeysValues, mask: Bool[Tensor, "B 1 T"], window: tuple[int, int]
) -> Float[Tensor, "B T U"]:
    """Return the attention of each position within its window, with the heads concatenated.

    The result of a row does not depend on the other sequences or on the padding.
    """
    blocks, kv, mask = _divide(query, kv, mask, window)
    attended = scaled_dot_product_attention(blocks, kv.keys, kv.values, mask.unsqueeze(1))
    joined = torch.unflatten(attended.transpose(1, 2).flatten(2), 0, (len(query), -1)).flatten(1, 2)
    return joined[:, : query.size(2)]


def _block_size(window: tuple[int, int]) -> int:
    return max(_MIN_BLOCK, sum(window))


def _distances(window: tuple[int, int], device: torch.device) -> Int[Tensor, "C J"]:
    """Return the distances from the queries of a block to the block's keys."""
    queries = torch.arange(_block_size(window), device=device).unsqueeze(1)
    return torch.arange(-window[0], len(queries) + window[1], device=device) - queries


def _divide(
    query: Float[Tensor, "B H T K"], kv: KeysValues, mask: Mask | None, window: tuple[int, int]
) -> tuple[Float[Tensor, "BN H C K"], KeysValues, Bool[Tensor, "BN C J"]]:
    """Pad sequences at the end and divide them into blocks. Return all blocks' queries, keys, values and masks."""
    length, (before, after) = query.size(2), window
    block = _block_size(window)
    padding = -length % block
    keys_each = block + before + after

    def neighborhoods(x: Float[Tensor, "B H T K"]) -> Float[Tensor, "BN H J K"]:
        blocks = F.pad(x, (0, 0, before, padding + after)).unfold(2, keys_each, block)  # (B, H, N, K, J)
        return blocks.permute(0, 2, 1, 4, 3).flatten(0, 1)

    queries = torch.unflatten(F.pad(query, (0, 0, 0, padding)), 2, (-1, block)).transpose(1, 2).flatten(0, 1)
    starts = torch.arange(0, length, block, device=query.device)[:, None, None]
    of_query = starts + torch.arange(block, device=query.device).unsqueeze(1)  # (N, C, 1)
    of_key = starts - before + torch.arange(keys_each, device=query.device)  # (N, 1, J)
    inside = (of_key >= of_query - before) & (of_key <= of_query + after) & (of_key >= 0) & (of_key < length)
    allowed = inside.unsqueeze(0)
    if isinstance(mask, DocumentMask):
        first_keys = mask.first_keys[:, of_query.clamp(max=length - 1)]
        allowed = allowed & (of_key >= first_keys) & (of_key <= of_query)
    elif isinstance(mask, Causal):
        allowed = allowed & (of_key <= of_query)
    elif mask is not None:
        mask = mask[(None,) * (3 - mask.dim())]
        indices = [index.clamp(0, size - 1) for index, size in zip((of_query, of_key), mask.shape[1:], strict=True)]
        allowed = allowed & mask[:, indices[0], indices[1]]
    masks = allowed.expand(len(query), -1, -1, -1).flatten(0, 1)
    return queries, KeysValues(neighborhoods(kv.keys), neighborhoods(kv.values)), masks
