"""The convolution: worked out by hand, and independent of padding."""

from __future__ import annotations

import pytest
import torch

from headway.errors import ConfigError
from headway.nn.convolution import ResidualConvolution


def test_by_hand() -> None:
    layer = ResidualConvolution(1, 3)
    with torch.no_grad():
        layer.convolution.weight.copy_(torch.tensor([[[1.0, 10.0, 100.0]]]))
        layer.convolution.bias.fill_(-250.0)  # type: ignore[union-attr]
    # Position 0: 10 * 1 + 100 * 2 - 250 < 0; position 1: 1 + 20 + 300 - 250 = 71; position 2: 2 + 30 - 250 < 0.
    assert layer(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten().tolist() == [1.0, 2.0 + 71.0, 3.0]


@pytest.mark.parametrize("width", [1, 3, 5])
def test_padding_changes_nothing(width: int) -> None:
    layer, x = ResidualConvolution(4, width), torch.randn(2, 6, 4)
    mask = torch.arange(6) < torch.tensor([[4], [6]])
    found = layer(x.masked_fill(~mask.unsqueeze(2), 1e3), mask)
    torch.testing.assert_close(found[0, :4], layer(x[:1, :4])[0])
    torch.testing.assert_close(found[1], layer(x[1:])[0])


def test_dropout_acts_on_what_is_added_while_training_alone() -> None:
    layer, x = ResidualConvolution(4, 3, dropout=0.5), torch.randn(2, 6, 4)
    whole = layer.eval()(x) - x
    thinned = layer.train()(x) - x
    kept = thinned != 0
    assert 0 < kept.sum() < (whole != 0).sum()
    torch.testing.assert_close(thinned[kept], 2 * whole[kept])


def test_an_even_width() -> None:
    with pytest.raises(ConfigError, match="width 2 has no center; choose an odd width"):
        ResidualConvolution(4, 2)
