"""Linear layers in 8-bit integers, and layer norms.

A weight matrix W (N, K) is kept as integers with one scale for each of its rows: W[n] ~ w[n] * s_w[n]
(:func:`headway.kernels.int8_gemm.as_integers`). Inputs are made integers as they come, with one scale for each row:
x[r] ~ q[r] * s_x[r], s_x[r] = max |x[r]| / 127. So

    y[r, n] = s_x[r] * s_w[n] * sum over k of q[r, k] * w[n, k] + b[n]

and the sum is exact in integers. One scale for a whole batch (as ``torch.ao.quantization.quantize_dynamic`` has it)
would make a row depend on its neighbours.

What follows a product in a Transformer's block is done while its rows are in the cache: activation, residual and norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from jaxtyping import Float32

from headway.kernels.float_bits import ABS_MASK, bits_to_float, float_to_bits
from headway.kernels.int8_gemm import BLOCK, INPUT_OFFSET, multiply_block, pack_weight, quantize_weight
from headway.kernels.jit import SerialAndParallel, jit, jit_inline, jit_parallel
from headway.kernels.threads import run_threaded_if_few_rows

__all__ = ["LayerNormParams", "QuantizedLinear", "layer_norm", "quantize_rows"]

Array = npt.NDArray[Any]

_LEVELS = 127
_LEVEL = np.float32(1 / _LEVELS)
_TINY = np.float32(1e-30)  # so that a row of zeros stays one
_CACHED = 1 << 17  # inputs that are multiplied at a time: 128 KiB, which a second-level cache holds

_NOTHING = np.zeros((0, 0), dtype=np.float32)
_NO_WEIGHTS = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True)
class LayerNormParams:
    """A layer norm (Ba et al. 2016) over D features."""

    weight: Float32[Array, " D"]
    bias: Float32[Array, " D"]
    epsilon: float


_NO_NORM = LayerNormParams(_NO_WEIGHTS, _NO_WEIGHTS, 0.0)


class QuantizedLinear:
    """y = x W^T + b with W (N, K) in integers; then, where asked for, max(y, 0), or y + residual and a norm of that."""

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
        self.weights, self.accumulator_init = pack_weight(levels)
        padding = (0, -self.out_features % BLOCK)
        self.scale = np.pad(scale, padding)
        self.bias = np.pad(np.zeros(self.out_features, np.float32) if bias is None else bias, padding)
        norm = norm or _NO_NORM
        self._before = (self.weights, self.accumulator_init, self.scale, self.bias, relu)
        self._after = (norm.weight, norm.bias, norm.epsilon)

    def __call__(
        self, x: Float32[Array, "R K"], residual: Float32[Array, "R N"] | None = None
    ) -> Float32[Array, "R N"]:
        """The layer's output, ``residual`` added before the norm."""
        if x.shape[1] != self.in_features:
            raise ValueError(f"inputs of {x.shape[1]} features for a layer of {self.in_features}")
        out = np.empty((len(x), self.out_features), dtype=np.float32)
        entered = _NOTHING if residual is None else residual
        run_threaded_if_few_rows(len(x), _linear, x, *self._before, entered, *self._after, out)
        return out


def layer_norm(x: Float32[Array, "R D"], norm: LayerNormParams) -> Float32[Array, "R D"]:
    """Each row less its mean, over its standard deviation."""
    out = x.copy()
    _layer_norm(out, norm.weight, norm.bias, norm.epsilon)
    return out


@jit
def quantize_rows(x: Array, levels: Array, scales: Array) -> None:
    """Rows of ``x`` (R, K) as integers from -127 to 127, plus INPUT_OFFSET, in ``levels`` (R, >= K).

    The largest magnitude is found among bits, which are ordered as magnitudes are, NaN above all: its scale is NaN,
    and so is what is computed with it.
    """
    for r in range(len(x)):
        largest = np.int32(0)
        for k in range(x.shape[1]):
            largest = max(largest, np.int32(float_to_bits(x[r, k]) & ABS_MASK))
        scale = bits_to_float(largest) * _LEVEL + _TINY
        scales[r] = scale
        inverse = np.float32(1) / scale
        for k in range(x.shape[1]):
            levels[r, k] = np.uint8(np.int32(np.rint(x[r, k] * inverse)) + INPUT_OFFSET)


def _multiplied(
    x: Array,
    weights: Array,
    starts: Array,
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
    parts = max(1, -(-rows * x.shape[1] // _CACHED))
    each = -(-rows // parts)
    levels = np.empty((each, width), dtype=np.uint8)
    scales = np.empty(each, dtype=np.float32)
    last = np.empty((each, BLOCK), dtype=np.float32)  # of a block that is not full
    least = np.float32(0) if relu else np.float32(-np.inf)
    for first in range(0, rows, max(each, 1)):
        count = min(each, rows - first)
        quantize_rows(x[first : first + count], levels, scales)
        w, s, f, b = weights.ctypes.data, starts.ctypes.data, scale.ctypes.data, bias.ctypes.data
        q, c, y, rest = levels.ctypes.data, scales.ctypes.data, out.ctypes.data + 4 * first * outputs, last.ctypes.data
        for index in numba.prange(-(-outputs // BLOCK)):
            block: Any = np.intp(index)  # the parallel form's index is unsigned: multiply would be compiled again
            place, stride = (y + 4 * block * BLOCK, 4 * outputs) if block < whole else (rest, 4 * BLOCK)
            multiply_block(w, s, f, b, block, q, width, c, count, least, place, stride)
        for row in range(count):
            for column in range(whole * BLOCK, outputs):
                out[first + row, column] = last[row, column - whole * BLOCK]
        if len(residual):
            _add(residual, first, first + count, out)
        if len(norm_weight):
            _normalize(out, first, first + count, norm_weight, norm_bias, epsilon)


_linear = SerialAndParallel(jit(_multiplied), jit_parallel(_multiplied))


@jit_inline
def _add(residual: Array, first: int, last: int, out: Array) -> None:
    for r in range(first, last):
        for n in range(out.shape[1]):
            out[r, n] += residual[r, n]


@jit_inline
def _normalize(x: Array, first: int, last: int, weight: Array, bias: Array, epsilon: float) -> None:
    """Layer norm of some rows, in place."""
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
