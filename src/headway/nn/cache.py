"""The key/value cache of step-by-step decoding.

Without a cache, a decoder that predicts one token at a time would recompute the keys and values of the whole prefix,
and of the encoder's memory, at every step. These keys and values do not change, so a :class:`KVCache` stores them. One
cache contains the prefixes, which grow by one position per step. A second cache contains the memory, which is written
once per sequence. Keys are stored in the form that attention needs: rotated if positions are rotary, and prepared for
the score function.

Each sequence has a slot in the buffers, and its beams share the entries of the slot. A table maps each position of a
beam's prefix to its entry, like the block tables of paged attention (Kwon et al. 2023, section 4). Beam search reorders
the beams at every step, which moves only rows of the table, not keys and values. All beams of a sequence attend in one
matrix product, (W, K) x (K, C). Sequences are added and removed without copying the others: a new sequence gets a free
slot. Only attention that reads all slots in order requires moving sequences together (:meth:`KVCache.entries`). Entries
that no beam can reach any more are reused.

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

_FREE_STEPS = 32  # number of decoding steps for which newly allocated buffers have free entries
TABLE_PADDING = 8  # number of extra columns after the last position of the table, which kernels may read
_GROWTH = 2  # factor by which the slots grow when sequences join full buffers, so that these are rarely copied
_WASTE = 4  # the buffers shrink if they have more than this multiple of the needed number of entries


@dataclass(frozen=True)
class LayerSpec:
    """The shape of a layer's keys and values. Widths are per head and include any padding that a kernel needs."""

    kv_heads: int
    key_width: int
    value_width: int


class KVCache:
    """Keys and values of all layers for B sequences with W beams each.

    A decoding step calls :meth:`advance` once, then :meth:`append` in every layer. Kernels that read and write by slot
    use ``keys``, ``values``, ``slots``, ``table``, ``newest`` and ``lengths`` directly.

    Args:
        num_layers: Number of layers, L.
        spec: Shape of each layer's keys and values.
        dtype: Data type of keys and values.
        device: Device of keys and values.
        window: Number of newest entries that a beam may attend to. None means all. Older entries are reused, so that
            the number of stored entries depends on the window, not on the length.
        masked_must_be_finite: Whether masked entries must be finite, because attention multiplies them by 0.

    Attributes:
        keys: Contiguous keys of all layers (L, P * H, >= C, K).
        values: Contiguous values of all layers (L, P * H, >= C, U).
        slots: Slot of each sequence. The heads of slot p have the indices ``p * H`` to ``p * H + H - 1``.
        lengths: Number of positions of each sequence so far, which is the same for all its beams.
        current_max_length: Largest element of ``lengths``.
        table: The entry of each position of each beam (B, W, >= current_max_length + TABLE_PADDING). Columns from
            ``lengths`` on contain valid but meaningless entry indices.
        newest: The entry of each beam's last position (B, W), set by :meth:`advance`.
        num_entries: C, the number of entries that attention over whole slots reads.
        is_unmasked: Whether every beam may attend to every entry, so that no mask is needed.
        num_new: Number of sequences that have not been advanced yet, whose beams are equal. They are the last
            sequences.
    """

    def __init__(
        self,
        num_layers: int,
        spec: LayerSpec,
        *,
        dtype: torch.dtype,
        device: torch.device,
        window: int | None = None,
        masked_must_be_finite: bool = True,
    ) -> None:
        self.num_layers, self.spec = num_layers, spec
        self.window = window
        self.masked_must_be_finite = masked_must_be_finite
        self.keys = torch.empty(num_layers, 0, 0, spec.key_width, dtype=dtype, device=device)
        self.values = torch.empty(num_layers, 0, 0, spec.value_width, dtype=dtype, device=device)
        nothing = torch.empty(0, dtype=torch.long, device=device)
        self.slots: Int[Tensor, " B"] = nothing
        self.lengths: Int[Tensor, " B"] = nothing
        self.current_max_length = 0
        self.table: Int[Tensor, "B W T"] = nothing.view(0, 1, 0)
        self.newest: Int[Tensor, "B W"] = nothing.view(0, 1)
        self.num_entries = 0
        self.is_unmasked = True
        self.num_new = 0
        self._has_advanced = False
        self._in_order = True  # whether sequence b has slot b
        self._free: Int[Tensor, "B F"] = nothing.view(0, 0)  # each sequence's free entries, in order
        self._num_taken = 0  # number of these entries that are already in use
        self._has_same_free = True  # whether all sequences have the same free entries, after all that are in use
        self._num_used_before = 0  # largest number of entries in use by a sequence when the free entries were listed
        self._mask: Bool[Tensor, "B W C"] | None = None
        self._entry_positions: Int[Tensor, "B W C"] | None = None
        self._converted: Any = None

    @property
    def num_sequences(self) -> int:
        """Number of sequences, B."""
        return self.table.size(0)

    @property
    def beams(self) -> int:
        """Number of beams of each sequence, W."""
        return self.table.size(1)

    @property
    def mask(self) -> Bool[Tensor, "B W C"] | None:
        """The mask of the entries that each beam may attend to, or None if every beam may attend to every entry."""
        if self.is_unmasked:
            return None
        if self._mask is None:
            self._mask = self._reachable(self.num_entries)
        return self._mask

    @property
    def entry_positions(self) -> Int[Tensor, "B W C"]:
        """The position of each entry in each beam's prefix; 0 for entries that :attr:`mask` excludes."""
        if self._entry_positions is None:
            reached = self._reached(self.num_entries)
            held = reached.new_zeros(*reached.shape[:2], self.num_entries + 1)
            positions = torch.arange(reached.size(2), device=reached.device).expand_as(reached)
            self._entry_positions = held.scatter_(2, reached, positions)[:, :, : self.num_entries]
        return self._entry_positions

    def convert_once(self, convert: Callable[[Tensor, Tensor], T]) -> T:
        """Return ``convert(keys, values)``. All calls must pass the same function.

        The result is cached until the buffers are replaced.
        """
        if self._converted is None:
            self._converted = convert(self.keys, self.values)
        result: T = self._converted
        return result

    def first_layer_with_nan(self) -> int | None:
        """Return the index of the first layer whose keys or values contain NaN, or None if there is no such layer."""
        heads = torch.arange(self.spec.kv_heads, device=self.slots.device)
        for layer in range(self.num_layers):
            for slot, table, length in zip(self.slots, self.table, self.lengths.tolist(), strict=True):
                for stored in (self.keys[layer], self.values[layer]):
                    if bool(stored[slot * self.spec.kv_heads + heads][:, table[:, :length]].isnan().any()):
                        return layer
        return None

    def admit(self, lengths: Sequence[int], *, beams: int) -> None:
        """Append one sequence for each element of ``lengths``.

        A sequence of length n starts with n entries, which all its beams may attend to. :meth:`write` fills these
        entries. All sequences of a cache have the same number of ``beams``.
        """
        before, count, longest = self.num_sequences, len(lengths), max(lengths, default=0)
        if not before:
            self.num_entries, self.is_unmasked = 0, True
            self.table = self.table.new_empty(0, beams, self.table.size(2))
        assert beams == self.beams, "all sequences of a cache must have the same number of beams"
        needed = self._num_reserved if self._has_advanced else max(longest, self.current_max_length)
        is_too_large = self._num_reserved > _WASTE * needed
        if before + count > self._num_slots or longest > self._num_reserved or is_too_large:
            slots = before + count
            if before and slots > self._num_slots:
                slots = max(slots, _GROWTH * self._num_slots)
            self._replace_buffers(slots, max(longest, needed))
        self.num_entries = max(self.num_entries, longest)
        is_free = torch.ones(self._num_slots, dtype=torch.bool, device=self.slots.device)
        is_free[self.slots] = False
        self.slots = torch.cat([self.slots, is_free.nonzero().squeeze(1)[:count]])
        self._reserve_positions(longest)
        positions = torch.arange(self.table.size(2), device=self.table.device).clamp(max=max(self._num_reserved - 1, 0))
        self.table = torch.cat([self.table, positions.expand(count, beams, -1)])
        self.lengths = torch.cat([self.lengths, torch.tensor(lengths, dtype=torch.long, device=self.slots.device)])
        self.is_unmasked = self.is_unmasked and not before and min(lengths, default=0) == longest
        self.current_max_length = max(self.current_max_length, longest)
        self.num_new = count if not before else self.num_new + count
        self._in_order, self._mask, self._entry_positions = not before, None, None
        self._free, self._num_taken = self._free.new_empty(before + count, 0), 0

    def newest_slots(self, count: int) -> Int[Tensor, " N"]:
        """Return the slots of the ``count`` sequences that were admitted last."""
        return self.slots[self.num_sequences - count :]

    def write(self, layer: int, keys: Float[Tensor, "N H T K"], values: Float[Tensor, "N H T U"]) -> None:
        """Fill the first T entries of the N sequences that were admitted last."""
        count, heads, length, _ = keys.shape
        slots = self.newest_slots(count)
        for buffer, new in ((self.keys[layer], keys), (self.values[layer], values)):
            torch.unflatten(buffer, 0, (-1, heads))[slots, :, :length] = new.to(buffer.dtype)

    def advance(self, num_equal: int = 0) -> None:
        """Add a position to each sequence, with one entry for each beam. :meth:`append` fills these entries.

        The beams of the last ``num_equal`` sequences are equal and share the first of these entries.
        """
        if self._num_taken + self.beams > self._free.size(1):
            self._find_free()
        taken = self._free[:, self._num_taken : self._num_taken + self.beams]
        # Copy the entries, because equal beams change them below, and kernels need a contiguous tensor.
        self.newest = taken.clone(memory_format=torch.contiguous_format)
        self._num_taken += self.beams
        self.num_entries = max(self.num_entries, self._num_used_before + self._num_taken)
        if num_equal:
            self.newest[-num_equal:] = self.newest[-num_equal:, :1]
        self._reserve_positions(self.current_max_length + 1)
        place = self.lengths.view(-1, 1, 1).expand(-1, self.beams, 1)
        self.table.scatter_(2, place, self.newest.unsqueeze(2))
        self.lengths = self.lengths + 1
        self.current_max_length += 1
        is_long = self.window is not None and self.current_max_length > self.window
        self.is_unmasked = self.is_unmasked and self.beams == 1 and not is_long
        self.num_new, self._has_advanced = 0, True
        self._mask = self._entry_positions = None

    def append(
        self, layer: int, keys: Float[Tensor, "B H W K"], values: Float[Tensor, "B H W U"]
    ) -> tuple[Float[Tensor, "BH C K"], Float[Tensor, "BH C U"]]:
        """Store the keys and values of the newest position, and return :meth:`entries`."""
        stored = self.entries(layer)
        for buffer, new in zip(stored, (keys, values), strict=True):
            by_sequence = torch.unflatten(buffer, 0, (-1, self.spec.kv_heads))
            if self._has_same_free:
                end = self._num_used_before + self._num_taken
                by_sequence[:, :, end - self.beams : end].copy_(new)
            else:
                sequences = torch.arange(len(new), device=new.device).unsqueeze(1)
                by_sequence.transpose(1, 2)[sequences, self.newest] = new.transpose(1, 2).to(buffer.dtype)
        return stored

    def entries(self, layer: int) -> tuple[Float[Tensor, "BH C K"], Float[Tensor, "BH C U"]]:
        """Return the keys and values of a layer, ordered by sequence and then by head."""
        self._order()
        rows = self.num_sequences * self.spec.kv_heads
        return self.keys[layer][:rows, : self.num_entries], self.values[layer][:rows, : self.num_entries]

    def select(self, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None) -> None:
        """Reorder the rows: row i continues the old row ``rows[i]``, which belongs to the same sequence.

        Only ``sequences`` are kept. None keeps all. Rows must stay grouped by sequence, with the same number of rows
        for each sequence, but the number may change.
        """
        count = self.num_sequences if sequences is None else len(sequences)
        beams = len(rows) // max(1, count)
        self.table = self.table.flatten(0, 1)[rows].view(count, beams, self.table.size(2))
        self._mask = self._entry_positions = None
        if sequences is not None:
            self.slots, self.lengths, self._free = (x[sequences] for x in (self.slots, self.lengths, self._free))
            self.current_max_length = int(self.lengths.max()) if count else 0
            self._in_order = False
            self.num_new = 0  # the newest sequences may no longer be last
            if not self._has_advanced:  # entry p still contains position p
                self.num_entries = self.current_max_length

    def _by_slot(self) -> Iterator[Tensor]:
        """Yield the keys and the values as views (L, P, H, entries, K or U)."""
        yield torch.unflatten(self.keys, 1, (-1, self.spec.kv_heads))
        yield torch.unflatten(self.values, 1, (-1, self.spec.kv_heads))

    @property
    def _num_slots(self) -> int:
        return self.keys.size(1) // self.spec.kv_heads

    @property
    def _num_reserved(self) -> int:
        """Number of entries in each slot."""
        return self.keys.size(2)

    def _number_slots(self, count: int) -> None:
        self.slots, self._in_order = torch.arange(count, device=self.slots.device), True

    def _order(self) -> None:
        """Move each sequence b to slot b, copying only sequences that are in a different slot."""
        if self._in_order:
            return
        count = self.num_sequences
        moved = (self.slots != torch.arange(count, device=self.slots.device)).nonzero().squeeze(1)
        if len(moved):
            for by_slot in self._by_slot():
                used = by_slot[:, :, :, : self.num_entries]
                used[:, moved] = used[:, self.slots[moved]]
        self._number_slots(count)

    def _reserve_positions(self, count: int) -> None:
        """Extend the table to at least ``count`` positions."""
        missing = count + TABLE_PADDING - self.table.size(2)
        if missing > 0:
            self.table = F.pad(self.table, (0, missing + count // 2))

    def _reachable(self, num_entries: int) -> Bool[Tensor, "B W C"]:
        """Return a mask of the first ``num_entries`` entries that each beam may attend to."""
        reached = self._reached(num_entries)
        reachable = torch.zeros(*reached.shape[:2], num_entries + 1, dtype=torch.bool, device=reached.device)
        return reachable.scatter_(2, reached, True)[:, :, :num_entries]

    def _reached(self, num_entries: int) -> Int[Tensor, "B W T"]:
        """Return the entry of each position that a beam may attend to, and ``num_entries`` for all other positions."""
        positions = torch.arange(self.current_max_length, device=self.table.device)
        lengths = self.lengths.unsqueeze(1)
        is_hidden = positions >= lengths
        if self.window is not None:
            is_hidden |= positions < lengths - self.window
        return self.table[:, :, : self.current_max_length].masked_fill(is_hidden.unsqueeze(1), num_entries)

    def _find_free(self) -> None:
        """List the entries of each sequence that no beam can reach. Replace the buffers if there are too few.

        Buffers with far too many entries are also replaced, so that a long sequence does not occupy memory after it is
        removed.
        """
        in_use = self._reachable(self._num_reserved).any(1)
        most = int(in_use.sum(1).max()) if in_use.numel() else 0
        wanted = most + max(_FREE_STEPS * self.beams, most // 2)
        if not (most + wanted) // 2 <= self._num_reserved <= _WASTE * wanted:
            self._replace_buffers(self.num_sequences, wanted)
            in_use = self._reachable(wanted).any(1)
        columns = in_use.any(0).nonzero()
        self.num_entries = int(columns[-1]) + 1 if len(columns) else 0
        # A stable sort keeps the order of free entries, so the first free entries are close to `most` in all sequences.
        order = in_use.to(torch.uint8).argsort(dim=1, stable=True)
        self._has_same_free = bool(in_use[:, :most].all())
        self._free, self._num_taken = order[:, : min(self._num_reserved, wanted) - most], 0
        self._num_used_before = most

    def _replace_buffers(self, slots: int, entries: int) -> None:
        """Replace the buffers with at least ``slots`` slots of ``entries`` entries each. Used entries come first."""
        count, room = self.num_sequences, self._num_reserved
        in_use = self._reachable(room).any(1)
        width = int(in_use.sum(1).max()) if in_use.numel() else 0
        kept = (~in_use).to(torch.uint8).argsort(dim=1, stable=True)[:, :width].unsqueeze(1)
        slots = max(slots, self._num_slots if self._num_slots <= 2 * slots else 0)
        allocate = torch.zeros if self.masked_must_be_finite else torch.empty
        buffers = []
        for by_slot in self._by_slot():
            layers, _, heads, _, head_width = by_slot.shape
            buffer = allocate(layers, slots, heads, entries, head_width, dtype=by_slot.dtype, device=by_slot.device)
            head = torch.arange(heads, device=kept.device)
            buffer[:, :count, :, :width] = by_slot[:, self.slots[:, None, None], head[:, None], kept]
            buffers.append(buffer.flatten(1, 2))
        self.keys, self.values = buffers
        self._converted = None
        self._number_slots(count)
        self.num_entries = width
        if room:
            new_numbers = (in_use.cumsum(1) - 1).clamp(min=0)
            self.table = new_numbers.gather(1, self.table.flatten(1)).view_as(self.table)
