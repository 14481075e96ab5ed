"""Apply all blocks of an encoder or a decoder in 8-bit integers with one compiled function.

The functions are defined in :mod:`headway.kernels.int8_blocks`. They take keys and values in the layout of
:mod:`headway.kernels.decode_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.engine.rows import DecodingStep
from headway.engine.torch_backend import DecodingBlock, EncodingBlock, PlainBlock, Rows
from headway.kernels.decode_attention import padded_width
from headway.kernels.fp16_dot import KEYS_PER_DOT
from headway.kernels.int8_blocks import decoder_blocks, self_attention_blocks
from headway.kernels.int8_linear import NO_NORM, LayerNormParams, QuantizedLinear
from headway.nn.cache import TABLE_PADDING

assert TABLE_PADDING >= KEYS_PER_DOT - 1
Array = npt.NDArray[np.float32]
Bits = npt.NDArray[np.int16]  # the bits of 16-bit floats, because Numba does not support float16
Indices = npt.NDArray[np.int64]


class CacheEntries(NamedTuple):
    """The cache entries that attention reads.

    Attributes:
        slots: Slot index of each sequence (B,).
        entries: Entry index of each position, for each row (R, T) or for all rows (1, T).
        position_ranges: The range of positions that attention reads in each sequence: first and last + 1 (B, 2).
        newest: The entry that each row's key and value are written to (R,). None for a memory, which does not grow.
    """

    slots: Indices
    entries: Indices
    position_ranges: Indices
    newest: Indices | None = None


def contiguous_entries(
    slots: Indices, lengths: Indices, num_entries: int, newest: Indices | None = None
) -> CacheEntries:
    """Return the entries of sequences that store position p in entry p. Each slot has ``num_entries`` entries."""
    entries = np.minimum(np.arange(num_entries + KEYS_PER_DOT), num_entries - 1)
    return CacheEntries(slots, entries[None], np.stack([np.zeros_like(lengths), lengths], 1), newest)


def kv_bits(keys: Tensor, values: Tensor) -> tuple[Bits, Bits]:
    """Return the bits of keys and values as 16-bit integers."""
    return keys.view(torch.int16).numpy(), values.view(torch.int16).numpy()


def empty_keys_values(sequences: int, length: int, heads: int, widths: Sequence[int]) -> tuple[Bits, Bits]:
    """Return uninitialized keys and values (B * H, T, _). ``widths`` contains the widths for all heads together."""
    keys, values = (np.empty((sequences * heads, length, padded_width(width // heads)), np.int16) for width in widths)
    return keys, values


class CompiledBlocks:
    """A stack of blocks that one call computes on one thread, with the same results as one call for each layer."""

    def __init__(self, blocks: Sequence[_QuantizedBlock]) -> None:
        self._blocks = blocks  # keeps the arrays alive that the parameters point to
        self._layers = np.array([[layer.kernel_parameters for layer in block.layers] for block in blocks])
        after = [[layer.norm for layer in block.layers[1::2]] for block in blocks]
        self._norms = (*_stacked([block.norms for block in blocks]), *_stacked(after))
        self._sizes, self._query_scale = blocks[0].sizes, blocks[0].query_scale
        assert all((block.sizes, block.query_scale) == (self._sizes, self._query_scale) for block in blocks)

    @classmethod
    def from_blocks(cls, blocks: Sequence[EncodingBlock | DecodingBlock]) -> CompiledBlocks | None:
        """Return the compiled blocks, or None if the compiled function does not support all parts of the blocks."""
        compiled = [_quantized(block.as_plain_block()) for block in blocks]
        quantized = [block for block in compiled if block is not None]
        return cls(quantized) if len(quantized) == len(compiled) else None

    def encode(self, x: Rows, spans: Indices, entries: CacheEntries) -> Rows:
        """Apply the blocks of an encoder. Output rows that are not in ``spans`` (B, 2) are undefined."""
        _, heads, widths, _ = self._sizes[0]
        keys, values = empty_keys_values(len(spans), int(entries.position_ranges[:, 1].max()), heads, widths[1:])
        return self._self_attention_blocks(x, keys[None], values[None], spans, entries)

    def decode(self, x: Rows, step: DecodingStep) -> Rows:
        """Apply the blocks of a decoder to each row's new token."""
        (keys, values), prefix_entries = step.prefix_kv.convert_once(kv_bits), step.prefix_entries
        if step.memory_kv is None:
            return self._self_attention_blocks(x, keys, values, step.rows.spans, prefix_entries)
        prefix = (
            keys,
            values,
            prefix_entries.slots,
            step.rows.spans,
            prefix_entries.newest,
            prefix_entries.entries,
            prefix_entries.position_ranges,
        )
        (keys, values), other = step.memory_kv.convert_once(kv_bits), step.memory_entries
        memory = keys, values, other.slots, other.entries, other.position_ranges
        return decoder_blocks(x, self._layers, self._norms, self._sizes[0], self._sizes[1], *prefix, *memory)

    def _self_attention_blocks(self, x: Rows, keys: Bits, values: Bits, spans: Indices, entries: CacheEntries) -> Rows:
        assert entries.newest is not None
        cache = keys, values, entries.slots, spans, entries.newest, entries.entries, entries.position_ranges
        return self_attention_blocks(x, self._layers, self._norms, self._sizes[0], self._query_scale, *cache)


class _QuantizedBlock(NamedTuple):
    """The parts of a block: the norms before its sub-layers, its linear layers in order, and its attention sizes."""

    norms: list[LayerNormParams]
    layers: list[QuantizedLinear]
    sizes: list[tuple[int, int, tuple[int, int, int], int]]
    query_scale: float


def _quantized(block: PlainBlock | None) -> _QuantizedBlock | None:
    """Return the layers of a block, or None if a layer is not quantized."""
    if block is None:
        return None
    layers = [layer for both in zip(block.first_layers, block.last_layers, strict=True) for layer in both]
    quantized = [layer for layer in layers if isinstance(layer, QuantizedLinear)]
    norms = [norm for norm in block.norms if isinstance(norm, LayerNormParams)]
    sizes = [(layout.num_heads, layout.num_kv_heads, layout.widths, layout.output_width) for layout in block.layouts]
    if len(quantized) < len(layers) or len(norms) not in (0, len(block.norms)):
        return None
    return _QuantizedBlock(norms or [NO_NORM] * len(block.norms), quantized, sizes, block.query_scale)


def _stacked(norms: Sequence[Sequence[LayerNormParams]]) -> tuple[Array, Array, npt.NDArray[np.float64]]:
    """Return the weights, biases and epsilons of the norms of each block. All norms have the same shape."""
    weights, biases, epsilons = (
        np.array([[norm[part] for norm in of_block] for of_block in norms]) for part in range(3)
    )
    return weights, biases, epsilons
