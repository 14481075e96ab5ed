"""The loss of a batch against its definition, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from headway.data.batching import Batch
from headway.models.build import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.train.objective import batch_loss, to_device

VOCABULARY = 11
CPU = torch.device("cpu")


@pytest.fixture
def model() -> Transformer:
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    return build_model(TransformerConfig.parse(sizes, "test"), VOCABULARY, VOCABULARY)


def batch(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    """Rows with the end symbol, 2, put behind them, then padded."""

    def padded(rows: list[list[int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        width = max(map(len, rows)) + 1
        return np.array([[*row, 2] + [0] * (width - len(row) - 1) for row in rows], np.int64)

    return Batch(padded(sources), padded(targets))


SOURCES, TARGETS = [[5, 6, 7], [8], [4, 9]], [[6], [9, 10, 4, 5], []]


def test_targets_are_shifted_behind_the_begin_symbol() -> None:
    tokens = to_device(batch(SOURCES, TARGETS), CPU)
    assert tokens.target.tolist() == [[6, 2, 0, 0, 0], [9, 10, 4, 5, 2], [2, 0, 0, 0, 0]]
    assert tokens.shifted.tolist() == [[1, 6, 2, 0, 0], [1, 9, 10, 4, 5], [1, 2, 0, 0, 0]]
    assert tokens.num_sources == 4 + 2 + 3
    assert tokens.num_targets == 2 + 5 + 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_definition_token_by_token(model: Transformer, smoothing: float) -> None:
    """-sum_k q(k) log p(k) with q = (1 - eps) [k = y] + eps / V, each sentence alone, without padding."""
    expected = 0.0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]]))
        for log_probs, token in zip(logits[0].log_softmax(-1), [*target, 2], strict=True):
            expected -= (1 - smoothing) * float(log_probs[token]) + smoothing * float(log_probs.mean())
    loss = batch_loss(model, to_device(batch(SOURCES, TARGETS), CPU), smoothing)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_smoothing_changes_the_loss(model: Transformer) -> None:
    tokens = to_device(batch(SOURCES, TARGETS), CPU)
    assert abs(float((batch_loss(model, tokens, 0.1) - batch_loss(model, tokens, 0.0)).detach())) > 1e-3


def gradients(model: Transformer, batches: list[Batch]) -> list[Tensor]:
    """Of the mean over all real target tokens, summed up batch by batch."""
    tokens = [to_device(one, CPU) for one in batches]
    total = sum(one.num_targets for one in tokens)
    model.zero_grad()
    for one in tokens:
        (batch_loss(model, one, 0.1) / total).backward()  # type: ignore[no-untyped-call]
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_two_micro_batches_give_the_gradient_of_one_batch(model: Transformer) -> None:
    apart = gradients(model, [batch(SOURCES[:1], TARGETS[:1]), batch(SOURCES[1:], TARGETS[1:])])
    together = gradients(model, [batch(SOURCES, TARGETS)])
    assert len(apart) == len(list(model.parameters()))
    assert max(float(gradient.abs().max()) for gradient in together) > 1e-3
    for one, other in zip(apart, together, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
