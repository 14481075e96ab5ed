"""What a model keeps between steps that can be recorded: everything in memory that stays where it is."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.nn.sentence_buffers import SentenceBuffers
from headway.nn.static_prefixes import StaticPrefixes

__all__ = ["StaticState"]


class StaticState:
    """For R = B * W rows over B sentences: all prefixes, and each layer's view of the memory."""

    vocabulary: SentenceBuffers | None = None  # shortlists are for processors

    def __init__(
        self,
        memory: SentenceBuffers,
        memory_bias: Float[Tensor, "B 1 1 S"],
        beams: int,
        steps: int,
    ) -> None:
        self.memory = memory
        self.memory_bias = memory_bias
        keys, values = memory.tensors[:2]
        sentences = len(memory.homes)
        self.prefix = StaticPrefixes(
            *(len(memory.tensors) // 2, torch.unflatten(keys, 0, (-1, memory.heads)), values.size(2)),
            beams=beams,
            steps=steps,
        )
        self.positions: Int[Tensor, " R"] = torch.zeros(sentences * beams, dtype=torch.long, device=keys.device)
        self.longest = steps - 1  # tables of positions cover it

    def reset(self) -> None:
        """All prefixes are empty; the memory is new."""
        self.prefix.reset()
        self.positions.zero_()

    def close_step(self) -> None:
        """Count the new position."""
        self.prefix.close_step()
        self.positions.add_(1)

    def select(self, rows: Int[Tensor, " R"]) -> None:
        """Row i continues what row ``rows[i]`` was, of the same sentence; all have the same position."""
        self.prefix.select(rows)

    def set_reach(self, steps: int) -> None:
        """The next step looks at what the first so many left, and itself."""
        self.prefix.reach = steps

    @property
    def num_bytes(self) -> int:
        """Of its tensors."""
        tensors = (*self.memory.tensors, *self.prefix.slots.tensors, self.memory_bias, self.prefix.bias)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
