"""Check whether kernels support a tensor, and convert tensors to the NumPy arrays that kernels take.

NumPy has no bfloat16, so bfloat16 tensors become arrays of uint16 with the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import headway.kernels as kernels

_TYPES = {torch.float32: torch.float32, torch.bfloat16: torch.uint16}


def kernels_support(x: Tensor) -> bool:
    """Return whether kernels can process a tensor on this machine. False while ``torch.compile`` traces."""
    if torch.compiler.is_compiling():
        return False
    return x.device.type == "cpu" and x.dtype in _TYPES and kernels.is_available()


def as_array(x: Tensor) -> npt.NDArray[Any]:
    """Return an array that shares the memory of a tensor."""
    array: npt.NDArray[Any] = x.detach().view(_TYPES[x.dtype]).numpy()
    return array


def parameter_as_array(parameter: Tensor) -> npt.NDArray[Any]:
    """Return an array that shares the memory of a float32 parameter. Read the array immediately.

    Unlike an array from :func:`as_array`, it does not prevent FSDP from freeing the parameter's memory later.
    """
    return np.from_dlpack(parameter.detach())
