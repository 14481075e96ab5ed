"""Keys and values in the form that the compiled kernels of attention take (:mod:`headway.kernels.decode_attention`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.kernels.decode_attention import padded_width
from headway.kernels.fp16_dot import KEYS_PER_DOT
from headway.nn.cache import SLACK

assert SLACK >= KEYS_PER_DOT - 1
Bits = npt.NDArray[np.int16]  # the bits of 16-bit floats, because Numba does not support these
Indices = npt.NDArray[np.int64]


class Entries(NamedTuple):
    """The entries of a cache that attention reads.

    Attributes:
        slots: Slot of each sequence (B,).
        entries: The entry of each position of each row (R, T), or for all rows (1, T).
        positions: The first position of each sequence that attention reads, and the one after the last (B, 2).
        newest: The entry to which each row is written (R,). None for a memory, which does not grow.
    """

    slots: Indices
    entries: Indices
    positions: Indices
    newest: Indices | None = None


def first_entries(slots: Indices, lengths: Indices, num_entries: int, newest: Indices | None = None) -> Entries:
    """Return the entries of sequences whose position p is entry p. Slots have ``num_entries`` entries."""
    entries = np.minimum(np.arange(num_entries + KEYS_PER_DOT), num_entries - 1)
    return Entries(slots, entries[None], np.stack([np.zeros_like(lengths), lengths], 1), newest)


def both_bits(keys: Tensor, values: Tensor) -> tuple[Bits, Bits]:
    """Return the bits of keys and values."""
    return keys.view(torch.int16).numpy(), values.view(torch.int16).numpy()


def new_keys_values(sequences: int, length: int, heads: int, widths: Sequence[int]) -> tuple[Bits, Bits]:
    """Return uninitialized keys and values (B * H, T, _) of these ``widths``, each for all heads together."""
    keys, values = (np.empty((sequences * heads, length, padded_width(width // heads)), np.int16) for width in widths)
    return keys, values
