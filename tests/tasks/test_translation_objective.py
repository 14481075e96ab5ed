"""The loss of a batch against its definition, token by token."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from headway.data.batching import PaddedBatch
from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.tasks.translation import TranslationObjective
from headway.training.stream import to_device

VOCABULARY = 11
CPU = torch.device("cpu")


@pytest.fixture
def model() -> Transformer:
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    return build_model(TransformerConfig.parse(sizes, "test"), VOCABULARY, VOCABULARY)


def batch(sources: list[list[int]], targets: list[list[int]]) -> PaddedBatch:
    """Return a batch of padded rows, each followed by EOS (2)."""

    def padded(rows: list[list[int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        width = max(map(len, rows)) + 1
        return np.array([[*row, 2] + [0] * (width - len(row) - 1) for row in rows], np.int64)

    return PaddedBatch(padded(sources), padded(targets))


SOURCES, TARGETS = [[5, 6, 7], [8], [4, 9]], [[6], [9, 10, 4, 5], []]


def test_targets_are_shifted_and_begin_with_bos() -> None:
    tokens = to_device(batch(SOURCES, TARGETS), CPU)
    assert tokens.targets.tolist() == [6, 2, 9, 10, 4, 5, 2, 2]
    assert tokens.target_positions.tolist() == [0, 1, 5, 6, 7, 8, 9, 10]
    assert tokens.decoder_input.tolist() == [[1, 6, 2, 0, 0], [1, 9, 10, 4, 5], [1, 2, 0, 0, 0]]


@pytest.mark.parametrize("r_drop", [0.0, 0.7])
def test_an_output_bias_is_part_of_loss_and_gradient(r_drop: float) -> None:
    """Two equal passes have no divergence, so with R-Drop and no dropout the loss is the same."""
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    model = build_model(TransformerConfig.parse({**sizes, "output_bias": True}, "test"), VOCABULARY, VOCABULARY)
    torch.nn.init.normal_(model.projection.bias)
    tokens = to_device(batch(SOURCES, TARGETS), CPU)
    logits = model(tokens.source, tokens.decoder_input).flatten(0, 1)[tokens.target_positions]
    expected = torch.nn.functional.cross_entropy(logits, tokens.targets, label_smoothing=0.1, reduction="sum")
    expected_gradients = torch.autograd.grad(expected, list(model.parameters()))
    loss = TranslationObjective(model, 0.1, r_drop)(tokens)
    torch.testing.assert_close(loss, expected)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(gradients, expected_gradients)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_definition_token_by_token(model: Transformer, smoothing: float) -> None:
    """-sum_k q(k) log p(k) with q = (1 - eps) [k = y] + eps / V, each sentence alone, without padding."""
    expected = 0.0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*source, 2]]), torch.tensor([[1, *target]]))
        for log_probs, token in zip(logits[0].log_softmax(-1), [*target, 2], strict=True):
            expected -= (1 - smoothing) * float(log_probs[token]) + smoothing * float(log_probs.mean())
    loss = TranslationObjective(model, smoothing)(to_device(batch(SOURCES, TARGETS), CPU))
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_smoothing_changes_the_loss(model: Transformer) -> None:
    tokens = to_device(batch(SOURCES, TARGETS), CPU)
    assert (
        abs(float((TranslationObjective(model, 0.1)(tokens) - TranslationObjective(model, 0.0)(tokens)).detach()))
        > 1e-3
    )


def gradients(model: Transformer, batches: list[PaddedBatch]) -> list[Tensor]:
    """Return the gradients of the mean over all real target tokens, summed batch by batch."""
    tokens = [to_device(one, CPU) for one in batches]
    total = sum(one.targets.numel() for one in tokens)
    model.zero_grad()
    for one in tokens:
        (TranslationObjective(model, 0.1)(one) / total).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_two_micro_batches_give_the_gradient_of_one_batch(model: Transformer) -> None:
    apart = gradients(model, [batch(SOURCES[:1], TARGETS[:1]), batch(SOURCES[1:], TARGETS[1:])])
    together = gradients(model, [batch(SOURCES, TARGETS)])
    assert len(apart) == len(list(model.parameters()))
    assert max(float(gradient.abs().max()) for gradient in together) > 1e-3
    for one, other in zip(apart, together, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_r_drop_is_the_mean_of_two_passes_and_their_divergence(model: Transformer) -> None:
    """Without dropout both passes are equal and the divergence is zero; with dropout they differ."""
    tokens = to_device(batch(SOURCES, TARGETS), CPU)
    assert float(TranslationObjective(model, 0.1, 5.0)(tokens).detach()) == pytest.approx(
        float(TranslationObjective(model, 0.1)(tokens).detach()), rel=1e-5
    )
    dropping = build_model(model.config.model_copy(update={"dropout": 0.5}), VOCABULARY, VOCABULARY)
    losses = []
    for alpha in (1e-9, 4.0):
        torch.manual_seed(3)
        losses.append(float(TranslationObjective(dropping, 0.1, alpha)(tokens).detach()))
    torch.manual_seed(3)
    twice = [row + row for row in (SOURCES, TARGETS)]
    both = to_device(batch(*twice), CPU)
    logits = dropping.projection(dropping.hidden(both.source, both.decoder_input)).detach().double()
    first, second = (half.reshape(-1, VOCABULARY)[tokens.target_positions].log_softmax(-1) for half in logits.chunk(2))
    divergence = ((first.exp() - second.exp()) * (first - second)).sum()  # KL(p1 || p2) + KL(p2 || p1)
    assert losses[0] == pytest.approx(float(batch_loss_of(first, second, tokens.targets)), rel=1e-5)
    assert losses[1] - losses[0] == pytest.approx(float(divergence), rel=1e-4)


def batch_loss_of(first: Tensor, second: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of the summed cross-entropies of two passes, with smoothing 0.1."""
    return (
        -sum(
            (0.9 * each.gather(1, targets.unsqueeze(1)).sum() + 0.1 * each.mean(1).sum() for each in (first, second)),
            torch.zeros(()),
        )
        / 2
    )


COMPILED = """
from copy import deepcopy
from functools import partialmethod

import numpy as np, torch
from torch import nn
from headway.data.batching import PaddedBatch
from headway.engine.accelerate import compile_blocks
from headway.models.registry import blocks_of, build_model
from headway.models.transformer import TransformerConfig
from headway.training.stream import to_device
from headway.tasks.translation import TranslationObjective

graphs = []

def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

nn.Module.compile = partialmethod(nn.Module.compile, backend=backend, fullgraph=True)
torch.manual_seed(0)
sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
model = build_model(TransformerConfig.parse(sizes, "test"), 11, 11)
compiled = TranslationObjective(deepcopy(model), 0.1)
compile_blocks(blocks_of(compiled.model))
for rows, source, target in ((3, 7, 5), (2, 6, 9), (8, 4, 3)):
    batch = PaddedBatch(np.full((rows, source), 5), np.full((rows, target), 6))
    tokens = to_device(batch, torch.device("cpu"))
    torch.testing.assert_close(compiled(tokens), TranslationObjective(model, 0.1)(tokens), rtol=1e-5, atol=1e-5)
print(len(graphs))
"""


@pytest.mark.slow
def test_torch_compile_makes_one_graph_for_all_shapes_and_blocks() -> None:
    """Trace as on a GPU, but run without generating kernels, which takes minutes.

    This needs its own process, because the shape checks around every layer in these tests cannot be traced.
    """
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2\n", "one graph for the encoder's blocks, one for the decoder's"
