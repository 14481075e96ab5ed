"""Restore the state of the calling process: random numbers, warnings and environment variables."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept_host_state() -> Iterator[None]:
    """Context that restores the state of the process at its end.

    These are the random states of Python, NumPy and PyTorch (on the CPU; training restores that of its GPU), the
    filters of warnings, and the environment. Importing PyTorch's compiler sets a variable, for example.
    """
    python, numpy, pytorch, environment = (
        random.getstate(),
        np.random.get_state(),
        torch.get_rng_state(),
        {**os.environ},
    )
    try:
        with warnings.catch_warnings():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})
