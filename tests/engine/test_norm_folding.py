"""Norms whose gains move into the linear layer after them compute the same function, however the gains are spread."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headway.engine.norm_folding import fold_norm
from headway.nn.norms import RMSNorm

NORMS: dict[str, Callable[[], nn.LayerNorm | RMSNorm]] = {
    "layer norm": lambda: nn.LayerNorm(6),
    "layer norm without bias": lambda: nn.LayerNorm(6, bias=False),
    "RMSNorm": lambda: RMSNorm(6),
}


def drawn(kind: str, *, bias: bool = True) -> tuple[nn.LayerNorm | RMSNorm, nn.Linear]:
    torch.manual_seed(0)
    norm, layer = NORMS[kind](), nn.Linear(6, 4, bias=bias)
    with torch.no_grad():
        for weight in norm.parameters():
            weight.normal_()
    return norm, layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", NORMS)
def test_the_function_stays(kind: str, bias: bool) -> None:
    norm, layer = drawn(kind, bias=bias)
    with torch.no_grad():
        norm.weight[2] = 0
        layer.weight[:, 3] = 0
    before = deepcopy(norm), deepcopy(layer)
    folded, weight, shift = fold_norm(norm, layer.weight, layer.bias)
    x = torch.randn(5, 6)
    assert torch.allclose(F.linear(folded(x), weight, shift), layer(norm(x)), atol=1e-6)
    for now, then in zip((norm, layer), before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(now.parameters(), then.parameters(), strict=True))


@pytest.mark.parametrize("kind", NORMS)
def test_all_columns_of_the_weight_become_equally_large(kind: str) -> None:
    norm, layer = drawn(kind)
    _, weight, _ = fold_norm(norm, layer.weight, layer.bias)
    assert torch.allclose(weight.abs().mean(0), torch.ones(6))


@pytest.mark.parametrize("kind", NORMS)
def test_gains_that_the_weight_undoes_change_no_bit(kind: str) -> None:
    """Factors are powers of two, so that multiplying and dividing by them is exact."""
    norm, layer = drawn(kind)
    expected, weight, bias = fold_norm(norm, layer.weight, layer.bias)
    with torch.no_grad():
        for gain in norm.parameters():
            gain[[1, 4]] *= 128
        layer.weight[:, [1, 4]] /= 128
    found, other_weight, other_bias = fold_norm(norm, layer.weight, layer.bias)
    assert torch.equal(found.weight, expected.weight)
    assert torch.equal(other_weight, weight)
    assert bias is not None
    assert other_bias is not None
    assert torch.equal(other_bias, bias)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_damage_stays_visible(name: str) -> None:
    norm, layer = drawn("layer norm")
    with torch.no_grad():
        getattr(norm, name)[3] = torch.nan
    folded, weight, bias = fold_norm(norm, layer.weight, layer.bias)
    assert F.linear(folded(torch.randn(2, 6)), weight, bias).isnan().all()
