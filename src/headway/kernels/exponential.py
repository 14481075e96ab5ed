"""Powers of two, inside compiled loops."""

from __future__ import annotations

import math

import numpy as np

from headway.kernels.bits import as_float
from headway.kernels.compiling import compiled

__all__ = ["LOG2_E", "power_of_two"]

LOG2_E = np.float32(math.log2(math.e))
_LEAST = np.float32(-126)


@compiled
def power_of_two(x: np.float32) -> np.float32:
    """2^x for x of at most 0, to 2e-7 of it; below 2^-126 it stays there. Compilers make vectors of it, unlike libm's.

    x is split into an integer, which becomes the exponent's bits, and a rest of at most a half, whose power is the
    Taylor series of exp(x log 2) up to x^6.
    """
    if x < _LEAST:  # not max(): NaN stays
        x = _LEAST
    whole = np.rint(x)
    rest = x - whole
    power = np.float32(1.5403530e-4)
    power = power * rest + np.float32(1.3333558e-3)
    power = power * rest + np.float32(9.6181291e-3)
    power = power * rest + np.float32(5.5504109e-2)
    power = power * rest + np.float32(2.4022651e-1)
    power = power * rest + np.float32(6.9314718e-1)
    power = power * rest + np.float32(1.0)
    exponent: np.float32 = as_float(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)))
    result: np.float32 = power * exponent
    return result
