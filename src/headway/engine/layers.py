"""Fast layers that use compiled kernels, with the same results as the layers in :mod:`headway.nn`.

Dropout uses the same masks as :mod:`headway.nn.dropout`. A mask is not stored: the kernels compute it in the same pass
as the residual sum, or the bias and ReLU, and recompute it in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from headway.engine.arrays import as_array, kernels_support, parameter_as_array
from headway.engine.linear import linear
from headway.nn.blocks import FeedForward, GatedFeedForward, NoNorm, PostNorm, PreNorm, gelu_tanh
from headway.nn.dropout import Dropout, draw_seed
from headway.nn.norms import RMSNorm
from headway.torch_internals import has_hooks

# The activations that kernels compute, mapped to the kernels' names for them.
ACTIVATIONS: dict[Any, str] = {F.gelu: "gelu", gelu_tanh: "gelu_tanh", F.silu: "silu"}
GATES: dict[Any, str] = {
    F.sigmoid: "glu",
    F.relu: "reglu",
    F.gelu: "geglu",
    gelu_tanh: "geglu_tanh",
    F.silu: "swiglu",
}


class KernelFeedForward(FeedForward):
    """:class:`~headway.nn.blocks.FeedForward` whose bias and activation are applied by one kernel in training."""

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Apply the feed-forward network to each position."""
        if (
            not self.training
            or self.inner.bias is None
            or not kernels_support(x)
            or has_hooks(self.inner, self.dropout)
        ):
            return super().forward(x)
        inner, bias = linear(x, self.inner.weight), self.inner.bias
        if self.activation is F.relu:
            activated = relu_dropout(self.dropout, inner, bias)
        else:
            activated = self.dropout(bias_activation(self.activation, inner, bias))
        transformed: Tensor = self.outer(activated)
        return transformed


class KernelGatedFeedForward(GatedFeedForward):
    """:class:`~headway.nn.blocks.GatedFeedForward` whose gate is applied by one kernel in training."""

    def apply_gate(self, gate: Float[Tensor, "*b F"], x: Float[Tensor, "*b F"]) -> Float[Tensor, "*b F"]:
        """Return the activation of ``gate``, multiplied by x."""
        if self.training and kernels_support(x) and gate.dtype == x.dtype:
            return cast(Tensor, _Gate.apply(GATES[self.activation], gate, x))  # type: ignore[no-untyped-call]
        return super().apply_gate(gate, x)


class KernelPostNorm(PostNorm):
    """:class:`~headway.nn.blocks.PostNorm` with a residual connection."""

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Apply ``sublayer`` to x, then dropout, the residual connection and the norm."""
        normed: Tensor = self.norm(_add(self, x, sublayer(x)))
        return normed


class KernelPreNorm(PreNorm):
    """:class:`~headway.nn.blocks.PreNorm` with a residual connection."""

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Apply the norm, ``sublayer`` and dropout to x, then the residual connection."""
        return _add(self, x, sublayer(self.norm(x)))


class KernelNoNorm(NoNorm):
    """:class:`~headway.nn.blocks.NoNorm` with a residual connection."""

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Apply ``sublayer`` to x, then dropout and the residual connection."""
        return _add(self, x, sublayer(x))


def _add(module: PostNorm | PreNorm | NoNorm, x: Tensor, y: Tensor) -> Tensor:
    """Return x + Dropout(y)."""
    if not has_hooks(module.dropout):
        return dropout_add(module.dropout, y, x)
    dropped: Tensor = module.dropout(y)
    return x + dropped


class KernelLayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` over the last dimension. The output has the input's data type.

    In training on a CPU, it takes a third of the time of PyTorch's layer norm.
    """

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Normalize each vector to mean 0 and standard deviation 1, then scale and shift it."""
        fits = x.size(-1) == len(self.weight) and all(
            parameter.dtype == torch.float32 for parameter in self.parameters()
        )
        if self.training and fits and kernels_support(x):
            arguments = (x, self.weight, self.bias, self.eps, True)
            return cast(Tensor, _LayerNorm.apply(*arguments))  # type: ignore[no-untyped-call]
        return super().forward(x)


class KernelRMSNorm(RMSNorm):
    """:class:`~headway.nn.norms.RMSNorm` computed by one kernel in training on a CPU."""

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Normalize each vector."""
        if self.training and self.weight.dtype == torch.float32 and kernels_support(x):
            arguments = (x, self.weight, None, self.epsilon, False)
            return cast(Tensor, _LayerNorm.apply(*arguments))  # type: ignore[no-untyped-call]
        return super().forward(x)


class _LayerNorm(torch.autograd.Function):
    """Layer norm if ``centered``, otherwise RMSNorm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, centered: bool) -> Tensor:
        from headway.kernels.layer_norm import layer_norm_forward  # imports Numba

        ctx.has_bias, ctx.centered = bias is not None, centered
        rows = x.contiguous().view(-1, x.size(-1))
        out, moments = x.new_empty(x.shape), weight.new_empty(2, len(rows))
        layer_norm_forward(
            as_array(rows),
            parameter_as_array(weight),
            parameter_as_array(torch.zeros_like(weight) if bias is None else bias),
            epsilon,
            as_array(out.view(rows.shape)),
            as_array(moments),
            centered=centered,
        )
        ctx.save_for_backward(rows, weight, moments)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:
        from headway.kernels.layer_norm import layer_norm_backward

        rows, weight, moments = ctx.saved_tensors
        grad = torch.empty_like(rows)
        weight_grad, bias_grad = layer_norm_backward(
            *(as_array(grad_output.contiguous().view(rows.shape)), as_array(rows), parameter_as_array(weight)),
            *(as_array(moments), as_array(grad)),
            centered=ctx.centered,
        )
        last = torch.from_numpy(bias_grad) if ctx.has_bias else None
        return grad.view(grad_output.shape), torch.from_numpy(weight_grad), last, None, None


class KernelDropout(Dropout):
    """:class:`~headway.nn.dropout.Dropout` with compiled kernels on a CPU and PyTorch's own operation on a GPU."""

    def forward(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Apply dropout to ``x`` in training mode. Return ``x`` itself in evaluation mode."""
        if not self.training or not self.p:
            return x
        if kernels_support(x):
            return _dropout(self, x, None)
        return F.dropout(x, self.p) if x.is_cuda else super().forward(x)


class AutocastDropout(KernelDropout):
    """The dropout on a Transformer's embeddings. Its output has autocast's data type if autocast is enabled.

    The residual stream, to which all later outputs are added, then also has this type. Norms compute in float32
    internally, so only the values between two layers are rounded, as in Megatron-LM (Shoeybi et al. 2019). Otherwise,
    the input and output of each matrix product would be converted, and the residual stream would use twice the memory.
    """

    def forward(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Convert ``x`` to autocast's data type if autocast is enabled, then apply dropout."""
        device = x.device.type
        return super().forward(x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x)


def dropout_add(dropout: Dropout, x: Float[Tensor, "*b"], residual: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return ``residual`` + ``dropout``(x), computed by one kernel if possible."""
    fits = (residual.dtype, residual.shape) == (x.dtype, x.shape)
    if dropout.training and dropout.p and fits and kernels_support(x):
        return _dropout(dropout, x, residual)
    dropped: Tensor = dropout(x)
    return residual + dropped


def relu_dropout(dropout: Dropout, x: Float[Tensor, "*b D"], bias: Float[Tensor, " D"]) -> Float[Tensor, "*b D"]:
    """Return ``dropout``(max(0, x + bias)), computed by one kernel in training."""
    if dropout.training and kernels_support(x) and bias.dtype == torch.float32 and len(bias) == x.size(-1):
        seed = int(draw_seed()) if dropout.p else 0
        return cast(Tensor, _ReluDropout.apply(x, bias, seed, dropout.threshold))  # type: ignore[no-untyped-call]
    dropped: Tensor = dropout(F.relu(x + bias))
    return dropped


def bias_activation(
    activation: Callable[[Tensor], Tensor], x: Float[Tensor, "*b D"], bias: Float[Tensor, " D"]
) -> Float[Tensor, "*b D"]:
    """Return the activation of x + bias, computed by one kernel if possible."""
    if kernels_support(x) and bias.dtype == torch.float32 and len(bias) == x.size(-1):
        return cast(Tensor, _BiasActivation.apply(ACTIVATIONS[activation], x, bias))  # type: ignore[no-untyped-call]
    return activation(x + bias)


def _dropout(dropout: Dropout, x: Tensor, residual: Tensor | None) -> Tensor:
    arguments = (x, residual, int(draw_seed()), dropout.threshold)
    return cast(Tensor, _Dropout.apply(*arguments))  # type: ignore[no-untyped-call]


class _Dropout(torch.autograd.Function):
    """Dropout of ``x``, added to ``residual`` if given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, seed: int, threshold: int) -> Tensor:
        from headway.kernels.dropout import dropout, dropout_add  # imports Numba

        ctx.seed, ctx.threshold, ctx.adds = seed, threshold, residual is not None
        out = x.new_empty(x.shape)
        if residual is None:
            dropout(_flat(x), _flat(out), seed, threshold)
        else:
            dropout_add(_flat(x), _flat(residual), _flat(out), seed, threshold)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        from headway.kernels.dropout import dropout

        grad = grad_output.new_empty(grad_output.shape)
        dropout(_flat(grad_output), _flat(grad), ctx.seed, ctx.threshold)
        return grad, grad_output if ctx.adds else None, None, None


class _ReluDropout(torch.autograd.Function):
    """Dropout of max(0, ``x`` + ``bias``). The gradient is zero wherever the output is zero, so no mask is stored."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, seed: int, threshold: int) -> Tensor:
        from headway.kernels.dropout import bias_relu_dropout  # imports Numba

        ctx.threshold = threshold
        out = x.new_empty(x.shape)
        bias_relu_dropout(_rows(x), parameter_as_array(bias), _rows(out), seed, threshold)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None, None]:
        from headway.kernels.dropout import bias_relu_dropout_backward

        (out,) = ctx.saved_tensors
        grad = torch.empty_like(out)
        bias_grad = bias_relu_dropout_backward(_rows(grad_output), _rows(out), _rows(grad), ctx.threshold)
        return grad, torch.from_numpy(bias_grad), None, None


class _BiasActivation(torch.autograd.Function):
    """The activation ``kind`` of ``x`` + ``bias``."""

    @staticmethod
    def forward(ctx: Any, kind: str, x: Tensor, bias: Tensor) -> Tensor:
        from headway.kernels import activations  # imports Numba

        ctx.kind = kind
        out = x.new_empty(x.shape)
        activations.bias_activation(kind, _rows(x), parameter_as_array(bias), _rows(out))
        ctx.save_for_backward(x, bias)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor, Tensor]:
        from headway.kernels.activations import bias_activation_backward

        x, bias = ctx.saved_tensors
        grad = x.new_empty(x.shape)
        arrays = _rows(grad_output), _rows(x), parameter_as_array(bias), _rows(grad)
        return None, grad, torch.from_numpy(bias_activation_backward(ctx.kind, *arrays))


class _Gate(torch.autograd.Function):
    """The activation ``kind`` of ``gate``, multiplied by ``x``."""

    @staticmethod
    def forward(ctx: Any, kind: str, gate: Tensor, x: Tensor) -> Tensor:
        from headway.kernels.gates import apply_gate  # imports Numba

        ctx.kind = kind
        gate, x = gate.contiguous(), x.contiguous()
        out = torch.empty_like(x)
        apply_gate(kind, _flat(gate), _flat(x), _flat(out))
        ctx.save_for_backward(gate, x)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor, Tensor]:
        from headway.kernels.gates import apply_gate_backward

        gate, x = ctx.saved_tensors
        gate_grad, x_grad = torch.empty_like(gate), torch.empty_like(x)
        apply_gate_backward(ctx.kind, *(_flat(tensor) for tensor in (grad_output, gate, x, gate_grad, x_grad)))
        return None, gate_grad, x_grad


def _rows(x: Tensor) -> Any:
    return as_array(x.contiguous().view(-1, x.size(-1)))


def _flat(x: Tensor) -> Any:
    return as_array(x.contiguous().view(-1))
