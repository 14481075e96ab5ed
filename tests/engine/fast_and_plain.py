"""Compare the accelerated form of a model with its plain form, for any configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
import torch
from config_variants import plain_forward_options
from torch import Tensor, nn

from headway.engine import local_attention
from headway.engine.accelerate import accelerate, layer_accelerations
from headway.engine.loss import projected_cross_entropy as chunked_loss
from headway.models.registry import architecture_of, build_model
from headway.nn.attention import MultiHeadAttention
from headway.nn.loss import label_smoothed_cross_entropy, projected_cross_entropy

__all__ = [
    "VOCABULARY",
    "assert_equal_outcomes",
    "assert_fast_where_possible",
    "attention_outcome",
    "build",
    "small_blocks",
]

VOCABULARY = 20
_NUM_LABELS = 3
_Outcome = tuple[Tensor, Tensor, dict[str, Tensor]]


def assert_fast_where_possible(config: Any, model: nn.Module) -> None:
    """Check that layers of an accelerated model are plain only because of options that ``PLAIN_FORWARD`` lists."""
    reasons = {
        reason
        for form in layer_accelerations(model)
        if form.plain_reason is not None
        for reason in form.plain_reason.split(", ")
    }
    assert {reason.partition(" = ")[0] for reason in reasons} == plain_forward_options(config), (
        f"{reasons}: list what has a fast form in headway/engine/accelerate.py, and what has none in PLAIN_FORWARD of "
        "tests/config_variants.py"
    )


def build(config: Any) -> Any:
    """Build a plain model. Its biases and norms do not have their initial values.

    Small initial weights are multiplied by 5: without residual connections, such a model would compute zeros.
    """
    torch.manual_seed(0)
    model = build_model(config, VOCABULARY, _NUM_LABELS if config.kind == "classifier" else VOCABULARY)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=float(parameter.detach().mean()), std=0.1)
        elif config.kind == "decoder_only":
            parameter.data *= 5
    return model


@contextmanager
def small_blocks() -> Iterator[None]:
    """Make restricted self-attention divide even the short sequences of these tests into blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_attention, "_MIN_BLOCK", 2)
        patch.setattr(local_attention, "_MIN_LENGTH", 1)
        yield


def assert_equal_outcomes(config: Any, dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16)) -> None:
    """Compare output, loss and gradients, in training with dropout and in evaluation mode.

    float32: relative errors below 1e-4. bfloat16: at most three times the plain form's distance from float32, plus 5 %
    for output and loss, and 20 % for gradients. If rounding switches one ReLU, gradients of this small model change by
    up to 15 %; a missing mask, bias or term changes them by 30 % and more.
    """
    plain = build(config)
    fast = accelerate(deepcopy(plain))
    for training in (True, False):
        plain.train(training)
        fast.train(training)
        exact = _outcome(plain, projected_cross_entropy, torch.float32)
        if torch.float32 in dtypes:
            found = _outcome(fast, chunked_loss, torch.float32)
            assert max(_errors(found, exact)) < 1e-4
            scale = max(float(gradient.norm()) for gradient in exact[2].values())
            for name, gradient in exact[2].items():
                assert float((found[2][name] - gradient).norm()) < 1e-4 * (float(gradient.norm()) + scale), name
        if torch.bfloat16 in dtypes and training:
            limits = _errors(_outcome(plain, projected_cross_entropy, torch.bfloat16), exact)
            found = _outcome(fast, chunked_loss, torch.bfloat16)
            for error, limit, slack in zip(_errors(found, exact), limits, (0.05, 0.05, 0.2), strict=True):
                assert error < slack + 3 * limit


def _tokens() -> tuple[Tensor, Tensor]:
    """Return sources and targets of unequal lengths, padded with zeros."""
    generator = torch.Generator().manual_seed(1)
    source, target = (torch.randint(3, VOCABULARY, (5, n), generator=generator) for n in (11, 9))
    for row in range(5):
        source[row, 11 - row :], target[row, 9 - row :] = 0, 0
    return source, target


def _outcome(model: Any, loss: Any, dtype: torch.dtype) -> _Outcome:
    """Return the model's output, its loss and all gradients. Dropout is seeded."""
    source, target = _tokens()
    model.zero_grad()
    torch.manual_seed(7)
    with small_blocks(), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        if hasattr(model, "hidden"):
            of_one_text = architecture_of(model.config).capability in ("continues", "fills")
            hidden = model.hidden(target) if of_one_text else model.hidden(source, target)
            output = hidden.flatten(0, 1)[target.flatten() != 0]
            output = model.head(output) if model.config.kind == "masked" else output
            total = loss(output, model.projection.weight, target[target != 0], 0.1)
        else:
            output = model(source)
            total = label_smoothed_cross_entropy(output, torch.arange(5) % _NUM_LABELS, 0.1).sum()
    total.backward()
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return output.detach().float(), total.detach(), gradients


def _errors(found: _Outcome, expected: _Outcome) -> list[float]:
    """Return the relative errors of the output, the loss and the concatenated gradients."""
    assert found[2].keys() == expected[2].keys()
    flat = [(*each[:2], torch.cat([gradient.flatten() for gradient in each[2].values()])) for each in (found, expected)]
    return [_relative_error(*pair) for pair in zip(*flat, strict=True)]


def _relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def attention_outcome(layer: MultiHeadAttention, x: Tensor, mask: Any) -> list[Tensor]:
    """Return the output of an attention layer and all gradients."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(5)
    out = layer(x, mask=mask)
    out.pow(2).sum().backward()
    assert x.grad is not None
    return [out.detach(), x.grad, *(each.grad for each in layer.parameters() if each.grad is not None)]
