"""GELU by tanh as a compiled kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from headway import kernels

if not kernels.is_available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

from headway.kernels.activations import gelu_tanh


def test_values_are_those_of_the_formula_in_float64() -> None:
    x = np.linspace(-12, 12, 20_001, dtype=np.float32).reshape(3, -1)
    exact = F.gelu(torch.from_numpy(x).double(), approximate="tanh").numpy()
    found = gelu_tanh(x.copy())
    assert np.abs(found - exact).max() <= 1e-6
    near = np.abs(x) < 4
    np.testing.assert_allclose(found[near], exact[near], rtol=5e-6)


def test_extreme_inputs() -> None:
    x = np.array([[np.inf, -1e30, 1e30, 0.0, -0.0, 1e-30, np.nan]], dtype=np.float32)
    expected = np.array([[np.inf, 0, 1e30, 0, 0, 5e-31, np.nan]], dtype=np.float32)
    np.testing.assert_allclose(gelu_tanh(x.copy()), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("count", [1, 15, 31, 8193])
def test_results_do_not_depend_on_the_other_elements(count: int) -> None:
    x = np.random.default_rng(0).standard_normal((1, 20_000), dtype=np.float32)
    assert np.array_equal(gelu_tanh(x[:, :count].copy()), gelu_tanh(x.copy())[:, :count])
