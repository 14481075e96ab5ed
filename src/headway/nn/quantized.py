"""Linear layers in 8-bit integers, for decoding on a CPU.

A weight matrix W (N, K) is kept as integers with one scale for each of its rows: W[n] ~ w[n] * s_w[n]. Inputs are made
integers as they come, with one scale for each row: x[r] ~ q[r] * s_x[r], s_x[r] = max |x[r]| / 127. So

    y[r, n] = s_x[r] * s_w[n] * sum over k of q[r, k] * w[n, k] + b[n]

and the sum is exact in integers. A row's result depends on that row alone, whatever is beside it in the batch. (One
scale for a whole batch, as ``torch.ao.quantization.quantize_dynamic`` has it, would not give that.)

The products are fbgemm's (Khudia et al. 2021), which PyTorch brings along for x86. Its kernels for AVX2 add two
products of an unsigned and a signed byte in 16 bits, and saturate there: 255 * 127 * 2 is too large. So weights use 7
bits, from -63 to 63 (255 * 63 * 2 = 32,130 < 32,768), and inputs, whose outliers need the room, all 8: a weight row's
largest entry is 3 to 4 standard deviations, an activation's often 10.

Where the processor has 512-bit vectors, oneDNN's integer products (``torch._int_mm``) may be faster for many rows; from
how many on is measured (:func:`onednn_rows`). Both give the same numbers, bit for bit, so the choice changes no result.
"""

from __future__ import annotations

import functools
import platform
import time
import warnings
from collections.abc import Callable

import torch
from jaxtyping import Float, Int8
from torch import Tensor

__all__ = ["Int8Linear", "QuantizedRows", "int8_supported", "onednn_rows", "quantize_rows"]

_INPUT_LEVELS = 127
_WEIGHT_LEVELS = 63
_TINY = torch.tensor(1e-30)  # so that a row of zeros stays one


def int8_supported() -> bool:
    """Whether this PyTorch and this processor have the integer products."""
    return platform.machine().lower() in ("x86_64", "amd64") and "fbgemm" in torch.backends.quantized.supported_engines


class QuantizedRows:
    """Inputs on the integers' grid: ``levels`` (R, K) hold values from -127 to 127, not rounded yet, in float32;
    ``scale`` (R, 1) is what a level is worth."""

    __slots__ = ("_integers", "levels", "scale")

    def __init__(self, levels: Tensor, scale: Tensor) -> None:
        self.levels, self.scale = levels, scale
        self._integers: Tensor | None = None

    @property
    def integers(self) -> Int8[Tensor, "R K"]:
        """The levels rounded as fbgemm does it: after 128 has been added, where float32 is coarser."""
        if self._integers is None:
            self._integers = (self.levels + 128).round_().sub_(128).to(torch.int8)
        return self._integers


def quantize_rows(x: Float[Tensor, "R K"]) -> QuantizedRows:
    """Give each row its own scale; several layers that read the same rows share the work."""
    scale = torch.add(_TINY, x.abs().amax(1, keepdim=True), alpha=1 / _INPUT_LEVELS)
    return QuantizedRows(x / scale, scale)


class Int8Linear:
    """y = x W^T + b with W (N, K) in integers; a plain callable, for inference alone.

    So many rows as ``onednn_from`` or more are multiplied by oneDNN, fewer by fbgemm; None: all by fbgemm.
    """

    def __init__(
        self, weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None = None, *, onednn_from: int | None = None
    ) -> None:
        weight = weight.detach().float()
        scale = weight.abs().amax(1).clamp_(min=1e-30) / _WEIGHT_LEVELS
        levels = (weight / scale.unsqueeze(1)).round_().to(torch.int8)
        zeros = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():
            # Making quantised tensors is deprecated in favour of a package of its own; the packing and the product
            # are not.
            warnings.filterwarnings("ignore", "torch.quantize_per_tensor, torch.quantize_per_channel", UserWarning)
            quantized = torch._make_per_channel_quantized_tensor(levels, scale.double(), zeros, 0)
            self._packed = torch.ops.quantized.linear_prepack(quantized, None)
        self.bias = None if bias is None else bias.detach().float()
        self._onednn = None if onednn_from is None else (onednn_from, levels.t(), scale)

    def __call__(self, x: QuantizedRows) -> Float[Tensor, "R N"]:
        """The layer's output in float32."""
        y = self.unscaled(x)
        return y.mul_(x.scale) if self.bias is None else torch.addcmul(self.bias, y, x.scale)

    def unscaled(self, x: QuantizedRows) -> Float[Tensor, "R N"]:
        """The product without bias, each row still to be multiplied by its scale."""
        if self._onednn is not None and len(x.levels) >= self._onednn[0]:
            _, levels, scale = self._onednn
            return torch._int_mm(x.integers, levels).float().mul_(scale)
        y: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(x.levels, 1.0, 128, self._packed)
        return y


_MEASURED = (256, 64, 16)  # rows
_MARGIN = 1.1  # how many times faster oneDNN must be, for noise


@functools.cache
def onednn_rows() -> int | None:
    """From how many rows on oneDNN's integer products are faster than fbgemm's here; None: never.

    Without 512-bit vectors oneDNN has no kernel for them, and is a hundred times slower. With them it is measured, once
    in a process and in some milliseconds, on a layer of the paper's base model.
    """
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return None
    return _faster_from(_measured)


def _faster_from(seconds: Callable[[int, int | None], float]) -> int | None:
    """The fewest of the measured rows that oneDNN wins with, and with all more; ``seconds(rows, None)`` is fbgemm's."""
    fewest = None
    for rows in _MEASURED:
        if seconds(rows, rows) * _MARGIN > seconds(rows, None):
            break
        fewest = rows
    return fewest


def _measured(rows: int, onednn_from: int | None) -> float:
    """Seconds of a layer from 512 to 2,048, the best of five."""
    x, layer = torch.ones(rows, 512), Int8Linear(torch.ones(2048, 512), onednn_from=onednn_from)
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        layer(quantize_rows(x))
        best = min(best, time.perf_counter() - begin)
    return best
