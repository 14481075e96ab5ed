"""The keys and values of all prefixes of a sentence's beam, kept as the tree that they are.

Beam search reorders its hypotheses at every step. To reorder their keys and values with them would copy everything that
attention has kept, in every layer, at every step. Here nothing moves: each new position of each beam gets a slot of its
sentence, and keeps it; what a reordering changes is which slots a beam may attend to, a small mask. Beams share the
slots of the prefix that they have in common, and all beams of a sentence attend in one product, (W, K) x (K, C).

Slots that no beam descends from any more are dropped now and then, when enough have gathered to pay for the copy.

Dimensions: B sentences, R = B * W rows (W beams, neighbours), H heads, C slots, K width of a key, U width of a value.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["PrefixTree", "attend", "leave"]

_GROWTH = 32  # steps for which buffers grow
_FEW = 32  # slots that are not looked through
_WASTE = 1.5  # slots are looked through for unused ones when they have become this many times more


class PrefixTree:
    """The slots of all layers. A step is :meth:`open_step`, :meth:`extend` in every layer, :meth:`close_step`."""

    def __init__(self, sentences: int, layers: int, like: Float[Tensor, "B H S K"], value_width: int) -> None:
        heads, key_width = like.size(1), like.size(3)
        self.heads = heads
        self.keys = [like.new_empty(sentences * heads, 0, key_width) for _ in range(layers)]
        self.values = [like.new_empty(sentences * heads, 0, value_width) for _ in range(layers)]
        self.filled = 0
        self.bias = like.new_empty(sentences, 1, 0)  # (B, W, C): 0 where a beam may attend to a slot, else -inf
        self._look_at = _FEW

    @property
    def beams(self) -> int:
        """W."""
        return self.bias.size(1)

    @property
    def step_bias(self) -> Float[Tensor, "B 1 W C"]:
        """What is added to the scores in this step: 0 for a beam's own slots, its new one included, else -inf."""
        return self.bias[:, :, : self.filled + self.beams].unsqueeze(1)

    def open_step(self) -> None:
        """Give each beam a new slot."""
        new = self.filled + self.beams
        if new > self.bias.size(2):
            self._resize(self.filled + _GROWTH * self.beams)
        own = torch.full((self.beams, self.beams), -math.inf, dtype=self.bias.dtype, device=self.bias.device)
        self.bias[:, :, self.filled : new] = own.fill_diagonal_(0.0)

    def extend(
        self, layer: int, keys: Float[Tensor, "B W H K"], values: Float[Tensor, "B W H U"]
    ) -> tuple[Float[Tensor, "BH C K"], Float[Tensor, "BH C U"]]:
        """Put the new position's keys and values into their slots, and return those of all slots."""
        end = self.filled + self.beams
        for buffer, new in ((self.keys[layer], keys), (self.values[layer], values)):
            buffer.view(-1, self.heads, *buffer.shape[1:])[:, :, self.filled : end] = new.transpose(1, 2)
        return self.keys[layer][:, :end], self.values[layer][:, :end]

    def close_step(self) -> None:
        """Count the new slots."""
        self.filled += self.beams

    def select(self, rows: Int[Tensor, " R2"], sentences: Int[Tensor, " B2"] | None) -> None:
        """Row i continues what row ``rows[i]`` was, in the same sentence; only ``sentences`` stay (None: all)."""
        count = self.bias.size(0) if sentences is None else len(sentences)
        beams = len(rows) // max(1, count)
        self.bias = self.bias.flatten(0, 1)[rows].view(count, beams, self.bias.size(2))
        if sentences is not None:
            self._pack(sentences)
        elif self.filled >= self._look_at:
            self._pack(None)

    def join(self, other: PrefixTree) -> None:
        """Append the sentences of ``other``, which must have as many beams each."""
        self._pack(None, always=True)
        other._pack(None, always=True)
        slots = max(self.filled, other.filled)
        for tree in (self, other):
            tree._resize(slots)
            for buffer in tree.keys + tree.values:
                # A product of a masked weight, 0, with what happens to be in memory could be 0 * inf.
                buffer[:, tree.filled :] = 0
        self.filled = slots
        self.bias = torch.cat([self.bias, other.bias])
        self.keys = [torch.cat(pair) for pair in zip(self.keys, other.keys, strict=True)]
        self.values = [torch.cat(pair) for pair in zip(self.values, other.values, strict=True)]

    def _resize(self, slots: int) -> None:
        """Buffers of ``slots`` slots; what new ones hold is whatever was there, and nobody may attend to them."""

        def resized(buffer: Tensor) -> Tensor:
            larger = buffer.new_empty(buffer.size(0), slots, buffer.size(2))
            larger[:, : self.filled] = buffer[:, : self.filled]
            return larger

        bias = self.bias.new_full((*self.bias.shape[:2], slots), -math.inf)
        bias[:, :, : self.filled] = self.bias[:, :, : self.filled]
        self.bias = bias
        self.keys = [resized(keys) for keys in self.keys]
        self.values = [resized(values) for values in self.values]

    def _pack(self, sentences: Int[Tensor, " B2"] | None, *, always: bool = False) -> None:
        """Drop the slots that no beam may attend to, where that pays, and all sentences but these."""
        bias = self.bias[:, :, : self.filled]
        used = (bias == 0).any(1)  # (B2, C)
        width = int(used.sum(1).max()) if used.numel() else 0
        if width * _WASTE <= self.filled or always:
            # A stable sort brings each sentence's used slots to the front, in their order; the others' mask stays shut.
            slots = (~used).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
            self.bias = bias.gather(2, slots.unsqueeze(1).expand(-1, self.beams, -1))
            self.keys = [self._picked(keys, sentences, slots) for keys in self.keys]
            self.values = [self._picked(values, sentences, slots) for values in self.values]
            self.filled = width
        elif sentences is not None:
            self.keys = leave(self.keys, self.heads, sentences)
            self.values = leave(self.values, self.heads, sentences)
        self._look_at = int(max(self.filled, _FEW) * _WASTE)

    def _picked(self, buffer: Tensor, sentences: Int[Tensor, " B2"] | None, slots: Int[Tensor, "B2 C2"]) -> Tensor:
        heads = torch.unflatten(buffer, 0, (-1, self.heads))
        kept = torch.arange(len(heads), device=buffer.device) if sentences is None else sentences
        head = torch.arange(self.heads, device=buffer.device)
        return heads[kept[:, None, None], head[None, :, None], slots[:, None, :]].flatten(0, 1)


def leave(
    buffers: list[Float[Tensor, "BH C _"]], heads: int, sentences: Int[Tensor, " B2"]
) -> list[Float[Tensor, "B2H C _"]]:
    """Only the ``sentences`` of each buffer, moved to its beginning; those that have their place already stay there.

    The results are views of the buffers. Where a few sentences leave and the last ones take their places, little is
    copied.
    """
    count = len(sentences)
    moved = (sentences != torch.arange(count, device=sentences.device)).nonzero().squeeze(1)
    origin, left = sentences[moved], []
    for buffer in buffers:
        by_sentence = torch.unflatten(buffer, 0, (-1, heads))
        by_sentence[moved] = by_sentence[origin]
        left.append(by_sentence[:count].flatten(0, 1))
    return left


def attend(
    query: Float[Tensor, "B W H K"],
    keys: Float[Tensor, "BH C K"],
    values: Float[Tensor, "BH C U"],
    bias: Float[Tensor, "B 1 #W C"] | None,
) -> Float[Tensor, "R HU"]:
    """softmax(Q K^T + bias) V for the beams of each sentence together, heads concatenated; the queries are scaled
    already.

    The default kernels are slow for such few queries each; two batched products of matrices that lie ready are not.
    """
    sentences, beams, heads, _ = query.shape
    scores = torch.bmm(query.transpose(1, 2).reshape(sentences * heads, beams, -1), keys.transpose(1, 2))
    if bias is not None:
        scores.view(sentences, heads, beams, -1).add_(bias)
    attended = torch.bmm(scores.softmax(-1), values)
    return attended.view(sentences, heads, beams, -1).transpose(1, 2).reshape(sentences * beams, -1)
