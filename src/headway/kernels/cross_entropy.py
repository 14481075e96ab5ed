"""The cross-entropy of a softmax, whose gradient replaces the logits.

The logits of a batch are the largest tensor of a training step. Here each row is read once in its own precision,
converted to float32 probabilities in a cache, and written once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from headway.kernels.exp import exp_and_sum
from headway.kernels.float_bits import MIN_INT32, bits_to_float, cast_like, float_to_bits, ordered_int, to_float32
from headway.kernels.jit import Array, jit_serial_and_parallel, run_threaded
from headway.kernels.llvm import LANES


def cross_entropy_(logits: Array, targets: Array, smoothing: float) -> float:
    """Return the sum of log sum exp z - (1 - smoothing) z_t over rows z with target t, and replace z by its gradient.

    ``logits`` (R, V) are contiguous, and float32 or uint16 (the bits of bfloat16). ``targets`` are (R,).
    """
    losses = np.empty(len(logits), dtype=np.float64)
    run_threaded(_cross_entropy, logits, targets, np.float32(1 - smoothing), losses)
    return float(losses.sum())


@jit_serial_and_parallel
def _cross_entropy(logits: Array, targets: Array, weight: Any, losses: Array) -> None:
    for r in numba.prange(len(logits)):
        row, size = logits[r], logits.shape[1]
        powers = np.empty(size + LANES, dtype=np.float32)
        highest = MIN_INT32
        for v in range(size):
            powers[v] = to_float32(row[v])
            highest = max(highest, ordered_int(float_to_bits(powers[v])))
        target = powers[targets[r]]
        total = exp_and_sum(powers.ctypes.data, size)
        scale = np.float32(1) / total
        for v in range(size):
            powers[v] *= scale
        powers[targets[r]] -= weight
        log_sum = np.log(np.float64(total)) + np.float64(bits_to_float(ordered_int(highest)))
        losses[r] = log_sum - np.float64(weight) * np.float64(target)
        for v in range(size):
            row[v] = cast_like(powers[v], row[v])
