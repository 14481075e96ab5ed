"""What decoding keeps between steps: keys and values of each decoder block, for the prefix and for the memory.

A decoder that predicts one token at a time would compute the keys and values of the whole prefix, and of the memory,
again at every step. They do not change, so they are kept: the prefix's grow by one position a step, the memory's are
computed once a sentence. Keys are kept as attention wants them: turned to their positions where those are rotary, and
prepared for the score function.

Rows and sentences: B sentences are decoded as R = B * W rows, where the W rows of a sentence (its beams) are
neighbours. Prefixes are kept per row, memories per sentence. Every row has a position of its own, so that rows which
start later can join.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from headway.nn.attention import KeysValues

__all__ = ["DecoderCache"]

_GROWTH = 32  # positions by which the buffers grow: few copies, little unused memory


@dataclass
class _LayerCache:
    memory: KeysValues  # (B, H, S, K) and (B, H, S, U)
    prefix: KeysValues  # (R, H, capacity, K) and (R, H, capacity, U)


class DecoderCache:
    """Keys and values of all decoder blocks for R rows over B memories.

    A step is: :meth:`open_step`, then :meth:`extend` in every layer, then :meth:`close_step`.
    """

    def __init__(self, memories: list[KeysValues], memory_mask: Bool[Tensor, "B 1 S"]) -> None:
        self.memory_mask = memory_mask
        self.positions: Int[Tensor, " R"] = torch.zeros(
            memory_mask.size(0), dtype=torch.long, device=memory_mask.device
        )
        self.length = 0
        self._layers = [_LayerCache(memory, _empty_prefix(memory)) for memory in memories]
        self._prefix_mask: Bool[Tensor, "R 1 T"] | None = None

    @property
    def num_sentences(self) -> int:
        """B."""
        return self.memory_mask.size(0)

    @property
    def num_rows(self) -> int:
        """R."""
        return self.positions.size(0)

    @property
    def prefix_mask(self) -> Bool[Tensor, "R 1 T"]:
        """Which prefix positions each row may attend to in this step, its new one included."""
        assert self._prefix_mask is not None, "open_step comes first"
        return self._prefix_mask

    def memory(self, layer: int) -> KeysValues:
        """The memory's keys and values in a layer."""
        return self._layers[layer].memory

    def open_step(self) -> None:
        """Make room for one more position and tell which positions are filled."""
        capacity = self._layers[0].prefix.keys.size(2)
        if self.length == capacity:
            for layer in self._layers:
                layer.prefix = _resized(layer.prefix, 2, capacity + _GROWTH)
        filled = torch.arange(self.length + 1, device=self.positions.device)
        self._prefix_mask = (filled <= self.positions.unsqueeze(1)).unsqueeze(1)

    def extend(self, layer: int, new: KeysValues) -> KeysValues:
        """Append each row's new key and value, (R, H, 1, .), and return those of its whole prefix, (R, H, T, .)."""
        prefix = self._layers[layer].prefix
        rows = torch.arange(self.num_rows, device=self.positions.device)
        prefix.keys[rows, :, self.positions] = new.keys.squeeze(2).to(prefix.keys.dtype)
        prefix.values[rows, :, self.positions] = new.values.squeeze(2).to(prefix.values.dtype)
        end = self.length + 1
        return KeysValues(prefix.keys[:, :, :end], prefix.values[:, :, :end])

    def close_step(self) -> None:
        """Count the new position."""
        self.positions = self.positions + 1
        self.length += 1
        self._prefix_mask = None

    def select(self, rows: Int[Tensor, " R2"], sentences: Int[Tensor, " B2"] | None = None) -> None:
        """Row i continues what row ``rows[i]`` was; only the memories of ``sentences`` stay (None: all).

        Repeating, reordering and dropping rows are one operation. Rows must stay grouped by sentence, equally many for
        each.
        """
        self.positions = self.positions[rows]
        if sentences is not None:
            # The longest rows may have left: without this, rows that come and go would push the length up for ever.
            self.length = int(self.positions.max()) if self.num_rows else 0
        capacity = _GROWTH * max(1, math.ceil(self.length / _GROWTH))
        for layer in self._layers:
            layer.prefix = KeysValues(layer.prefix.keys[rows, :, :capacity], layer.prefix.values[rows, :, :capacity])
            if sentences is not None:
                layer.memory = KeysValues(layer.memory.keys[sentences], layer.memory.values[sentences])
        if sentences is not None:
            self.memory_mask = self.memory_mask[sentences]

    def join(self, other: DecoderCache) -> None:
        """Append the sentences and rows of ``other``, whatever their positions and memory lengths."""
        width = max(self.memory_mask.size(2), other.memory_mask.size(2))
        self.length = max(self.length, other.length)
        self.memory_mask = torch.cat([_padded(cache.memory_mask, 2, width) for cache in (self, other)])
        self.positions = torch.cat([self.positions, other.positions])
        for mine, theirs in zip(self._layers, other._layers, strict=True):
            capacity = max(mine.prefix.keys.size(2), theirs.prefix.keys.size(2))
            mine.memory = _joined(mine.memory, theirs.memory, width)
            mine.prefix = _joined(mine.prefix, theirs.prefix, capacity)


def _empty_prefix(memory: KeysValues) -> KeysValues:
    rows, heads = memory.keys.shape[:2]
    return KeysValues(
        memory.keys.new_zeros(rows, heads, _GROWTH, memory.keys.size(3)),
        memory.values.new_zeros(rows, heads, _GROWTH, memory.values.size(3)),
    )


def _padded(x: Tensor, dim: int, size: int) -> Tensor:
    """``x`` with zeros (False) appended up to ``size`` along ``dim``."""
    return F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, size - x.size(dim)))


def _resized(kv: KeysValues, dim: int, size: int) -> KeysValues:
    return KeysValues(_padded(kv.keys, dim, size), _padded(kv.values, dim, size))


def _joined(first: KeysValues, second: KeysValues, length: int) -> KeysValues:
    first, second = _resized(first, 2, length), _resized(second, 2, length)
    return KeysValues(torch.cat([first.keys, second.keys]), torch.cat([first.values, second.values]))
