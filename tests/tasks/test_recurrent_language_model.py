"""Recurrent language models, whose state is carried from block to block: training, resuming, and measuring."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_recipes import CONTEXT, small_recipe
from torch.nn import functional as F

import headway
from headway.errors import ConfigError
from headway.tasks import train
from headway.text.base import BOS, EOS
from headway.training.distributed import World
from headway.training.recipe import Recipe
from headway.training.snapshot import read_snapshot, write_snapshot

TEXT = "".join(f"{one} sees {other}.\n" for one in ("Ann", "Bob", "Cid") for other in ("dogs", "cats", "öxen")) * 12


def recipe(folder: Path, **changes: Any) -> Recipe:
    data = {"folder": str(folder), "train": [{"files": ["text.txt"]}], "dev_fraction": 0.2, "max_tokens": 240}
    sections: dict[str, dict[str, Any]] = {
        "data": data,
        "model": {"kind": "recurrent_lm", "d_model": 32, "max_length": CONTEXT, "dropout": 0.0},
        "training": {"steps": 100},
        "validation": {"every": 50},
        "checkpoints": {"every": 100},
    }
    return small_recipe(sections, changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recurrent_lm")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    return folder


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


class TwoProcesses(World):
    """One process that believes that there is another."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.world_size = 2


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    train(recipe(folder), folder / "recurrent")
    return folder / "recurrent"


def test_the_validation_loss_is_that_of_the_whole_text_in_one_pass(run: Path) -> None:
    model = headway.load(run / "best")
    dev_text = TEXT.rstrip()[round(0.8 * (len(TEXT.rstrip()) + 1)) :]
    ids = model.bundle.tokenizer.encode(dev_text)
    with torch.inference_mode():
        logits = model.bundle.model(torch.tensor([[BOS, *ids]]))[0]
    expected = float(F.cross_entropy(logits, torch.tensor([*ids, EOS])))
    best = min(records(run, "dev"), key=lambda record: record["loss"])
    assert best["loss"] == pytest.approx(expected, rel=1e-4)
    found = model.perplexity([dev_text])
    assert found.loss == pytest.approx(expected, rel=1e-4)
    assert "carried:yes" in found.signature
    assert "context:all" in found.signature
    assert model.context_length is None
    # Texts of different lengths do not affect each other.
    together = model.score([dev_text, "Ann", dev_text[:50]])
    for text, scored in zip([dev_text, "Ann", dev_text[:50]], together, strict=True):
        (alone,) = model.score([text])
        assert alone.token_log_probabilities == pytest.approx(scored.token_log_probabilities, rel=1e-4)
        assert alone.eos_log_probability == pytest.approx(scored.eos_log_probability, rel=1e-4)
    with pytest.raises(ConfigError, match="carries its state through the whole text"):
        model.perplexity([dev_text], stride=4)


def test_the_model_learns_and_continues_texts(run: Path) -> None:
    assert records(run, "dev")[-1]["loss"] < 0.5
    model = headway.load(run / "best")
    (found,) = model.generate("Bob sees cats.\n" * 5 + "Ann sees ", temperature=0, max_new_tokens=5)
    assert found.text.split(".")[0] in ("dogs", "cats", "öxen")
    (found,) = model.generate("Cid sees ", max_new_tokens=80, seed=1)
    assert len(found.tokens) == 80 or found.finish_reason == "end"  # longer than a training block
    assert "".join(model.stream("Cid sees ", max_new_tokens=80, seed=1)) == found.text


def test_context_before_the_block_lowers_the_loss(folder: Path, run: Path) -> None:
    """A model with a block of 4 tokens cannot know the name's line; with its state it can."""
    cold = recipe(folder, model={"carry_state": False, "max_length": 4})
    train(cold, folder / "cold")
    carried = recipe(folder, model={"max_length": 4}, data={"max_tokens": 40})
    train(carried, folder / "carried")
    without, with_state = (records(folder / name, "dev")[-1]["loss"] for name in ("cold", "carried"))
    assert with_state < without - 0.2


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.slow
def test_a_run_in_two_parts_equals_one_without_a_pause(folder: Path, accumulate: int) -> None:
    """Bit for bit, with a pause in the middle of an epoch. Without the carried state, weights would differ."""
    options: dict[str, Any] = {"accumulate": accumulate}
    model = {"dropout": 0.2, "weight_drop": 0.2, "word_type_dropout": 0.1}
    once, twice, lost = (folder / f"{name}-{accumulate}" for name in ("once", "twice", "lost"))
    whole = recipe(folder, model=model, training={"steps": 14, **options})
    train(whole, once)
    for run in (twice, lost):
        train(recipe(folder, model=model, training={"steps": 9, **options}), run)
    state = read_snapshot(twice / "checkpoints" / "step-9")
    assert state.progress.batch > 0
    carried = state.tensors_of_kind("carried")
    assert {name: tensor.shape for name, tensor in carried.items()} == dict.fromkeys(
        ("0.0", "0.1", "1.0", "1.1"), torch.Size([10, 32])
    )
    without = {key: tensor for key, tensor in state.tensors.items() if not key.startswith("carried/")}
    shutil.rmtree(lost / "checkpoints" / "step-9")
    write_snapshot(lost / "checkpoints", replace(state, tensors=without))
    ends = []
    for run in (once, twice, lost):
        train(whole, run)
        ends.append(read_snapshot(run / "checkpoints" / "step-14").tensors_of_kind("weights"))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert not all(torch.equal(ends[0][name], ends[2][name]) for name in ends[0])


def test_what_draws_blocks_at_random_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"weight != 1 samples blocks, but model\.carry_state = true"):
        recipe(folder, data={"train": [{"files": ["text.txt"], "weight": 2.0}]})
    with pytest.raises(ConfigError, match=r"data\.temperature samples blocks"):
        recipe(folder, data={"temperature": 2.0})
    recipe(folder, data={"temperature": 2.0}, model={"carry_state": False})


def test_several_processes_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.training.loop.join_world", lambda _: nullcontext(TwoProcesses()))
    with pytest.raises(ConfigError, match="2 processes cannot train a model whose state is carried"):
        train(recipe(folder), folder / "two")
