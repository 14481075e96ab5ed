"""Dropout, with random numbers that any thread can begin anywhere.

The i-th 64 random bits are those of SplitMix64 (Steele, Lea and Flood 2014) after i steps: a hash of the seed and i, so
what is dropped does not depend on how many threads compute. Sixteen bits decide on each element. A mask is nowhere
written down: made anew from its seed it takes less time than reading it would.

Arrays are contiguous, (N,) where nothing else is said, of float32 or uint16, the bits of bfloat16; those of one call
are of one type.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from headway.kernels.float_bits import cast_like, to_float32
from headway.kernels.jit import jit_inline, jit_serial_and_parallel
from headway.kernels.threads import run_threaded

__all__ = ["bias_relu_dropout", "bias_relu_dropout_backward", "dropout", "dropout_add"]

Array = npt.NDArray[Any]

_PART = 8192  # elements at a time, whose random bits a cache holds
_ROWS = 64  # at a time, whose sums are one
_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_ZERO = np.float32(0)


def dropout(x: Array, out: Array, seed: int, dropped: int) -> None:
    """``out`` = x / (1 - p), or 0 with the probability p = ``dropped`` / 2^16."""
    run_threaded(_thin, x, out, np.uint64(seed), np.uint16(dropped), _scale(dropped))


def dropout_add(x: Array, residual: Array, out: Array, seed: int, dropped: int) -> None:
    """``out`` = residual + what :func:`thin` makes of x."""
    run_threaded(_add_thinned, x, residual, out, np.uint64(seed), np.uint16(dropped), _scale(dropped))


def bias_relu_dropout(x: Array, bias: Array, out: Array, seed: int, dropped: int) -> None:
    """``out`` = max(0, x + bias) / (1 - p), or 0 with the probability p; x and out (N, D), ``bias`` (D,) of float32."""
    run_threaded(_thin_rectified, x, bias, out, np.uint64(seed), np.uint16(dropped), _scale(dropped))


def bias_relu_dropout_backward(gradient: Array, y: Array, out: Array, dropped: int) -> Array:
    """``out`` = the gradient with respect to x where ``y`` is the output of :func:`bias_relu_dropout`: 0 where that is.

    Returns the gradient with respect to the bias.
    """
    sums = np.empty((-(-len(y) // _ROWS), y.shape[1]), dtype=np.float32)
    run_threaded(_rectified_gradients, gradient, y, out, sums, _scale(dropped))
    total: Array = sums.sum(0)
    return total


def _scale(dropped: int) -> np.float32:
    return np.float32(2**16 / (2**16 - dropped))


@jit_inline
def _random_bits(first: int, count: int, seed: Any) -> Array:
    """16 for each of ``count`` elements, of which the first is the ``first``-th word's."""
    words = np.empty(-(-count // 4), dtype=np.uint64)
    for i in range(len(words)):
        word = seed + np.uint64(first + i + 1) * _STEP
        word = (word ^ (word >> _SHIFTS[0])) * _FIRST
        word = (word ^ (word >> _SHIFTS[1])) * _SECOND
        words[i] = word ^ (word >> _SHIFTS[2])
    return words.view(np.uint16)


@jit_serial_and_parallel
def _thin(x: Array, out: Array, seed: Any, dropped: Any, scale: Any) -> None:
    for part in numba.prange(-(-len(x) // _PART)):
        bits = _random_bits(part * (_PART // 4), _PART, seed)
        of_x, of_out = x[part * _PART : (part + 1) * _PART], out[part * _PART : (part + 1) * _PART]
        for i in range(len(of_x)):
            kept = to_float32(of_x[i]) * scale if bits[i] >= dropped else _ZERO
            of_out[i] = cast_like(kept, of_out[i])


@jit_serial_and_parallel
def _add_thinned(x: Array, residual: Array, out: Array, seed: Any, dropped: Any, scale: Any) -> None:
    for part in numba.prange(-(-len(x) // _PART)):
        bits = _random_bits(part * (_PART // 4), _PART, seed)
        of_x, of_out = x[part * _PART : (part + 1) * _PART], out[part * _PART : (part + 1) * _PART]
        of_residual = residual[part * _PART : (part + 1) * _PART]
        for i in range(len(of_x)):
            kept = to_float32(of_x[i]) * scale if bits[i] >= dropped else _ZERO
            of_out[i] = cast_like(to_float32(of_residual[i]) + kept, of_out[i])


@jit_serial_and_parallel
def _thin_rectified(x: Array, bias: Array, out: Array, seed: Any, dropped: Any, scale: Any) -> None:
    rows, width = x.shape
    for row in numba.prange(rows):
        of_x, of_out = x[row], out[row]
        if dropped == 0:
            for i in range(width):
                number = to_float32(of_x[i]) + bias[i]
                # NaN is not below zero: damage stays to be seen.
                of_out[i] = cast_like(_ZERO if number <= _ZERO else number, of_out[i])  # noqa: FURB136
        else:
            first = row * width  # of the row's 16-bit numbers
            bits = _random_bits(first // 4, width + 3, seed)[first % 4 :]
            for i in range(width):
                number = to_float32(of_x[i]) + bias[i]
                kept = _ZERO if number <= _ZERO or bits[i] < dropped else number * scale
                of_out[i] = cast_like(kept, of_out[i])


@jit_serial_and_parallel
def _rectified_gradients(gradient: Array, y: Array, out: Array, sums: Array, scale: Any) -> None:
    rows, width = y.shape
    for part in numba.prange(len(sums)):
        total = sums[part]
        total[:] = _ZERO
        for row in range(part * _ROWS, min((part + 1) * _ROWS, rows)):
            of_gradient, of_y, of_out = gradient[row], y[row], out[row]
            for i in range(width):
                passed = to_float32(of_gradient[i]) * scale
                passed = _ZERO if to_float32(of_y[i]) <= _ZERO else passed
                total[i] += passed
                of_out[i] = cast_like(passed, of_out[i])
