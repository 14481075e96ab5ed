"""Linear layers in 8-bit integers, and layer norms.

A weight matrix W (N, K) is stored as integers with one scale per row: W[n] ~ w[n] * s_w[n]
(:func:`headway.kernels.int8_gemm.quantize_weight`). Inputs are quantized when the layer is called, with one scale per
row: x[r] ~ q[r] * s_x[r], s_x[r] = max |x[r]| / 127. The layer computes

    y[r, n] = s_x[r] * s_w[n] * sum over k of q[r, k] * w[n, k] + b[n]

with an exact integer sum. With one scale for the whole batch, as in ``torch.ao.quantization.quantize_dynamic``, the
result of a row would depend on the other rows.

The activation, residual connection and norm are applied while the product's rows are still in the cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from jaxtyping import Float32, Int8, Int32, UInt8

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
from headway.kernels.jit import (
    Array,
    SerialAndParallel,
    jit,
    jit_exact,
    jit_internal,
    jit_parallel,
    jit_serial_and_parallel,
)
from headway.kernels.llvm import CACHE_LINE, TILE_ROWS
from headway.kernels.reductions import row_sum, sum_squared_deviations

_LEVEL = np.float32(1 / MAX_LEVEL)
# Number of inputs to multiply at a time. They fit the second-level cache. AMX is faster with more inputs.
_CHUNK = 1 << 19 if HAS_AMX else 1 << 17

MIN_PARALLEL = 1 << 16  # minimum number of inputs for threads; quantizing fewer takes about as long as starting threads
_MEMORY_THREADS = 8  # number of threads that suffices to use the full memory bandwidth
_NO_RESIDUAL = np.zeros((0, 0), dtype=np.float32)


class LayerNormParams(NamedTuple):
    """The parameters of a layer norm (Ba et al. 2016) over D features, or of an RMSNorm if the bias is empty."""

    weight: Float32[Array, " D"]
    bias: Float32[Array, " D"] | Float32[Array, " 0"]
    epsilon: float

    def __call__(self, x: Float32[Array, "R D"]) -> Float32[Array, "R D"]:
        """Normalize each row."""
        return layer_norm(x, self)


NO_NORM = LayerNormParams(np.zeros(0, np.float32), np.zeros(0, np.float32), 0.0)


class PackedLinear(NamedTuple):
    """The arrays of a linear layer in 8-bit integers, padded to whole blocks of outputs.

    Attributes:
        weight: Integer weights, packed by :func:`headway.kernels.int8_gemm.pack_weight`.
        accumulator_init: The initial accumulator of each output.
        scale: The scale of each output.
        bias: The bias of each output.
    """

    weight: Int8[Array, "blocks fours block 4"]
    accumulator_init: Int32[Array, " outputs"]
    scale: Float32[Array, " outputs"]
    bias: Float32[Array, " outputs"]


def pack_linear(
    levels: Int8[Array, "N K"], scale: Float32[Array, " N"], bias: Float32[Array, " N"] | None
) -> PackedLinear:
    """Pack a layer whose weight is already quantized (:func:`headway.kernels.int8_gemm.quantize_weight`)."""
    padding = (0, -len(scale) % BLOCK)
    bias = np.zeros(len(scale), np.float32) if bias is None else bias
    return PackedLinear(*pack_weight(levels), np.pad(scale, padding), np.pad(bias, padding))


class QuantizedLinear:
    """y = x W^T + b with W (N, K) in 8-bit integers, optionally followed by ReLU or by a residual connection and norm.

    ``packed`` contains the packed weights, initial accumulators, scales and bias, all padded to whole blocks, and
    ``addresses`` contains the addresses of these arrays. ``padded_in_features`` is the number of inputs including
    padding. ``kernel_parameters`` contains the addresses, the width, the number of outputs, and 1 for ReLU or else 0.
    The addresses are valid as long as the layer exists. ``norm`` contains empty arrays if there is no norm.
    """

    def __init__(
        self,
        weight: Float32[Array, "N K"],
        bias: Float32[Array, " N"] | None = None,
        *,
        relu: bool = False,
        norm: LayerNormParams | None = None,
    ) -> None:
        self._prepare(pack_linear(*quantize_weight(weight), bias), weight.shape, relu=relu, norm=norm)

    @classmethod
    def from_packed(
        cls, packed: PackedLinear, shape: tuple[int, int], *, relu: bool = False, norm: LayerNormParams | None = None
    ) -> QuantizedLinear:
        """Return a layer with an already quantized and packed weight of this ``shape`` (N, K)."""
        layer = cls.__new__(cls)
        layer._prepare(packed, shape, relu=relu, norm=norm)
        return layer

    def _prepare(
        self, packed: PackedLinear, shape: tuple[int, ...], *, relu: bool, norm: LayerNormParams | None
    ) -> None:
        self.packed, (self.out_features, self.in_features) = packed, shape
        self.addresses = tuple(array.ctypes.data for array in packed)
        self.padded_in_features = 4 * packed.weight.shape[1]
        self.kernel_parameters = np.array(
            [*self.addresses, self.padded_in_features, self.out_features, int(relu)], dtype=np.int64
        )
        self.norm = norm or NO_NORM

    def __call__(
        self, x: Float32[Array, "R K"], residual: Float32[Array, "R N"] | None = None
    ) -> Float32[Array, "R N"]:
        """Apply the layer to x. ``residual`` is added before the norm."""
        if x.shape[1] != self.in_features:
            raise ValueError(f"inputs have {x.shape[1]} features, but the layer expects {self.in_features}")
        norm, residual = self.norm, _NO_RESIDUAL if residual is None else residual
        return _linear(x, self.kernel_parameters, residual, *norm)


def layer_norm(x: Float32[Array, "R D"], norm: LayerNormParams) -> Float32[Array, "R D"]:
    """Normalize each row to mean 0 and standard deviation 1, then scale and shift it."""
    out = x.copy()
    residual_norm(out, _NO_RESIDUAL, *norm)
    return out


def quantize_rows(x: Float32[Array, "R K"], width: int) -> tuple[UInt8[Array, "R K2"], Float32[Array, " R"]]:
    """Quantize the rows to integers from -127 to 127. Return the integers plus INPUT_OFFSET, and the rows' scales.

    The integers have ``width`` columns. Columns from K on are undefined.
    """
    empty = empty_aligned if len(x) >= TILE_ROWS else np.empty
    levels, scales = empty((len(x), width), np.uint8), np.empty(len(x), dtype=np.float32)
    quantize = _quantize if x.size >= MIN_PARALLEL else _quantize.serial
    quantize(x, levels, scales)
    return levels, scales


@jit_serial_and_parallel
def _quantize(x: Array, levels: Array, scales: Array) -> None:
    """Quantize the rows of x, as documented in :func:`quantize_rows`.

    The largest magnitude is found by comparing the floats' bits as integers. Without the sign bit, they are ordered by
    magnitude, with NaN largest. The scale of a row that contains NaN is therefore NaN, and so are all its results.
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


def _multiply_blocks(levels: Array, input_scales: Array, layer: Array, out: Array, last: Array) -> None:
    """Multiply quantized rows by a packed weight, scale, add the bias, apply ReLU if requested, and write to ``out``.

    ``layer`` contains the parameters of a :class:`QuantizedLinear`. The last block is written to ``last`` if it is not
    full.
    """
    rows, outputs = out.shape
    whole, width = outputs // BLOCK, levels.shape[1]
    weights, accumulator_init, scales, bias = layer[0], layer[1], layer[2], layer[3]
    minimum = np.float32(0) if layer[6] else np.float32(-np.inf)
    q, s, y, rest = levels.ctypes.data, input_scales.ctypes.data, out.ctypes.data, last.ctypes.data
    for index in numba.prange(-(-outputs // BLOCK)):
        # The parallel form has an unsigned index. Without conversion, multiply_block would be compiled again for it.
        block: Any = np.intp(index)
        place, stride = (y + 4 * block * BLOCK, 4 * outputs) if block < whole else (rest, 4 * BLOCK)
        multiply_block(weights, accumulator_init, scales, bias, block, q, width, s, rows, minimum, place, stride)


_multiply, _multiply_in_parallel = jit(_multiply_blocks), jit_parallel(_multiply_blocks)
_quantize_serial, _quantize_in_parallel = _quantize.serial, _quantize.parallel


@jit
def linear_serial(
    x: Array, layer: Array, residual: Array, norm_weight: Array, norm_bias: Array, epsilon: float
) -> Array:
    """Apply a layer with these parameters (:class:`QuantizedLinear`) to the rows of x, and return the output.

    Rows are processed in parts that fit in the cache. The residual and the norm are skipped if their arrays are empty.
    Memory is allocated here, because allocation takes several times as long in Python.
    """
    out, rows = _aligned_floats(len(x), layer[5]), _rows_at_a_time(x)
    levels, scales, last = _aligned_bytes(rows, layer[4]), np.empty(rows, np.float32), _last_block(rows, layer[5])
    for first in range(0, len(x), rows):
        part, end = out[first : first + rows], min(rows, len(x) - first)
        _quantize_serial(x[first : first + rows], levels[:end], scales)
        _multiply(levels[:end], scales, layer, part, last)
        _copy_last_block(last, part)
        residual_norm(part, residual[first : first + rows], norm_weight, norm_bias, epsilon)
    return out


@jit
def _linear_in_parallel(
    x: Array, layer: Array, residual: Array, norm_weight: Array, norm_bias: Array, epsilon: float
) -> Array:
    """Return the same as :func:`linear_serial`, but use several threads."""
    out, rows = _aligned_floats(len(x), layer[5]), _rows_at_a_time(x)
    levels, scales, last = _aligned_bytes(rows, layer[4]), np.empty(rows, np.float32), _last_block(rows, layer[5])
    for first in range(0, len(x), rows):
        part, end = out[first : first + rows], min(rows, len(x) - first)
        if end * x.shape[1] >= MIN_PARALLEL:
            _quantize_in_parallel(x[first : first + rows], levels[:end], scales)
        else:
            _quantize_serial(x[first : first + rows], levels[:end], scales)
        _multiply_in_parallel(levels[:end], scales, layer, part, last)
        _copy_last_block(last, part)
        residual_norm(part, residual[first : first + rows], norm_weight, norm_bias, epsilon)
    return out


_linear = SerialAndParallel(linear_serial, _linear_in_parallel, _MEMORY_THREADS)


@jit_internal
def _rows_at_a_time(x: Array) -> int:
    """Return the number of rows per part, such that their inputs fit in the cache and all parts are about equal."""
    parts = max(-(-x.size // _CHUNK), 1)
    return max(-(-len(x) // parts), 1)


@jit_internal
def _aligned_bytes(rows: int, width: int) -> Array:
    """Return an uninitialized array that is aligned to a cache line, like :func:`empty_aligned`."""
    memory = np.empty(rows * width + CACHE_LINE, np.uint8)
    start = CACHE_LINE - memory.ctypes.data % CACHE_LINE
    return memory[start : start + rows * width].reshape((rows, width))


@jit_internal
def _aligned_floats(rows: int, width: int) -> Array:
    """Return an uninitialized array that is aligned to a cache line, like :func:`empty_aligned`."""
    memory = np.empty(rows * width + CACHE_LINE // 4, np.float32)
    start = (CACHE_LINE - memory.ctypes.data % CACHE_LINE) // 4
    return memory[start : start + rows * width].reshape((rows, width))


@jit_internal
def _last_block(rows: int, outputs: int) -> Array:
    """Return an array for the last block of outputs. It has no rows if the block is full."""
    return np.empty((rows if outputs % BLOCK else 0, BLOCK), np.float32)


@jit_internal
def _copy_last_block(last: Array, out: Array) -> None:
    partial = out.shape[1] % BLOCK
    first = out.shape[1] - partial
    if partial:
        for r in range(len(out)):
            for column in range(partial):  # a slice assignment would take seconds to compile
                out[r, first + column] = last[r, column]


@jit_exact
def residual_norm(x: Array, residual: Array, weight: Array, bias: Array, epsilon: float) -> None:
    """Add the residual and apply the norm in place. Each is skipped if its arrays are empty."""
    width = x.shape[1]
    size = np.float32(width)
    for r in range(len(x)):
        row = x[r]
        if len(residual):
            for d in range(width):
                row[d] += residual[r, d]
        if len(weight):
            mean = row_sum(row.ctypes.data, row[0], width) / size if len(bias) else np.float32(0)
            squares = sum_squared_deviations(row.ctypes.data, row[0], width, mean)
            inverse = np.float32(1) / np.sqrt(squares / size + np.float32(epsilon))
            if len(bias):
                for d in range(width):
                    row[d] = (row[d] - mean) * inverse * weight[d] + bias[d]
            else:
                for d in range(width):
                    row[d] = row[d] * inverse * weight[d]
