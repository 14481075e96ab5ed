"""The measurements of the experiments on language models."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from random import Random

import pytest

from headway.errors import ConfigError
from headway.experiments import load_experiment, pretraining, scaling_laws
from headway.experiments.corpus import write_files
from headway.experiments.experiment import Settings
from headway.experiments.scaling_laws import fit_power_laws
from headway.models.masked import MaskedConfig, MaskedTransformer

BOOKS_CHARACTERS = 150  # about as many as the full version's text has


def full_form(work: Path, data: Path | None = None) -> Settings:
    return Settings(quick=False, seeds=(1,), data_folder=data, work_folder=work, say=lambda _: None)


def test_the_pretrained_model_has_the_stated_size() -> None:
    config = MaskedConfig.parse({**pretraining._MODEL, **pretraining._FULL_SIZE}, "test")
    count = sum(each.numel() for each in MaskedTransformer(config, 8000).parameters())
    assert count == pytest.approx(3.3e6, rel=0.03)


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


@pytest.mark.parametrize("name", ["pretraining", "scaling-laws"])
def test_a_missing_corpus_is_named(name: str, tmp_path: Path) -> None:
    experiment = load_experiment(name)
    for data in (None, tmp_path):
        with pytest.raises(ConfigError, match=experiment.data_files[0]):
            experiment.measure(full_form(tmp_path / "work", data))


def test_random_weights_are_a_start_with_the_same_vocabulary(tmp_path: Path) -> None:
    settings = Settings(quick=True, seeds=(1,), data_folder=None, work_folder=tmp_path, say=lambda _: None)
    texts = write_files({"texts.txt": "one two three\n" * 200}, tmp_path, "unlabeled")
    pretrained = tmp_path / pretraining._pretrain(settings, texts)["model"]
    first, other = (pretraining._random_weights(pretrained, seed) for seed in (1, 2))
    assert (first / "tokenizer.json").read_bytes() == (pretrained / "tokenizer.json").read_bytes()
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, other, pretrained)]
    assert len(set(weights)) == 3
    assert len({len(each) for each in weights}) == 1


def test_the_fewest_labeled_texts_have_all_labels(tmp_path: Path) -> None:
    settings = Settings(quick=True, seeds=(1,), data_folder=None, work_folder=tmp_path, say=lambda _: None)
    train, _ = pretraining._read(settings)
    fewest = min(count for count, *_ in pretraining._QUICK if count is not None)
    for seed in range(1, 11):
        assert {name for name, _ in Random(seed).sample(train, fewest)} == {name for name, _ in train}
