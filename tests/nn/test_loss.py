import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from headway.nn import label_smoothed_cross_entropy
from headway.nn.loss import distillation_loss, projected_cross_entropy, r_drop_loss


def test_two_tokens_by_hand() -> None:
    # Logits (ln 3, 0): p = (3/4, 1/4). eps = 0.2: q = (0.9, 0.1) for target 0, (0.1, 0.9) for target 1.
    logits = torch.tensor([[math.log(3), 0.0]] * 2)
    loss = label_smoothed_cross_entropy(logits, torch.tensor([0, 1]), 0.2)
    good, bad = -math.log(3 / 4), -math.log(1 / 4)
    torch.testing.assert_close(loss, torch.tensor([0.9 * good + 0.1 * bad, 0.1 * good + 0.9 * bad]))
    # With the prior (1, 0): q = 0.8 [k = y] + 0.2 [k = 0].
    loss = label_smoothed_cross_entropy(logits, torch.tensor([0, 1]), 0.2, torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(loss, torch.tensor([good, 0.2 * good + 0.8 * bad]))


def test_options_may_be_whole_numbers_as_in_recipes() -> None:
    logits, targets = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([1])
    assert label_smoothed_cross_entropy(logits, targets, 0) == label_smoothed_cross_entropy(logits, targets, 0.0)


@given(smoothing=st.floats(0, 1), scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_equals_pytorchs(smoothing: float, scale: float) -> None:
    logits = (scale * torch.randn(6, 11)).requires_grad_()
    targets = torch.randint(11, (6,))
    ours = label_smoothed_cross_entropy(logits, targets, smoothing)
    theirs = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    (gradient,) = torch.autograd.grad(ours.sum(), logits)
    (expected,) = torch.autograd.grad(theirs.sum(), logits)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("unigram", [False, True])
def test_is_the_divergence_from_the_smoothed_target_plus_its_entropy(unigram: bool) -> None:
    # H(q, p) = KL(q || p) + H(q), q = (1 - eps) [k = y] + eps u.
    logits, targets, smoothing = torch.randn(5, 7), torch.randint(7, (5,)), 0.1
    prior = torch.rand(7).softmax(-1) if unigram else None
    u = torch.full((7,), 1 / 7) if prior is None else prior
    q = (1 - smoothing) * F.one_hot(targets, 7) + smoothing * u
    divergence = F.kl_div(logits.log_softmax(-1), q, reduction="none").sum(-1)
    entropy = -(q * q.log()).sum(-1)
    torch.testing.assert_close(label_smoothed_cross_entropy(logits, targets, smoothing, prior), divergence + entropy)


def test_without_smoothing_is_minus_the_log_probability() -> None:
    logits, targets = torch.randn(5, 7), torch.randint(7, (5,))
    expected = -logits.log_softmax(-1)[torch.arange(5), targets]
    torch.testing.assert_close(label_smoothed_cross_entropy(logits, targets), expected)


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = torch.randn(4, 1000).bfloat16()
    targets = torch.randint(1000, (4,))
    loss = label_smoothed_cross_entropy(logits, targets, 0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, label_smoothed_cross_entropy(logits.float(), targets, 0.1))


def test_the_projected_loss_is_the_sum_over_the_logits() -> None:
    hidden, weight, targets = torch.randn(5, 6), torch.randn(9, 6), torch.randint(9, (5,))
    prior = torch.rand(9).softmax(-1)
    expected = label_smoothed_cross_entropy(hidden @ weight.T, targets, 0.1, prior).sum()
    torch.testing.assert_close(projected_cross_entropy(hidden, weight, targets, 0.1, prior), expected)


# R-Drop.


def test_r_drop_by_hand() -> None:
    """Logits (ln 3, 0) and (-ln 3, 0): p1 = (3/4, 1/4), p2 = (1/4, 3/4), log p1 - log p2 = (ln 3, -ln 3).

    Both divergences are 3/4 ln 3 - 1/4 ln 3 = 1/2 ln 3, and the target, 0, has the probabilities 3/4 and 1/4.
    """
    first, second = torch.tensor([[math.log(3), 0.0]]), torch.tensor([[-math.log(3), 0.0]])
    loss = r_drop_loss(first, second, torch.tensor([0]), 0.0, 5.0)
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(4)) / 2 + 5 / 4 * math.log(3))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_r_drop_is_pytorchs_divergences(smoothing: float) -> None:
    first, second, targets = (*torch.randn(2, 5, 7, dtype=torch.float64), torch.randint(7, (5,)))
    log_first, log_second = first.log_softmax(-1), second.log_softmax(-1)
    forth = F.kl_div(log_first, log_second, reduction="none", log_target=True).sum(-1)
    back = F.kl_div(log_second, log_first, reduction="none", log_target=True).sum(-1)
    mean = sum(label_smoothed_cross_entropy(each, targets, smoothing) for each in (first, second)) / 2
    torch.testing.assert_close(r_drop_loss(first, second, targets, smoothing, 3.0), mean + 3 / 4 * (forth + back))


def test_distillation_by_hand() -> None:
    """With T = 2, logits (2 ln 3, 0) and (0, 0) give q = (3/4, 1/4) and p = (1/2, 1/2)."""
    logits, teacher = torch.zeros(1, 2), torch.tensor([[2 * math.log(3), 0.0]])
    divergence = 3 / 4 * math.log(3 / 2) + 1 / 4 * math.log(1 / 2)
    torch.testing.assert_close(distillation_loss(logits, teacher, 2.0), torch.tensor([4 * divergence]))
    torch.testing.assert_close(distillation_loss(teacher, teacher + 5, 2.0), torch.zeros(1))
