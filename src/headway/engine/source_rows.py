"""The tokens of source sentences as rows without padding.

All layers of an encoder but attention compute each row on its own, so they need no padding, which is as long as the
sentences themselves if sentences of all lengths are encoded together. Attention takes the rows of the padded batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class SourceRows:
    """The rows of B sentences, one sentence after the other.

    Attributes:
        lengths: Number of rows of each sentence.
        places: The place of each row among the B * S rows of the padded batch. None if there is no padding.
    """

    lengths: tuple[int, ...]
    places: Int[Tensor, " R"] | None

    @classmethod
    def pack(cls, lengths: Sequence[int], device: torch.device) -> SourceRows:
        """Return the rows of sentences of these lengths."""
        columns = torch.arange(max(lengths))
        is_real = (columns < torch.tensor(lengths).unsqueeze(1)).flatten()
        return cls(tuple(lengths), None if is_real.all() else is_real.nonzero().squeeze(1).to(device))

    @property
    def max_length(self) -> int:
        """The length of the longest sentence, S."""
        return max(self.lengths)

    def pad(self, rows: Float[Tensor, "R K"]) -> Float[Tensor, "BS K"]:
        """Return the rows of the padded batch. Padding is 0."""
        if self.places is None:
            return rows
        padded = rows.new_zeros(len(self.lengths) * self.max_length, rows.size(1))
        return padded.index_copy_(0, self.places, rows)

    def unpad(self, padded: Float[Tensor, "BS K"]) -> Float[Tensor, "R K"]:
        """Return the rows without padding."""
        return padded if self.places is None else padded[self.places]
