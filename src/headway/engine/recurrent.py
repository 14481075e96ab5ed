"""Fast recurrent layers that use PyTorch's fused kernels, or a few large matrix products.

In float32, a layer is one call of ``nn.GRU`` or ``nn.LSTM``. On most CPUs, PyTorch has no LSTM in bfloat16. In this
case, only the products of the states and the recurrent weight are computed step by step. The products of the inputs and
the weight gradients are each computed as one matrix product for all steps, and gradients are not rounded after each
step.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from headway.engine.linear import add_weight_gradient, kernels_can_multiply, linear, zeros_for_gradient
from headway.nn.recurrent import LayerState, RecurrentLayer
from headway.torch_internals import run_recurrent_layer, run_recurrent_layer_works, sigmoid_backward, tanh_backward


class FusedRecurrentLayer(RecurrentLayer):
    """:class:`~headway.nn.recurrent.RecurrentLayer`, computed with few calls."""

    def forward(self, x: Float[Tensor, "R T _"], state: LayerState) -> tuple[Float[Tensor, "R T D"], LayerState]:
        """Return h after each step, and the state after the last step."""
        cell = self.cell
        if self.num_states == 2 and x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            gates = linear(x, cell.weight_ih_l0, cell.bias_ih_l0 + cell.bias_hh_l0)
            outputs, *after = _LSTM.apply(gates, self.weight_dropout(cell.weight_hh_l0), *state)  # type: ignore[no-untyped-call]
            return outputs, tuple(after)
        first = tuple(part.unsqueeze(0).to(x.dtype).contiguous() for part in state)  # the layout that cuDNN expects
        if not self.training or not self.weight_dropout.p:
            outputs, last = cell(x, first if self.num_states == 2 else first[0])
            return outputs, tuple(part.squeeze(0) for part in (last if self.num_states == 2 else (last,)))
        if not run_recurrent_layer_works():
            return super().forward(x, state)
        weights = [cell.weight_ih_l0, self.weight_dropout(cell.weight_hh_l0), cell.bias_ih_l0, cell.bias_hh_l0]
        outputs, after = run_recurrent_layer(x, first, weights, training=True)
        return outputs, tuple(part.squeeze(0) for part in after)


class _LSTM(torch.autograd.Function):
    """The steps of an LSTM layer, given the contribution of inputs and biases to the gates.

    Products with ``weight`` are computed in the data type of ``gates``, and everything else in float32. Gates are in
    PyTorch's order: input, forget, candidate, output.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, steps, width = gates.size(0), gates.size(1), weight.size(1)
        rounded = weight.to(gates.dtype)
        activations = h.new_empty(steps, rows, 4 * width)
        cells, states = h.new_empty(steps + 1, rows, width), gates.new_empty(steps + 1, rows, width)
        outputs = h.new_empty(rows, steps, width)
        cells[0], states[0] = c, h
        for step in range(steps):
            step_gates = activations[step].copy_(torch.addmm(gates[:, step], states[step], rounded.t()))
            step_gates[:, : 2 * width].sigmoid_()
            enter, forget, candidate, leave = step_gates.chunk(4, 1)
            candidate.tanh_()
            leave.sigmoid_()
            c = torch.mul(forget, c, out=cells[step + 1]).addcmul_(enter, candidate)
            h = leave * c.tanh()
            outputs[:, step], states[step + 1] = h, h
        ctx.save_for_backward(weight, rounded, activations, cells, states)
        return outputs, h, c.clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_outputs: Tensor, grad_h: Tensor, grad_c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weight, rounded, activations, cells, states = ctx.saved_tensors
        grad_gates = torch.empty_like(activations, dtype=rounded.dtype)
        step_grads = torch.empty_like(activations[0])
        grad_enter, grad_forget, grad_candidate, grad_leave = step_grads.chunk(4, 1)
        for step in reversed(range(len(activations))):
            enter, forget, candidate, leave = activations[step].chunk(4, 1)
            squashed = cells[step + 1].tanh()
            grad_h = grad_h + grad_outputs[:, step]
            grad_c = grad_c + tanh_backward(grad_h * leave, squashed, out=torch.empty_like(squashed))
            sigmoid_backward(grad_c * candidate, enter, out=grad_enter)
            sigmoid_backward(grad_c * cells[step], forget, out=grad_forget)
            tanh_backward(grad_c * enter, candidate, out=grad_candidate)
            sigmoid_backward(grad_h * squashed, leave, out=grad_leave)
            grad_c = grad_c * forget
            grad_h = (grad_gates[step].copy_(step_grads) @ rounded).float()
        of_steps, before = grad_gates.flatten(0, 1), states[:-1].flatten(0, 1)
        if kernels_can_multiply(before, weight):
            grad_weight = zeros_for_gradient(weight)
            add_weight_gradient(grad_weight, of_steps, before)
            grad_weight = grad_weight[: len(weight)]
        else:
            grad_weight = (of_steps.t() @ before).to(weight.dtype)
        return grad_gates.transpose(0, 1), grad_weight, grad_h, grad_c
