"""Products of quantized rows and weights, and the operations after them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from headway import kernels

if not kernels.is_available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

import headway.engine  # noqa: F401  # kernels then use as many threads as PyTorch
from headway.kernels import int8_linear, jit
from headway.kernels.int8_gemm import BLOCK, quantize_weight
from headway.kernels.int8_linear import MIN_PARALLEL, LayerNormParams, QuantizedLinear, layer_norm, quantize_rows
from headway.kernels.jit import Array

GROUP = 8  # inputs whose products are added in 16 bits, in two halves


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 6, 7, 13, 16, 17, 31, 40, 64, 81])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (BLOCK - 1, 5), (BLOCK, 8), (3 * BLOCK + 1, 33), (70, 512)])
def test_integers_on_their_grid_multiply_exactly(rows: int, outputs: int, inputs: int) -> None:
    random = np.random.default_rng(rows)
    x = random.integers(-127, 128, (rows, inputs)).astype(np.float32)
    weight = random.integers(-32, 33, (outputs, inputs)).astype(np.float32)
    weight[:, :GROUP] = 0
    x[:, 0] = weight[:, 0] = 127  # so that both scales are 1
    x[:1], weight[0, GROUP:] = 127, 32  # the largest possible sums
    x[1:2], weight[-1, GROUP:] = -127, 32
    assert np.array_equal(QuantizedLinear(weight)(x), x @ weight.T)


@pytest.mark.parametrize("inputs", [1, 3, 8, 21, 64])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_sum_of_16_bits_overflows_whatever_the_inputs(inputs: int, sign: int) -> None:
    """All weights are as large as the largest in their row, so that sums of four would overflow."""
    weight = np.full((BLOCK + 3, inputs), sign, dtype=np.float32)
    weight[1] *= np.linspace(0.5, 1, inputs, dtype=np.float32)
    weight[2, ::2] *= -1
    x = np.ones((5, inputs), dtype=np.float32)
    x[1] *= -1
    x[2, ::2] *= -1
    x[3:] = normal(2, inputs)
    found = QuantizedLinear(weight)(x)
    assert np.abs(found - x @ weight.T).max() <= 0.02 * inputs


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("magnitude", [0, 1e-40, 1e-20, 1e30])
def test_weights_of_any_magnitude(magnitude: float) -> None:
    weight = normal(20, 9) * np.float32(magnitude)
    found = QuantizedLinear(weight)(np.ones((1, 9), np.float32))
    assert np.abs(found - weight.sum(1)).max() <= 0.3 * magnitude + 1e-29


def test_of_weights_like_a_trained_layers_most_of_the_levels_are_used() -> None:
    weight = normal(300, 512)
    levels, scale = quantize_weight(weight)
    assert np.abs(levels).max(axis=1).mean() > 70
    error = np.abs(levels * scale[:, None] - weight)
    assert (error <= 1.001 * scale[:, None]).all(), "rounded towards zero where the sum would be too large"


def test_rounding_to_integers_costs_at_most_half_a_level_of_each() -> None:
    x, weight, bias = normal(6, 64), normal(40, 64, seed=1), normal(40, seed=2)
    x[3] *= 1e4
    x[4] = 0
    found = QuantizedLinear(weight, bias)(x)
    levels, level_w = quantize_weight(weight)
    level_x = np.abs(x).max(1, keepdims=True) / 127
    bound = 0.5 * level_x * np.abs(levels * level_w[:, None]).sum(1)
    bound += np.abs(x) @ np.abs(levels * level_w[:, None] - weight).T
    assert (np.abs(found - (x @ weight.T + bias)) <= bound + 1e-3).all()
    assert np.array_equal(found[4], bias)


def test_a_row_depends_only_on_itself() -> None:
    """A row's result does not depend on other rows, on the number of cached rows or on its tile, bit for bit."""
    norm = LayerNormParams(normal(24), normal(24, seed=1), 1e-5)
    layer = QuantizedLinear(normal(24, 512, seed=2), normal(24, seed=3), norm=norm)
    x = normal(300, 512, seed=4) * np.logspace(-3, 3, 300, dtype=np.float32)[:, None]
    entered = normal(300, 24, seed=5)
    alone = np.concatenate([layer(x[row : row + 1], entered[row : row + 1]) for row in range(300)])
    assert np.array_equal(layer(x, entered), alone)
    assert np.array_equal(layer(x[7:], entered[7:]), alone[7:])


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_threads_that_share_a_product_find_the_same() -> None:
    layer, x = (
        QuantizedLinear(normal(5 * BLOCK + 3, 96), normal(5 * BLOCK + 3, seed=1), relu=True),
        normal(4, 96, seed=2),
    )
    shared = layer(x)
    torch.set_num_threads(1)
    assert np.array_equal(shared, layer(x))


@pytest.mark.usefixtures("two_threads")
def test_threads_quantize_as_one_does() -> None:
    x = normal(2 * MIN_PARALLEL // 96, 96)
    shared = quantize_rows(x, 96)
    torch.set_num_threads(1)
    for found, expected in zip(shared, quantize_rows(x, 96), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.usefixtures("two_threads")
def test_a_product_is_divided_between_threads_unless_another_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_threads_start_fast", lambda: True)
    layer = QuantizedLinear(normal(BLOCK, 4))

    def chosen(rows: int) -> str:
        calls: list[str] = []

        def noted(form: str, *_: object) -> Array:
            calls.append(form)
            return np.zeros((rows, BLOCK), np.float32)

        kernel = jit.SerialAndParallel(partial(noted, "serial"), partial(noted, "parallel"))
        monkeypatch.setattr(int8_linear, "_linear", kernel)
        layer(normal(rows, 4))
        return "".join(calls)

    assert chosen(1) == chosen(33) == "parallel"
    with jit._lock:
        assert chosen(1) == "serial", "another thread's product is under way"
    assert chosen(1) == "parallel"
    torch.set_num_threads(1)
    assert chosen(1) == "serial"
    torch.set_num_threads(2)
    monkeypatch.setattr(jit, "_threads_start_fast", lambda: False)
    assert chosen(1) == "serial"


@pytest.mark.slow
def test_numba_leaves_pytorch_its_threads() -> None:
    """In a separate process, in which Numba's threads have not been started yet."""
    command = "import torch; torch.set_num_threads(1); import headway.engine; from headway.kernels import jit"
    command += "; jit._threads_start_fast(); print(torch.get_num_threads())"
    run = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=120)
    assert run.stdout.split() == ["1"]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_process_computes_alone() -> None:
    """With OpenMP, the child process would be killed."""
    layer, x = QuantizedLinear(normal(3 * BLOCK, 64)), normal(1, 64, seed=1)
    expected = layer(x)
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(layer(x), expected) else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_follows_a_product_is_what_it_is_called() -> None:
    weight, bias = normal(40, 32), normal(40, seed=1)
    norm = torch.nn.LayerNorm(40, eps=1e-3)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    as_arrays = LayerNormParams(norm.weight.detach().numpy(), norm.bias.detach().numpy(), 1e-3)
    x, entered = normal(9, 32, seed=2), normal(9, 40, seed=3)
    product = torch.from_numpy(QuantizedLinear(weight, bias)(x))
    assert torch.equal(torch.from_numpy(QuantizedLinear(weight, bias, relu=True)(x)), F.relu(product))
    added = product + torch.from_numpy(entered)
    assert torch.equal(torch.from_numpy(QuantizedLinear(weight, bias)(x, entered)), added)
    found = torch.from_numpy(QuantizedLinear(weight, bias, norm=as_arrays)(x, entered))
    torch.testing.assert_close(found, norm(added))
    torch.testing.assert_close(torch.from_numpy(layer_norm(entered, as_arrays)), norm(torch.from_numpy(entered)))


@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("relu", [False, True])
def test_damage_affects_only_its_own_row_or_column(damage: float, relu: bool) -> None:
    x, weight, bias = normal(8, 16), normal(20, 16, seed=1), normal(20, seed=2)
    sound = QuantizedLinear(weight, bias, relu=relu)(x)
    damaged_x = x.copy()
    damaged_x[6, 3] = damage
    found = QuantizedLinear(weight, bias, relu=relu)(damaged_x)
    assert not np.isfinite(found[6]).any()
    assert np.array_equal(np.delete(found, 6, 0), np.delete(sound, 6, 0))
    damaged_weight = weight.copy()
    damaged_weight[5, 2] = damage
    found = QuantizedLinear(damaged_weight, bias, relu=relu)(x)
    assert not np.isfinite(found[:, 5]).any()
    assert np.array_equal(np.delete(found, 5, 1), np.delete(sound, 5, 1))


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match="inputs have 5 features, but the layer expects 4"):
        QuantizedLinear(normal(3, 4))(normal(2, 5))
