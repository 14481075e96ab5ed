"""Linear layers in 8-bit integers, and layer norms.

A weight matrix W (N, K) is stored as integers with one scale per row: W[n] ~ w[n] * s_w[n]
(:func:`headway.kernels.int8_gemm.quantize_weight`). Inputs are quantized when the layer is called, with one scale per
row: x[r] ~ q[r] * s_x[r], s_x[r] = max |x[r]| / 127. The layer computes

    y[r, n] = s_x[r] * s_w[n] * sum over k of q[r, k] * w[n, k] + b[n]

with an exact integer sum. With one scale for a whole batch, as in ``torch.ao.quantization.quantize_dynamic``, a row
would depend on the other rows.

Activation, residual and norm are applied while the rows of a product are in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from jaxtyping import Float32

from headway.kernels.float_bits import ABS_MASK, bits_to_float, float_to_bits
from headway.kernels.int8_gemm import (
    BLOCK,
    INPUT_OFFSET,
    MAX_LEVEL,
    TINY_SCALE,
    multiply_block,
    pack_weight,
    quantize_weight,
)
from headway.kernels.jit import Array, SerialAndParallel, jit, jit_inline, jit_parallel
from headway.kernels.threads import run_threaded_if_few_rows

__all__ = ["LayerNormParams", "QuantizedLinear", "layer_norm", "quantize_rows"]

_LEVEL = np.float32(1 / MAX_LEVEL)
_CHUNK = 1 << 17  # inputs that are multiplied at a time: 128 KiB fit a second-level cache

_MEMORY_THREADS = 8  # threads that are enough to read at the memory's full speed
_NO_RESIDUAL = np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True)
class LayerNormParams:
    """A layer norm (Ba et al. 2016) over D features."""

    weight: Float32[Array, " D"]
    bias: Float32[Array, " D"]
    epsilon: float


_NO_NORM = LayerNormParams(np.zeros(0, np.float32), np.zeros(0, np.float32), 0.0)


class QuantizedLinear:
    """y = x W^T + b with W (N, K) in integers, optionally followed by ReLU, or by a residual connection and a norm.

    ``arrays`` are the packed weights, the start values of the sums, the scales and the bias, padded to whole blocks.
    """

    def __init__(
        self,
        weight: Float32[Array, "N K"],
        bias: Float32[Array, " N"] | None = None,
        *,
        relu: bool = False,
        norm: LayerNormParams | None = None,
    ) -> None:
        self.out_features, self.in_features = weight.shape
        levels, scale = quantize_weight(weight)
        padding = (0, -self.out_features % BLOCK)
        bias = np.zeros(self.out_features, np.float32) if bias is None else bias
        self.arrays = *pack_weight(levels), np.pad(scale, padding), np.pad(bias, padding)
        self._relu, self._norm = relu, norm or _NO_NORM

    def __call__(
        self, x: Float32[Array, "R K"], residual: Float32[Array, "R N"] | None = None
    ) -> Float32[Array, "R N"]:
        """Return the output of the layer. ``residual`` is added before the norm."""
        if x.shape[1] != self.in_features:
            raise ValueError(f"inputs of {x.shape[1]} features for a layer of {self.in_features}")
        out = np.empty((len(x), self.out_features), dtype=np.float32)
        residual = _NO_RESIDUAL if residual is None else residual
        norm = self._norm.weight, self._norm.bias, self._norm.epsilon
        run_threaded_if_few_rows(len(x), _linear, x, *self.arrays, self._relu, residual, *norm, out)
        return out


def layer_norm(x: Float32[Array, "R D"], norm: LayerNormParams) -> Float32[Array, "R D"]:
    """Normalize each row to mean 0 and standard deviation 1, then scale and shift it."""
    out = x.copy()
    _layer_norm(out, norm.weight, norm.bias, norm.epsilon)
    return out


@jit
def quantize_rows(x: Array, levels: Array, scales: Array) -> None:
    """Quantize the rows of ``x`` (R, K) to integers from -127 to 127, and write them plus INPUT_OFFSET to ``levels``.

    The largest magnitude is found among the bits of the floats, which are ordered by magnitude, NaN above all. So the
    scale of a row with NaN is NaN, and so is everything computed with it.
    """
    for r in range(len(x)):
        largest = np.int32(0)
        for k in range(x.shape[1]):
            largest = max(largest, np.int32(float_to_bits(x[r, k]) & ABS_MASK))
        scale = bits_to_float(largest) * _LEVEL + TINY_SCALE
        scales[r] = scale
        inverse = np.float32(1) / scale
        for k in range(x.shape[1]):
            levels[r, k] = np.uint8(np.int32(np.rint(x[r, k] * inverse)) + INPUT_OFFSET)


def _linear_rows(
    x: Array,
    weights: Array,
    accumulator_init: Array,
    scale: Array,
    bias: Array,
    relu: bool,
    residual: Array,
    norm_weight: Array,
    norm_bias: Array,
    epsilon: float,
    out: Array,
) -> None:
    rows, outputs = out.shape
    whole, width = outputs // BLOCK, 4 * weights.shape[1]
    chunks = max(1, -(-rows * x.shape[1] // _CHUNK))
    each = -(-rows // chunks)
    levels = np.empty((each, width), dtype=np.uint8)
    scales = np.empty(each, dtype=np.float32)
    last = np.empty((each, BLOCK), dtype=np.float32)  # the outputs of the last block if it is not full
    minimum = np.float32(0) if relu else np.float32(-np.inf)
    for first in range(0, rows, max(each, 1)):
        count = min(each, rows - first)
        quantize_rows(x[first : first + count], levels, scales)
        w, s, f, b = weights.ctypes.data, accumulator_init.ctypes.data, scale.ctypes.data, bias.ctypes.data
        q, c, y, rest = levels.ctypes.data, scales.ctypes.data, out.ctypes.data + 4 * first * outputs, last.ctypes.data
        for index in numba.prange(-(-outputs // BLOCK)):
            block: Any = np.intp(
                index
            )  # the parallel form has an unsigned index: multiply_block would be compiled again
            place, stride = (y + 4 * block * BLOCK, 4 * outputs) if block < whole else (rest, 4 * BLOCK)
            multiply_block(w, s, f, b, block, q, width, c, count, minimum, place, stride)
        for row in range(count):
            for column in range(whole * BLOCK, outputs):
                out[first + row, column] = last[row, column - whole * BLOCK]
        if len(residual):
            _add(residual, first, first + count, out)
        if len(norm_weight):
            _normalize(out, first, first + count, norm_weight, norm_bias, epsilon)


_linear = SerialAndParallel(jit(_linear_rows), jit_parallel(_linear_rows), _MEMORY_THREADS)


@jit_inline
def _add(residual: Array, first: int, last: int, out: Array) -> None:
    for r in range(first, last):
        for n in range(out.shape[1]):
            out[r, n] += residual[r, n]


@jit_inline
def _normalize(x: Array, first: int, last: int, weight: Array, bias: Array, epsilon: float) -> None:
    """Apply a layer norm to some rows in place."""
    width = x.shape[1]
    size = np.float32(width)
    for r in range(first, last):
        total, squares = np.float32(0), np.float32(0)
        for d in range(width):
            total += x[r, d]
        mean = total / size
        for d in range(width):
            squares += (x[r, d] - mean) * (x[r, d] - mean)
        inverse = np.float32(1) / np.sqrt(squares / size + np.float32(epsilon))
        for d in range(width):
            x[r, d] = (x[r, d] - mean) * inverse * weight[d] + bias[d]


@jit
def _layer_norm(x: Array, weight: Array, bias: Array, epsilon: float) -> None:
    _normalize(x, 0, len(x), weight, bias, epsilon)
