"""The recurrent language model: its equations, dropouts, initialization, carried state, and decoding from prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from state_life import continue_and_compare
from torch import Tensor, nn

from headway.decode import SearchModel
from headway.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from headway.nn.dropout import LockedDropout
from headway.nn.recurrent import RecurrentLayer, as_recurrent_layers

VOCABULARY, BOS = 20, 1
FORMS: list[dict[str, Any]] = [
    {},
    {"cell": "gru", "num_layers": 3},
    {"d_embedding": 6},
    {"d_embedding": 6, "tie": "none", "output_bias": False, "num_layers": 1},
]


def build(**options: Any) -> RecurrentLM:
    torch.manual_seed(0)
    model = RecurrentLM(RecurrentLMConfig.parse({"d_model": 10, **options}, "test"), VOCABULARY).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def random_tokens(*shape: int) -> Tensor:
    return torch.randint(4, VOCABULARY, shape)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_the_logits_are_those_of_pytorchs_layers(options: dict[str, Any]) -> None:
    model, tokens = build(**options), random_tokens(3, 7)
    x = model.embedding.weight[tokens] * model.embedding.weight.size(1) ** 0.5
    for layer in as_recurrent_layers(model.layers):
        x, _ = layer.cell(x)
    expected = x @ model.projection.weight.T
    if model.projection.bias is not None:
        expected = expected + model.projection.bias
    torch.testing.assert_close(model(tokens), expected)


def test_widths_are_those_of_awd_lstm() -> None:
    """The last layer of a tied model is as wide as its embeddings (Merity et al. 2018, section 4.5)."""
    with torch.device("meta"):
        model = RecurrentLM(RecurrentLMConfig.parse({"preset": "awd-lstm"}, "test"), 10_000)
    widths = [(layer.cell.input_size, layer.cell.hidden_size) for layer in as_recurrent_layers(model.layers)]
    assert widths == [(400, 1150), (1150, 1150), (1150, 400)]
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(24e6, rel=0.02)  # table 1: 24M


@torch.no_grad()
def test_the_first_inputs_and_logits_have_unit_variance() -> None:
    model = RecurrentLM(RecurrentLMConfig(d_model=64, d_embedding=256, dropout=0.0), 500)
    assert float(model.embedding(random_tokens(50, 20)).std()) == pytest.approx(1, rel=0.1)
    assert float(model.projection(torch.randn(50, 256)).std()) == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_parts_of_a_text_are_read_like_the_whole(options: dict[str, Any]) -> None:
    model, tokens = build(**options), random_tokens(2, 9)
    state, found = model.initial_state(2), []
    for part in torch.tensor_split(tokens, [4, 5], 1):
        hidden, state = model.continue_from(state, part)
        found.append(hidden)
    torch.testing.assert_close(torch.cat(found, 1), model.hidden(tokens))


# Dropouts.


def test_locked_dropout_has_one_mask_for_all_positions() -> None:
    x = torch.randn(4, 6, 50)
    dropped = LockedDropout(0.4).train()(x)
    kept = dropped != 0
    assert (kept == kept[:, :1]).all()
    assert not torch.equal(kept[0], kept[1])
    assert 0.3 < (~kept[:, 0]).float().mean() < 0.5
    torch.testing.assert_close(dropped[kept], x[kept] / 0.6, rtol=1e-4, atol=0)
    assert LockedDropout(0.4).eval()(x) is x


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_weight_drop_uses_one_mask_for_all_steps(cell: Any) -> None:
    """The output is that of a layer whose matrix has the elements dropped that the gradient says were dropped."""
    layer, x = RecurrentLayer(cell, 5, 8, weight_drop=0.5).train(), torch.randn(3, 6, 5)
    found, _ = layer(x, layer.initial_state(x))
    (gradient,) = torch.autograd.grad(found.square().sum(), [layer.cell.weight_hh_l0])
    kept = gradient != 0
    assert 0.35 < kept.float().mean() < 0.65
    with torch.no_grad():
        layer.cell.weight_hh_l0.mul_(kept * 2)
        expected, _ = layer.cell(x)
    torch.testing.assert_close(found, expected)


def test_a_dropped_word_type_is_dropped_wherever_it_occurs() -> None:
    model = build(word_type_dropout=0.5).train()
    tokens = random_tokens(6, 40)
    embedded = model._embed(tokens)
    dropped = (embedded == 0).all(-1)
    for token in range(4, VOCABULARY):
        assert len(set(dropped[tokens == token].tolist())) <= 1
    assert 0 < dropped.float().mean() < 1
    torch.testing.assert_close(embedded[~dropped], 2 * model.embedding(tokens)[~dropped], rtol=1e-4, atol=0)


# Decoding.


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_step_by_step_equals_one_pass(options: dict[str, Any]) -> None:
    model = build(**options)
    assert isinstance(model, SearchModel)
    continue_and_compare(model, random_tokens)
