"""Linear layers in 8-bit integers, and layer norms.

A weight matrix W (N, K) is stored as integers with one scale per row: W[n] ~ w[n] * s_w[n]
(:func:`headway.kernels.int8_gemm.quantize_weight`). Inputs are quantized when the layer is called, with one scale per
row: x[r] ~ q[r] * s_x[r], s_x[r] = max |x[r]| / 127. The layer computes

    y[r, n] = s_x[r] * s_w[n] * sum over k of q[r, k] * w[n, k] + b[n]

with an exact integer sum. If a whole batch had one scale, as in ``torch.ao.quantization.quantize_dynamic``, the result
of a row would depend on the other rows.

The activation, residual connection and norm are applied while the rows of a product are in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from jaxtyping import Float32, UInt8

from headway.kernels.float_bits import ABS_MASK, bits_to_float, float_to_bits
from headway.kernels.int8_gemm import (
    BLOCK,
    HAS_AMX,
    INPUT_OFFSET,
    MAX_LEVEL,
    TINY_SCALE,
    empty_aligned,
    multiply_block,
    pack_weight,
    quantize_weight,
)
from headway.kernels.jit import Array, SerialAndParallel, jit, jit_parallel, jit_serial_and_parallel
from headway.kernels.llvm import TILE_ROWS

_LEVEL = np.float32(1 / MAX_LEVEL)
# Number of inputs that are multiplied at a time, small enough for the second-level cache. AMX is faster with more.
_CHUNK = 1 << 19 if HAS_AMX else 1 << 17

MIN_PARALLEL = 1 << 16  # inputs; quantizing fewer takes hardly longer than starting threads
_MEMORY_THREADS = 8  # threads that suffice to use the full memory bandwidth
_NO_RESIDUAL = np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True)
class LayerNormParams:
    """The parameters of a layer norm (Ba et al. 2016) over D features, or of an RMSNorm if the bias is empty."""

    weight: Float32[Array, " D"]
    bias: Float32[Array, " D"] | Float32[Array, " 0"]
    epsilon: float


_NO_NORM = LayerNormParams(np.zeros(0, np.float32), np.zeros(0, np.float32), 0.0)


class QuantizedLinear:
    """y = x W^T + b with W (N, K) in integers, optionally followed by ReLU, or by a residual connection and a norm.

    ``addresses`` are the addresses of the packed weights, the initial accumulators, the scales and the bias, all padded
    to whole blocks. ``width`` is the number of inputs including padding.
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
        self._arrays = *pack_weight(levels), np.pad(scale, padding), np.pad(bias, padding)
        self.addresses = tuple(array.ctypes.data for array in self._arrays)
        self.width = 4 * self._arrays[0].shape[1]
        self._minimum, self._norm = np.float32(0 if relu else -np.inf), norm or _NO_NORM

    def __call__(
        self, x: Float32[Array, "R K"], residual: Float32[Array, "R N"] | None = None
    ) -> Float32[Array, "R N"]:
        """Return the output of the layer. ``residual`` is added before the norm."""
        if x.shape[1] != self.in_features:
            raise ValueError(f"inputs have {x.shape[1]} features, but the layer expects {self.in_features}")
        out = empty_aligned((len(x), self.out_features), np.float32)
        if x.size <= _CHUNK:
            self._compute(x, residual, out)
            return out
        each = -(-len(x) // -(-x.size // _CHUNK))
        for first in range(0, len(x), each):
            rows = slice(first, first + each)
            self._compute(x[rows], None if residual is None else residual[rows], out[rows])
        return out

    def _compute(self, x: Array, residual: Array | None, out: Array) -> None:
        """Compute the output of rows that fit in the cache, and write it to ``out``."""
        levels, scales = quantize_rows(x, self.width)
        partial = self.out_features % BLOCK
        last = np.empty((len(x), BLOCK), dtype=np.float32) if partial else out
        weight, init, scale, bias = self.addresses
        _multiply(levels, scales, weight, init, scale, bias, self._minimum, out, last)
        if partial:
            out[:, -partial:] = last[:, :partial]
        norm = self._norm
        if residual is not None or norm is not _NO_NORM:
            _residual_norm(out, _NO_RESIDUAL if residual is None else residual, norm.weight, norm.bias, norm.epsilon)


def layer_norm(x: Float32[Array, "R D"], norm: LayerNormParams) -> Float32[Array, "R D"]:
    """Normalize each row to mean 0 and standard deviation 1, then scale and shift it."""
    out = x.copy()
    _residual_norm(out, _NO_RESIDUAL, norm.weight, norm.bias, norm.epsilon)
    return out


def quantize_rows(x: Float32[Array, "R K"], width: int) -> tuple[UInt8[Array, "R K2"], Float32[Array, " R"]]:
    """Return the rows as integers from -127 to 127, plus INPUT_OFFSET, and their scales.

    The integers have ``width`` columns. The contents of columns from K on are undefined.
    """
    empty = empty_aligned if len(x) >= TILE_ROWS else np.empty
    levels, scales = empty((len(x), width), np.uint8), np.empty(len(x), dtype=np.float32)
    quantize = _quantize if x.size >= MIN_PARALLEL else _quantize.serial
    quantize(x, levels, scales)
    return levels, scales


@jit_serial_and_parallel
def _quantize(x: Array, levels: Array, scales: Array) -> None:
    """Quantize the rows of x, as :func:`quantize_rows` documents.

    The largest magnitude is found by comparing the bits of the floats as integers: without the sign they are ordered by
    magnitude, with NaN largest. So the scale of a row that contains NaN is NaN, and so are all its results.
    """
    for r in numba.prange(len(x)):
        largest = np.int32(0)
        for k in range(x.shape[1]):
            largest = max(largest, np.int32(float_to_bits(x[r, k]) & ABS_MASK))
        scale = bits_to_float(largest) * _LEVEL + TINY_SCALE
        scales[r] = scale
        inverse = np.float32(1) / scale
        for k in range(x.shape[1]):
            levels[r, k] = np.uint8(np.int32(np.rint(x[r, k] * inverse)) + INPUT_OFFSET)


def _multiply_blocks(
    levels: Array,
    input_scales: Array,
    weights: int,
    accumulator_init: int,
    scales: int,
    bias: int,
    minimum: np.float32,
    out: Array,
    last: Array,
) -> None:
    """Write the product of quantized rows and a packed weight, scaled and shifted, but at least ``minimum``.

    The weight's arrays are given by their addresses. The last block is written to ``last`` if it is not full.
    """
    rows, outputs = out.shape
    whole, width = outputs // BLOCK, levels.shape[1]
    q, s, y, rest = levels.ctypes.data, input_scales.ctypes.data, out.ctypes.data, last.ctypes.data
    for index in numba.prange(-(-outputs // BLOCK)):
        # The parallel form has an unsigned index, for which multiply_block would be compiled again.
        block: Any = np.intp(index)
        place, stride = (y + 4 * block * BLOCK, 4 * outputs) if block < whole else (rest, 4 * BLOCK)
        multiply_block(weights, accumulator_init, scales, bias, block, q, width, s, rows, minimum, place, stride)


_multiply = SerialAndParallel(jit(_multiply_blocks), jit_parallel(_multiply_blocks), _MEMORY_THREADS)


@jit
def _residual_norm(x: Array, residual: Array, weight: Array, bias: Array, epsilon: float) -> None:
    """Add the residual and apply the norm in place. Each is skipped if its arrays are empty."""
    width = x.shape[1]
    size = np.float32(width)
    for r in range(len(x)):
        if len(residual):
            for d in range(width):
                x[r, d] += residual[r, d]
        if len(weight):
            total, squares = np.float32(0), np.float32(0)
            if len(bias):
                for d in range(width):
                    total += x[r, d]
            mean = total / size
            for d in range(width):
                squares += (x[r, d] - mean) * (x[r, d] - mean)
            inverse = np.float32(1) / np.sqrt(squares / size + np.float32(epsilon))
            if len(bias):
                for d in range(width):
                    x[r, d] = (x[r, d] - mean) * inverse * weight[d] + bias[d]
            else:
                for d in range(width):
                    x[r, d] = x[r, d] * inverse * weight[d]
