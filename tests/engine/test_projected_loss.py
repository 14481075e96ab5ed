"""The chunked losses compared with their definitions."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.engine.loss import (
    projected_cross_entropy,
    projected_distillation_loss,
    projected_log_probs,
    projected_r_drop,
)
from headway.nn.loss import distillation_loss, label_smoothed_cross_entropy, r_drop_loss

# The chunked loss against the definition.


@pytest.mark.parametrize("rows", [1, 2048, 4100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("unigram", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_projected_in_chunks_equals_the_definition(rows: int, smoothing: float, unigram: bool, biased: bool) -> None:
    # 4,100 rows are three chunks of at most 2,048.
    hidden, weight = torch.randn(rows, 6, requires_grad=True), torch.randn(9, 6, requires_grad=True)
    targets = torch.randint(9, (rows,))
    prior = torch.rand(9).softmax(-1) if unigram else None
    bias = torch.randn(9, requires_grad=True) if biased else None
    ours = projected_cross_entropy(hidden, weight, targets, smoothing, prior, bias)
    definition = label_smoothed_cross_entropy(F.linear(hidden, weight, bias), targets, smoothing, prior).sum()
    torch.testing.assert_close(ours, definition)
    variables = [each for each in (hidden, weight, bias) if each is not None]
    found = torch.autograd.grad(3 * ours, variables)
    expected = torch.autograd.grad(3 * definition, variables)
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-4, rtol=1e-4)


def test_projected_without_gradients_and_in_autocast() -> None:
    hidden, weight, targets = torch.randn(700, 6), torch.randn(9, 6), torch.randint(9, (700,))
    exact = label_smoothed_cross_entropy(hidden @ weight.T, targets, 0.1).sum()
    torch.testing.assert_close(projected_cross_entropy(hidden, weight, targets, 0.1), exact)
    hidden.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        halved = projected_cross_entropy(hidden, weight, targets, 0.1)
    assert halved.dtype == torch.float32
    torch.testing.assert_close(halved, exact, rtol=1e-2, atol=0)
    (gradient,) = torch.autograd.grad(halved, hidden)
    assert gradient.dtype == torch.float32


def test_both_gradients_of_the_projected_loss_are_scaled_alike_in_bfloat16() -> None:
    """1 / 2737 is no bfloat16. Rounded before the product, it would scale one gradient by 1.0013 but not the other."""
    hidden = torch.randn(40, 16).bfloat16().requires_grad_()
    weight = torch.randn(30, 16, requires_grad=True)
    targets = torch.randint(0, 30, (40,))
    whole = torch.autograd.grad(projected_cross_entropy(hidden, weight, targets, 0.1), (hidden, weight))
    scaled = torch.autograd.grad(projected_cross_entropy(hidden, weight, targets, 0.1) / 2737, (hidden, weight))
    for full, part in zip(whole, scaled, strict=True):
        expected = (full.double() / 2737).to(full.dtype)
        torch.testing.assert_close(part, expected, rtol=2**-8 if full.dtype == torch.bfloat16 else 1e-6, atol=0.0)
    ratios = scaled[0].double() * 2737 / whole[0].double()
    assert ratios.mean().item() == pytest.approx(1.0, abs=3e-4)


def test_without_gradients_the_projected_loss_is_the_same() -> None:
    hidden, weight = torch.randn(40, 16), torch.randn(30, 16, requires_grad=True)
    targets = torch.randint(0, 30, (40,))
    with torch.no_grad():
        without = projected_cross_entropy(hidden, weight, targets, 0.1)
    assert without.item() == projected_cross_entropy(hidden, weight, targets, 0.1).item()
    assert not without.requires_grad


def test_a_prior_may_be_float64() -> None:
    hidden, weight, targets = torch.randn(4, 8), torch.randn(5, 8), torch.randint(0, 5, (4,))
    prior = torch.rand(5, dtype=torch.float64).softmax(0)
    expected = label_smoothed_cross_entropy(hidden @ weight.T, targets, 0.1, prior.float()).sum()
    torch.testing.assert_close(projected_cross_entropy(hidden, weight, targets, 0.1, prior), expected)


# R-Drop.


def test_r_drop_by_hand() -> None:
    """Logits (ln 3, 0) and (-ln 3, 0): p1 = (3/4, 1/4), p2 = (1/4, 3/4), log p1 - log p2 = (ln 3, -ln 3).

    Both divergences are 3/4 ln 3 - 1/4 ln 3 = 1/2 ln 3, and the target, 0, has the probabilities 3/4 and 1/4.
    """
    weight = torch.tensor([[math.log(3)], [0.0]])
    loss = projected_r_drop(torch.ones(1, 1), -torch.ones(1, 1), weight, torch.tensor([0]), 0.0, 5.0)
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(4)) / 2 + 5 / 4 * math.log(3))


def r_drop(
    one: Tensor,
    two: Tensor,
    weight: Tensor,
    targets: Tensor,
    smoothing: float,
    alpha: float,
    bias: Tensor | None = None,
    prior: Tensor | None = None,
) -> Tensor:
    logits = F.linear(one, weight, bias), F.linear(two, weight, bias)
    return r_drop_loss(*logits, targets, smoothing, alpha, prior).sum()


@pytest.mark.parametrize("rows", [1, 2100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.0, 5.0])
@pytest.mark.parametrize("biased", [False, True])
def test_r_drop_in_chunks_equals_the_definition(rows: int, smoothing: float, alpha: float, biased: bool) -> None:
    # 2,100 rows are three chunks of at most 1,024.
    generator = torch.Generator().manual_seed(3)
    one, two, weight = (
        torch.randn(size, 6, dtype=torch.float64, generator=generator).requires_grad_() for size in (rows, rows, 9)
    )
    targets = torch.randint(9, (rows,), generator=generator)
    bias = torch.randn(9, dtype=torch.float64, generator=generator).requires_grad_() if biased else None
    prior = torch.randn(9, dtype=torch.float64, generator=generator).softmax(-1) if biased else None
    ours = projected_r_drop(one, two, weight, targets, smoothing, alpha, bias, prior)
    definition = r_drop(one, two, weight, targets, smoothing, alpha, bias, prior)
    torch.testing.assert_close(ours, definition, rtol=1e-12, atol=0)
    variables = [each for each in (one, two, weight, bias) if each is not None]
    found = torch.autograd.grad(3 * ours, variables)
    expected = torch.autograd.grad(3 * definition, variables)
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-12)


def test_r_drop_of_two_equal_passes_is_the_cross_entropy_of_one() -> None:
    hidden, weight, targets = torch.randn(70, 6), torch.randn(9, 6), torch.randint(9, (70,))
    single = projected_cross_entropy(hidden, weight, targets, 0.1)
    torch.testing.assert_close(projected_r_drop(hidden, hidden, weight, targets, 0.1, 5.0), single)


def test_r_drop_without_weight_is_the_mean_of_two_cross_entropies() -> None:
    one, two, weight, targets = torch.randn(70, 6), torch.randn(70, 6), torch.randn(9, 6), torch.randint(9, (70,))
    mean = sum(projected_cross_entropy(hidden, weight, targets, 0.1) for hidden in (one, two)) / 2
    torch.testing.assert_close(projected_r_drop(one, two, weight, targets, 0.1, 0.0), mean)


def test_r_drop_in_autocast() -> None:
    one, two, weight = (torch.randn(size, 6, requires_grad=True) for size in (700, 700, 9))
    targets = torch.randint(9, (700,))
    with torch.autocast("cpu", torch.bfloat16):
        halved = projected_r_drop(one, two, weight, targets, 0.1, 5.0)
    exact = r_drop(one, two, weight, targets, 0.1, 5.0)
    assert halved.dtype == torch.float32
    torch.testing.assert_close(halved, exact, rtol=1e-2, atol=0)
    found = torch.autograd.grad(halved, (one, two, weight))
    expected = torch.autograd.grad(exact, (one, two, weight))
    for gradient, other in zip(found, expected, strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - other).norm() < 0.02 * other.norm()


@pytest.mark.parametrize("rows", [1, 1025])
def test_distillation_in_chunks_equals_the_definition(rows: int) -> None:
    hidden, projection = torch.randn(rows, 6, requires_grad=True), nn.Linear(6, 9)
    teacher_hidden, teacher = torch.randn(rows, 4), nn.Linear(4, 9).requires_grad_(False)
    ours = projected_distillation_loss(hidden, projection, teacher_hidden, teacher, 1.5)
    definition = distillation_loss(projection(hidden), teacher(teacher_hidden), 1.5).sum()
    torch.testing.assert_close(ours, definition)
    learned = (hidden, projection.weight, projection.bias)
    found, expected = (torch.autograd.grad(loss, learned) for loss in (ours, definition))
    for gradient, other in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-4, rtol=1e-4)


def test_log_probabilities_in_chunks() -> None:
    hidden, projection, targets = torch.randn(300, 6), nn.Linear(6, 9), torch.randint(9, (300,))
    expected = projection(hidden).log_softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(projected_log_probs(hidden, projection, targets), expected)
