"""What decoding keeps of each sentence, in tensors that sentences leave without a copy.

Sentences finish at nearly every step of a batch, and what is kept of them is large: keys and values of all layers. So a
sentence keeps its home, its place in the tensors, and those that are left are told by their homes. What reads by homes
(the compiled kernels) needs nothing else; what needs the sentences next to each other has them moved first
(:meth:`SentenceBuffers.settle`).

Dimensions: B sentences, H heads, C slots.
"""

from __future__ import annotations

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

__all__ = ["SentenceBuffers"]


class SentenceBuffers:
    """Tensors (homes * H, C, ...), of the same homes and heads.

    Of sentence i they hold ``homes[i] * H`` to ``homes[i] * H + H - 1``.
    """

    def __init__(self, tensors: list[Shaped[Tensor, "BH _ ..."]], heads: int) -> None:
        self.tensors = tensors
        self.heads = heads
        self._are_home(tensors[0].size(0) // heads)

    def _are_home(self, sentences: int) -> None:
        self.homes: Int[Tensor, " B"] = torch.arange(sentences, device=self.tensors[0].device)
        self._settled = True

    def keep(self, sentences: Int[Tensor, " B2"]) -> None:
        """All others leave; their memory is free when the tensors are next copied."""
        self.homes = self.homes[sentences]
        self._settled = False

    def settle(self) -> None:
        """Move sentences to the tensors' beginning, in order, where they are not there already.

        The tensors become views of what they were. Where a few sentences have left and the last ones take their places,
        little is copied.
        """
        if self._settled:
            return
        count = len(self.homes)
        moved = (self.homes != torch.arange(count, device=self.homes.device)).nonzero().squeeze(1)
        for at, tensor in enumerate(self.tensors):
            by_home = torch.unflatten(tensor, 0, (-1, self.heads))
            by_home[moved] = by_home[self.homes[moved]]
            self.tensors[at] = by_home[:count].flatten(0, 1)
        self._are_home(count)

    def pick(self, slots: Int[Tensor, "B C2"]) -> None:
        """Copy only these slots of each sentence, in this order."""
        head = torch.arange(self.heads, device=self.homes.device)
        index = self.homes[:, None, None], head[None, :, None], slots[:, None, :]
        self.tensors = [torch.unflatten(x, 0, (-1, self.heads))[index].flatten(0, 1) for x in self.tensors]
        self._are_home(len(self.homes))

    def resize(self, slots: int, filled: int) -> None:
        """Copy the first ``filled`` slots into tensors of ``slots``, whose others hold whatever was in memory."""
        for at, tensor in enumerate(self.tensors):
            by_home = torch.unflatten(tensor[:, :filled], 0, (-1, self.heads))
            larger = tensor.new_empty(len(self.homes), self.heads, slots, *tensor.shape[2:])
            larger[:, :, :filled] = by_home if self._settled else by_home[self.homes]
            self.tensors[at] = larger.flatten(0, 1)
        self._are_home(len(self.homes))

    def join(self, other: SentenceBuffers) -> None:
        """Append the sentences of ``other``; zeros fill the slots that one has more than the other."""
        self.settle()
        other.settle()
        self.tensors = [_joined(*pair) for pair in zip(self.tensors, other.tensors, strict=True)]
        self._are_home(len(self.homes) + len(other.homes))


def _joined(one: Shaped[Tensor, "X C *shape"], other: Shaped[Tensor, "Y C2 *shape"]) -> Shaped[Tensor, "XY C3 *shape"]:
    joined = one.new_zeros(len(one) + len(other), max(one.size(1), other.size(1)), *one.shape[2:])
    joined[: len(one), : one.size(1)] = one
    joined[len(one) :, : other.size(1)] = other
    return joined
