"""The moving average: its recursion by hand, exchange with the weights, and skipped steps."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headway.errors import BundleError
from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.training.averaging import MovingAverage
from headway.weights import named_weights

MOVED, STOOD = torch.tensor(True), torch.tensor(False)


def small_model() -> Transformer:
    sizes = {"d_model": 4, "num_heads": 1, "d_ff": 4, "encoder_layers": 1, "decoder_layers": 1}
    return build_model(TransformerConfig.parse(sizes, "test"), 8, 8)


def fill(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def copy_of(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in weights.items()}


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_by_hand() -> None:
    """The decay is 2/11 after the first step and 3/12 after the second, then 0.27, below 4/13."""
    layer = nn.Linear(2, 1)
    fill(layer, 5.0)
    average = MovingAverage(layer, 0.27)
    expected = 5.0
    for step, value, decay in ((1, 1.0, 2 / 11), (2, 2.0, 3 / 12), (3, 4.0, 0.27), (1000, 8.0, 0.27)):
        fill(layer, value)
        average.update(step, MOVED)
        expected = decay * expected + (1 - decay) * value
        for tensor in average.named_weights().values():
            torch.testing.assert_close(tensor, torch.full_like(tensor, expected))


def test_a_skipped_step_does_not_change_it() -> None:
    model = small_model()
    average = MovingAverage(model, 0.9)
    fill(model, 1.0)
    average.update(1, MOVED)
    before = average.named_weights()
    average.update(2, STOOD)
    assert equal(average.named_weights(), before)
    average.update(2, MOVED)
    assert not equal(average.named_weights(), before)


def test_the_average_of_constant_weights_is_the_weights() -> None:
    model = small_model()
    average = MovingAverage(model, 0.999)
    for step in range(1, 5):
        average.update(step, MOVED)
    assert equal(average.named_weights(), named_weights(model))


def test_it_is_put_into_the_model_and_the_weights_are_restored() -> None:
    model = small_model()
    average = MovingAverage(model, 0.9)
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    average.update(1, MOVED)
    own, averaged = copy_of(named_weights(model)), average.named_weights()
    assert not equal(own, averaged)
    with suppress(KeyError), average.swap_into_model():
        assert equal(named_weights(model), averaged)
        raise KeyError  # an evaluation that fails
    assert equal(named_weights(model), own)
    assert equal(average.named_weights(), averaged)
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses


def test_saved_and_loaded_it_continues_bit_for_bit() -> None:
    model = small_model()
    average = MovingAverage(model, 0.9)
    fill(model, 1.0)
    average.update(1, MOVED)
    own, saved = copy_of(named_weights(model)), average.named_weights()
    assert saved.keys() == own.keys()
    other = MovingAverage(model, 0.9)
    other.load(saved, Path("ema.safetensors"))
    assert equal(named_weights(model), own)
    fill(model, 3.0)
    for each in (average, other):
        each.update(2, MOVED)
    assert equal(average.named_weights(), other.named_weights())
    assert not equal(average.named_weights(), saved)


def test_another_models_average_is_refused() -> None:
    model = small_model()
    own = copy_of(named_weights(model))
    with pytest.raises(BundleError, match=r"ema\.safetensors: weight '.+' is missing"):
        MovingAverage(model, 0.9).load({}, Path("ema.safetensors"))
    assert equal(named_weights(model), own)


def test_the_host_does_not_wait_for_the_device(no_waiting: AbstractContextManager[object]) -> None:
    average = MovingAverage(small_model(), 0.9)
    with no_waiting:
        average.update(1, MOVED)
