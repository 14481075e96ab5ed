"""Sub-layers of the Transformer in 8-bit integers, each as one compiled function, for a single thread.

Between the large kernels of a decoding step, the interpreter's code and data are no longer in the processor's caches,
so each call of a kernel from Python takes several times as long as when it is repeated. Each function here gives the
same bits as its kernels called one after the other. Linear layers are given by their parameters
(:class:`~headway.kernels.int8_linear.QuantizedLinear`), and the last one is followed by the residual connection and the
norm. Arrays of attention are those of :mod:`headway.kernels.decode_attention`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.kernels.decode_attention import attend, write_keys_and_values
from headway.kernels.int8_linear import linear_serial
from headway.kernels.jit import Array, jit, jit_internal

_attend_serial = attend.serial


@jit
def feed_forward(
    x: Array, inner: Array, outer: Array, residual: Array, norm_weight: Array, norm_bias: Array, epsilon: float
) -> Array:
    """Return the output of a feed-forward sub-layer, whose inner layer contains the activation."""
    return linear_serial(_product(x, inner), outer, residual, norm_weight, norm_bias, epsilon)


@jit
def attend_to_prefix(
    x: Array,
    projection: Array,
    heads: int,
    kv_heads: int,
    widths: Any,
    output_width: int,
    keys: Array,
    values: Array,
    slots: Array,
    spans: Array,
    newest: int,
    num_entries: Array,
    mask: Array,
    output: Array,
    residual: Array,
    norm_weight: Array,
    norm_bias: Array,
    epsilon: float,
) -> Array:
    """Return the output of a self-attention sub-layer for one new token of each row.

    The tokens' keys and values are written to the cache from entry ``newest`` on. ``widths`` are the widths of queries,
    keys and values, each for all heads together, and ``output_width`` is that of the attention's output.
    """
    rows = _product(x, projection)
    write_keys_and_values(rows, widths, kv_heads, keys, values, slots, spans, newest)
    out = np.empty((len(x), output_width), np.float32)
    _attend_serial(rows, heads, kv_heads, widths[0] // heads, keys, values, slots, spans, num_entries, mask, out)
    return linear_serial(out, output, residual, norm_weight, norm_bias, epsilon)


@jit
def attend_to_memory(
    x: Array,
    query: Array,
    heads: int,
    kv_heads: int,
    widths: Any,
    output_width: int,
    keys: Array,
    values: Array,
    slots: Array,
    spans: Array,
    lengths: Array,
    output: Array,
    residual: Array,
    norm_weight: Array,
    norm_bias: Array,
    epsilon: float,
) -> Array:
    """Return the output of a cross-attention sub-layer. The other arguments are those of :func:`attend_to_prefix`."""
    rows, mask = _product(x, query), np.empty((0, 0, 0), np.bool_)
    out = np.empty((len(x), output_width), np.float32)
    _attend_serial(rows, heads, kv_heads, widths[0] // heads, keys, values, slots, spans, lengths, mask, out)
    return linear_serial(out, output, residual, norm_weight, norm_bias, epsilon)


@jit_internal
def _product(x: Array, layer: Array) -> Array:
    """Return the output of a layer without residual connection and norm."""
    nothing = np.empty(0, np.float32)
    return linear_serial(x, layer, np.empty((0, 0), np.float32), nothing, nothing, 0.0)
