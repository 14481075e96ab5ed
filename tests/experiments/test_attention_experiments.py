"""Experiments without training: attention numbers, scaling, the linear shift, the picture of positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from pictures import assert_legible

from headway.experiments import load_experiment, position_picture, scaling
from headway.experiments.experiment import Numbers
from headway.experiments.figures import figure_style
from headway.experiments.linear_shift import rotation
from headway.nn.positions import SinusoidalPositions

pytest_plugins = ["quick_form"]  # the fixtures of that file

NAMES = ("attention-numbers", "scaling", "linear-shift", "position-picture")


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("attention-numbers", ["supported", "refuted", "supported"]),
        ("scaling", ["supported"] * 3),
        ("linear-shift", ["supported", "supported", "refuted"]),
        ("position-picture", ["supported"] * 3),
    ],
)
def test_verdicts_of_the_quick_form(measured: dict[str, Numbers], name: str, outcomes: list[str]) -> None:
    """These verdicts do not depend on the seed: they hold by mathematics or by a large margin."""
    assert [verdict.outcome for verdict in load_experiment(name).judge(measured[name])] == outcomes


@pytest.mark.parametrize("name", NAMES)
def test_figures_and_words(measured: dict[str, Numbers], name: str) -> None:
    with figure_style():
        assert_legible(load_experiment(name).draw(measured[name]))


def _scaled_like_unscaled(numbers: Any) -> None:
    numbers["with"]["gradient"] = numbers["without"]["gradient"]


def _same_gradient(size: float) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        numbers["without"]["gradient"] = {width: [1.0] * 3 for width in numbers["without"]["gradient"]}
        numbers["without"]["gradient"]["1024"] = [size] * 3

    return change


def _growth(*falling: bool) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        (first,) = numbers["growth"]
        numbers["growth"] = [first | {"all": sorted(first["all"], reverse=falls)} for falls in falling]

    return change


def _set(key: str, value: Any) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        numbers[key] = value

    return change


def _variance(numbers: Any) -> None:
    numbers["without"]["variance"] = {width: [1.0] * 3 for width in numbers["without"]["variance"]}


def _errors(kind: str) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        numbers["errors"]["4"][kind][2] = 0.3

    return change


def _random_fits(numbers: Any) -> None:
    numbers["control"][0]["random vectors"] = [1e-3] * 3


def _waves(values: list[float]) -> Callable[[Any], None]:
    return _set("wavelengths", {"8": [2 * math.pi * value for value in values]})


def _told(*shares: float) -> Callable[[Any], None]:
    """With the paper's dropout, without which 0.9 of the positions are identified."""

    def change(numbers: Any) -> None:
        found = {"0.0": [0.9] * len(shares), "0.1": shares}
        numbers["told"]["embedding + encoding"] = {
            rate: [{"right": share, "near": 1.0} for share in each] for rate, each in found.items()
        }

    return change


@pytest.mark.parametrize(
    ("name", "claim", "change", "outcome"),
    [
        ("attention-numbers", 0, _set("single_key_error", 0.1), "refuted"),
        ("attention-numbers", 1, _set("weights", [[0.6, 0.3, 0.1]]), "supported"),
        ("attention-numbers", 1, _set("weights", [[0.4, 0.3, 0.3]]), "inconclusive"),
        ("attention-numbers", 2, _growth(True, True, True), "refuted"),
        ("attention-numbers", 2, _growth(False, True, False), "inconclusive"),
        ("scaling", 0, _variance, "refuted"),
        ("scaling", 1, _same_gradient(0.9), "refuted"),
        ("scaling", 1, _same_gradient(0.2), "inconclusive"),
        ("scaling", 2, _scaled_like_unscaled, "refuted"),
        ("linear-shift", 0, _errors("float64"), "refuted"),
        ("linear-shift", 0, _errors("float32"), "refuted"),
        ("linear-shift", 0, _random_fits, "inconclusive"),
        ("linear-shift", 1, _waves([1, 10, 50, 10_000]), "refuted"),
        ("linear-shift", 2, _waves([1, 10, 100, 10_000]), "supported"),
        ("position-picture", 0, _set("nearest", 0.0), "refuted"),
        ("position-picture", 1, _set("likeness_spread", 3.0), "refuted"),
        ("position-picture", 2, _told(0.1, 0.2, 0.4), "refuted"),
        ("position-picture", 2, _told(0.89, 0.7, 0.89), "inconclusive"),
        ("position-picture", 2, _told(0.89, 0.85, 0.9), "supported"),
    ],
)
def test_other_numbers_give_another_verdict(
    measured: dict[str, Numbers], name: str, claim: int, change: Callable[[Any], None], outcome: str
) -> None:
    numbers = deepcopy(measured[name])
    change(numbers)
    found = load_experiment(name).judge(numbers)[claim].outcome
    assert found == outcome


def test_the_example_has_the_published_weights(measured: dict[str, Numbers]) -> None:
    """By hand: scores 2, 3 and 1 divided by the root of 3."""
    powers = [math.exp(score / math.sqrt(3)) for score in (2, 3, 1)]
    expected = [power / sum(powers) for power in powers]
    assert [round(weight, 4) for weight in expected[:2]] == [0.2992, 0.5329]
    assert measured["attention-numbers"]["weights"][0] == pytest.approx(expected)


def test_the_jacobian_of_the_softmax() -> None:
    """By hand for two equal keys: all four entries have the size 1/4. Other cases by autograd."""
    assert scaling._quantities(torch.zeros(3, 2, dtype=torch.float64))["gradient"] == pytest.approx(0.5)
    scores = torch.randn(1, 7, dtype=torch.float64) * 3
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores[0])  # type: ignore[no-untyped-call]
    assert scaling._quantities(scores)["gradient"] == pytest.approx(float(jacobian.norm()))


def test_rotation() -> None:
    """A pair of dimensions rotates by k radians; a shift by 0 changes nothing; two shifts add up to one."""
    cosine, sine = math.cos(3), math.sin(3)
    torch.testing.assert_close(rotation(2, 3), torch.tensor([[cosine, sine], [-sine, cosine]], dtype=torch.float64))
    torch.testing.assert_close(rotation(6, 0), torch.eye(6, dtype=torch.float64))
    torch.testing.assert_close(rotation(6, 2) @ rotation(6, 5), rotation(6, 7))


def test_a_position_is_told_from_the_sum_of_embedding_and_encoding() -> None:
    """By hand: an embedding a hundred times as large hides all encodings; an embedding of zeros hides none."""
    table = SinusoidalPositions(64)(torch.zeros(1, 200, 64))[0]
    assert position_picture._identified(table, 0.0, 0.0, 1) == {"right": 1.0, "near": 1.0}
    assert position_picture._identified(table, 100.0, 0.0, 1)["right"] < 0.1
    assert position_picture._identified(table, 0.0, 0.99, 1)["right"] < 0.5


def test_the_words_follow_the_numbers(measured: dict[str, Numbers]) -> None:
    numbers = deepcopy(measured["attention-numbers"])
    explain = load_experiment("attention-numbers").explain
    numbers["own"]["no projections, 128"] = [0.5, 0.7]
    assert "60% at 128" in explain(numbers)
    numbers["growth"] = [each | {"negative": [0.125] * 7} for each in numbers["growth"]]
    assert "from 0.125 to 0.125 for the others" in explain(numbers)
    numbers = deepcopy(measured["position-picture"])
    explain = load_experiment("position-picture").explain
    numbers["likeness"] = [64.0, 60.0, 47.0, 30.0]
    assert "Similarity falls by a quarter within 2 positions" in explain(numbers)
    numbers["likeness"] = [64.0, 60.0]
    assert "Similarity" not in explain(numbers)


def test_the_published_weights_fix_no_width() -> None:
    """Scores with twice the distance and d_k = 12 have the same weights as scores with d_k = 3."""
    one, other = (
        torch.tensor(scores, dtype=torch.float64).div(math.sqrt(width)).softmax(0)
        for scores, width in (([2, 3, 1], 3), ([4, 6, 2], 12))
    )
    torch.testing.assert_close(one, other)
