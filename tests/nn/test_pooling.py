"""Pooling: worked out by hand, and independent of positions that do not count."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from headway.nn.attention import record_attention
from headway.nn.pooling import AttentionPooling, Pooling, PoolingKind

X = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [5.0, 9.0]]])
TWO = torch.tensor([[True, True, False]])
KINDS = get_args(PoolingKind)


def make(kind: PoolingKind, d_model: int) -> Pooling | AttentionPooling:
    return AttentionPooling(d_model) if kind == "attention" else Pooling(kind, d_model)


class TestByHand:
    @pytest.mark.parametrize(
        ("kind", "of_all", "of_two"),
        [
            ("mean", [3.0, 1.0], [2.0, -3.0]),
            ("max", [5.0, 9.0], [3.0, -2.0]),
            ("mean_max", [3.0, 1.0, 5.0, 9.0], [2.0, -3.0, 3.0, -2.0]),
            ("first", [1.0, -4.0], [1.0, -4.0]),
            ("last", [5.0, 9.0], [3.0, -2.0]),
        ],
    )
    def test_without_weights(self, kind: PoolingKind, of_all: list[float], of_two: list[float]) -> None:
        pooling = make(kind, 2)
        assert pooling(X)[0].tolist() == pytest.approx(of_all)
        assert pooling(X, TWO)[0].tolist() == pytest.approx(of_two)
        assert pooling.width == len(of_all)

    def test_attention(self) -> None:
        # Scores tanh(x_1) + 0 * tanh(x_2), so weights in proportion to exp(tanh 1) and exp(tanh 3).
        pooling = AttentionPooling(2)
        with torch.no_grad():
            pooling.inner.weight.copy_(torch.eye(2))
            pooling.question.weight.copy_(torch.tensor([[1.0, 0.0]]))
        first, second = math.exp(math.tanh(1)), math.exp(math.tanh(3))
        expected = [(first * 1 + second * 3) / (first + second), (first * -4 + second * -2) / (first + second)]
        assert pooling(X, TWO)[0].tolist() == pytest.approx(expected)

    def test_the_first_that_counts(self) -> None:
        mask = torch.tensor([[False, True, True]])
        assert Pooling("first", 2)(X, mask)[0].tolist() == [3.0, -2.0]


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    def test_a_full_mask_is_no_mask(self, kind: PoolingKind) -> None:
        pooling, x = make(kind, 4), torch.randn(3, 5, 4)
        torch.testing.assert_close(pooling(x, torch.ones(3, 5, dtype=torch.bool)), pooling(x))

    def test_padding_changes_nothing(self, kind: PoolingKind) -> None:
        pooling, x = make(kind, 4), torch.randn(3, 5, 4)
        mask = torch.arange(5) < torch.tensor([[2], [5], [1]])
        pooled = pooling(x, mask)
        for row, length in enumerate((2, 5, 1)):
            torch.testing.assert_close(pooled[row], pooling(x[row : row + 1, :length])[0])
        torch.testing.assert_close(pooling(x.masked_fill(~mask.unsqueeze(2), 1e6), mask), pooled)

    def test_where_nothing_counts(self, kind: PoolingKind) -> None:
        pooling, x = make(kind, 4), torch.randn(2, 3, 4, requires_grad=True)
        mask = torch.tensor([[False, False, False], [True, False, False]])
        pooled: Tensor = pooling(x, mask)
        assert pooled[0].tolist() == [0.0] * pooling.width
        pooled.sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert not x.grad[0].any()

    def test_gradients(self, kind: PoolingKind) -> None:
        pooling = make(kind, 2).double()
        x = torch.randn(2, 3, 2, dtype=torch.double, requires_grad=True)
        mask = torch.tensor([[True, True, False], [True, True, True]])
        assert torch.autograd.gradcheck(lambda x: pooling(x, mask), (x,))


def test_an_observer_sees_the_weights_and_changes_nothing() -> None:
    pooling, x = AttentionPooling(4), torch.randn(2, 3, 4)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    before = pooling(x, mask)
    with record_attention(pooling) as seen:
        assert torch.equal(pooling(x, mask), before)
    assert seen[0].shape == (2, 1, 1, 3)
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(2, 1, 1))
    assert seen[0][0, 0, 0, 2] == 0
    torch.testing.assert_close((seen[0].squeeze(1) @ x).squeeze(1), before)
