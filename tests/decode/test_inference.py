"""Functions in inference mode compute without gradients, whoever calls them, and leave the mode as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headway.decode.inference import in_inference_mode


@in_inference_mode
def double(x: Tensor) -> Tensor:
    return 2 * x


def test_it_computes_in_inference_mode_and_leaves_it() -> None:
    assert double(torch.ones(1, requires_grad=True)).is_inference()
    assert not torch.is_inference_mode_enabled()


def test_it_stays_in_inference_mode_if_the_caller_is_in_it() -> None:
    with torch.inference_mode():
        assert double(torch.ones(1)).is_inference()
        assert torch.is_inference_mode_enabled()


def test_it_does_not_enter_the_mode_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError

    with torch.inference_mode():
        monkeypatch.setattr(torch, "inference_mode", fail)
        assert double(torch.ones(1)).item() == 2


def test_an_error_leaves_the_mode() -> None:
    @in_inference_mode
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not torch.is_inference_mode_enabled()
