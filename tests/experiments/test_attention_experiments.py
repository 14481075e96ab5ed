"""Experiments without training: exact checks, scaling, positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from pictures import assert_legible

from headway.experiments import exact_checks, load_experiment, positions, scaling
from headway.experiments.experiment import Numbers
from headway.experiments.figures import figure_style
from headway.experiments.layer_measurements import distances_after
from headway.experiments.positions import rotation
from headway.experiments.verdicts import Verdict, settle
from headway.nn.positions import SinusoidalPositions

pytest_plugins = ["quick_form"]  # the fixtures of that file

HOLDS, FAILS, OPEN = "holds exactly", "does not hold", "not decidable here"
NAMES = ("exact-checks", "scaling", "positions")


def verdicts(name: str, numbers: Numbers) -> tuple[Verdict, ...]:
    (settled,) = settle([load_experiment(name).judge(numbers)])
    return settled


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("scaling", ["reproduced"] * 3),
        ("positions", [HOLDS, HOLDS, FAILS, HOLDS, HOLDS, "reproduced"]),
    ],
)
def test_verdicts_of_the_quick_form(measured: dict[str, Numbers], name: str, outcomes: list[str]) -> None:
    """These verdicts do not depend on the seed: they hold by mathematics or by a large margin."""
    assert [verdict.outcome for verdict in verdicts(name, measured[name])] == outcomes


@pytest.mark.parametrize("name", NAMES)
def test_figures_and_words(measured: dict[str, Numbers], name: str) -> None:
    with figure_style():
        assert_legible(load_experiment(name).draw(measured[name]))


def _scaled_like_unscaled(numbers: Any) -> None:
    for row in numbers["rows"]:
        row["gradient"] = row["d_k"] ** -0.5


def _same_gradient(size: float) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        for row in numbers["rows"]:
            if row["softmax of"] == scaling.UNSCALED:
                row["gradient"] = size if row["d_k"] == 1024 else 1.0

    return change


def _set(key: str, value: Any) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        numbers[key] = value

    return change


def _variance(numbers: Any) -> None:
    for row in numbers["rows"]:
        row["variance"] = 1.0


def _errors(kind: str) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        numbers["errors"]["4"][kind][2] = 0.3

    return change


def _waves(values: list[float]) -> Callable[[Any], None]:
    return _set("wavelengths", {str(width): values for width in positions.REPORTED_WIDTHS})


def _told(*shares: float) -> Callable[[Any], None]:
    """With the paper's dropout, without which 0.9 of the positions are identified."""

    def change(numbers: Any) -> None:
        numbers["identified"]["embedding + encoding"] = {"0.0": [0.9] * len(shares), "0.1": shares}

    return change


@pytest.mark.parametrize(
    ("name", "claim", "change", "outcome"),
    [
        ("scaling", 0, _variance, "opposite here"),
        ("scaling", 1, _same_gradient(0.9), "opposite here"),
        ("scaling", 1, _same_gradient(0.2), OPEN),
        ("scaling", 2, _scaled_like_unscaled, "opposite here"),
        ("positions", 0, _errors("float64"), FAILS),
        ("positions", 0, _errors("float32"), FAILS),
        ("positions", 1, _waves([1, 10, 50, 10_000]), FAILS),
        ("positions", 2, _waves([1, 10, 100, 10_000]), HOLDS),
        ("positions", 3, _set("nearest", 0.0), FAILS),
        ("positions", 4, _set("similarity_spread", 3.0), FAILS),
        ("positions", 5, _told(0.1, 0.2, 0.4), "opposite here"),
        ("positions", 5, _told(0.89, 0.7, 0.89), OPEN),
        ("positions", 5, _told(0.89, 0.85, 0.9), "reproduced"),
    ],
)
def test_other_numbers_give_another_verdict(
    measured: dict[str, Numbers], name: str, claim: int, change: Callable[[Any], None], outcome: str
) -> None:
    numbers = deepcopy(measured[name])
    change(numbers)
    found = verdicts(name, numbers)[claim].outcome
    assert found == outcome


def test_the_example_has_the_printed_weights(measured: dict[str, Numbers]) -> None:
    printed = [[0.2992, 0.5329, 0.1679], [0.2228, 0.7070, 0.0702], [0.2645, 0.2645, 0.4711]]
    found = [row["weights"] for row in measured["exact-checks"]["example"]]
    assert [[round(weight, 4) for weight in row] for row in found] == printed


WRONG_STATEMENTS = {2, 5, 6, 10, 11, 12, 13, 15, 16, 17, 20}


def test_the_exact_checks(measured: dict[str, Numbers]) -> None:
    """Which statements are wrong is argued in their words; each has a value that could have decided otherwise."""
    found = verdicts("exact-checks", measured["exact-checks"])
    assert {index for index, verdict in enumerate(found) if verdict.outcome == FAILS} == WRONG_STATEMENTS
    assert {verdict.outcome for verdict in found} == {HOLDS, FAILS}
    for number, (name, key, limit, *_) in enumerate(exact_checks.CHECKS):
        turned = deepcopy(measured["exact-checks"])
        turned["values"][name][key] = limit + (1 if found[number].outcome == HOLDS else -1)
        assert verdicts("exact-checks", turned)[number].outcome != found[number].outcome


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
    assert positions._identified(table, 0.0, 0.0, [1]) == [1.0]
    assert positions._identified(table, 100.0, 0.0, [1])[0] < 0.1
    assert positions._identified(table, 0.0, 0.99, [1])[0] < 0.5


def test_masks_decide_what_outputs_depend_on(measured: dict[str, Numbers]) -> None:
    """Without a mask, later tokens and padding change logits, and tokens always change the output at their position."""
    values = measured["exact-checks"]["values"]["masks"]
    assert values["earlier"] < 1e-4 < 0.01 < min(values["no_causal"], values["misplaced"])
    assert values["padding"] < 1e-4 < 0.01 < values["no_padding"]
    for name, influence in measured["exact-checks"]["influences"].items():
        changes = torch.tensor(influence)
        assert changes.diagonal().min() > 0.01
        assert (float(changes.triu(1).max()) > 0.01) == (name == exact_checks.NO_CAUSAL)


def test_shortest_paths_by_hand() -> None:
    """A running sum reaches all later positions in one layer; a shift by one position, one more in each layer."""
    none, start = math.inf, torch.where(torch.eye(3).bool(), 0.0, math.inf)
    summed = distances_after(lambda x: x.cumsum(1), start)
    assert summed.tolist() == [[1, none, none], [1, 1, none], [1, 1, 1]]
    shifted = start
    for _ in range(2):
        shifted = distances_after(lambda x: torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1), shifted)
    assert shifted.tolist() == [[none] * 3, [none] * 3, [2, none, none]]
