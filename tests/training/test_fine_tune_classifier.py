"""Classifiers that start from a language model: its weights, rates by layer, gradual unfreezing, exact resume."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import headway
from headway.bundle import load_bundle
from headway.errors import ConfigError
from headway.models.registry import blocks_of, build_model
from headway.models.sequence_classifier import SequenceClassifier, SequenceClassifierConfig
from headway.models.transformer import Transformer, TransformerConfig
from headway.tasks import parse_recipe, train
from headway.text.base import EOS
from headway.training.optim import OptimizerConfig, make_optimizer, weight_depths
from headway.weights import named_weights

SIZES: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 24, "max_length": 24}
BODIES: dict[str, dict[str, Any]] = {
    "masked": {**SIZES, "encoder_layers": 2},
    "decoder_only": {**SIZES, "decoder_layers": 2},
}
TASKS = {"masked": "masked_language_model", "decoder_only": "language_model"}


def build(body: str = "masked", **options: Any) -> SequenceClassifier:
    torch.manual_seed(0)
    keys = {"body": {"kind": body, **BODIES[body]}, **options}
    return build_model(SequenceClassifierConfig.parse(keys, "test"), 20, 3).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labeled texts, and two language models that were trained for two steps on them."""
    folder, rng = tmp_path_factory.mktemp("fine_tuning"), random.Random(1)
    texts = [" ".join(rng.choices(["rot", "grün", "Haus", "Baum", "ein"], k=rng.randint(3, 7))) for _ in range(80)]
    lines = [f"{'red' if 'rot' in text else 'other'}\t{text}\n" for text in texts]
    (folder / "train.tsv").write_text("".join(lines), encoding="utf-8")
    (folder / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    for kind, body in BODIES.items():
        sections = {
            "task": {"kind": TASKS[kind]},
            "data": {"folder": str(folder), "train": [{"files": ["text.txt"]}], "max_tokens": 96},
            "tokenizer": {"vocab_size": 300},
            "model": body,
            "training": {"steps": 2, "device": "cpu", "precision": "float32"},
            "checkpoints": {"every": 2, "average": 0},
        }
        train(parse_recipe(sections, "test"), folder / kind)
    return folder


def fine_tune(folder: Path, run: Path, start: str, **changes: dict[str, Any]) -> Path:
    sections: dict[str, dict[str, Any]] = {
        "task": {"kind": "classification"},
        "data": {"folder": str(folder), "train": [{"files": ["train.tsv"]}], "max_tokens": 200},
        "optimizer": {"learning_rate": 1e-2, "warmup_steps": 2},
        "training": {
            "steps": 2,
            "start_from": str(folder / start / "best"),
            "device": "cpu",
            "precision": "float32",
            "label_smoothing": 0.0,
        },
        "checkpoints": {"every": 100, "average": 0},
    }
    found = train(parse_recipe({k: {**v, **changes.pop(k, {})} for k, v in sections.items()} | changes, "test"), run)
    assert found.model_folder is not None
    return found.model_folder


def weights_of(folder: Path) -> dict[str, Tensor]:
    return named_weights(load_bundle(folder).model)


@pytest.mark.parametrize(
    ("start", "pooling"), [("masked", "first"), ("decoder_only", "last"), ("decoder_only", "mean")]
)
@pytest.mark.slow
def test_a_language_model_learns_to_classify(folder: Path, tmp_path: Path, start: str, pooling: str) -> None:
    model = {"kind": "sequence_classifier", "pooling": pooling, "body": {"kind": start, "dropout": 0.0}}
    changes: dict[str, Any] = {"training": {"steps": 60, "start_from": str(folder / start / "best"), "device": "cpu"}}
    found = headway.load(fine_tune(folder, tmp_path, start, model=model, **changes))
    assert isinstance(found, headway.Classifier)
    lines = [line.split("\t") for line in (folder / "train.tsv").read_text(encoding="utf-8").splitlines()]
    results = found.classify([text for _, text in lines])
    assert sum(one.label == label for one, (label, _) in zip(results, lines, strict=True)) > 70
    told = found.explain("ein rot Haus")
    assert told.tokens[0].text == "<bos>"


@pytest.mark.parametrize("start", ["masked", "decoder_only"])
def test_the_body_starts_with_the_weights_of_the_language_model(folder: Path, tmp_path: Path, start: str) -> None:
    before = weights_of(folder / start / "best")
    after = weights_of(fine_tune(folder, tmp_path, start, optimizer={"learning_rate": 2e-6, "warmup_steps": 1}))
    body = {name.removeprefix("body."): weight for name, weight in after.items() if name.startswith("body.")}
    assert set(before) - set(body) == {name for name in before if name.startswith(("head.", "projection."))}
    for name, weight in body.items():
        torch.testing.assert_close(weight, before[name], atol=1e-5, rtol=0)


def test_gradual_unfreezing_trains_one_more_block_at_a_time(folder: Path, tmp_path: Path) -> None:
    before = weights_of(folder / "masked" / "best")
    settings: dict[str, Any] = {"start_from": str(folder / "masked" / "best"), "device": "cpu", "unfreeze_every": 2}
    changed = {}
    for steps in (2, 4, 6, 8):
        run = fine_tune(folder, tmp_path / str(steps), "masked", training={**settings, "steps": steps})
        after = weights_of(run)
        names = [name for name in before if f"body.{name}" in after]
        changed[steps] = {name for name in names if not torch.equal(after[f"body.{name}"], before[name])}
        assert not torch.equal(after["projection.bias"], torch.zeros(2))
    blocks = [{name for name in before if name.startswith(f"encoder.blocks.{number}.")} for number in (0, 1)]
    below = {"embedding.weight", "positions.table", "embedding_norm.weight", "embedding_norm.bias"}
    assert changed == {2: set(), 4: blocks[1], 6: blocks[0] | blocks[1], 8: blocks[0] | blocks[1] | below}

    resumed = tmp_path / "resumed"
    fine_tune(folder, resumed, "masked", training={**settings, "steps": 3})
    found = weights_of(fine_tune(folder, resumed, "masked", training={**settings, "steps": 8}))
    assert all(torch.equal(weight, found[name]) for name, weight in weights_of(tmp_path / "8" / "best").items())


@pytest.mark.parametrize("body", ["masked", "decoder_only"])
def test_lower_layers_have_lower_rates(body: str) -> None:
    model = build(body)
    found = weight_depths(model, blocks_of(model))
    names = {name: found[weight] for name, weight in model.named_parameters()}
    stack = "encoder" if body == "masked" else "decoder"
    assert {depth for name, depth in names.items() if name.startswith("projection.")} == {0}
    assert {depth for name, depth in names.items() if f"{stack}.blocks.1." in name} == {1}
    assert {depth for name, depth in names.items() if f"{stack}.blocks.0." in name} == {2}
    assert names["body.embedding.weight"] == names["body.positions.table"] == 3
    optimizer = make_optimizer(model, OptimizerConfig(layer_decay=0.5), blocks_of(model))
    rates = {weight: group["rate_factor"] for group in optimizer.param_groups for weight in group["params"]}
    assert {name: rates[weight] for name, weight in model.named_parameters()} == {
        name: 0.5**depth for name, depth in names.items()
    }
    (plain, _) = make_optimizer(model, OptimizerConfig(), blocks_of(model)).param_groups
    assert plain["rate_factor"] == 1


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_the_output_of_a_translation_model_is_above_its_blocks(tie: str) -> None:
    """Although it is registered before them, unless it is the embedding of the target."""
    config = TransformerConfig.parse(
        {"d_model": 16, "num_heads": 2, "d_ff": 16, "encoder_layers": 2, "decoder_layers": 2, "tie": tie, "norm": "pre",
         "output_bias": True}, "test"
    )  # fmt: skip
    model = Transformer(config, 20, 20)
    found = weight_depths(model, blocks_of(model))
    names = {name: found[weight] for name, weight in model.named_parameters()}
    assert names["projection.bias"] == 0
    assert next(found[weight] for weight in model.projection.parameters()) == (0 if tie == "none" else 5)
    assert names["target_embedding.weight" if tie == "none" else "source_embedding.weight"] == 5
    assert names["encoder.norm.weight"] == names["encoder.blocks.1.feed_forward.inner.weight"] == 3
    assert names["decoder.norm.weight"] == 0
    assert names["decoder.blocks.1.feed_forward.inner.weight"] == 1


def test_a_step_is_as_long_as_its_layers_rate(folder: Path, tmp_path: Path) -> None:
    """The first step of Adam changes each weight by its rate, whatever the gradient."""
    before = weights_of(folder / "masked" / "best")
    optimizer = {"learning_rate": 1e-2, "warmup_steps": 1, "layer_decay": 0.5}
    training: dict[str, Any] = {"start_from": str(folder / "masked" / "best"), "device": "cpu", "steps": 1}
    after = weights_of(fine_tune(folder, tmp_path, "masked", optimizer=optimizer, training=training))
    for name, depth in {
        "encoder.blocks.1.feed_forward.outer.bias": 1,
        "encoder.blocks.0.feed_forward.outer.bias": 2,
    }.items():
        step = (after[f"body.{name}"] - before[name]).abs().median()
        assert float(step) == pytest.approx(1e-2 * 0.5**depth, rel=0.01)


@pytest.mark.parametrize(("body", "pooling"), [("masked", "first"), ("masked", "mean"), ("decoder_only", "last")])
def test_padding_changes_nothing(body: str, pooling: str) -> None:
    model = build(body, pooling=pooling, dense="tanh", dense_norm=True)
    source = torch.cat([torch.randint(4, 20, (2, 6)), torch.full((2, 1), EOS)], 1)
    torch.testing.assert_close(model(F.pad(source, (0, 5))), model(source), atol=1e-5, rtol=1e-4)
    embedded = model.embed_source(source)
    torch.testing.assert_close(model.logits_from(embedded, source), model(source))


def test_mistakes_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="attends to no text in a decoder-only body"):
        build("decoder_only", pooling="first")
    with pytest.raises(ConfigError, match="dense_norm = true has no effect"):
        build(dense_norm=True)
    model = {"kind": "sequence_classifier", "body": {"kind": "masked", "d_ff": 32}}
    with pytest.raises(ConfigError, match=r"the recipe's \[model\] differs: body\.d_ff is 32"):
        fine_tune(folder, tmp_path / "a", "masked", model=model)
    with pytest.raises(ConfigError, match=r"set model\.kind = 'sequence_classifier'"):
        fine_tune(folder, tmp_path / "b", "masked", model={"pooling": "first"})
    scratch: dict[str, Any] = {"training": {"start_from": None}, "optimizer": {"layer_decay": 0.9}}
    with pytest.raises(ConfigError, match="layer_decay: a classifier model has no list of blocks"):
        fine_tune(folder, tmp_path / "c", "masked", **scratch)
