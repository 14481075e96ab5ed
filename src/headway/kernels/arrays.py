"""Tensors as the arrays that kernels of training take. NumPy has no bfloat16; of these they take the bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway import kernels

__all__ = ["numbers", "seen", "takes"]

_TYPES = {torch.float32: torch.float32, torch.bfloat16: torch.uint16}


def takes(x: Tensor) -> bool:
    """Whether kernels compute on such tensors here; a compiler's are left to it."""
    if torch.compiler.is_compiling():
        return False
    return x.device.type == "cpu" and x.dtype in _TYPES and kernels.available()


def numbers(x: Tensor) -> npt.NDArray[Any]:
    """The tensor's memory as an array."""
    array: npt.NDArray[Any] = x.detach().view(_TYPES[x.dtype]).numpy()
    return array


def seen(parameter: Tensor) -> npt.NDArray[Any]:
    """A float32 parameter's memory, to be read at once: it can be freed, as FSDP does, where :func:`numbers` forbids
    it."""
    return np.from_dlpack(parameter.detach())
