"""LSTM layers in bfloat16 on a CPU: results and all gradients are close to float32, closer than the plain layer's."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from headway.engine.accelerate import accelerate
from headway.engine.recurrent import FusedRecurrentLayer
from headway.nn.recurrent import RecurrentLayer


def results(layer: RecurrentLayer, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the output, the last state and all gradients, also of the state, for the same inputs and masks."""
    torch.manual_seed(1)
    x, h, c = (torch.randn(*shape, requires_grad=True) for shape in ((8, 100, 32), (8, 48), (8, 48)))
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        output, state = layer(x, (h, c))
    assert {output.dtype, *(part.dtype for part in state)} == {torch.float32}
    sums = sum((torch.randn_like(part) * part).sum() for part in (output, *state))
    weights = dict(layer.cell.named_parameters())
    gradients = torch.autograd.grad(sums, [x, h, c, *weights.values()])
    named = dict(zip(("dx", "dh", "dc", *weights), gradients, strict=True))
    return {"output": output.detach(), "h": state[0].detach(), "c": state[1].detach(), **named}


@pytest.mark.parametrize("weight_drop", [0.0, 0.4])
def test_results_and_gradients_are_near_those_of_float32(weight_drop: float) -> None:
    torch.manual_seed(0)
    plain = RecurrentLayer("lstm", 32, 48, weight_drop=weight_drop).train()
    fast = accelerate(deepcopy(plain))
    assert type(fast) is FusedRecurrentLayer
    exact = results(plain, torch.float32)
    errors = []
    for layer in (plain, fast):
        found = results(layer, torch.bfloat16)
        errors.append({name: float((found[name] - exact[name]).norm() / exact[name].norm()) for name in exact})
    assert max(errors[1].values()) < 0.02
    if not weight_drop:  # the plain layer then sums the gradients of the steps in bfloat16
        assert errors[1]["weight_hh_l0"] < 0.7 * errors[0]["weight_hh_l0"]
