"""The loss of a softmax, and its gradient in the place of the logits.

The logits of a batch are the largest tensor of a training step. Here a row of them is read once, in whatever precision
it is, made probabilities in float32 in a cache, and written once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from headway.kernels.bits import LOWEST, as_float, as_int, in_order, narrowed, widened
from headway.kernels.emitting import LANES
from headway.kernels.exponential import exponentials
from headway.kernels.jit import jit_serial_and_parallel
from headway.kernels.threads import run_threaded

__all__ = ["replace_by_errors"]

Array = npt.NDArray[Any]


def replace_by_errors(logits: Array, targets: Array, smoothing: float) -> float:
    """The sum of log sum exp z - (1 - smoothing) z_t over rows z with target t; its gradient replaces the logits.

    ``logits`` (R, V), contiguous, are float32, or uint16: the bits of bfloat16. ``targets`` are (R,).
    """
    losses = np.empty(len(logits), dtype=np.float64)
    run_threaded(_rows, logits, targets, np.float32(1 - smoothing), losses)
    return float(losses.sum())


@jit_serial_and_parallel
def _rows(logits: Array, targets: Array, weight: Any, losses: Array) -> None:
    for r in numba.prange(len(logits)):
        row, size = logits[r], logits.shape[1]
        powers = np.empty(size + LANES, dtype=np.float32)
        highest = LOWEST
        for v in range(size):
            powers[v] = widened(row[v])
            highest = max(highest, in_order(as_int(powers[v])))
        target = powers[targets[r]]
        total = exponentials(powers.ctypes.data, size)
        scale = np.float32(1) / total
        for v in range(size):
            powers[v] *= scale
        powers[targets[r]] -= weight
        surprise = np.log(np.float64(total)) + np.float64(as_float(in_order(highest)))
        losses[r] = surprise - np.float64(weight) * np.float64(target)
        for v in range(size):
            row[v] = narrowed(powers[v], row[v])
