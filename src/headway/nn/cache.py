"""The key/value cache of step-by-step decoding.

Without a cache, a decoder that predicts one token at a time would recompute the keys and values of the whole prefix,
and of the encoder's memory, at every step. They do not change, so a :class:`KVCache` stores them. One cache contains
the prefixes, which grow by one position per step; another one contains the memory, which is written once per sequence.
Keys are stored as attention reads them: rotated if positions are rotary, and prepared for the score function.

Each sequence has a slot in the buffers, and its beams share the entries of the slot. Reordering the beams, as beam
search does at every step, moves no keys or values: it only changes which entries each beam may attend to. All beams of
a sequence attend in one matrix product, (W, K) x (K, C). Sequences are added and removed without copying the others:
a new sequence gets a free slot. Only attention that reads all slots in order needs the sequences moved together
(:meth:`KVCache.entries`). Entries that no beam can reach any more are dropped from time to time, when there are enough
of them to be worth a copy.

Dimensions: L layers, B sequences, W beams, R = B * W rows (the beams of a sequence are neighbors), H key/value heads, C
entries, K width of a key, U width of a value, P slots (at least B).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

T = TypeVar("T")

_GROWTH = 32  # decoding steps for which space is added when the buffers are full
_MIN_ENTRIES = 32  # caches with fewer entries are not searched for unused ones
_MIN_ENTRIES_UNREAD = 256  # the same if attention does not read unused entries, which then only take memory
_WASTE = 1.5  # unused entries are dropped when there are this many times as many entries as the longest prefix needs


@dataclass(frozen=True)
class LayerSpec:
    """The shape of a layer's keys and values. Widths are per head and include any padding that a kernel needs."""

    kv_heads: int
    key_width: int
    value_width: int


class KVCache:
    """Keys and values of all layers for B sequences with W beams each.

    A decoding step calls :meth:`advance` once, then :meth:`append` in every layer. Kernels that read and write by slot
    use ``keys``, ``values``, ``slots`` and ``num_entries`` directly.

    Args:
        num_layers: Number of layers, L.
        spec: Shape of the keys and values, the same in all layers.
        dtype: Data type of keys and values.
        device: Device of keys and values.
        window: Number of newest entries that a beam may attend to. None means all. Older entries are dropped, so that
            the number of stored entries depends on the window and not on the length.
        reads_masked: Whether attention reads masked entries and multiplies them by 0, so that they must be finite.

    Attributes:
        keys: The keys of all layers (L, P * H, >= C, K), contiguous.
        values: The values of all layers (L, P * H, >= C, U), contiguous.
        slots: Slot of each sequence. The heads of slot p are ``p * H`` to ``p * H + H - 1``.
        lengths: Number of positions of each sequence so far, the same for all its beams.
        current_max_length: Largest element of ``lengths``.
        visible_mask: Mask of the entries that each beam may attend to, False from entry ``num_entries`` on.
        num_entries: C, the number of entries in use.
        is_unmasked: Whether every beam may attend to every entry, so that no mask is needed.
        num_new: Number of sequences without a step so far, whose beams are equal. They are the last ones.
    """

    def __init__(
        self,
        num_layers: int,
        spec: LayerSpec,
        *,
        dtype: torch.dtype,
        device: torch.device,
        window: int | None = None,
        reads_masked: bool = True,
    ) -> None:
        self.num_layers, self.spec = num_layers, spec
        self.window = window
        self.reads_masked = reads_masked
        self.keys = torch.empty(num_layers, 0, 0, spec.key_width, dtype=dtype, device=device)
        self.values = torch.empty(num_layers, 0, 0, spec.value_width, dtype=dtype, device=device)
        self.slots: Int[Tensor, " B"] = torch.empty(0, dtype=torch.long, device=device)
        self.lengths: Int[Tensor, " B"] = torch.empty(0, dtype=torch.long, device=device)
        self.current_max_length = 0
        self.visible_mask: Bool[Tensor, "B W C"] = torch.empty(0, 1, 0, dtype=torch.bool, device=device)
        self.num_entries = 0
        self.is_unmasked = True
        self.num_new = 0
        self._in_order = True  # whether sequence b has slot b
        self._converted: Any = None
        self._min_entries = _MIN_ENTRIES if reads_masked else _MIN_ENTRIES_UNREAD
        self._look_for_unused_at = self._min_entries

    @property
    def num_sequences(self) -> int:
        """The number of sequences, B."""
        return self.visible_mask.size(0)

    @property
    def beams(self) -> int:
        """The number of beams of each sequence, W."""
        return self.visible_mask.size(1)

    @property
    def mask(self) -> Bool[Tensor, "B W C"] | None:
        """The mask of the entries that each beam may attend to, or None if every beam may attend to all of them."""
        return None if self.is_unmasked else self.visible_mask[:, :, : self.num_entries]

    def converted(self, convert: Callable[[Tensor, Tensor], T]) -> T:
        """Return ``convert(keys, values)``, which must always be the same function.

        The result is stored until the buffers are replaced.
        """
        if self._converted is None:
            self._converted = convert(self.keys, self.values)
        found: T = self._converted
        return found

    def admit(self, lengths: Sequence[int], *, beams: int) -> None:
        """Append one sequence for each of ``lengths``.

        A sequence of length n starts with n entries, which all its beams may attend to and which :meth:`write` fills
        in. All sequences of a cache have the same number of ``beams``.
        """
        before, count, longest = self.num_sequences, len(lengths), max(lengths, default=0)
        if not before:
            self.num_entries, self.is_unmasked = 0, True
            self.visible_mask = self.visible_mask.new_empty(0, beams, 0)
        assert beams == self.beams, "all sequences of a cache must have the same number of beams"
        old, self.num_entries = self.num_entries, max(self.num_entries, longest)
        self._reserve(before + count, self.num_entries, old)
        is_free = torch.ones(self._num_slots, dtype=torch.bool, device=self.slots.device)
        is_free[self.slots] = False
        new_slots = is_free.nonzero().squeeze(1)[:count]
        if self.reads_masked:
            for by_slot in self._by_slot():
                by_slot[:, new_slots, :, longest : self.num_entries] = 0
                if self.num_entries > old:
                    by_slot[:, self.slots, :, old : self.num_entries] = 0
        added = torch.tensor(lengths, dtype=torch.long, device=self.slots.device)
        entries = torch.arange(self.visible_mask.size(2), device=added.device)
        visible = (entries < added.unsqueeze(1)).unsqueeze(1).expand(-1, beams, -1)
        self.visible_mask = torch.cat([self.visible_mask, visible])
        self.lengths = torch.cat([self.lengths, added])
        self.slots, self._in_order = torch.cat([self.slots, new_slots]), not before
        self.is_unmasked = self.is_unmasked and not before and min(lengths, default=0) == longest
        self.current_max_length = max(self.current_max_length, longest)
        self.num_new = count if not before else self.num_new + count

    def newest_slots(self, count: int) -> Int[Tensor, " N"]:
        """Return the slots of the ``count`` sequences that were admitted last."""
        return self.slots[self.num_sequences - count :]

    def write(self, layer: int, keys: Float[Tensor, "N H T K"], values: Float[Tensor, "N H T U"]) -> None:
        """Fill in the first T entries of the N sequences that were admitted last."""
        count, heads, length, _ = keys.shape
        slots = self.newest_slots(count)
        for buffer, new in ((self.keys[layer], keys), (self.values[layer], values)):
            torch.unflatten(buffer, 0, (-1, heads))[slots, :, :length] = new.to(buffer.dtype)

    def advance(self, num_equal: int = 0) -> None:
        """Add a position to each sequence: one entry for each beam, which :meth:`append` fills in.

        The beams of the last ``num_equal`` sequences are equal and have the first of these entries in common.
        """
        if self.window is not None and self.num_entries >= self._look_for_unused_at:
            self._drop_unused()
        start, self.num_entries = self.num_entries, self.num_entries + self.beams
        if self.num_entries > self.visible_mask.size(2):
            self._reserve(self.num_sequences, start + _GROWTH * self.beams, start)
        self.visible_mask[:, :, start : self.num_entries].diagonal(dim1=1, dim2=2).fill_(True)
        if num_equal:
            newest = self.visible_mask[-num_equal:, :, start : self.num_entries]
            newest[:, :, 0], newest[:, :, 1:] = True, False
        self.num_new = 0
        self.is_unmasked = self.is_unmasked and self.beams == 1
        self.lengths = self.lengths + 1
        self.current_max_length += 1
        if self.window is not None and self.current_max_length > self.window:
            # A beam's entries are in the order of their positions.
            visible = self.visible_mask[:, :, : self.num_entries]
            visible &= visible.flip(2).cumsum(2).flip(2) <= self.window
            self.is_unmasked = False

    def append(
        self, layer: int, keys: Float[Tensor, "B H W K"], values: Float[Tensor, "B H W U"]
    ) -> tuple[Float[Tensor, "BH C K"], Float[Tensor, "BH C U"]]:
        """Store the keys and values of the newest position, and return :meth:`entries`."""
        self._order()
        shape = keys.shape[:2]
        stored = self.entries(layer)
        for buffer, new in zip(stored, (keys, values), strict=True):
            torch.unflatten(buffer[:, -self.beams :], 0, shape).copy_(new)
        return stored

    def entries(self, layer: int) -> tuple[Float[Tensor, "BH C K"], Float[Tensor, "BH C U"]]:
        """Return the keys and values of a layer, ordered by sequence and then by head."""
        self._order()
        rows = self.num_sequences * self.spec.kv_heads
        return self.keys[layer][:rows, : self.num_entries], self.values[layer][:rows, : self.num_entries]

    def select(self, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None) -> None:
        """Reorder the rows: row i continues the old row ``rows[i]``, which belongs to the same sequence.

        Only ``sequences`` are kept; None keeps all. Rows must stay grouped by sequence, with the same number of rows
        for each sequence. This number may differ from the old one.
        """
        count = self.num_sequences if sequences is None else len(sequences)
        beams = len(rows) // max(1, count)
        self.visible_mask = self.visible_mask.flatten(0, 1)[rows].view(count, beams, self.visible_mask.size(2))
        if sequences is not None:
            self.slots, self.lengths = self.slots[sequences], self.lengths[sequences]
            self.current_max_length = int(self.lengths.max()) if count else 0
            self._in_order = False
            self.num_new = 0  # the new ones may no longer be the last ones
        if sequences is not None or self.num_entries >= self._look_for_unused_at:
            self._drop_unused()

    def _by_slot(self) -> Iterator[Tensor]:
        """Yield the keys and the values as views (L, P, H, entries, K or U)."""
        yield torch.unflatten(self.keys, 1, (-1, self.spec.kv_heads))
        yield torch.unflatten(self.values, 1, (-1, self.spec.kv_heads))

    @property
    def _num_slots(self) -> int:
        return self.keys.size(1) // self.spec.kv_heads

    def _replace(self, buffers: Sequence[Float[Tensor, "L P H C _"]]) -> None:
        self.keys, self.values = (buffer.flatten(1, 2) for buffer in buffers)
        self._converted = None

    def _number_slots(self, count: int) -> None:
        self.slots, self._in_order = torch.arange(count, device=self.slots.device), True

    def _order(self) -> None:
        """Move sequence b to slot b, for all b, copying only the sequences that are in another slot."""
        if self._in_order:
            return
        count = self.num_sequences
        moved = (self.slots != torch.arange(count, device=self.slots.device)).nonzero().squeeze(1)
        if len(moved):
            for by_slot in self._by_slot():
                used = by_slot[:, :, :, : self.num_entries]
                used[:, moved] = used[:, self.slots[moved]]
        self._number_slots(count)

    def _reserve(self, slots: int, entries: int, used: int) -> None:
        """Make room for ``slots`` slots of ``entries`` entries. Buffers that must grow keep their ``used`` entries."""
        missing = entries - self.visible_mask.size(2)
        if missing > 0:
            self.visible_mask = F.pad(self.visible_mask, (0, missing))
        if missing <= 0 and slots <= self._num_slots:
            return
        slots, count = self._slots_to_keep(slots), len(self.slots)
        larger = []
        for by_slot in self._by_slot():
            layers, _, heads, _, width = by_slot.shape
            buffer = by_slot.new_empty(layers, slots, heads, self.visible_mask.size(2), width)
            buffer[:, :count, :, :used] = by_slot[:, self.slots, :, :used]
            larger.append(buffer)
        self._replace(larger)
        self._number_slots(count)

    def _slots_to_keep(self, needed: int) -> int:
        """Return the number of slots of new buffers: as many as now, unless that is more than twice those needed."""
        return max(needed, self._num_slots if self._num_slots <= 2 * needed else 0)

    def _drop_unused(self) -> None:
        """Drop the entries that no beam may attend to, if there are enough of them to be worth a copy."""
        needed = self.current_max_length if self.window is None else min(self.current_max_length, self.window)
        if self.num_entries < max(needed * _WASTE, self._min_entries):
            return
        visible = self.visible_mask[:, :, : self.num_entries]
        used = visible.any(1)
        width = int(used.sum(1).max()) if used.numel() else 0
        if width * _WASTE <= self.num_entries:
            # A stable sort moves each sequence's used entries to the front without changing their order.
            order = (~used).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
            # Smaller buffers would soon grow again; larger ones are not needed until entries are dropped again.
            enough = int(max(width, self._min_entries) * _WASTE) + self.beams
            room = max(_GROWTH * self.beams, min(self.visible_mask.size(2), enough) - width)
            self.visible_mask = F.pad(visible.gather(2, order.unsqueeze(1).expand(-1, self.beams, -1)), (0, room))
            kept = []
            for by_slot in self._by_slot():
                layers, _, heads, _, each = by_slot.shape
                head = torch.arange(heads, device=order.device)
                smaller = by_slot.new_empty(layers, self._slots_to_keep(len(order)), heads, width + room, each)
                chosen = self.slots[:, None, None], head[:, None], order.unsqueeze(1)
                smaller[:, : len(order), :, :width] = by_slot[:, *chosen]
                kept.append(smaller)
            self._replace(kept)
            self._number_slots(len(order))
            self.num_entries = width
        self._look_for_unused_at = int(max(self.num_entries, self._min_entries) * _WASTE)
