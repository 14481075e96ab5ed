"""Language models on blocks of several documents that do not attend to each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_recipes import CONTEXT, DECODER_ONLY, small_recipe
from torch import Tensor
from torch.nn import functional as F

import headway
from headway import kernels
from headway.data.batching import PaddedBatch
from headway.engine.accelerate import accelerate
from headway.errors import ConfigError
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.tasks import parse_recipe, train
from headway.tasks.language_model import DocumentObjective
from headway.text.base import BOS, EOS
from headway.training.recipe import Recipe
from headway.training.stream import to_device

WORDS = [
    f"{one}{two}{three}e!" for one in "abcd" for two in "iou" for three in "klmnp"
]  # four of 5 characters, with EOS, are a block


def recipe(folder: Path, **changes: Any) -> Recipe:
    corpus, dev = ({"files": [name], "documents": "line"} for name in ("words.txt", "dev.txt"))
    documents = {"attend_within_documents": True, "reset_positions": True}
    sections: dict[str, dict[str, Any]] = {
        "data": {"folder": str(folder), "train": [corpus], "dev": dev, "max_tokens": 120, **documents},
        "model": {**DECODER_ONLY, "dropout": 0.1},
        "training": {"steps": 30},
        "validation": {"every": 10},
        "checkpoints": {"every": 30},
    }
    return small_recipe(sections, changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    (folder / "words.txt").write_text("\n".join(WORDS * 4), encoding="utf-8")
    (folder / "dev.txt").write_text("\n".join(WORDS[::3]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train(recipe(folder), folder / "run")
    return folder / "run"


def losses(run: Path) -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [record["loss"] for record in records if record["kind"] == "dev"]


# The objective.

DOCUMENTS = [[5, 6, 7, 8, EOS], [9, EOS], [10, 11, 12, EOS], [EOS], [13, 5, 9, 8, 7, 6, EOS]]
POSITIONS = ["learned", "sinusoidal", "rotary", "none"]


def joined(documents: list[list[int]]) -> list[int]:
    return [token for document in documents for token in document]


def build(positions: str, *, fast: bool, **options: Any) -> DecoderOnly:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_heads": 2, "d_ff": 48, "decoder_layers": 2, "max_length": 32, "dropout": 0.0}
    model = DecoderOnly(DecoderOnlyConfig.parse({**sizes, "positions": positions, **options}, "test"), 15)
    for parameter in model.parameters():
        parameter.data *= 5  # so that attention matters
    return accelerate(model) if fast else model


def target_losses(model: DecoderOnly, blocks: list[list[int]], *, reset: bool) -> Tensor:
    """Return the loss of each token that the objective predicts."""
    width = max(map(len, blocks))
    target = np.array([[*block, *[0] * (width - len(block))] for block in blocks])
    batch = to_device(PaddedBatch(np.zeros((len(blocks), 0), np.int64), target), torch.device("cpu"))
    objective = DocumentObjective(model, 0.0, reset_positions=reset)
    states = objective.outputs(objective.states(*objective.inputs(batch)), batch)
    found = F.cross_entropy(model.projection(states), batch.targets, reduction="none")
    torch.testing.assert_close(objective.cross_entropy(batch), found.sum(), rtol=1e-4, atol=1e-4)
    return found


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("positions", POSITIONS)
def test_a_document_has_the_same_loss_in_a_block_as_alone(positions: str, training: bool, fast: bool) -> None:
    model = build(positions, fast=fast).train(training)
    packed = target_losses(model, [joined(DOCUMENTS), joined(DOCUMENTS[::-1])], reset=positions != "none")
    alone = [target_losses(model, [document], reset=False) for document in DOCUMENTS]
    torch.testing.assert_close(packed, torch.cat([*alone, *alone[::-1]]), rtol=1e-4, atol=1e-4)
    padded = target_losses(model, DOCUMENTS, reset=False)
    torch.testing.assert_close(padded, torch.cat(alone), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_positions_count_from_the_beginning_of_the_block_if_not_reset(positions: str) -> None:
    """Then the first document alone has the same losses, and those of the others are moved."""
    model = build(positions, fast=True)
    packed = target_losses(model, [joined(DOCUMENTS)], reset=False)
    alone = torch.cat([target_losses(model, [document], reset=False) for document in DOCUMENTS])
    first = len(DOCUMENTS[0])
    torch.testing.assert_close(packed[:first], alone[:first], rtol=1e-4, atol=1e-4)
    assert ((packed - alone)[first:].abs() > 1e-3).all()


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("options", [{}, {"decoder_window": 3}, {"num_kv_heads": 1, "activation": "swiglu"}], ids=str)
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_nothing_leaks_from_one_document_to_another(positions: str, options: dict[str, Any], fast: bool) -> None:
    """If one document changes, the losses of the others are equal bit for bit."""
    model = build(positions, fast=fast, **options)
    before = target_losses(model, [joined(DOCUMENTS)], reset=True)
    for changed, document in enumerate(DOCUMENTS):
        other = [*([14] * (len(document) - 1)), EOS]
        after = target_losses(model, [joined([*DOCUMENTS[:changed], other, *DOCUMENTS[changed + 1 :]])], reset=True)
        start = sum(map(len, DOCUMENTS[:changed]))
        end = start + len(document)
        assert torch.equal(before[:start], after[:start])
        assert torch.equal(before[end:], after[end:])
        assert len(document) == 1 or (before[start:end] != after[start:end]).any()


def test_a_block_that_begins_inside_a_document_begins_with_bos() -> None:
    model = build("learned", fast=False)
    seen: list[Tensor] = []
    model.embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    target_losses(model, [[5, 6, EOS, 7, EOS, EOS, 8]], reset=True)
    assert seen[0].tolist() == [[BOS, 5, 6, BOS, 7, BOS, BOS]]


# Training runs.


def test_the_validation_loss_is_that_of_the_documents_alone(run: Path) -> None:
    """A block has four whole words, so perplexity, which reads each document from BOS, finds the same loss."""
    model = headway.load(run / "best")
    assert isinstance(model, headway.LanguageModel)
    assert model.perplexity(WORDS[::3]).loss == pytest.approx(min(losses(run)), rel=1e-4)


@pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_fast_and_plain_paths_have_the_same_trajectory(
    folder: Path, tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding moves the losses of 20 steps by less than 1e-4 (float32) and 3 % (bfloat16), then by more."""
    found = []
    for fast in (True, False):
        if not fast:
            monkeypatch.setattr("headway.training.loop.accelerate", lambda model: model)
        chosen = recipe(folder, training={"precision": precision}, model={"positions": "rotary", "dropout": 0.0})
        train(chosen, tmp_path / str(fast))
        found.append(losses(tmp_path / str(fast)))
    assert len(found[0]) == 3
    tolerances = (1e-4, 1e-4) if precision == "float32" else (0.03, 0.2)
    assert found[0][:2] == pytest.approx(found[1][:2], rel=tolerances[0])
    assert found[0][2] == pytest.approx(found[1][2], rel=tolerances[1])
    assert found[0][-1] < found[0][0]


def test_a_run_in_two_parts_equals_one_without_a_pause(folder: Path, run: Path) -> None:
    for steps in (17, 30):
        train(recipe(folder, training={"steps": steps}), folder / "parts")
    assert losses(folder / "parts")[-1] == losses(run)[-1]


def test_a_teacher_reads_documents_as_the_student_does(
    folder: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    hidden = DecoderOnly.hidden

    def record(model: DecoderOnly, tokens: Tensor, documents: Any = None, **options: Any) -> Tensor:
        seen.append((model.training, documents is not None, options))
        return hidden(model, tokens, documents, **options)

    monkeypatch.setattr(DecoderOnly, "hidden", record)
    train(recipe(folder, training={"steps": 1, "teacher": str(run / "best")}), folder / "student")
    assert {training for training, *_ in seen} == {True, False}
    assert all(each[1:] == (True, {"reset_positions": True}) for each in seen)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"attend_within_documents": False}}, r"reset_positions has no effect without"),
        (
            {"model": {"kind": "recurrent_lm", "max_length": 24}},
            "needs a decoder_only model: a recurrent model",
        ),
        ({"model": {"positions": "none"}}, r"reset_positions has no effect with model\.positions = 'none'"),
        ({"model": {"positions": "rotary", "score": "additive"}}, r"does not work with model\.score = 'additive'"),
    ],
)
def test_what_has_no_effect_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    sections = recipe(folder).as_dict() | {"model": {"kind": "decoder_only"}}
    with pytest.raises(ConfigError, match=message):
        parse_recipe({name: {**keys, **changes.get(name, {})} for name, keys in sections.items()}, "test")


def test_masked_language_models_refuse_it(folder: Path) -> None:
    data = recipe(folder).as_dict()["data"]
    with pytest.raises(ConfigError, match="a masked language model attends to whole blocks"):
        parse_recipe({"task": {"kind": "masked_language_model"}, "data": data}, "test")


def test_a_recurrent_teacher_is_refused(folder: Path) -> None:
    plain = {"attend_within_documents": False, "reset_positions": False}
    sections = recipe(folder, data=plain, training={"steps": 1}).as_dict()
    sections["model"] = {"kind": "recurrent_lm", "d_model": 16, "max_length": CONTEXT}
    train(parse_recipe(sections, "test"), folder / "recurrent")
    chosen = recipe(folder, training={"teacher": str(folder / "recurrent" / "best")})
    with pytest.raises(ConfigError, match="a recurrent_lm model cannot separate the documents of a block"):
        train(chosen, folder / "refused")
