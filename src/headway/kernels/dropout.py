"""Dropout with random numbers that any thread can compute, starting at any position.

The i-th 64 random bits are the output of SplitMix64 (Steele, Lea and Flood 2014) after i steps. This is a hash of the
seed and i, so the dropped elements do not depend on the number of threads. Sixteen bits determine whether an element is
dropped. Masks are not stored, because recomputing a mask from its seed is faster than reading it.

Arrays are contiguous, have shape (N,) unless documented otherwise, and are float32 or uint16 (the bits of bfloat16).
All arrays of a call have the same type.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from headway.kernels.float_bits import cast_like, to_float32
from headway.kernels.jit import Array, jit_inline, jit_serial_and_parallel

_CHUNK = 8192  # number of elements that are processed at a time; their random bits fit a cache
_ROWS = 64  # bias gradients are summed over this many rows at a time, before the partial sums are added
_STEP, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_ZERO = np.float32(0)


def dropout(x: Array, out: Array, seed: int, threshold: int) -> None:
    """Write x / (1 - p) to ``out``, or 0 with probability p = ``threshold`` / 2^16."""
    _dropout(x, out, np.uint64(seed), np.uint16(threshold), _scale(threshold))


def dropout_add(x: Array, residual: Array, out: Array, seed: int, threshold: int) -> None:
    """Write ``residual`` plus :func:`dropout` of x to ``out``."""
    _dropout_add(x, residual, out, np.uint64(seed), np.uint16(threshold), _scale(threshold))


def bias_relu_dropout(x: Array, bias: Array, out: Array, seed: int, threshold: int) -> None:
    """Write the dropout of max(0, x + bias) to ``out``, for x and out (N, D) and ``bias`` (D,) in float32."""
    _bias_relu_dropout(x, bias, out, np.uint64(seed), np.uint16(threshold), _scale(threshold))


def bias_relu_dropout_backward(gradient: Array, y: Array, out: Array, threshold: int) -> Array:
    """Write the gradient with respect to x to ``out``, and return the gradient with respect to the bias.

    ``y`` is the output of :func:`bias_relu_dropout`. Gradients are 0 where ``y`` is 0.
    """
    sums = np.empty((-(-len(y) // _ROWS), y.shape[1]), dtype=np.float32)
    _bias_relu_dropout_backward(gradient, y, out, sums, _scale(threshold))
    total: Array = sums.sum(0)
    return total


def _scale(threshold: int) -> np.float32:
    return np.float32(2**16 / (2**16 - threshold))


@jit_inline
def _random_bits(first: int, count: int, seed: Any) -> Array:
    """Return 16 random bits for each of ``count`` elements, starting at the 64-bit word with index ``first``."""
    words = np.empty(-(-count // 4), dtype=np.uint64)
    for i in range(len(words)):
        word = seed + np.uint64(first + i + 1) * _STEP
        word = (word ^ (word >> _SHIFTS[0])) * _FIRST
        word = (word ^ (word >> _SHIFTS[1])) * _SECOND
        words[i] = word ^ (word >> _SHIFTS[2])
    return words.view(np.uint16)


@jit_serial_and_parallel
def _dropout(x: Array, out: Array, seed: Any, threshold: Any, scale: Any) -> None:
    for chunk in numba.prange(-(-len(x) // _CHUNK)):
        bits = _random_bits(chunk * (_CHUNK // 4), _CHUNK, seed)
        own_x, own_out = x[chunk * _CHUNK : (chunk + 1) * _CHUNK], out[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        for i in range(len(own_x)):
            kept = to_float32(own_x[i]) * scale if bits[i] >= threshold else _ZERO
            own_out[i] = cast_like(kept, own_out[i])


@jit_serial_and_parallel
def _dropout_add(x: Array, residual: Array, out: Array, seed: Any, threshold: Any, scale: Any) -> None:
    for chunk in numba.prange(-(-len(x) // _CHUNK)):
        bits = _random_bits(chunk * (_CHUNK // 4), _CHUNK, seed)
        own_x, own_out = x[chunk * _CHUNK : (chunk + 1) * _CHUNK], out[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        own_residual = residual[chunk * _CHUNK : (chunk + 1) * _CHUNK]
        for i in range(len(own_x)):
            kept = to_float32(own_x[i]) * scale if bits[i] >= threshold else _ZERO
            own_out[i] = cast_like(to_float32(own_residual[i]) + kept, own_out[i])


@jit_serial_and_parallel
def _bias_relu_dropout(x: Array, bias: Array, out: Array, seed: Any, threshold: Any, scale: Any) -> None:
    rows, width = x.shape
    for row in numba.prange(rows):
        own_x, own_out = x[row], out[row]
        if threshold == 0:
            for i in range(width):
                number = to_float32(own_x[i]) + bias[i]
                # NaN is not below zero and is kept, so that damaged weights are detected.
                own_out[i] = cast_like(_ZERO if number <= _ZERO else number, own_out[i])  # noqa: FURB136
        else:
            first = row * width  # the index of the row's first 16 bits
            bits = _random_bits(first // 4, width + 3, seed)[first % 4 :]
            for i in range(width):
                number = to_float32(own_x[i]) + bias[i]
                kept = _ZERO if number <= _ZERO or bits[i] < threshold else number * scale
                own_out[i] = cast_like(kept, own_out[i])


@jit_serial_and_parallel
def _bias_relu_dropout_backward(gradient: Array, y: Array, out: Array, sums: Array, scale: Any) -> None:
    rows, width = y.shape
    for chunk in numba.prange(len(sums)):
        total = sums[chunk]
        total[:] = _ZERO
        for row in range(chunk * _ROWS, min((chunk + 1) * _ROWS, rows)):
            own_gradient, own_y, own_out = gradient[row], y[row], out[row]
            for i in range(width):
                passed = to_float32(own_gradient[i]) * scale
                passed = _ZERO if to_float32(own_y[i]) <= _ZERO else passed
                total[i] += passed
                own_out[i] = cast_like(passed, own_out[i])
