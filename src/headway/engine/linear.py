"""Linear layers by compiled kernels, for training in bfloat16 on a CPU.

:mod:`headway.kernels.bf16_gemm` computes the three products of a layer, y = x W^T + b, dx = dy W and dW = dy^T x, from
float32 weights and into float32 gradients of them. Autocast alone would make a bfloat16 copy of the weight and convert
a bfloat16 gradient to float32.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from headway.kernels.arrays import numbers, seen, takes

__all__ = [
    "BLOCK",
    "KernelLinear",
    "PackedWeight",
    "add_weight_gradient",
    "linear",
    "multiplies",
    "trains_by_kernels",
    "zeros_for_gradient",
]

BLOCK = 32  # inputs in a block of the kernels: kernels.pairs.BLOCK, repeated here because that module imports Numba


class KernelLinear(nn.Linear):
    """``nn.Linear`` computed by :func:`linear`."""

    def forward(self, x: Float[Tensor, "*b K"]) -> Float[Tensor, "*b N"]:
        """Return x W^T + b."""
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*b K"], weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None = None
) -> Float[Tensor, "*b N"]:
    """Return ``F.linear``'s result, by kernels if :func:`trains_by_kernels` allows it."""
    if not trains_by_kernels(x, weight) or (bias is not None and bias.shape != weight.shape[:1]):
        return F.linear(x, weight, bias)
    return cast(Tensor, _Linear.apply(x.to(torch.bfloat16), weight, bias))  # type: ignore[no-untyped-call]


def trains_by_kernels(x: Tensor, weight: Tensor) -> bool:
    """Return whether gradients are enabled, autocast to bfloat16 is on, and kernels can compute the product."""
    return (
        torch.is_grad_enabled()
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and multiplies(x, weight)
    )


def multiplies(x: Tensor, weight: Tensor) -> bool:
    """Return whether kernels can compute products of ``x``, in bfloat16, and ``weight``."""
    outputs, inputs = weight.shape
    return (
        takes(x)
        and weight.dtype == torch.float32
        and weight.is_contiguous()
        and x.dim() > 1
        and x.size(-1) == inputs
        and inputs % BLOCK == outputs % 2 == 0
        and _available()
    )


class PackedWeight:
    """A weight W (N, K), packed for products with bfloat16 matrices when W or its transpose is first needed."""

    def __init__(self, weight: Float[Tensor, "N K"]) -> None:
        self._weight = weight

    def product(self, x: Float[Tensor, "R K"], bias: Float[Tensor, " N"] | None = None) -> Float[Tensor, "R N"]:
        """Return x W^T + b."""
        return _product(x, self._rows, self._weight.size(0), bias)

    def transposed_product(self, y: Float[Tensor, "R N"]) -> Float[Tensor, "R K"]:
        """Return y W: the gradient of the inputs if y is the gradient of the outputs."""
        return _product(y, self._columns, self._weight.size(1), None)

    @functools.cached_property
    def _rows(self) -> Any:
        from headway.kernels.bf16_gemm import pack_rows  # imports Numba

        return pack_rows(seen(self._weight))

    @functools.cached_property
    def _columns(self) -> Any:
        from headway.kernels.bf16_gemm import pack_columns

        return pack_columns(seen(self._weight))


def _product(x: Tensor, panels: Any, outputs: int, bias: Tensor | None) -> Tensor:
    from headway.kernels.bf16_gemm import matmul

    out = x.new_empty(len(x), outputs)
    matmul(numbers(x.contiguous()), panels, None if bias is None else seen(bias), numbers(out))
    return out


def add_weight_gradient(total: Float[Tensor, "M K"], y: Float[Tensor, "R N"], x: Float[Tensor, "R K"]) -> None:
    """Add y^T x to ``total`` in float32; M is N rounded up to a multiple of eight."""
    from headway.kernels.bf16_gemm import add_outer_product

    add_outer_product(numbers(y.contiguous()), numbers(x.contiguous()), numbers(total))


def zeros_for_gradient(weight: Float[Tensor, "N K"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "M K"]:
    """Return the zeros that :func:`add_weight_gradient` adds to."""
    rows = -(-len(weight) // 8) * 8
    return weight.new_zeros(rows, weight.size(1), dtype=dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return PackedWeight(weight).product(x.flatten(0, -2), bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grad_output.flatten(0, -2).contiguous()
        x_grad = weight_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = PackedWeight(weight).transposed_product(grad).view_as(x)
        if ctx.needs_input_grad[1]:
            weight_grad = zeros_for_gradient(weight)
            add_weight_gradient(weight_grad, grad, x.flatten(0, -2))
            weight_grad = weight_grad[: len(weight)]
        if ctx.biased and ctx.needs_input_grad[2]:
            bias_grad = grad.sum(0, dtype=torch.float32)
        return x_grad, weight_grad, bias_grad


@functools.cache
def _available() -> bool:
    from headway.kernels.bf16_tiles import has_bf16_dot

    return has_bf16_dot()
