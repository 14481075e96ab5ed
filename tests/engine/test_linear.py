"""bfloat16 products in training compared with their definitions, and linear layers that use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway import kernels
from headway.engine.arrays import as_array, parameter_as_array
from headway.engine.linear import (
    KernelLinear,
    PackedWeight,
    add_weight_gradient,
    kernels_can_multiply,
    zeros_for_gradient,
)

if not kernels.is_available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

from headway.kernels import bf16_tiles

by_each = pytest.mark.usefixtures("threads")
needs_instruction = pytest.mark.skipif(not bf16_tiles.uses_bf16_dot(), reason="no AVX-512 BF16")
BFLOAT16 = torch.bfloat16
SHAPES = [
    (1, 32, 2),
    (7, 64, 30),
    (13, 32, 40),
    (130, 96, 66),
    (515, 256, 102),
    (300, 32, 1030),
]  # rows, inputs, outputs


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    torch.set_num_threads(count)
    return count


def made_up(rows: int, inputs: int, outputs: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(rows)
    x, y = torch.randn(rows, inputs).to(BFLOAT16), torch.randn(rows, outputs).to(BFLOAT16)
    return x, y, torch.randn(outputs, inputs), torch.randn(outputs)


def assert_rounded(found: Tensor, exact: Tensor, terms: int) -> None:
    """The error is at most the rounding of bfloat16 and of float32 sums of so many terms near one."""
    assert found.dtype == BFLOAT16
    assert ((found.double() - exact).abs() <= exact.abs() / 2**8 + terms / 2**22).all()


@by_each
@needs_instruction
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_products_are_those_of_the_rounded_weights(rows: int, inputs: int, outputs: int) -> None:
    x, y, weight, bias = made_up(rows, inputs, outputs)
    packed, rounded = PackedWeight(weight), weight.to(BFLOAT16).double()
    assert_rounded(packed.linear(x, bias), x.double() @ rounded.T + bias.double(), inputs)
    assert_rounded(packed.linear(x), x.double() @ rounded.T, inputs)
    assert_rounded(packed.input_gradient(y), y.double() @ rounded, outputs)


@by_each
@needs_instruction
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [*SHAPES, (40, 1024, 100), (257, 64, 3), (270, 512, 1030)])
def test_gradients_of_weights_are_summed_in_float32(rows: int, inputs: int, outputs: int) -> None:
    x, y, weight, _ = made_up(rows, inputs, outputs)
    total = zeros_for_gradient(weight)
    for _ in range(2):
        add_weight_gradient(total, y, x)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total[:outputs].double(), 2 * y.double().T @ x.double(), rtol=1e-5, atol=rows / 2**20)
    assert not total[outputs:].any()


@needs_instruction
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 98), (192, 40)])  # threads divide rows or columns
def test_a_row_comes_to_the_same_bits_with_any_neighbors_and_threads(inputs: int, outputs: int) -> None:
    x, y, weight, bias = made_up(301, inputs, outputs)

    def results(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        packed, total = PackedWeight(weight), zeros_for_gradient(weight)
        add_weight_gradient(total, y, x)
        return [packed.linear(x, bias), packed.input_gradient(y), total]

    alone, together = results(1), results(2)
    torch.set_num_threads(1)
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))
    assert torch.equal(PackedWeight(weight).linear(x[150:157], bias), alone[0][150:157])


@needs_instruction
def test_weights_that_are_no_number_stay_so() -> None:
    """NaN stays NaN whatever its bits are: rounding alone would turn some into zero."""
    weight = torch.ones(2, 32)
    weight[1, 3] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    packed = PackedWeight(weight)
    assert packed.linear(torch.ones(1, 32, dtype=BFLOAT16)).isnan().tolist() == [[False, True]]
    assert packed.input_gradient(torch.ones(1, 2, dtype=BFLOAT16)).isnan().nonzero().tolist() == [[0, 3]]


def of_layer(layer: nn.Linear, x: Tensor, error: Tensor) -> list[Tensor | None]:
    """Return the layer's output and gradients under autocast."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", BFLOAT16):
        out = layer(x)
    out.backward(error)
    return [out.detach(), x.grad, layer.weight.grad, None if layer.bias is None else layer.bias.grad]


@by_each
@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 98), (64, 33), (20, 16)])  # the last two are computed by PyTorch
def test_a_layer_has_the_output_and_gradients_of_pytorchs(
    inputs: int, outputs: int, bias: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    layer, other = KernelLinear(inputs, outputs, bias=bias), nn.Linear(inputs, outputs, bias=bias)
    other.load_state_dict(layer.state_dict())
    x, error = torch.randn(3, 5, inputs, dtype=dtype), torch.randn(3, 5, outputs).to(BFLOAT16)
    for found, expected in zip(of_layer(layer, x, error), of_layer(other, x, error), strict=True):
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@needs_instruction
def test_kernels_are_used_only_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(PackedWeight, "linear", lambda self, x, bias=None: calls.append("product") or F.linear(x, x))  # type: ignore[func-returns-value]
    layer, x = KernelLinear(32, 4), torch.randn(4, 32)
    with torch.autocast("cpu", BFLOAT16):
        layer(x)
        with torch.no_grad():
            layer(x)
    layer(x)
    assert calls == ["product"]


@needs_instruction
def test_frozen_weights_have_no_gradient() -> None:
    layer = KernelLinear(32, 4)
    layer.weight.requires_grad_(False)
    out, of_x, of_weight, of_bias = of_layer(layer, torch.randn(6, 32), torch.ones(6, 4, dtype=BFLOAT16))
    assert out is not None
    assert of_x is not None
    assert of_weight is None
    assert of_bias is not None
    assert of_bias.tolist() == [6] * 4


@needs_instruction
@pytest.mark.parametrize(("shape", "fits"), [((4, 32), True), ((3, 32), False), ((4, 40), False)])
def test_weights_must_fit(shape: tuple[int, int], fits: bool) -> None:
    assert kernels_can_multiply(torch.randn(2, shape[1]), torch.randn(shape)) == fits
    assert not kernels_can_multiply(torch.randn(2, shape[1] + 32), torch.randn(shape))
    assert not kernels_can_multiply(torch.randn(shape[1]), torch.randn(shape))
    assert not kernels_can_multiply(torch.randn(2, shape[1]), torch.randn(shape[::-1]).T)
    assert not kernels_can_multiply(torch.randn(2, shape[1]), torch.randn(shape).to(BFLOAT16))


def test_a_parameter_that_kernels_have_seen_can_still_be_freed() -> None:
    parameter = nn.Parameter(torch.randn(4, 4))
    assert np.array_equal(parameter_as_array(parameter), parameter.detach().clone().numpy())
    parameter.untyped_storage().resize_(0)


ONE_STEP = """
import hashlib, torch
from headway.models.transformer import Transformer, TransformerConfig
from headway.engine.accelerate import accelerate
from headway.engine.loss import projected_cross_entropy

torch.set_num_threads(2)
torch.manual_seed(0)
config = TransformerConfig.preset("tiny", d_model=64, num_heads=2, d_ff=96, dropout=0.1, feed_forward_dropout=0.1)
model = accelerate(Transformer(config, 66, 66)).train()
source, target = torch.randint(4, 66, (9, 17)), torch.randint(4, 66, (9, 15))
with torch.autocast("cpu", torch.bfloat16):
    hidden = model.hidden(source, target).flatten(0, 1)
    projected_cross_entropy(hidden, model.target_embedding.weight, target.flatten(), 0.1).backward()
state = b"".join(parameter.grad.numpy().tobytes() for parameter in model.parameters() if parameter.grad is not None)
print(hashlib.sha256(state).hexdigest())
"""


@pytest.mark.slow
def test_a_process_that_compiles_and_one_that_finds_the_code_take_the_same_step(tmp_path: Path) -> None:
    """A killed training resumes in another process, which must compute the same results bit for bit."""
    environment: dict[str, Any] = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run([sys.executable, "-c", ONE_STEP], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert len(first.stdout.strip()) == 64
    assert first.stdout == second.stdout


def test_arrays_of_bfloat16_are_their_bits() -> None:
    assert as_array(torch.tensor([1.0, -2.0], dtype=BFLOAT16)).tolist() == [0x3F80, 0xC000]
