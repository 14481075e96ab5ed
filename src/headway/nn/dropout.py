"""Dropout (Srivastava et al. 2014; where the paper has it: Vaswani et al. 2017, section 5.4)."""

from __future__ import annotations

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from headway.errors import ConfigError
from headway.kernels.arrays import numbers, seen, takes

__all__ = ["Dropout"]

_CHANCES = 2**16


class Dropout(nn.Module):
    """Zero each element with probability ``p`` while training and scale the rest by 1 / (1 - p).

    On a CPU the random numbers are the cost: PyTorch draws a double for each element, here 16 random bits decide on
    each, so ``p`` is rounded to a multiple of 2^-16. Where compiled kernels run (:mod:`headway.kernels.dropout`), one
    number of PyTorch's global generator is the seed of each mask, which is made as it is used, in the same pass as the
    ReLU before it or the sum after it, and again in the backward pass: no mask is kept. Else the generator draws all.
    """

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ConfigError(f"dropout = {p}: expected a probability from 0 up to, not including, 1")
        self.p = p

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"p={self.p}"

    def forward(self, x: Float[Tensor, "*b"], residual: Float[Tensor, "*b"] | None = None) -> Float[Tensor, "*b"]:
        """``x`` while evaluating, thinned ``x`` while training; ``residual`` is added to it."""
        if not self.training or not self.p:
            return _joined(x, residual)
        if takes(x):
            in_one_pass = residual is not None and (residual.dtype, residual.shape) == (x.dtype, x.shape)
            added = residual if in_one_pass else None
            thinned: Tensor = _Thinned.apply(x, added, self._dropped())  # type: ignore[no-untyped-call]
            return thinned if in_one_pass else _joined(thinned, residual)
        thinned = x * _keep_scale(x, self._dropped()) if x.device.type == "cpu" else F.dropout(x, self.p)
        return _joined(thinned, residual)

    def of_rectified(self, x: Float[Tensor, "*b D"], bias: Float[Tensor, " D"]) -> Float[Tensor, "*b D"]:
        """max(0, x + bias), thinned while training; kernels do all in one pass."""
        if self.training and takes(x) and bias.dtype == torch.float32 and len(bias) == x.size(-1):
            return cast(Tensor, _ThinnedRectified.apply(x, bias, self._dropped()))  # type: ignore[no-untyped-call]
        return self.forward(F.relu(x + bias))

    def _dropped(self) -> int:
        """The probability in 2^-16."""
        return min(round(self.p * _CHANCES), _CHANCES - 1)


def _joined(x: Tensor, residual: Tensor | None) -> Tensor:
    return x if residual is None else residual + x


class _Thinned(torch.autograd.Function):
    """``x`` thinned, and added to ``residual`` where there is one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, dropped: int) -> Tensor:
        from headway.kernels.dropout import add_thinned, thin  # imports Numba

        ctx.seed, ctx.dropped, ctx.adds = _seed(), dropped, residual is not None
        out = x.new_empty(x.shape)
        if residual is None:
            thin(_flat(x), _flat(out), ctx.seed, dropped)
        else:
            add_thinned(_flat(x), _flat(residual), _flat(out), ctx.seed, dropped)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor | None, None]:
        from headway.kernels.dropout import thin

        grad = grad_output.new_empty(grad_output.shape)
        thin(_flat(grad_output), _flat(grad), ctx.seed, ctx.dropped)
        return grad, grad_output if ctx.adds else None, None


class _ThinnedRectified(torch.autograd.Function):
    """max(0, ``x`` + ``bias``) thinned; where the output is not zero, there was no other decision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, dropped: int) -> Tensor:
        from headway.kernels.dropout import thin_rectified  # imports Numba

        ctx.dropped = dropped
        out = x.new_empty(x.shape)
        thin_rectified(_rows(x), seen(bias), _rows(out), _seed() if dropped else 0, dropped)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
        from headway.kernels.dropout import thin_rectified_gradients

        (out,) = ctx.saved_tensors
        grad = torch.empty_like(out)
        of_bias = thin_rectified_gradients(_rows(grad_output), _rows(out), _rows(grad), ctx.dropped)
        return grad, torch.from_numpy(of_bias), None


def _rows(x: Tensor) -> Any:
    return numbers(x.contiguous().view(-1, x.size(-1)))


def _flat(x: Tensor) -> Any:
    return numbers(x.contiguous().view(-1))


def _seed() -> int:
    """One number of PyTorch's global generator."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


def _keep_scale(x: Tensor, dropped: int) -> Tensor:
    """1 / (1 - p) for the elements to keep, 0 for the others, in x's type; from PyTorch's global generator."""
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    # Compared straight into x's type: a boolean tensor in between would take nine times as long.
    kept = torch.ge(bits, dropped - _CHANCES // 2, out=torch.empty(x.shape, dtype=x.dtype))
    return kept.mul_(_CHANCES / (_CHANCES - dropped))
