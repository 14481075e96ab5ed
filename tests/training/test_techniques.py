"""Techniques that a recipe can use, tested in whole runs."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.bundle import Bundle
from headway.errors import TrainingError
from headway.models.registry import build_model
from headway.tasks import parse_recipe, train
from headway.tasks.translation import TranslationObjective
from headway.training import loop
from headway.training.loop import Result
from headway.training.optim import clip_and_step, learning_rate
from headway.training.recipe import Recipe
from headway.training.snapshot import checkpoint_folders
from headway.training.stream import TokenBatch
from headway.weights import named_weights, read_weights


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    words = ["ein", "Haus", "Hund", "rot", "und", "sehr"]
    for name, start in (("train", 0), ("dev", 1)):
        lines = [" ".join(words[(number + step) % 6] for step in range(1 + number % 5)) for number in range(start, 40)]
        (folder / f"{name}.de").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        (folder / f"{name}.en").write_text("".join(line.upper() + "\n" for line in lines), encoding="utf-8")
    return folder


def recipe(corpus: Path, **sections: dict[str, Any]) -> Recipe:
    """Eight steps of a tiny model; every second step is followed by a validation and a checkpoint."""
    plain: dict[str, dict[str, Any]] = {
        "data": {
            "folder": str(corpus),
            "train": [{"files": ["train.de", "train.en"]}],
            "dev": {"files": ["dev.de", "dev.en"]},
            "max_tokens": 60,
        },
        "tokenizer": {"vocab_size": 300},
        "model": {"d_model": 16, "num_heads": 2, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 2},
        "training": {"steps": 8, "precision": "float32", "device": "cpu", "log_every": 8},
        "validation": {"every": 2, "metric": "loss"},
        "checkpoints": {"every": 2, "keep": 4, "average": 0},
    }
    return parse_recipe({name: {**plain.get(name, {}), **sections.get(name, {})} for name in plain}, "test")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_weights(folder / "model.safetensors")


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["kind"] == kind]


def checkpoint(run: Path, step: int) -> dict[str, torch.Tensor]:
    return weights(run / "checkpoints" / f"step-{step}")


class TestMovingAverage:
    def test_it_averages_the_weights_after_each_step(self, corpus: Path, tmp_path: Path) -> None:
        every_step = {"checkpoints": {"every": 1, "keep": 8, "average": 0}}
        train(recipe(corpus, **every_step, training={"steps": 8, "ema": 0.6, "precision": "float32"}), tmp_path)
        bundle = Bundle.load(tmp_path / "ema")
        vocab_size = bundle.source_tokenizer.vocab_size
        torch.manual_seed(1)  # the recipe's, and so the weights that training began with
        shadow = named_weights(build_model(bundle.model.config, vocab_size, vocab_size))
        for step in range(1, 9):
            decay = min(0.6, (1 + step) / (10 + step))
            now = checkpoint(tmp_path, step)
            shadow = {name: decay * tensor + (1 - decay) * now[name] for name, tensor in shadow.items()}
        found = weights(tmp_path / "ema")
        assert found.keys() <= shadow.keys()
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, shadow[name], rtol=1e-4, atol=1e-6)
        assert len(records(tmp_path, "ema")) == 1

    def test_it_survives_an_interruption(self, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen = recipe(corpus, training={"steps": 8, "ema": 0.6, "precision": "float32"})
        train(chosen, tmp_path / "straight")

        def interrupting(step: int, *rest: Any) -> float:
            if step == 5:
                signal.raise_signal(signal.SIGINT)
            return learning_rate(step, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "learning_rate", interrupting)
            assert train(chosen, tmp_path / "broken") == Result(5, True, None, {})
        train(chosen, tmp_path / "broken")
        one, other = (weights(tmp_path / name / "ema") for name in ("straight", "broken"))
        assert all(torch.equal(one[name], other[name]) for name in one)
        losses = [records(tmp_path / name, "ema")[0]["loss"] for name in ("straight", "broken")]
        assert losses[0] == losses[1]


def test_the_model_to_use_is_the_one_that_scores_best(corpus: Path, tmp_path: Path) -> None:
    """After few steps, an average with early weights is worse than the last weights; of equal weights it is not."""
    settings = {"training": {"steps": 8, "ema": 0.9999, "precision": "float32"}}
    result = train(recipe(corpus, **settings, checkpoints={"every": 2, "keep": 4, "average": 4}), tmp_path)
    losses = {kind: records(tmp_path, kind)[-1]["loss"] for kind in ("ema", "average")}
    losses["best"] = min(record["loss"] for record in records(tmp_path, "dev"))
    assert result.model_folder == tmp_path / min(losses, key=losses.__getitem__)


@pytest.mark.filterwarnings("ignore:optimizer.learning_rate")
def test_the_best_checkpoints_are_kept_in_addition_to_the_newest(corpus: Path, tmp_path: Path) -> None:
    """A learning rate that is far too high makes the loss rise and fall with any random numbers."""
    wild: dict[str, dict[str, Any]] = {
        "model": {"dropout": 0.0},
        "optimizer": {"learning_rate": 0.5, "warmup_steps": 1},
        "validation": {"every": 1, "metric": "loss"},
    }
    train(recipe(corpus, **wild, checkpoints={"every": 4, "keep": 1, "keep_best": 2, "average": 0}), tmp_path)
    losses = {record["step"]: record["loss"] for record in records(tmp_path, "dev")}
    best = sorted(losses, key=losses.__getitem__)[:2]
    kept = {int(path.name.removeprefix("step-")) for path in checkpoint_folders(tmp_path / "checkpoints")}
    assert kept == {8, *best}
    assert set(best) != {7, 8}  # else the test would not tell the best from the newest


def test_frozen_weights_stay(corpus: Path, tmp_path: Path) -> None:
    train(recipe(corpus, training={"steps": 8, "freeze": ["encoder.*"], "precision": "float32"}), tmp_path)
    first, last = checkpoint(tmp_path, 2), checkpoint(tmp_path, 8)
    stayed = {name for name in first if torch.equal(first[name], last[name])}
    assert {name for name in first if name.startswith("encoder.")} <= stayed
    assert not {name for name in stayed if name.startswith("decoder.") and "bias" not in name}


@pytest.mark.filterwarnings("ignore:optimizer.learning_rate")
def test_fine_tuning_starts_from_a_model_with_its_tokenizer(corpus: Path, tmp_path: Path) -> None:
    train(recipe(corpus), tmp_path / "first")
    start = tmp_path / "first" / "best"
    almost_still = {"learning_rate": 1e-9, "warmup_steps": 1}
    tuned = recipe(corpus, training={"steps": 2, "start_from": str(start)}, optimizer=almost_still)
    train(tuned, tmp_path / "second")
    for name, tensor in checkpoint(tmp_path / "second", 2).items():
        torch.testing.assert_close(tensor, weights(start)[name], rtol=0, atol=1e-6)
    first, second = Bundle.load(start), Bundle.load(tmp_path / "second" / "best")
    assert first.source_tokenizer.fingerprint == second.source_tokenizer.fingerprint


@pytest.mark.parametrize("kind", ["adam", "adafactor", "muon"])
def test_one_infinite_gradient_skips_one_step(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """One element is enough: the third step does not change the weights, and training continues."""
    calls = iter(range(1, 9))

    def disturbed(optimizer: torch.optim.Optimizer, clip_norm: float | None) -> torch.Tensor:
        if next(calls) == 3:
            (*_, gradient) = (each.grad for group in optimizer.param_groups for each in group["params"])
            gradient.view(-1)[0] = float("inf")
        return clip_and_step(optimizer, clip_norm)

    monkeypatch.setattr(loop, "clip_and_step", disturbed)
    every_step = {"every": 1, "keep": 8, "average": 0}
    chosen = recipe(corpus, checkpoints=every_step, optimizer={"kind": kind, "warmup_steps": 1, "learning_rate": 0.01})
    train(chosen, tmp_path)
    before, after, later = (checkpoint(tmp_path, step) for step in (2, 3, 4))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert any(not torch.equal(after[name], later[name]) for name in after)
    (record,) = records(tmp_path, "train")
    assert record["skipped_steps"] == 1
    assert 0 < record["loss"] < 10


def test_an_infinite_loss_with_finite_gradients_is_skipped_as_well(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, forward = iter(range(1, 99)), TranslationObjective.forward

    def disturbed(self: TranslationObjective, batch: TokenBatch) -> torch.Tensor:
        loss = forward(self, batch)
        return loss + torch.inf if torch.is_grad_enabled() and next(calls) == 7 else loss  # some are the estimate's

    monkeypatch.setattr(TranslationObjective, "forward", disturbed)
    every_step = {"every": 1, "keep": 8, "average": 0}
    chosen = recipe(corpus, checkpoints=every_step, data={"dev": None}, training={"log_every": 1})
    train(chosen, tmp_path)
    skipped = [record["skipped_steps"] for record in records(tmp_path, "train")]
    assert sum(skipped) == 1
    step = skipped.index(1) + 1
    before, after = (checkpoint(tmp_path, each) for each in (step - 1, step))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_checkpoints_kept_for_their_scores_are_not_averaged(corpus: Path, tmp_path: Path) -> None:
    """They do not replace averaged checkpoints either: with and without them the average is the same."""
    for keep_best in (0, 2):
        checkpoints = {"every": 4, "keep": 2, "keep_best": keep_best, "average": 2}
        train(recipe(corpus, checkpoints=checkpoints), tmp_path / str(keep_best))
    without, beside = (weights(tmp_path / str(keep_best) / "average") for keep_best in (0, 2))
    assert all(torch.equal(without[name], beside[name]) for name in without)


def test_a_run_resumes_without_the_model_that_it_started_from(corpus: Path, tmp_path: Path) -> None:
    train(recipe(corpus), tmp_path / "first")
    start = tmp_path / "first" / "best"
    tuned = recipe(corpus, training={"steps": 4, "start_from": str(start)})
    train(tuned, tmp_path / "second")
    shutil.rmtree(start)
    longer = recipe(corpus, training={"steps": 6, "start_from": str(start)})
    assert train(longer, tmp_path / "second").step == 6


def test_a_missing_best_is_written_from_the_newest_weights(corpus: Path, tmp_path: Path) -> None:
    chosen = recipe(corpus, training={"steps": 8, "ema": 0.9}, checkpoints={"every": 2, "keep": 4, "average": 4})
    train(chosen, tmp_path)
    shutil.rmtree(tmp_path / "best")
    train(chosen, tmp_path)
    found, newest = weights(tmp_path / "best"), checkpoint(tmp_path, 8)
    assert all(torch.equal(found[name], newest[name]) for name in found)


def test_skipped_steps_end_a_run_before_they_are_reported(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are checked before each validation and save, however rarely metrics are written."""

    def hopeless(optimizer: torch.optim.Optimizer, clip_norm: float | None) -> torch.Tensor:
        for group in optimizer.param_groups:
            for each in group["params"]:
                each.grad.fill_(float("nan"))
        return clip_and_step(optimizer, clip_norm)

    monkeypatch.setattr(loop, "clip_and_step", hopeless)
    settings = {"steps": 500, "log_every": 500, "precision": "float32", "device": "cpu"}
    with pytest.raises(TrainingError, match=r"the last 20 steps, up to step 20, .* have not changed since step 0"):
        train(recipe(corpus, training=settings), tmp_path)
