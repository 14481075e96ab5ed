"""The rows that search models compute: the positions of source sentences, and the beams of a decoding step.

All layers of an encoder except attention compute each row independently, so they need no padding. Padding would double
the work if sentences of all lengths are encoded together. Attention in int8 reads the rows of each sentence in place;
in other precisions, attention pads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from headway.decode.ranking import NextTokens
from headway.nn.cache import KVCache


@dataclass(frozen=True)
class SourceRows:
    """The rows of B sentences, one sentence after another.

    Attributes:
        lengths: Number of rows of each sentence.
        padded_indices: Index of each row among the B * S rows of the padded batch. None if there is no padding.
        positions: Position of each row in its sentence.
    """

    lengths: tuple[int, ...]
    padded_indices: Int[Tensor, " R"] | None
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
        """The range of rows of each sentence: first and last + 1, (B, 2)."""
        ends = np.cumsum(self.lengths)
        return np.stack([ends - self.lengths, ends], 1)

    def pad(self, rows: Float[Tensor, "R K"]) -> Float[Tensor, "BS K"]:
        """Return the rows of the padded batch, with zeros as padding."""
        if self.padded_indices is None:
            return rows
        padded = rows.new_zeros(len(self.lengths) * max(self.lengths), rows.size(1))
        return padded.index_copy_(0, self.padded_indices, rows)

    def unpad(self, padded: Float[Tensor, "BS K"]) -> Float[Tensor, "R K"]:
        """Return the rows without padding."""
        return padded if self.padded_indices is None else padded[self.padded_indices]


@dataclass(frozen=True)
class StepRows:
    """The rows of B sequences with W beams: one row for each beam, but only one row for a sequence in its first step.

    In the first step of a sequence, all its beams have the same prefix and the same token, so their results are equal.

    Attributes:
        num_sequences: Number of sequences, B.
        beams: Number of beams of each sequence, W.
        num_new: Number of sequences with a single row. They are the last sequences.
    """

    num_sequences: int
    beams: int
    num_new: int

    @property
    def spans(self) -> npt.NDArray[np.int64]:
        """The range of rows of each sequence: first and last + 1, (B, 2)."""
        return _spans(self.num_sequences, self.beams, self.num_new)

    def beams_to_rows(self, of_beams: Shaped[Tensor, "BW *d"]) -> Shaped[Tensor, "R *d"]:
        """Return one element for each row, given one element for each beam."""
        return of_beams[_first_beams(self)] if self._has_single_rows else of_beams

    def rows_to_beams(self, of_rows: Shaped[Tensor, "R *d"]) -> Shaped[Tensor, "BW *d"]:
        """Return one element for each beam, given one element for each row."""
        return of_rows[_rows_of_beams(self)] if self._has_single_rows else of_rows

    def next_tokens_to_beams(self, found: NextTokens) -> NextTokens:
        """Return the next tokens of each beam, given the next tokens of each row."""
        if not self._has_single_rows:
            return found
        return NextTokens(*(self.rows_to_beams(part) for part in (found.tokens, found.log_probs, found.eos_log_prob)))

    @property
    def _has_single_rows(self) -> bool:
        return self.num_new > 0 and self.beams > 1


@dataclass(frozen=True)
class DecodingStep:
    """The inputs of a decoder's blocks in one step, apart from the hidden states.

    Attributes:
        rows: The rows of this step.
        prefix_kv: Keys and values of the prefixes. The cache has already been advanced to the new position.
        prefix_entries: The prefix entries to which each row may attend, in the backend's representation.
        memory_kv: Keys and values of the memory. None for language models.
        memory_entries: The memory entries to which each row may attend.
        rotation: Rotates queries and keys (R, 1, H, K) to the position of each row. None if positions are not rotary.
        relative_bias: Bias to add to the self-attention scores, for each row and each entry of ``prefix_kv``, or None.
    """

    rows: StepRows
    prefix_kv: KVCache
    prefix_entries: Any
    memory_kv: KVCache | None = None
    memory_entries: Any = None
    rotation: Callable[[Tensor], Tensor] | None = None
    relative_bias: Float[Tensor, "B H W C"] | None = None


@lru_cache(maxsize=1024)
def _first_beams(rows: StepRows) -> Tensor:
    """Return the index of each row's first beam among all beams."""
    old = (rows.num_sequences - rows.num_new) * rows.beams
    return torch.cat([torch.arange(old), torch.arange(old, rows.num_sequences * rows.beams, rows.beams)])


@lru_cache(maxsize=1024)
def _rows_of_beams(rows: StepRows) -> Tensor:
    """Return the index of each beam's row."""
    old = (rows.num_sequences - rows.num_new) * rows.beams
    return torch.cat([torch.arange(old), torch.arange(old, old + rows.num_new).repeat_interleave(rows.beams)])


@lru_cache(maxsize=1024)
def _spans(sequences: int, beams: int, num_new: int) -> npt.NDArray[np.int64]:
    sizes = np.full(sequences, beams)
    sizes[sequences - num_new :] = 1
    ends = sizes.cumsum()
    return np.stack([ends - sizes, ends], 1)
