"""The measurements of the experiments on language models."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headway.errors import ConfigError
from headway.experiments import load_experiment, scaling_laws
from headway.experiments.corpus import made_up_text, write_files
from headway.experiments.experiment import Settings
from headway.experiments.scaling_laws import column, fit_power_laws, train_recipe
from headway.training.loop import Result
from headway.training.recipe import Recipe

BOOKS_CHARACTERS = 150  # about as many as the full version's text has


def full_form(work: Path, data: Path | None = None) -> Settings:
    return Settings(quick=False, seeds=(1,), data_folder=data, work_folder=work, say=lambda _: None)


def test_scaling_trains_three_sizes_with_each_compute(tmp_path: Path) -> None:
    settings = full_form(tmp_path)
    weights = [
        scaling_laws._count_weights(scaling_laws._recipe(settings, tmp_path, 1, size, 1, 512), BOOKS_CHARACTERS)
        for size in scaling_laws._SIZES
    ]
    assert weights[0] == pytest.approx(0.008e6, rel=0.1)
    assert weights[-1] == pytest.approx(0.56e6, rel=0.05)
    texts = {(compute, count): compute / (6 * count) for compute, count in product(scaling_laws._BATCHES, weights)}
    trained = [key for key in texts if scaling_laws._FEWEST <= texts[key] / key[1] <= scaling_laws._MOST]
    assert len(trained) * 3 == 36
    assert {sum(compute == each for compute, _ in trained) for each in scaling_laws._BATCHES} == {3}
    assert max(texts[key] for key in trained) < scaling_laws._TRAIN_CHARACTERS


def test_fits_find_the_power_laws_that_the_numbers_follow() -> None:
    """Losses are 3 C^-0.06 + 0.1 (ln N - ln best)^2, with the best size 0.01 C^0.55."""
    runs = [
        {"compute": compute, "weights": weights}
        | {"loss": 3 * compute**-0.06 + 0.1 * (math.log(weights) - math.log(0.01 * compute**0.55)) ** 2}
        for compute in (1e11, 1e12, 1e13)
        for weights in (3e3, 1e4, 3e4, 1e5, 3e5, 1e6)
    ]
    found = fit_power_laws(runs)
    assert found["loss"] == pytest.approx([-0.06, math.log(3)])
    assert found["size"] == pytest.approx([0.55, math.log(0.01)])
    assert found["bend"] == pytest.approx(0, abs=1e-9)
    assert [each["at_end"] for each in found["best"]] == [False] * 3
    large = fit_power_laws([row for row in runs if row["weights"] > 2e4])  # at 1e11, the best size is 1.1e4
    assert [each["at_end"] for each in large["best"]] == [True, True, False]
    assert large["best"][0]["weights"] == 3e4


def test_a_loss_that_approaches_a_constant_is_no_power_law() -> None:
    """Its exponents from left to right are about 0.109, 0.088 and 0.070."""
    runs = [
        {"compute": compute, "weights": 10.0, "loss": 1.2 + 1.1 * (compute / 3.2e11) ** -0.25}
        for compute in scaling_laws._BATCHES
    ]
    assert fit_power_laws(runs)["bend"] < -1.5 * 0.02


def test_a_missing_corpus_is_named(tmp_path: Path) -> None:
    experiment = load_experiment("scaling-laws")
    for data in (None, tmp_path):
        with pytest.raises(ConfigError, match=experiment.data_files[0]):
            experiment.measure(full_form(tmp_path / "work", data))


@pytest.fixture
def quick(tmp_path: Path) -> Settings:
    return Settings(quick=True, seeds=(1,), data_folder=None, work_folder=tmp_path, say=lambda _: None)


def recipe(settings: Settings, seed: int = 1, text_seed: int = 1) -> Recipe:
    random = Random(text_seed)
    files = {name: made_up_text(count, random) for name, count in (("train.txt", 60), ("dev.txt", 10))}
    return scaling_laws._recipe(settings, write_files(files, settings.work_folder, "text"), seed, (16, 1), 2, 512)


def test_a_model_is_trained_once(quick: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train_recipe(quick, recipe(quick), "model")
    assert first["loss"] > 0
    assert train_recipe(quick, recipe(quick, seed=2), "model") != first
    monkeypatch.delattr(scaling_laws, "train")  # trained models need none
    assert train_recipe(quick, recipe(quick), "model") == first
    with pytest.raises(NameError):
        train_recipe(quick, recipe(quick, text_seed=2), "model")  # different text, so a different run


def test_an_interrupted_training_stops_the_experiment(quick: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling_laws, "train", lambda *_: Result(1, True, None, {}))
    with pytest.raises(KeyboardInterrupt):
        train_recipe(quick, recipe(quick), "model")
    monkeypatch.undo()
    assert train_recipe(quick, recipe(quick), "model")["loss"] > 0  # nothing was recorded as done


def test_columns() -> None:
    runs: list[dict[str, Any]] = [{"compute": 1, "loss": 1}, {"compute": 2, "loss": 2.5}, {"compute": 1, "loss": 3}]
    assert column(runs, "loss", compute=1) == [1, 3]
