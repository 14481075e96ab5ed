"""Preserve the state of the calling process: random number generators, warning filters and environment variables."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def preserve_host_state() -> Iterator[None]:
    """Restore the state of the process at the end of the block.

    The state consists of the random states of Python, NumPy and PyTorch (only for the CPU; training restores the GPU's
    state itself), the warning filters, and the environment variables. For example, importing PyTorch's compiler sets a
    variable.
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
