"""Arrange the prompts of a batch as rows, and compute causal attention within each prompt.

In a causal model, the hidden states at a position depend only on the tokens up to this position. Prompts that begin
with the same tokens, such as the same instructions or examples, have the same hidden states at these tokens, so they
are computed only once (Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with
PagedAttention", section 4.4). Unlike in the paper, each prompt then gets its own copy of the keys and values.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.nn.embedding import pad_sequences
from headway.nn.positions import RelativeBias

_MIN_SHARED = 32  # shorter common prefixes are computed separately for each prompt
# Minimum fraction of tokens saved, because attention over single prompts uses threads less efficiently than a batch.
_MIN_SAVING = 0.25
_QUERIES = 32  # number of neighboring queries in a block


@dataclass(frozen=True)
class PromptSpan:
    """The rows of one prompt. The rows of its first tokens may belong to an earlier span.

    Attributes:
        prompt: Index of the prompt in the batch.
        length: Number of tokens in the prompt.
        shared: Number of tokens at the beginning of the prompt whose rows belong to earlier spans.
        shared_with: Index of the prompt in the preceding span, which begins with the same ``shared`` tokens.
        first_row: Index of the first row that belongs to this span.
    """

    prompt: int
    length: int
    shared: int
    shared_with: int
    first_row: int

    def rows(self, start: int, end: int) -> slice:
        """Return the rows of the positions from ``start`` to ``end``, all of which must belong to this span."""
        return slice(self.first_row + start - self.shared, self.first_row + end - self.shared)

    @property
    def own_rows(self) -> slice:
        """All rows that belong to this span."""
        return self.rows(self.shared, self.length)


@dataclass(frozen=True)
class PromptRows:
    """The positions of N prompts as rows.

    If no prefixes are shared, the rows are the positions of the padded prompts, one prompt after another. Otherwise,
    there is no padding.

    Attributes:
        spans: The rows of each prompt.
        tokens: The tokens of the padded prompts (N, T) or, if prefixes are shared, the token of each row (R, 1).
        positions: The position of each row if prefixes are shared, otherwise None.
    """

    spans: tuple[PromptSpan, ...]
    tokens: Int[Tensor, "_ _"]
    positions: Int[Tensor, " R"] | None

    @classmethod
    def pack(cls, prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> PromptRows:
        """Arrange prompts as rows. At least one prompt must not be empty.

        Prefixes are shared only on a CPU, and only if this saves at least a quarter of the rows.
        """
        spans = _share_beginnings(prompts) if device.type == "cpu" else []
        if sum(span.shared for span in spans) < _MIN_SAVING * sum(map(len, prompts)):
            tokens = pad_sequences(prompts, pad, device)
            first_rows = range(0, tokens.numel(), tokens.size(1))
            spans = [
                PromptSpan(number, len(prompt), 0, number, row)
                for number, (prompt, row) in enumerate(zip(prompts, first_rows, strict=True))
            ]
            return cls(tuple(spans), tokens, None)
        tokens = torch.tensor([token for span in spans for token in prompts[span.prompt][span.shared :]])
        positions = torch.cat([torch.arange(span.shared, span.length) for span in spans])
        return cls(tuple(spans), tokens.unsqueeze(1), positions)

    @property
    def max_length(self) -> int:
        """Length of the longest prompt, in tokens."""
        return max(span.length for span in self.spans)


def _share_beginnings(prompts: Sequence[Sequence[int]]) -> list[PromptSpan]:
    spans: list[PromptSpan] = []
    row = 0
    # In sorted order, each prompt shares its longest common prefix with the prompt before it.
    order = sorted(range(len(prompts)), key=lambda number: tuple(prompts[number]))
    for like, number in zip([order[0], *order], order, strict=False):
        shared, length = 0, len(prompts[number])
        if like != number and (common := _common_length(prompts[like], prompts[number])) >= _MIN_SHARED:
            shared = common
        spans.append(PromptSpan(number, length, shared, like, row))
        row += length - shared
    return spans


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((position for position, (one, other) in pairs if one != other), min(len(a), len(b)))


def prompt_attention(
    query: Float[Tensor, "R H K"],
    key: Float[Tensor, "R G K"],
    value: Float[Tensor, "R G U"],
    prompts: PromptRows,
    window: tuple[int, int] | None,
    relative_bias: RelativeBias | None = None,
) -> Float[Tensor, "R H U"]:
    """Return the causal attention of each position, restricted to the ``window`` if given.

    The queries must already be scaled. The shapes of all operations depend only on positions, so the rounding depends
    neither on the other prompts nor on later tokens. Outputs at padding are zero.
    """
    heads, groups = query.size(1), key.size(1)
    length = -(-prompts.max_length // _QUERIES) * _QUERIES
    out = query.new_zeros(len(query), heads, value.size(2))
    bias, by_distance = _causal_bias(length, window, query.dtype), None
    if relative_bias is not None:
        by_distance = torch.unflatten(relative_bias.biases_for_length(length).to(query.dtype), 0, (groups, -1))
    # The rows of a span stay in these buffers, because the next span may share its first rows.
    queries, keys, values = (part.new_empty(part.size(1), length, part.size(2)) for part in (query, key, value))
    by_group, filled = torch.unflatten(queries, 0, (groups, -1)), length
    for span in prompts.spans:
        if span.length > span.shared:
            for buffer, part in ((queries, query), (keys, key), (values, value)):
                buffer[:, span.shared : span.length] = part[span.own_rows].transpose(0, 1)
            if span.length < filled:  # masked keys and values must be finite
                keys[:, span.length : filled] = values[:, span.length : filled] = 0
            filled = span.length
        end = span.shared
        while end < span.length:
            start, end = _block_at(end)
            first = 0 if window is None else max(0, start - window[0]) // _QUERIES * _QUERIES
            own_keys, own_values = (
                buffer[:, None, first:end].expand(-1, heads // groups, -1, -1) for buffer in (keys, values)
            )
            mask = bias[: end - start, length + first - start : length + end - start]
            if by_distance is not None:
                mask = mask + by_distance[:, :, start:end, first:end]
            attended = F.scaled_dot_product_attention(
                by_group[:, :, start:end], own_keys, own_values, mask, scale=1.0
            ).flatten(0, 1)
            new, last = max(start, span.shared), min(end, span.length)
            out[span.rows(new, last)] = attended[:, new - start : last - start].transpose(0, 1)
    return out


def _block_at(position: int) -> tuple[int, int]:
    """Return the first position of the query block that contains ``position``, and the position after the block."""
    size = _QUERIES // 2 if position < _QUERIES else _QUERIES  # smaller blocks at first, for short prompts
    start = position // size * size
    return start, start + size


@functools.lru_cache(maxsize=8)
def _causal_bias(length: int, window: tuple[int, int] | None, dtype: torch.dtype) -> Float[Tensor, "_ _"]:
    """Return the mask to add to the scores of a query block over the ``length`` preceding positions and its own."""
    distance = torch.arange(length, length + _QUERIES).unsqueeze(1) - torch.arange(length + _QUERIES)
    masked = distance < 0
    if window is not None:
        masked |= distance > window[0]
    return torch.zeros(masked.shape, dtype=dtype).masked_fill_(masked, -torch.inf)
