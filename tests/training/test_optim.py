"""Schedules and optimizers against values worked by hand; steps that are not finite change nothing."""

from __future__ import annotations

import copy
import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn import TokenEmbedding
from headway.training.checkpoints import Checkpoints
from headway.training.optim import (
    OptimizerConfig,
    clip_and_step,
    depends_on_total_steps,
    learning_rate,
    learning_rate_warning,
    make_optimizer,
)
from headway.training.snapshot import Progress, Snapshot, load_snapshot, optimizer_moments, prefixed_tensors
from headway.weights import named_weights

Kind = Literal["adam", "adafactor", "muon"]


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

    def test_the_rate_rises_until_the_end_of_the_warm_up_and_then_falls(self) -> None:
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

    @pytest.mark.parametrize(("step", "share"), [(50, 0.5), (100, 1.0), (167, 5 / 6), (301, 0.5), (400, 0.5)])
    def test_linear_falls_to_a_fraction(self, step: int, share: float) -> None:
        """From 1 at step 100 to 1/2 at step 301: the first 67 of these 201 steps take off a third of a half."""
        config = OptimizerConfig(schedule="linear", learning_rate=3.0, warmup_steps=100, final_fraction=0.5)
        assert learning_rate(step, 300, config, 64) == pytest.approx(3 * share, rel=1e-12)

    @pytest.mark.parametrize(
        ("step", "share"),
        [
            (50, 0.5),  # the warm-up
            (100, 1.0),  # cos 0 = 1
            (200, 0.2 + 0.8 * 0.75),  # a third of the way, cos 60 degrees = 1/2: (1 + 1/2) / 2
            (250, 0.2 + 0.8 * 0.5),  # half of the way, cos 90 degrees = 0
            (300, 0.2 + 0.8 * 0.25),
            (400, 0.2),  # one step after the last, and from then on
            (500, 0.2),
        ],
    )
    def test_cosine(self, step: int, share: float) -> None:
        config = OptimizerConfig(schedule="cosine", learning_rate=3.0, warmup_steps=100, final_fraction=0.2)
        assert learning_rate(step, 399, config, 64) == pytest.approx(3 * share, rel=1e-12)

    @pytest.mark.parametrize(("step", "share"), [(1, 0.01), (100, 1.0), (101, 1.0), (10**6, 1.0)])
    def test_constant(self, step: int, share: float) -> None:
        config = OptimizerConfig(schedule="constant", learning_rate=3.0, warmup_steps=100)
        assert learning_rate(step, 10**6, config, 64) == pytest.approx(3 * share, rel=1e-12)

    @pytest.mark.parametrize(
        ("every", "halved_after"), [(None, [100, 200]), (100, [100, 200]), (70, [70, 140, 210, 280])]
    )
    def test_halving_at_thirds_of_the_training_or_at_intervals(
        self, every: int | None, halved_after: list[int]
    ) -> None:
        config = OptimizerConfig(schedule="halve_every", learning_rate=8.0, warmup_steps=1, halve_every=every)
        rates = [learning_rate(step, 300, config, 64) for step in range(1, 301)]
        assert rates[0] == 8.0
        assert [step for step in range(1, 300) if rates[step] == rates[step - 1] / 2] == halved_after
        assert len(set(rates)) == 1 + len(halved_after)

    def test_schedules_that_depend_on_the_length_of_the_training(self) -> None:
        for schedule in ("inverse_sqrt", "linear", "cosine", "constant", "halve_every", "paper"):
            for every in (None, 7):
                config = OptimizerConfig(schedule=schedule, halve_every=every, warmup_steps=3)
                short, long = ([learning_rate(step, steps, config, 64) for step in range(1, 31)] for steps in (30, 60))
                assert depends_on_total_steps(config) == (short != long)


def small_model() -> Transformer:
    sizes = {"d_model": 4, "num_heads": 1, "d_ff": 4, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    return build_model(TransformerConfig.parse(sizes, "test"), 8, 8)


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def optimizer_of(model: nn.Module, kind: Kind = "adam", **settings: Any) -> torch.optim.Optimizer:
    optimizer = make_optimizer(model, OptimizerConfig(kind=kind, **settings), [model] if kind == "muon" else [])
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    return optimizer


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return copies of weights, moments and step counters."""
    moments = [tensor for parameter in model.parameters() for _, tensor in sorted(optimizer.state[parameter].items())]
    return [tensor.detach().clone() for tensor in (*model.parameters(), *moments)]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


class TestAdam:
    def test_defaults_are_the_paper_s(self) -> None:
        optimizer = make_optimizer(nn.Linear(2, 2), OptimizerConfig())
        for group in optimizer.param_groups:
            assert group["betas"] == (0.9, 0.98)
            assert group["eps"] == 1e-9
            assert group["weight_decay"] == 0
        assert sum(len(group["params"]) for group in optimizer.param_groups) == 2

    def test_two_steps_by_hand(self) -> None:
        """Kingma and Ba 2015, algorithm 1, with values that are not the defaults."""
        layer = nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            layer.weight.fill_(1.0)
        optimizer = make_optimizer(layer, OptimizerConfig(beta1=0.8, beta2=0.5, epsilon=0.25))
        optimizer.param_groups[0]["lr"] = 0.1
        weight, first, second = 1.0, 0.0, 0.0
        for step, gradient in ((1, 2.0), (2, -4.0)):
            layer.weight.grad = torch.full((1, 1), gradient)
            optimizer.step()
            first = 0.8 * first + 0.2 * gradient
            second = 0.5 * second + 0.5 * gradient**2
            weight -= 0.1 * (first / (1 - 0.8**step)) / (math.sqrt(second / (1 - 0.5**step)) + 0.25)
            assert layer.weight.item() == pytest.approx(weight, rel=1e-6)


@pytest.mark.parametrize("kind", ["adam", "adafactor"])
class TestWeightDecay:
    def test_without_a_gradient_only_matrices_decay(self, kind: Kind) -> None:
        """Decoupled from the gradient (0 here): w <- w - 0.01 x 0.5 w."""
        model = nn.ModuleDict({"embedding": TokenEmbedding(5, 4), "linear": nn.Linear(4, 3), "norm": nn.LayerNorm(4)})
        optimizer = optimizer_of(model, kind, weight_decay=0.5)
        before = copy.deepcopy(model.state_dict())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        for name, weight in model.state_dict().items():
            shrunk = name in {"embedding.weight", "linear.weight"}
            torch.testing.assert_close(weight, before[name] * 0.995 if shrunk else before[name])

    def test_frozen_weights_are_left_out(self, kind: Kind) -> None:
        layer = nn.Linear(3, 2)
        layer.weight.requires_grad_(False)
        optimizer = make_optimizer(layer, OptimizerConfig(kind=kind))
        assert [parameter for group in optimizer.param_groups for parameter in group["params"]] == [layer.bias]


def test_a_step_of_adafactor_by_hand() -> None:
    """Shazeer and Stern 2018, algorithm 4, first step, where beta2 is 0, so that the moments are the gradient's alone.

    Squared gradients (1, 4; 4, 16) are of rank one, so their row means (2.5, 10), column means (2.5, 10) and overall
    mean 6.25 give them back exactly, and the update is the gradient's sign, whose root mean square is 1. The weight's
    is 2: each element moves by 2 x 0.01.
    """
    layer = nn.Linear(2, 2, bias=False)
    optimizer = optimizer_of(layer, "adafactor")
    with torch.no_grad():
        layer.weight.fill_(2.0)
    layer.weight.grad = torch.tensor([[1.0, -2.0], [2.0, 4.0]])
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), torch.tensor([[1.98, 2.02], [1.98, 1.98]]))


@pytest.mark.parametrize("kind", ["adam", "adafactor", "muon"])
def test_training_restored_from_a_checkpoint_continues_bit_for_bit(tmp_path: Path, kind: Kind) -> None:
    model, other = small_model(), small_model()
    optimizer, restored = optimizer_of(model, kind), optimizer_of(other, kind)
    for seed in (1, 2):
        give_gradients(model, seed)
        clip_and_step(optimizer)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        tensors = prefixed_tensors(weights=named_weights(model), moments=optimizer_moments(model, optimizer))
        checkpoints.save(Snapshot(Progress(step=2), tensors))
        found = checkpoints.load_newest()
        assert found is not None
        load_snapshot(found[1], found[0], other, restored)
    assert equal(everything(model, optimizer), everything(other, restored))
    give_gradients(model, 3)
    give_gradients(other, 3)
    assert clip_and_step(optimizer)
    assert clip_and_step(restored)
    assert equal(everything(model, optimizer), everything(other, restored))


class TestStepIfFinite:
    @pytest.mark.parametrize("kind", ["adam", "adafactor", "muon"])
    @pytest.mark.parametrize("clip_norm", [None, 0.5])
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_one_value_that_is_not_finite_skips_the_step(self, kind: Kind, clip_norm: float | None, bad: float) -> None:
        model = small_model()
        optimizer = optimizer_of(model, kind, weight_decay=0.1)
        give_gradients(model, 0)
        assert clip_and_step(optimizer, clip_norm)
        before = everything(model, optimizer)
        give_gradients(model, 1)
        *_, last = model.parameters()
        assert last.grad is not None
        last.grad.flatten()[-1] = bad
        assert not clip_and_step(optimizer, clip_norm)
        assert equal(everything(model, optimizer), before)
        give_gradients(model, 1)
        assert clip_and_step(optimizer, clip_norm)
        assert not equal(everything(model, optimizer), before)

    @pytest.mark.parametrize("kind", ["adam", "adafactor"])
    @pytest.mark.parametrize("clip_norm", [0.5, 1e6])
    def test_clips_as_pytorch_does(self, kind: Kind, clip_norm: float) -> None:
        """The norm is about 15, so that 0.5 clips and a million does not."""
        model = small_model()
        other = copy.deepcopy(model)
        optimizer, plain = optimizer_of(model, kind), optimizer_of(other, kind)
        for seed in (0, 1, 2):
            give_gradients(model, seed)
            give_gradients(other, seed)
            clip_and_step(optimizer, clip_norm)
            torch.nn.utils.clip_grad_norm_(other.parameters(), clip_norm)
            plain.step()
        for ours, theirs in zip(everything(model, optimizer), everything(other, plain), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize("kind", ["adam", "adafactor"])
    def test_without_clipping_the_step_is_the_optimizer_s(self, kind: Kind) -> None:
        model = small_model()
        other = copy.deepcopy(model)
        optimizer, plain = optimizer_of(model, kind), optimizer_of(other, kind)
        for seed in (0, 1):
            give_gradients(model, seed)
            give_gradients(other, seed)
            clip_and_step(optimizer)
            plain.step()
        assert equal(everything(model, optimizer), everything(other, plain))

    @pytest.mark.parametrize("clip_norm", [None, 0.5])
    def test_the_host_does_not_wait_for_the_device(
        self, no_waiting: AbstractContextManager[object], clip_norm: float | None
    ) -> None:
        model = small_model()
        optimizer = optimizer_of(model)
        give_gradients(model, 0)
        clip_and_step(optimizer, clip_norm)  # the first step of a process tries the kernel on a tiny tensor
        with no_waiting:
            finite = clip_and_step(optimizer, clip_norm)
        assert finite

    def test_the_skip_flag_does_not_outlast_the_step(self) -> None:
        """A later call of ``optimizer.step`` is not skipped."""
        layer = nn.Linear(2, 2)
        optimizer = optimizer_of(layer)
        for parameter in layer.parameters():
            parameter.grad = torch.full_like(parameter, math.nan)
        assert not clip_and_step(optimizer, 1.0)
        before = layer.weight.detach().clone()
        give_gradients(layer, 0)
        optimizer.step()
        assert not torch.equal(layer.weight, before)


class TestDefaultLearningRate:
    def test_the_paper_s_factor_is_one_and_other_schedules_peak_at_7e_4(self) -> None:
        """Equation 3 with d_model 512 and 4,000 warm-up steps peaks at (512 x 4000)^-0.5, which is near 7e-4."""
        paper, other = OptimizerConfig(schedule="paper"), OptimizerConfig()
        assert paper.learning_rate == 1.0
        assert learning_rate(4000, 100_000, paper, 512) == pytest.approx((512 * 4000) ** -0.5)
        assert learning_rate(4000, 100_000, other, 512) == 7e-4
        assert OptimizerConfig(schedule="paper", learning_rate=2.0).learning_rate == 2.0

    def test_a_resolved_recipe_writes_the_number(self) -> None:
        saved = OptimizerConfig(schedule="paper").as_dict()
        assert saved["learning_rate"] == 1.0
        old = {**saved, "learning_rate": 7e-4}  # written before the default depended on the schedule
        assert OptimizerConfig.parse(old, "recipe").learning_rate == 7e-4

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (
                {"schedule": "paper", "learning_rate": 7e-4},
                "learn almost nothing; with schedule = 'paper' it is a factor",
            ),
            ({"learning_rate": 5.0}, "will probably diverge; usual values are near 0.0007"),
            ({"schedule": "paper"}, None),
            ({}, None),
            ({"kind": "adafactor", "learning_rate": 1.0}, None),
        ],
    )
    def test_a_peak_far_outside_the_usual_range_causes_a_warning(
        self, settings: dict[str, Any], message: str | None
    ) -> None:
        warning = learning_rate_warning(OptimizerConfig.parse(settings, "test"), 512)
        assert (warning is None) == (message is None)
        assert message is None or (warning is not None and message in warning)
