"""The keys and values of all prefixes of a sentence's beam in memory that stays where it is.

Like :class:`~headway.nn.prefix_tree.PrefixTree`: each new position of each beam gets a slot of its sentence and keeps
it, and a reordering changes only which slots a beam may attend to. But all slots are there from the start, none is
dropped, and which slot comes next is known to the device alone. So every step is the same operations on the same
memory, and can be recorded and repeated (:mod:`headway.decode.static`).

Dimensions: B sentences, R = B * W rows (W beams, neighbours), H heads, C = W * T slots for T steps, K width of a key,
U width of a value.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.nn.sentence_buffers import SentenceBuffers

__all__ = ["StaticPrefixes"]


class StaticPrefixes:
    """The slots of all layers, for ``steps`` steps of ``beams`` beams; ``like`` are a layer's keys of the memory.

    A step looks at the slots of the first ``reach`` steps, its own among them; whoever takes steps sets it.
    """

    def __init__(
        self, layers: int, like: Float[Tensor, "B H S K"], value_width: int, *, beams: int, steps: int
    ) -> None:
        sentences, heads = like.shape[:2]
        widths = (like.size(3), value_width)
        # Of each layer, keys (., C, K) and values (., C, U). What nobody attends to yet must be finite: 0 * NaN is NaN.
        self.slots = SentenceBuffers(
            [like.new_zeros(sentences * heads, beams * steps, width) for _ in range(layers) for width in widths], heads
        )
        self.reach = steps
        self.bias = like.new_empty(sentences, beams, beams * steps)  # 0 where a beam may attend to a slot, else -inf
        self._own = like.new_full((beams, beams), -math.inf).fill_diagonal_(0.0).expand(sentences, -1, -1).clone()
        self._first = torch.arange(beams, device=like.device)
        self._new = self._first.clone()  # the slots of this step
        self.reset()

    def reset(self) -> None:
        """Prefixes are empty."""
        self.bias.fill_(-math.inf)
        self._new.copy_(self._first)

    @property
    def beams(self) -> int:
        """W."""
        return self.bias.size(1)

    @property
    def step_bias(self) -> Float[Tensor, "B 1 W C2"]:
        """What is added to the scores in this step: 0 for a beam's own slots, its new one included, else -inf."""
        return self.bias[:, :, : self.reach * self.beams].unsqueeze(1)

    def open_step(self) -> None:
        """Give each beam its new slot."""
        self.bias.index_copy_(2, self._new, self._own)

    def extend(
        self, layer: int, keys: Float[Tensor, "B W H K"], values: Float[Tensor, "B W H U"]
    ) -> tuple[Float[Tensor, "BH C2 K"], Float[Tensor, "BH C2 U"]]:
        """Put the new position's keys and values into their slots, and return those of all slots within reach."""
        both = self.slots.tensors[2 * layer : 2 * layer + 2]
        for buffer, new in zip(both, (keys, values), strict=True):
            torch.unflatten(buffer, 0, (-1, self.slots.heads)).index_copy_(2, self._new, new.transpose(1, 2))
        end = self.reach * self.beams
        return both[0][:, :end], both[1][:, :end]

    def close_step(self) -> None:
        """Go on to the next slots."""
        self._new.add_(self.beams)

    def select(self, rows: Int[Tensor, " R"]) -> None:
        """Row i continues what row ``rows[i]`` was, in the same sentence."""
        self.bias.copy_(self.bias.flatten(0, 1)[rows].view_as(self.bias))
