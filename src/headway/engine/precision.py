"""The number formats that a model translates in."""

from __future__ import annotations

from typing import Literal

import torch

import headway.kernels as kernels
from headway.errors import ConfigError
from headway.hardware import computes_bfloat16

__all__ = ["Precision", "choose_precision"]

Precision = Literal["auto", "float32", "bfloat16", "int8"]


def choose_precision(name: Precision, device: torch.device) -> Precision:
    """Return ``name``, or for "auto" the fastest precision of this machine.

    That is int8 on a CPU if the compiled kernels run (:mod:`headway.kernels`), otherwise bfloat16 if the hardware
    multiplies it, otherwise float32. Raises :class:`ConfigError` if int8 is asked for and cannot run.
    """
    int8 = name in ("auto", "int8") and device.type == "cpu" and kernels.available()
    if name == "int8" and not int8:
        raise ConfigError(
            "precision int8: its kernels run on x86 processors with AVX2, where the package numba is installed; "
            "use 'auto', 'bfloat16' or 'float32'"
        )
    if name != "auto":
        return name
    if int8:
        return "int8"
    return "bfloat16" if computes_bfloat16(device) else "float32"
