"""Tensors as the arrays that kernels of training take. NumPy has no bfloat16; of these they take the bits."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from headway import kernels

__all__ = ["copied", "numbers", "takes"]

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


def copied(parameter: Tensor) -> npt.NDArray[Any]:
    """A small parameter's numbers. Memory that NumPy has seen cannot be freed before its tensor, as FSDP does."""
    return numbers(parameter.detach().clone())
