"""Adam with the paper's settings, and equation 3 at values worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from headway.train.optim import OptimizerConfig, learning_rate, make_optimizer


class TestSchedule:
    @pytest.mark.parametrize(
        ("step", "expected"),
        [
            (1, 1 / 8 * 1 / 1000),  # 64^-0.5 x 1 x 100^-1.5
            (50, 1 / 8 * 50 / 1000),
            (100, 1 / 8 * 1 / 10),  # the peak: both terms are 100^-0.5
            (400, 1 / 8 * 1 / 20),  # four times the step, half the rate
        ],
    )
    def test_equation_3(self, step: int, expected: float) -> None:
        config = OptimizerConfig(schedule="paper", learning_rate=1.0, warmup_steps=100)
        assert learning_rate(step, 10**6, config, 64) == pytest.approx(expected, rel=1e-12)

    def test_the_factor_on_equation_3(self) -> None:
        config = OptimizerConfig(schedule="paper", learning_rate=2.0, warmup_steps=4000)
        assert learning_rate(4000, 10**6, config, 512) == pytest.approx(2 / math.sqrt(512 * 4000))

    @pytest.mark.parametrize(("step", "expected"), [(1, 2e-5), (50, 1e-3), (100, 2e-3), (400, 1e-3), (10_000, 2e-4)])
    def test_inverse_square_root_peaks_at_the_learning_rate(self, step: int, expected: float) -> None:
        config = OptimizerConfig(learning_rate=2e-3, warmup_steps=100)
        assert learning_rate(step, 10**6, config, 64) == pytest.approx(expected, rel=1e-12)
        assert learning_rate(step, 10**6, config, 512) == pytest.approx(expected, rel=1e-12)

    def test_rises_to_the_end_of_the_warm_up_and_falls_after_it(self) -> None:
        config = OptimizerConfig(warmup_steps=20)
        rates = [learning_rate(step, 10**6, config, 64) for step in range(1, 60)]
        assert rates[:20] == sorted(rates[:20])
        assert rates[19:] == sorted(rates[19:], reverse=True)
        assert max(rates) == rates[19]

    @pytest.mark.parametrize(
        ("step", "expected"), [(1, 0.02), (50, 1.0), (100, 2.0), (200, 2 * 101 / 201), (300, 2 / 201)]
    )
    def test_linear_would_reach_zero_one_step_after_the_last(self, step: int, expected: float) -> None:
        """Warm-up over 100 steps to 2, then down over the 201 steps from 100 to 301."""
        config = OptimizerConfig(schedule="linear", learning_rate=2.0, warmup_steps=100)
        assert learning_rate(step, 300, config, 64) == pytest.approx(expected, rel=1e-12)


class TestAdam:
    def test_defaults_are_the_papers(self) -> None:
        optimizer = make_optimizer(nn.Linear(2, 2), OptimizerConfig())
        (group,) = optimizer.param_groups
        assert group["betas"] == (0.9, 0.98)
        assert group["eps"] == 1e-9
        assert group["weight_decay"] == 0
        assert len(group["params"]) == 2

    def test_two_steps_by_hand(self) -> None:
        """Kingma and Ba 2015, algorithm 1, with other numbers than the defaults."""
        layer = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            layer.weight.fill_(1.0)
        optimizer = make_optimizer(layer, OptimizerConfig(beta1=0.8, beta2=0.5, epsilon=0.25))
        optimizer.param_groups[0]["lr"] = 0.1
        weight = first = second = 0.0
        weight = 1.0
        for step, gradient in ((1, 2.0), (2, -4.0)):
            layer.weight.grad = torch.full((1, 1), gradient)
            optimizer.step()
            first = 0.8 * first + 0.2 * gradient
            second = 0.5 * second + 0.5 * gradient**2
            weight -= 0.1 * (first / (1 - 0.8**step)) / (math.sqrt(second / (1 - 0.5**step)) + 0.25)
            assert layer.weight.item() == pytest.approx(weight, rel=1e-6)
