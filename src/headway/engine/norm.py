"""Layer normalization (Ba et al. 2016) by compiled kernels (:mod:`headway.kernels.layer_norm`)."""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headway.engine.arrays import as_array, parameter_as_array, supports


class KernelLayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last dimension, which in training on a CPU takes a third of the time of PyTorch's.

    The output has the input's type.
    """

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Normalize each vector to mean 0 and standard deviation 1, then scale and shift it."""
        fits = x.size(-1) == len(self.weight) and self.weight.dtype == self.bias.dtype == torch.float32
        if self.training and fits and supports(x):
            return cast(Tensor, _LayerNorm.apply(x, self.weight, self.bias, self.eps))  # type: ignore[no-untyped-call]
        return super().forward(x)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        from headway.kernels.layer_norm import layer_norm_forward  # imports Numba

        rows = x.contiguous().view(-1, x.size(-1))
        out, moments = x.new_empty(x.shape), weight.new_empty(2, len(rows))
        layer_norm_forward(
            as_array(rows),
            parameter_as_array(weight),
            parameter_as_array(bias),
            epsilon,
            as_array(out.view(rows.shape)),
            as_array(moments),
        )
        ctx.save_for_backward(rows, weight, moments)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        from headway.kernels.layer_norm import layer_norm_backward

        rows, weight, moments = ctx.saved_tensors
        grad = torch.empty_like(rows)
        weight_grad, bias_grad = layer_norm_backward(
            *(as_array(grad_output.contiguous().view(rows.shape)), as_array(rows), parameter_as_array(weight)),
            *(as_array(moments), as_array(grad)),
        )
        return grad.view(grad_output.shape), torch.from_numpy(weight_grad), torch.from_numpy(bias_grad), None
