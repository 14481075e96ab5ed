"""Layer normalization (Ba et al. 2016) and its gradients, each in one pass over rows that fit a cache.

If ``centered`` is False, no mean is subtracted. With a bias of zero, this is RMSNorm (Zhang and Sennrich 2019).

Rows are float32 or uint16 (the bits of bfloat16). Weights, means, deviations and all sums are float32.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from headway.kernels.float_bits import cast_like, to_float32
from headway.kernels.jit import Array, jit_serial_and_parallel
from headway.kernels.reductions import dot_product, row_sum, sum_squared_deviations, weighted_deviation_dot

_CHUNK = 64  # number of rows that are processed at a time


def layer_norm_forward(
    x: Array, weight: Array, bias: Array, epsilon: float, out: Array, moments: Array, *, centered: bool = True
) -> None:
    """Write (x - mean) / sqrt(variance + epsilon) * weight + bias to ``out``, for each row of x (N, D).

    The means and the inverse standard deviations are written to ``moments`` (2, N).
    """
    _layer_norm(x, weight, bias, np.float32(epsilon), out, moments, centered)


def layer_norm_backward(
    gradient: Array, x: Array, weight: Array, moments: Array, out: Array, *, centered: bool = True
) -> tuple[Array, Array]:
    """Write the gradient of x (N, D) to ``out``, and return the gradients of weight (D,) and bias (D,)."""
    sums = np.empty((-(-len(x) // _CHUNK), 2, x.shape[1]), dtype=np.float32)
    _layer_norm_backward(gradient, x, weight, moments, out, sums, centered)
    weight_gradient, bias_gradient = sums.sum(0)
    return weight_gradient, bias_gradient


@jit_serial_and_parallel
def _layer_norm(x: Array, weight: Array, bias: Array, epsilon: Any, out: Array, moments: Array, centered: bool) -> None:
    rows, width = x.shape
    for chunk in numba.prange(-(-rows // _CHUNK)):
        for row in range(chunk * _CHUNK, min((chunk + 1) * _CHUNK, rows)):
            own_row, own_out = x[row], out[row]
            mean = np.float32(0)
            if centered:
                mean = row_sum(own_row.ctypes.data, own_row[0], width) / np.float32(width)
            squares = sum_squared_deviations(own_row.ctypes.data, own_row[0], width, mean)
            inverse = np.float32(1) / np.sqrt(squares / np.float32(width) + epsilon)
            for i in range(width):
                own_out[i] = cast_like((to_float32(own_row[i]) - mean) * inverse * weight[i] + bias[i], own_out[i])
            moments[0, row], moments[1, row] = mean, inverse


@jit_serial_and_parallel
def _layer_norm_backward(
    gradient: Array, x: Array, weight: Array, moments: Array, out: Array, sums: Array, centered: bool
) -> None:
    rows, width = x.shape
    for chunk in numba.prange(len(sums)):
        weight_gradient, bias_gradient = sums[chunk, 0], sums[chunk, 1]
        weight_gradient[:] = np.float32(0)
        bias_gradient[:] = np.float32(0)
        for row in range(chunk * _CHUNK, min((chunk + 1) * _CHUNK, rows)):
            own_row, own_gradient, own_out = x[row], gradient[row], out[row]
            mean, inverse = moments[0, row], moments[1, row]
            address, like = own_gradient.ctypes.data, own_gradient[0]
            mean_error = np.float32(0)
            if centered:
                mean_error = dot_product(address, like, weight.ctypes.data, weight[0], width)
            mean_product = weighted_deviation_dot(address, like, weight.ctypes.data, own_row.ctypes.data, width, mean)
            mean_error, mean_product = mean_error / np.float32(width), mean_product / np.float32(width) * inverse
            for i in range(width):
                error, normalized = to_float32(own_gradient[i]), (to_float32(own_row[i]) - mean) * inverse
                weight_gradient[i] += error * normalized
                bias_gradient[i] += error
                own_out[i] = cast_like(
                    (error * weight[i] - mean_error - normalized * mean_product) * inverse, own_out[i]
                )
