"""Frozen weights: what patterns match, what stays constant, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headway.errors import ConfigError
from headway.models.registry import build_model
from headway.models.transformer import Transformer, TransformerConfig
from headway.training.fine_tuning import freeze
from headway.training.optim import OptimizerConfig, clip_and_step, make_optimizer
from headway.weights import named_weights

SIZES = {"d_model": 4, "num_heads": 1, "d_ff": 4, "encoder_layers": 2, "decoder_layers": 1, "dropout": 0.0}


def model_with(**options: object) -> Transformer:
    return build_model(TransformerConfig.parse(SIZES | options, "test"), 8, 8)


def moved_by_a_step(model: Transformer) -> set[str]:
    """Return the public names of the weights that a training step changes."""
    optimizer = make_optimizer(model, OptimizerConfig())
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    before = {name: tensor.clone() for name, tensor in named_weights(model).items()}
    tokens = torch.randint(1, 8, (3, 5))
    loss = nn.functional.cross_entropy(model(tokens, tokens).flatten(0, 1), tokens.flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    assert clip_and_step(optimizer)
    return {name for name, tensor in named_weights(model).items() if not torch.equal(tensor, before[name])}


@pytest.mark.parametrize(
    ("pattern", "stays"),
    [
        ("encoder.*", "encoder."),
        ("encoder.blocks.0.*", "encoder.blocks.0."),
        (
            "encoder.blocks.1.attention.[qkv]*",
            ("encoder.blocks.1.attention." + part for part in ("query", "key", "value")),
        ),
        ("*embedding*", ("source_embedding.", "target_embedding.")),
        ("projection.weight", "projection."),
    ],
)
def test_matched_weights_stay_and_all_others_change(pattern: str, stays: str | tuple[str, ...]) -> None:
    model = model_with(tie="none")
    prefixes = stays if isinstance(stays, str) else tuple(stays)
    freeze(model, (pattern,))
    moved = moved_by_a_step(model)
    assert moved == {name for name in named_weights(model) if not name.startswith(prefixes)}
    assert moved != named_weights(model).keys()


@pytest.mark.parametrize("name", ["source_embedding.weight", "target_embedding.weight", "projection.weight"])
def test_any_name_of_a_tied_weight_freezes_it(name: str) -> None:
    model = model_with(tie="all")
    freeze(model, (name,))
    assert not model.source_embedding.weight.requires_grad
    assert "source_embedding.weight" not in moved_by_a_step(model)


def test_without_patterns_all_weights_are_trained() -> None:
    model = model_with()
    freeze(model, ())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (("encoder",), r"'encoder' matches no weight; did you mean 'encoder\.\*'\?"),
        (("encodr.*",), r"'encodr\.\*' matches no weight; did you mean 'encoder\.\*'\?"),
        (("encoder.*", "xyz"), r"'xyz' matches no weight; known: decoder\.\*, encoder\.\*, projection\.\*"),
        (
            ("encoder.*.query.*",),
            r"would freeze encoder\.blocks\.0\.attention\.query\.\w+ without encoder\.blocks\.0\.attention\.key\.\w+, "
            r"encoder\.blocks\.0\.attention\.value\.\w+, but they form a single matrix during training: "
            "freeze all or none of them",
        ),
        (("*",), "leaves no weights to train; freeze fewer"),
    ],
)
def test_bad_patterns_are_refused(patterns: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        freeze(model_with(), patterns)
