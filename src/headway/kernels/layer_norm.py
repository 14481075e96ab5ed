"""Layer normalisation (Ba et al. 2016) and its gradients, each in one pass over rows that a cache holds.

Rows are of float32 or uint16, the bits of bfloat16; weights, means and deviations are float32, and so are all sums.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from headway.kernels.float_bits import cast_like, to_float32
from headway.kernels.jit import jit_serial_and_parallel
from headway.kernels.reductions import dot_product, row_sum, sum_squared_deviations, weighted_deviation_dot
from headway.kernels.threads import run_threaded

__all__ = ["layer_norm_backward", "layer_norm_forward"]

Array = npt.NDArray[Any]

_PART = 64  # rows at a time


def layer_norm_forward(x: Array, weight: Array, bias: Array, epsilon: float, out: Array, moments: Array) -> None:
    """``out`` = (x - mean) / sqrt(variance + epsilon) * weight + bias for each row of x (N, D).

    ``moments`` (2, N) keeps the means, and the inverse deviations.
    """
    run_threaded(_normalise, x, weight, bias, np.float32(epsilon), out, moments)


def layer_norm_backward(gradient: Array, x: Array, weight: Array, moments: Array, out: Array) -> tuple[Array, Array]:
    """``out`` (N, D) = the gradient with respect to x; returns those with respect to weight and bias (D,)."""
    sums = np.empty((-(-len(x) // _PART), 2, x.shape[1]), dtype=np.float32)
    run_threaded(_gradients, gradient, x, weight, moments, out, sums)
    of_weight, of_bias = sums.sum(0)
    return of_weight, of_bias


@jit_serial_and_parallel
def _normalise(x: Array, weight: Array, bias: Array, epsilon: Any, out: Array, moments: Array) -> None:
    rows, width = x.shape
    for part in numba.prange(-(-rows // _PART)):
        for row in range(part * _PART, min((part + 1) * _PART, rows)):
            of_row, of_out = x[row], out[row]
            mean = row_sum(of_row.ctypes.data, of_row[0], width) / np.float32(width)
            squares = sum_squared_deviations(of_row.ctypes.data, of_row[0], width, mean)
            inverse = np.float32(1) / np.sqrt(squares / np.float32(width) + epsilon)
            for i in range(width):
                of_out[i] = cast_like((to_float32(of_row[i]) - mean) * inverse * weight[i] + bias[i], of_out[i])
            moments[0, row], moments[1, row] = mean, inverse


@jit_serial_and_parallel
def _gradients(gradient: Array, x: Array, weight: Array, moments: Array, out: Array, sums: Array) -> None:
    rows, width = x.shape
    for part in numba.prange(len(sums)):
        of_weight, of_bias = sums[part, 0], sums[part, 1]
        of_weight[:] = np.float32(0)
        of_bias[:] = np.float32(0)
        for row in range(part * _PART, min((part + 1) * _PART, rows)):
            of_row, of_gradient, of_out = x[row], gradient[row], out[row]
            mean, inverse = moments[0, row], moments[1, row]
            pulled, like = of_gradient.ctypes.data, of_gradient[0]
            pulls = dot_product(pulled, like, weight.ctypes.data, weight[0], width)
            along = weighted_deviation_dot(pulled, like, weight.ctypes.data, of_row.ctypes.data, width, mean)
            pulls, along = pulls / np.float32(width), along / np.float32(width) * inverse
            for i in range(width):
                this, normal = to_float32(of_gradient[i]), (to_float32(of_row[i]) - mean) * inverse
                of_weight[i] += this * normal
                of_bias[i] += this
                of_out[i] = cast_like((this * weight[i] - pulls - normal * along) * inverse, of_out[i])
