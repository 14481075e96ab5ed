"""In which numbers a model translates."""

from __future__ import annotations

from typing import Literal

import torch

from headway import kernels
from headway.errors import ConfigError
from headway.hardware import computes_bfloat16

__all__ = ["Precision", "choose_precision"]

Precision = Literal["auto", "float32", "bfloat16", "int8"]


def choose_precision(name: Precision, device: torch.device) -> Precision:
    """The precision for "auto", or the one asked for, if this machine has it.

    The rule: on a CPU int8 where the compiled kernels run (:mod:`headway.kernels`); else, and on a GPU, bfloat16 where
    the hardware multiplies it; else float32.
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
