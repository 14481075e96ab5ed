"""The number of threads of the library that calls the kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class HostThreads:
    """Functions that return and set the number of threads of the library that calls the kernels.

    :mod:`headway.engine` sets both fields to functions for PyTorch. Otherwise, kernels use one thread.
    """

    get: Callable[[], int] = lambda: 1
    set: Callable[[int], None] = lambda _: None


host_threads = HostThreads()
