"""Linear layers computed by compiled kernels, for training in bfloat16 on a CPU.

:mod:`headway.kernels.bf16_gemm` computes the three products of a layer, y = x W^T + b, dx = dy W and dW = dy^T x, with
float32 weights and float32 weight gradients. Without these kernels, autocast would copy the weight to bfloat16 and
convert a bfloat16 gradient to float32.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from headway.engine.arrays import as_array, kernels_support, parameter_as_array


class KernelLinear(nn.Linear):
    """``nn.Linear`` computed by :func:`linear`."""

    def forward(self, x: Float[Tensor, "*b K"]) -> Float[Tensor, "*b N"]:
        """Return x W^T + b."""
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*b K"], weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None = None
) -> Float[Tensor, "*b N"]:
    """Compute ``F.linear``, with kernels if :func:`uses_training_kernels` allows it."""
    if not uses_training_kernels(x, weight) or (bias is not None and bias.shape != weight.shape[:1]):
        return F.linear(x, weight, bias)
    return cast(Tensor, _Linear.apply(x.to(torch.bfloat16), weight, bias))  # type: ignore[no-untyped-call]


def uses_training_kernels(x: Tensor, weight: Tensor) -> bool:
    """Return whether gradients and bfloat16 autocast are enabled and kernels can compute the product."""
    return (
        torch.is_grad_enabled()
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and kernels_can_multiply(x, weight)
    )


def kernels_can_multiply(x: Tensor, weight: Tensor) -> bool:
    """Return whether kernels can multiply ``x``, converted to bfloat16, by ``weight``."""
    outputs, inputs = weight.shape
    fits = weight.dtype == torch.float32 and weight.is_contiguous() and x.dim() > 1 and x.size(-1) == inputs
    if not fits or not kernels_support(x) or outputs % 2:
        return False
    from headway.kernels.bf16_gemm import supports_width  # imports Numba

    return supports_width(inputs)


class PackedWeight:
    """A weight W (N, K) for products with bfloat16 matrices. W and its transpose are packed when first needed."""

    def __init__(self, weight: Float[Tensor, "N K"]) -> None:
        self._weight = weight
        self._rows: Any = None
        self._columns: Any = None

    def linear(self, x: Float[Tensor, "R K"], bias: Float[Tensor, " N"] | None = None) -> Float[Tensor, "R N"]:
        """Return x W^T + b."""
        from headway.kernels.bf16_gemm import matmul, pack_rows  # imports Numba

        if self._rows is None:
            self._rows = pack_rows(parameter_as_array(self._weight))
        out = x.new_empty(len(x), self._weight.size(0))
        matmul(as_array(x.contiguous()), self._rows, None if bias is None else parameter_as_array(bias), as_array(out))
        return out

    def input_gradient(self, y: Float[Tensor, "R N"]) -> Float[Tensor, "R K"]:
        """Return y W, which is the gradient of the inputs if y is the gradient of the outputs."""
        from headway.kernels.bf16_gemm import matmul, pack_columns

        if self._columns is None:
            self._columns = pack_columns(parameter_as_array(self._weight))
        out = y.new_empty(len(y), self._weight.size(1))
        matmul(as_array(y.contiguous()), self._columns, None, as_array(out))
        return out


def add_weight_gradient(total: Float[Tensor, "M K"], y: Float[Tensor, "R N"], x: Float[Tensor, "R K"]) -> None:
    """Add y^T x in float32 to ``total``, which must come from :func:`zeros_for_gradient`."""
    from headway.kernels.bf16_gemm import add_outer_product

    add_outer_product(as_array(y.contiguous()), as_array(x.contiguous()), as_array(total))


def zeros_for_gradient(weight: Float[Tensor, "N K"]) -> Float[Tensor, "M K"]:
    """Return zeros for :func:`add_weight_gradient`. M is N rounded up to whole kernel tiles."""
    from headway.kernels.bf16_tiles import TILE_ROWS

    return weight.new_zeros(-(-len(weight) // TILE_ROWS) * TILE_ROWS, weight.size(1))


def sum_rows(y: Float[Tensor, "R N"]) -> Float[Tensor, " N"]:
    """Return the sum of the rows in float32, which is the bias gradient if y is the gradient of the outputs."""
    from headway.kernels import bf16_gemm

    return torch.from_numpy(bf16_gemm.sum_rows(as_array(y.contiguous())))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return PackedWeight(weight).linear(x.flatten(0, -2), bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grad_output.flatten(0, -2).contiguous()
        x_grad = weight_grad = bias_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = PackedWeight(weight).input_gradient(grad).view_as(x)
        if ctx.needs_input_grad[1]:
            weight_grad = zeros_for_gradient(weight)
            add_weight_gradient(weight_grad, grad, x.flatten(0, -2))
            weight_grad = weight_grad[: len(weight)]
        if ctx.biased and ctx.needs_input_grad[2]:
            bias_grad = sum_rows(grad)
        return x_grad, weight_grad, bias_grad
