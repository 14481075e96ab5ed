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
from torch.nn import functional as F

from headway.nn.sentence_buffers import SentenceBuffers

__all__ = ["PrefixTree", "attend"]

_GROWTH = 32  # steps for which buffers grow
_FEW = 32  # slots that are not looked through
_WASTE = 1.5  # slots are looked through for unused ones when they have become this many times more


class PrefixTree:
    """The slots of all layers. A step is :meth:`open_step`, :meth:`extend` in every layer, :meth:`close_step`."""

    def __init__(self, sentences: int, layers: int, like: Float[Tensor, "B H S K"], value_width: int) -> None:
        heads, widths = like.size(1), (like.size(3), value_width)
        # Of each layer, keys (., C, K) and values (., C, U).
        self.slots = SentenceBuffers(
            [like.new_empty(sentences * heads, 0, width) for _ in range(layers) for width in widths], heads
        )
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
        self.slots.settle()
        end, both = self.filled + self.beams, self.slots.tensors[2 * layer : 2 * layer + 2]
        for buffer, new in zip(both, (keys, values), strict=True):
            torch.unflatten(buffer, 0, (-1, self.slots.heads))[:, :, self.filled : end] = new.transpose(1, 2)
        return both[0][:, :end], both[1][:, :end]

    def close_step(self) -> None:
        """Count the new slots."""
        self.filled += self.beams

    def select(self, rows: Int[Tensor, " R2"], sentences: Int[Tensor, " B2"] | None) -> None:
        """Row i continues what row ``rows[i]`` was, in the same sentence; only ``sentences`` stay (None: all)."""
        count = self.bias.size(0) if sentences is None else len(sentences)
        beams = len(rows) // max(1, count)
        self.bias = self.bias.flatten(0, 1)[rows].view(count, beams, self.bias.size(2))
        if sentences is not None:
            self.slots.keep(sentences)
        if sentences is not None or self.filled >= self._look_at:
            self._pack()

    def join(self, other: PrefixTree) -> None:
        """Append the sentences of ``other``, which must have as many beams each."""
        self._pack(always=True)
        other._pack(always=True)
        slots = max(self.filled, other.filled)
        self.bias = torch.cat([F.pad(tree.bias, (0, slots - tree.filled), value=-math.inf) for tree in (self, other)])
        # Zeros fill the slots: a product of a masked weight, 0, with what happens to be in memory could be 0 * inf.
        self.slots.join(other.slots)
        self.filled = slots

    def _resize(self, slots: int) -> None:
        """Buffers of ``slots`` slots; what new ones hold is whatever was there, and nobody may attend to them."""
        bias = self.bias.new_full((*self.bias.shape[:2], slots), -math.inf)
        bias[:, :, : self.filled] = self.bias[:, :, : self.filled]
        self.bias = bias
        self.slots.resize(slots, self.filled)

    def _pack(self, *, always: bool = False) -> None:
        """Drop the slots that no beam may attend to, where that pays."""
        bias = self.bias[:, :, : self.filled]
        used = (bias == 0).any(1)  # (B, C)
        width = int(used.sum(1).max()) if used.numel() else 0
        if width * _WASTE <= self.filled or always:
            # A stable sort brings each sentence's used slots to the front, in their order; the others' mask stays shut.
            slots = (~used).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
            self.bias = bias.gather(2, slots.unsqueeze(1).expand(-1, self.beams, -1))
            self.slots.pick(slots)
            self.filled = width
        self._look_at = int(max(self.filled, _FEW) * _WASTE)


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
