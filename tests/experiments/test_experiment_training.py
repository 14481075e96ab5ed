from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from headway.experiments import training
from headway.experiments.corpus import made_up_text, write_files
from headway.experiments.experiment import Settings
from headway.experiments.training import column, format_mean_std, make_recipe, merge_sections, train_recipe
from headway.training.loop import Result
from headway.training.recipe import Recipe


@pytest.fixture
def quick(tmp_path: Path) -> Settings:
    return Settings(quick=True, seeds=(1,), data_folder=None, work_folder=tmp_path, say=lambda _: None)


def recipe(settings: Settings, seed: int = 1, text_seed: int = 1) -> Recipe:
    random = Random(text_seed)
    files = {name: made_up_text(count, random) for name, count in (("train.txt", 60), ("dev.txt", 10))}
    folder = write_files(files, settings.work_folder, "text")
    sections: dict[str, dict[str, Any]] = {
        "task": {"kind": "language_model"},
        "data": {"folder": str(folder), "train": [{"files": ["train.txt"]}], "dev": {"files": ["dev.txt"]}},
        "tokenizer": {"kind": "whitespace"},
        "model": {"d_model": 8, "num_heads": 1, "d_ff": 8, "decoder_layers": 1, "max_length": 16},
    }
    return make_recipe(settings, seed, 2, sections)


def test_a_model_is_trained_once(quick: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train_recipe(quick, recipe(quick), "model")
    assert (quick.work_folder / first["model"] / "config.json").is_file()
    assert first["loss"] > 0
    assert first["minutes"] > 0
    assert train_recipe(quick, recipe(quick, seed=2), "model")["model"] != first["model"]
    monkeypatch.delattr(training, "train")  # trained models need none
    assert train_recipe(quick, recipe(quick), "model") == first
    with pytest.raises(NameError):
        train_recipe(quick, recipe(quick, text_seed=2), "model")  # different text, so a different run


def test_an_interrupted_training_stops_the_experiment(quick: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "train", lambda *_: Result(1, True, None, {}))
    with pytest.raises(KeyboardInterrupt):
        train_recipe(quick, recipe(quick), "model")
    monkeypatch.undo()
    assert train_recipe(quick, recipe(quick), "model")["loss"] > 0  # nothing was recorded as done


def test_later_sections_replace_earlier_keys() -> None:
    assert merge_sections({"a": {"x": 1, "y": 2}}, {"a": {"x": 3}, "b": {}}) == {"a": {"x": 3, "y": 2}, "b": {}}


def test_columns_and_means() -> None:
    runs = [{"variant": "a", "bleu": 1}, {"variant": "b", "bleu": 2.5}, {"variant": "a", "bleu": 3}]
    assert column(runs, "bleu", variant="a") == [1, 3]
    assert format_mean_std(runs, "bleu", variant="a") == "2 ± 1.4"  # the standard deviation is sqrt(2)
    assert format_mean_std(runs, "bleu", variant="b") == "2.5"
