"""The tokens of source sentences as rows without padding.

All layers of an encoder but attention compute each row on its own, so they need no padding, which is as long as the
sentences themselves if sentences of all lengths are encoded together. Attention in int8 reads the rows of each sentence
in place; other attention pads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class SourceRows:
    """The rows of B sentences, one sentence after the other.

    Attributes:
        lengths: Number of rows of each sentence.
        places: The index of each row among the B * S rows of the padded batch. None if there is no padding.
        positions: The position of each row in its sentence.
    """

    lengths: tuple[int, ...]
    places: Int[Tensor, " R"] | None
    positions: Int[Tensor, " R"]

    @classmethod
    def pack(cls, lengths: Sequence[int], device: torch.device) -> SourceRows:
        """Return the packed rows of sentences with these lengths."""
        longest = max(lengths)
        is_real = torch.arange(longest) < torch.tensor(lengths).unsqueeze(1)
        places = is_real.flatten().nonzero().squeeze(1)
        positions = (places % longest).to(device)
        return cls(tuple(lengths), None if len(places) == is_real.numel() else places.to(device), positions)

    @cached_property
    def spans(self) -> npt.NDArray[np.int64]:
        """The first row of each sentence and the one after its last, (B, 2)."""
        ends = np.cumsum(self.lengths)
        return np.stack([ends - self.lengths, ends], 1)

    def pad(self, rows: Float[Tensor, "R K"]) -> Float[Tensor, "BS K"]:
        """Return the rows of the padded batch. Padding is 0."""
        if self.places is None:
            return rows
        padded = rows.new_zeros(len(self.lengths) * max(self.lengths), rows.size(1))
        return padded.index_copy_(0, self.places, rows)

    def unpad(self, padded: Float[Tensor, "BS K"]) -> Float[Tensor, "R K"]:
        """Return the rows without padding."""
        return padded if self.places is None else padded[self.places]
