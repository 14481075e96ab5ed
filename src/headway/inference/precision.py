"""In which numbers a model translates: the choice, and how each keeps weights and reads rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from headway.errors import ConfigError
from headway.hardware import computes_bfloat16
from headway.nn.quantized import Int8Linear, int8_supported, onednn_rows, quantize_rows

__all__ = ["Linear", "Precision", "Preparer", "Rows", "choose_precision"]

Precision = Literal["auto", "float32", "bfloat16", "int8"]
Rows = Any  # rows as the products of a precision read them: a tensor, or QuantizedRows
Linear = Callable[[Rows], Tensor]


def choose_precision(name: Precision, device: torch.device) -> Precision:
    """The precision for "auto", or the one asked for, if this machine has it.

    The rule: on a CPU int8 where PyTorch has its integer products; else, and on a GPU, bfloat16 where the hardware
    multiplies it; else float32.
    """
    int8 = device.type == "cpu" and int8_supported()
    if name == "int8" and not int8:
        raise ConfigError(
            "precision int8: this machine has no integer products for it (they need PyTorch on an x86 processor); "
            "use 'auto', 'bfloat16' or 'float32'"
        )
    if name != "auto":
        return name
    if int8:
        return "int8"
    return "bfloat16" if computes_bfloat16(device) else "float32"


class Preparer:
    """How a precision keeps weights, and how it reads rows; ``dtype`` is that of all but 8-bit products."""

    def __init__(self, precision: Precision) -> None:
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._int8 = precision == "int8"

    def linear(self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None) -> Linear:
        """A layer that computes x W^T + b."""
        if self._int8:
            return Int8Linear(weight, bias, onednn_from=onednn_rows())
        weight = weight.detach().to(self.dtype)
        bias = None if bias is None else bias.detach().to(self.dtype)
        return lambda x: F.linear(x, weight, bias)

    def module(self, layer: nn.Linear) -> Linear:
        """The same of a layer."""
        return self.linear(layer.weight, layer.bias)

    def rows(self, x: Float[Tensor, "R K"]) -> Rows:
        """What :meth:`linear` reads."""
        return quantize_rows(x) if self._int8 else x
