"""Compiled functions that apply all blocks of a Transformer stack in 8-bit integers, on a single thread.

Large kernels displace the interpreter's code and data from the processor's caches, so calling a kernel from Python
takes several times as long as calling it repeatedly. The functions in this module return bitwise the same results as
calling their kernels separately.

Dimensions: L blocks of S sub-layers, R rows of width D. The following arrays define the blocks.

    layers (L, 2 S, 7)   the parameters of the first and the last linear layer of each sub-layer
                         (:class:`~headway.kernels.int8_linear.QuantizedLinear`)
    norms                weights (L, S, D), biases (L, S, D) and epsilons (L, S) of the norms before the sub-layers,
                         followed by the same arrays for the norms after them. D is 0 if there are no norms.
    sizes                numbers of query heads and of key and value heads, total widths of queries, keys and values,
                         and the width of the output
    keys, values         the cache of all blocks (L, P * H, C, K2) and (L, P * H, C, U2)

All other arrays are documented in :mod:`headway.kernels.decode_attention`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.kernels.decode_attention import attend, write_keys_and_values
from headway.kernels.int8_linear import linear_serial, residual_norm
from headway.kernels.jit import Array, jit, jit_internal

_attend_serial = attend.serial


@jit
def decoder_blocks(
    x: Array,
    layers: Array,
    norms: tuple[Any, ...],
    sizes: tuple[Any, ...],
    memory_sizes: tuple[Any, ...],
    keys: Array,
    values: Array,
    slots: Array,
    spans: Array,
    newest: Array,
    entries: Array,
    positions: Array,
    memory_keys: Array,
    memory_values: Array,
    memory_slots: Array,
    memory_entries: Array,
    memory_positions: Array,
) -> Array:
    """Apply the decoder blocks of a translation model to each row's new token, and return their output.

    The key and value of each row are written to the row's cache entry in ``newest`` (R,).
    """
    for block in range(len(layers)):
        stored_keys, stored_values = keys[block], values[block]
        rows = _first_layer(x, layers, norms, block, 0)
        out = _self_attention(rows, sizes, 1.0, stored_keys, stored_values, slots, spans, newest, entries, positions)
        x = _last_layer(out, x, layers, norms, block, 0)
        rows = _first_layer(x, layers, norms, block, 1)
        stored_keys, stored_values = memory_keys[block], memory_values[block]
        place, read = memory_entries, memory_positions
        out = _attend(rows, memory_sizes, stored_keys, stored_values, memory_slots, spans, place, read)
        x = _last_layer(out, x, layers, norms, block, 1)
        x = _last_layer(_first_layer(x, layers, norms, block, 2), x, layers, norms, block, 2)
    return x


@jit
def self_attention_blocks(
    x: Array,
    layers: Array,
    norms: tuple[Any, ...],
    sizes: tuple[Any, ...],
    query_scale: float,
    keys: Array,
    values: Array,
    slots: Array,
    spans: Array,
    newest: Array,
    entries: Array,
    positions: Array,
) -> Array:
    """Apply blocks without cross-attention (of a language model or an encoder), and return their output.

    See :func:`decoder_blocks` for the arguments. Queries are multiplied by ``query_scale``. If ``keys`` and ``values``
    have L = 1, all blocks overwrite the same memory.
    """
    for block in range(len(layers)):
        place = min(block, len(keys) - 1)
        own_keys, own_values = keys[place], values[place]
        rows = _first_layer(x, layers, norms, block, 0)
        out = _self_attention(rows, sizes, query_scale, own_keys, own_values, slots, spans, newest, entries, positions)
        x = _last_layer(out, x, layers, norms, block, 0)
        x = _last_layer(_first_layer(x, layers, norms, block, 1), x, layers, norms, block, 1)
    return x


@jit_internal
def _first_layer(x: Array, layers: Array, norms: Any, block: int, number: int) -> Array:
    """Apply the norm before a sub-layer, and return the output of the sub-layer's first linear layer."""
    weights, biases, epsilons = norms[0], norms[1], norms[2]
    no_residual, nothing = np.empty((0, 0), np.float32), np.empty(0, np.float32)
    if weights.shape[2]:
        x = x.copy()
        residual_norm(x, no_residual, weights[block, number], biases[block, number], epsilons[block, number])
    return linear_serial(x, layers[block, 2 * number], no_residual, nothing, nothing, 0.0)


@jit_internal
def _last_layer(x: Array, residual: Array, layers: Array, norms: Any, block: int, number: int) -> Array:
    """Apply a sub-layer's last linear layer, then the residual connection and the norm after it."""
    weights, biases, epsilons = norms[3], norms[4], norms[5]
    norm = weights[block, number], biases[block, number], epsilons[block, number]
    return linear_serial(x, layers[block, 2 * number + 1], residual, norm[0], norm[1], norm[2])


@jit_internal
def _self_attention(
    rows: Array,
    sizes: Any,
    query_scale: float,
    keys: Array,
    values: Array,
    slots: Array,
    spans: Array,
    newest: Array,
    entries: Array,
    positions: Array,
) -> Array:
    """Scale the queries, write the keys and values to the cache, and return the attention over the cache."""
    widths, scale = sizes[2], np.float32(query_scale)
    if query_scale != 1:
        for row in range(len(rows)):
            for column in range(widths[0]):
                rows[row, column] *= scale
    write_keys_and_values(rows, widths, sizes[1], keys, values, slots, spans, newest)
    return _attend(rows, sizes, keys, values, slots, spans, entries, positions)


@jit_internal
def _attend(
    rows: Array,
    sizes: Any,
    keys: Array,
    values: Array,
    slots: Array,
    spans: Array,
    entries: Array,
    positions: Array,
) -> Array:
    """Return the attention outputs of the queries in ``rows``."""
    heads, kv_heads, widths, output_width = sizes
    out = np.empty((len(rows), output_width), np.float32)
    _attend_serial(rows, heads, kv_heads, widths[0] // heads, keys, values, slots, spans, entries, positions, out)
    return out
