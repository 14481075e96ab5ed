"""The blocks of a decoder as one compiled function in 8-bit integers (:mod:`headway.kernels.int8_blocks`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.engine.decoding_step import DecodingStep
from headway.engine.torch_backend import Block, PlainBlock, Rows
from headway.kernels.int8_blocks import causal_blocks, decoder_blocks
from headway.kernels.int8_linear import NO_NORM, LayerNormParams, QuantizedLinear

Array = npt.NDArray[np.float32]
Bits = npt.NDArray[np.int16]


class CompiledBlocks:
    """The blocks of a decoder, computed in one call and on one thread, with the results of one call for each layer."""

    def __init__(self, blocks: Sequence[_QuantizedBlock]) -> None:
        self._blocks = blocks  # which own the arrays that the parameters point to
        self._layers = np.array([[layer.parameters for layer in block.layers] for block in blocks])
        after = [[layer.norm for layer in block.layers[1::2]] for block in blocks]
        self._norms = (*_stacked([block.norms for block in blocks]), *_stacked(after))
        self._sizes = blocks[0].sizes

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> CompiledBlocks | None:
        """Return the compiled form of the blocks, or None if there is more to them than the function supports."""
        found = [_quantized(block.plain()) for block in blocks]
        quantized = [block for block in found if block is not None]
        return cls(quantized) if len(quantized) == len(found) else None

    def __call__(self, x: Rows, step: DecodingStep) -> Rows:
        """Apply the blocks to one new token of each row."""
        own, entries = step.prefix_kv.converted(both_bits), step.prefix_entries
        prefix = *own, entries.slots, step.rows.spans, entries.newest, entries.entries, entries.positions
        if step.memory_kv is None:
            return causal_blocks(x, self._layers, self._norms, self._sizes[0], *prefix)
        memory, entries = step.memory_kv.converted(both_bits), step.memory_entries
        everything = *prefix, *memory, entries.slots, entries.entries, entries.positions
        return decoder_blocks(x, self._layers, self._norms, self._sizes[0], self._sizes[1], *everything)


def both_bits(keys: Tensor, values: Tensor) -> tuple[Bits, Bits]:
    """Return the bits of 16-bit floats as integers, because Numba does not support 16-bit floats."""
    return keys.view(torch.int16).numpy(), values.view(torch.int16).numpy()


class _QuantizedBlock(NamedTuple):
    """The norms before the sub-layers of a block, its linear layers in their order, and the sizes of its attention."""

    norms: list[LayerNormParams]
    layers: list[QuantizedLinear]
    sizes: list[tuple[int, int, tuple[int, int, int], int]]


def _quantized(block: PlainBlock | None) -> _QuantizedBlock | None:
    """Return the layers of a block, or None if one of them is not quantized."""
    if block is None:
        return None
    layers = [layer for both in zip(block.linear, block.output, strict=True) for layer in both]
    quantized = [layer for layer in layers if isinstance(layer, QuantizedLinear)]
    norms = [norm for norm in block.norms if isinstance(norm, LayerNormParams)]
    sizes = [(each.num_heads, each.num_kv_heads, each.widths, each.output_width) for each in block.layouts]
    if len(quantized) < len(layers):
        return None
    return _QuantizedBlock(norms or [NO_NORM] * len(block.norms), quantized, sizes)


def _stacked(norms: Sequence[Sequence[LayerNormParams]]) -> tuple[Array, Array, npt.NDArray[np.float64]]:
    """Return the weights, biases and epsilons of the norms of each block. All norms have the same shape."""
    weights, biases, epsilons = (
        np.array([[norm[part] for norm in of_block] for of_block in norms]) for part in range(3)
    )
    return weights, biases, epsilons
