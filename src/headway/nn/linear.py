"""Linear layers whose products, in training on a CPU in bfloat16, are kernels of our own.

:mod:`headway.kernels.products` computes the three products of a layer, y = x W^T + b, dx = dy W and dW = dy^T x, from
float32 weights and into float32 gradients of them. Autocast's own way makes a bfloat16 copy of the weight, and a
bfloat16 gradient, which it makes float32.
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
    "Linear",
    "PackedWeight",
    "add_weight_gradient",
    "linear",
    "multiplies",
    "trains_by_kernels",
    "zeros_for_gradient",
]

BLOCK = 32  # inputs: kernels.pairs.BLOCK, known without Numba


class Linear(nn.Linear):
    """``nn.Linear``, by :func:`linear`."""

    def forward(self, x: Float[Tensor, "*b K"]) -> Float[Tensor, "*b N"]:
        """Map x W^T + b."""
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*b K"], weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None = None
) -> Float[Tensor, "*b N"]:
    """``F.linear``, by kernels where they fit (:func:`trains_by_kernels`)."""
    if not trains_by_kernels(x, weight) or (bias is not None and bias.shape != weight.shape[:1]):
        return F.linear(x, weight, bias)
    return cast(Tensor, _Linear.apply(x.to(torch.bfloat16), weight, bias))  # type: ignore[no-untyped-call]


def trains_by_kernels(x: Tensor, weight: Tensor) -> bool:
    """Whether gradients may be wanted, autocast to bfloat16 is on, and kernels compute the product."""
    return (
        torch.is_grad_enabled()
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and multiplies(x, weight)
    )


def multiplies(x: Tensor, weight: Tensor) -> bool:
    """Whether kernels compute products of ``x``, in bfloat16, and this weight."""
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
    """A weight W (N, K) as its products with matrices in bfloat16 read it; each of the two ways is packed once."""

    def __init__(self, weight: Float[Tensor, "N K"]) -> None:
        self._weight = weight

    def product(self, x: Float[Tensor, "R K"], bias: Float[Tensor, " N"] | None = None) -> Float[Tensor, "R N"]:
        """Multiply: x W^T + b."""
        return _product(x, self._rows, self._weight.size(0), bias)

    def transposed_product(self, y: Float[Tensor, "R N"]) -> Float[Tensor, "R K"]:
        """Multiply: y W; of the gradient of outputs it makes that of inputs."""
        return _product(y, self._columns, self._weight.size(1), None)

    @functools.cached_property
    def _rows(self) -> Any:
        from headway.kernels.products import pack_rows  # imports Numba

        return pack_rows(seen(self._weight))

    @functools.cached_property
    def _columns(self) -> Any:
        from headway.kernels.products import pack_columns

        return pack_columns(seen(self._weight))


def _product(x: Tensor, panels: Any, outputs: int, bias: Tensor | None) -> Tensor:
    from headway.kernels.products import multiply

    out = x.new_empty(len(x), outputs)
    multiply(numbers(x.contiguous()), panels, None if bias is None else seen(bias), numbers(out))
    return out


def add_weight_gradient(total: Float[Tensor, "M K"], y: Float[Tensor, "R N"], x: Float[Tensor, "R K"]) -> None:
    """``total`` += y^T x, in float32; M is N or the next multiple of eight."""
    from headway.kernels.products import add_outer

    add_outer(numbers(y.contiguous()), numbers(x.contiguous()), numbers(total))


def zeros_for_gradient(weight: Float[Tensor, "N K"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "M K"]:
    """What :func:`add_weight_gradient` adds to."""
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
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = PackedWeight(weight).transposed_product(grad).view_as(x)
        if ctx.needs_input_grad[1]:
            of_weight = zeros_for_gradient(weight)
            add_weight_gradient(of_weight, grad, x.flatten(0, -2))
            of_weight = of_weight[: len(weight)]
        if ctx.biased and ctx.needs_input_grad[2]:
            of_bias = grad.sum(0, dtype=torch.float32)
        return of_x, of_weight, of_bias


@functools.cache
def _available() -> bool:
    from headway.kernels.pairs import available

    return available()
