"""The precision in which a model searches, and what this machine supports."""

from __future__ import annotations

from typing import Literal

import torch

import headway.kernels as kernels
from headway.errors import ConfigError
from headway.hardware import has_fast_bfloat16

Precision = Literal["auto", "float32", "bfloat16", "int8"]


def choose_precision(name: Precision, device: torch.device) -> Precision:
    """Return ``name``, or the fastest precision on this machine if ``name`` is "auto".

    The fastest is int8 on a CPU if the compiled kernels run (:mod:`headway.kernels`), otherwise bfloat16 if the
    hardware multiplies it, otherwise float32. Raises :class:`ConfigError` if int8 is requested but cannot run.
    """
    if name == "int8" and device.type != "cpu":
        raise ConfigError(f"precision int8 does not exist on {device.type}; use --device cpu or --precision auto")
    int8 = name in ("auto", "int8") and device.type == "cpu" and kernels.available()
    if name == "int8" and not int8:
        raise ConfigError(
            f"precision int8 cannot run: {kernels.unavailable_reason()}; use 'auto', 'bfloat16' or 'float32'"
        )
    if name != "auto":
        return name
    if int8:
        return "int8"
    return fastest_float_precision(device)


def fastest_float_precision(device: torch.device) -> Precision:
    """Return bfloat16 if the hardware multiplies it fast, otherwise float32."""
    return "bfloat16" if has_fast_bfloat16(device) else "float32"
