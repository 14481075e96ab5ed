"""Layer costs, no peeking, and step-by-step decoding."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import assert_legible

from headway.errors import BundleError
from headway.experiments import layer_costs, load_experiment, no_peeking
from headway.experiments.experiment import Numbers, Settings, to_json_values
from headway.experiments.figures import figure_style
from headway.experiments.layer_measurements import (
    LAYER_KINDS,
    WINDOW,
    count_multiplications,
    graph_depth,
    make_layer,
    path_length,
    saved_activation_bytes,
    table1_ops,
    time_layers,
)
from headway.nn.attention import attention_weights

pytest_plugins = ["quick_form"]  # the fixtures of that file

NAMES = ("layer-costs", "no-peeking", "step-by-step")


def test_verdicts_of_the_quick_form(measured: dict[str, Numbers]) -> None:
    """Only verdicts that hold by construction are checked; times and half-trained models depend on chance."""
    found = {name: [each.outcome for each in load_experiment(name).judge(measured[name])] for name in NAMES}
    assert found["no-peeking"] == ["supported", "supported"]
    by_construction = {0: "supported", 1: "supported", 2: "supported", 4: "refuted", 5: "refuted"}
    assert {place: found["layer-costs"][place] for place in by_construction} == by_construction
    assert found["step-by-step"][0] == "supported"


@pytest.mark.parametrize("name", NAMES)
def test_figures_and_words(measured: dict[str, Numbers], name: str) -> None:
    with figure_style():
        assert_legible(load_experiment(name).draw(measured[name]))


def _counted(numbers: Any) -> None:
    numbers["counts"][0]["counted"] *= 3


def _operations(layer: str, *counted: int) -> Callable[[Any], None]:
    """The layer takes these numbers of operations at the pairs with n < d, the recurrent layer always 100."""

    def change(numbers: Any) -> None:
        below = [row for row in numbers["counts"] if row["n"] < row["d"]]
        for row in below:
            row["counted"] = 100
        for row, count in zip([row for row in below if row["layer"] == layer], cycle(counted), strict=False):
            row["counted"] = count

    return change


def _deep(numbers: Any) -> None:
    numbers["depths"]["self-attention"]["32"] = 200


def _far(numbers: Any) -> None:
    numbers["paths"]["recurrent"]["32"] = 1


def _times(below: float, above: float, one: float | None = None) -> Callable[[Any], None]:
    """Self-attention takes 1 ms; recurrence takes the given times below and above n = d, and ``one`` in one case."""

    def change(numbers: Any) -> None:
        for row in numbers["times"]:
            row |= dict.fromkeys(LAYER_KINDS, 1.0) | {"recurrent": below if row["n"] < row["d"] else above}
        if one is not None:
            numbers["times"][1]["recurrent"] = one  # n = 8, d = 64

    return change


def _memory(plain_: int, fused: int) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        for kind, exponent in (("self-attention", plain_), ("fused self-attention", fused)):
            numbers["kept"][kind] = {str(n): n**exponent for n in (8, 32)}

    return change


def _leak(model: str, what: str, size: float) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        numbers["models"][model][what] = [size] * 3

    return change


def _each(**values: Any) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        for each in numbers["found"]:
            each |= values

    return change


def _logs(greedy: float, beam: float) -> Callable[[Any], None]:
    return _each(logs={"greedy": [greedy] * 20, "beam": [beam] * 20})


def _bleu(*gains: float) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        numbers["found"] = [
            {**numbers["found"][0], "bleu": {"greedy": 20.0, "beam, length penalty 0.6": 20.0 + gain}} for gain in gains
        ]

    return change


@pytest.mark.parametrize(
    ("name", "claim", "change", "outcome"),
    [
        ("layer-costs", 0, _counted, "refuted"),
        ("layer-costs", 1, _deep, "refuted"),
        ("layer-costs", 1, _far, "refuted"),
        ("layer-costs", 2, _operations("self-attention", 100), "refuted"),
        ("layer-costs", 2, _operations("self-attention", 99, 101), "inconclusive"),
        ("layer-costs", 3, _times(2.0, 0.5), "supported"),
        ("layer-costs", 3, _times(0.5, 2.0), "refuted"),
        ("layer-costs", 3, _times(2.0, 0.5, 0.5), "inconclusive"),
        ("layer-costs", 4, _operations("whole self-attention", 1), "supported"),
        ("layer-costs", 4, _operations("whole self-attention", 1, 101), "inconclusive"),
        ("layer-costs", 5, _memory(2, 2), "supported"),
        ("layer-costs", 5, _memory(2, 1), "refuted"),
        ("no-peeking", 0, _leak("Transformer", "earlier", 0.01), "refuted"),
        ("no-peeking", 0, _leak(no_peeking.NO_CAUSAL, "earlier", 0.0), "inconclusive"),
        ("no-peeking", 0, _leak("Transformer", "later", 0.0), "inconclusive"),
        ("no-peeking", 1, _leak("GRU without attention", "padding", 0.01), "refuted"),
        ("no-peeking", 1, _leak(no_peeking.NO_PADDING, "padding", 0.0), "inconclusive"),
        ("step-by-step", 0, _each(difference=0.5), "refuted"),
        ("step-by-step", 0, _each(change=0.0), "inconclusive"),
        ("step-by-step", 1, _logs(-5.0, -4.0), "supported"),
        ("step-by-step", 1, _logs(-4.0, -5.0), "refuted"),
        ("step-by-step", 1, _logs(-4.0, -4.0), "inconclusive"),
        ("step-by-step", 2, _bleu(0.5, 0.6, 0.4), "supported"),
        ("step-by-step", 2, _bleu(-0.5, -0.6, -0.4), "refuted"),
        ("step-by-step", 2, _bleu(-0.5, 0.6, 0.4), "inconclusive"),
        ("step-by-step", 2, _bleu(0.5), "inconclusive"),
        # Student's t for 2 degrees of freedom is 4.3, so 0.3, which is 2.2 standard errors from 0, is not significant.
        ("step-by-step", 2, _bleu(0.06, 0.54, 0.3), "inconclusive"),
    ],
)
def test_numbers_that_decide(
    measured: dict[str, Numbers], name: str, claim: int, change: Callable[[Any], None], outcome: str
) -> None:
    numbers = deepcopy(measured[name])
    change(numbers)
    assert load_experiment(name).judge(numbers)[claim].outcome == outcome


def test_a_range_of_equal_numbers_is_one_number() -> None:
    assert layer_costs._range([2.0, 2.0000001]) == "2"
    assert layer_costs._range([0.5, 0.125]) == "0.125 to 0.5"


class TestLayers:
    def test_multiplications(self) -> None:
        """By hand for n = 3 and d = 4: two products of 3 x 4 x 3, two of 3 x 4 x 4, and so on."""
        found = {kind: count_multiplications(kind, 3, 4) for kind in LAYER_KINDS}
        assert found == {
            "self-attention": 2 * 3 * 3 * 4,
            "whole self-attention": 2 * 3 * 3 * 4 + 4 * 3 * 4 * 4,
            "recurrent": 2 * 3 * 4 * 4,
            "convolution": 3 * 3 * 4 * 4,
            "restricted self-attention": 2 * 3 * WINDOW * 4,
        }
        assert table1_ops("recurrent", 3, 4) == 3 * 16

    @pytest.mark.parametrize("n", [2, 9, 20])
    def test_paths(self, n: int) -> None:
        """By hand: causal convolutions of width 3 reach back 2, dilated ones 2, 8, 26; windows of 8 reach 4."""
        assert path_length("self-attention", n, 3) == 1
        assert path_length("recurrent", n, 3) == n - 1
        assert path_length("convolution", n, 3) == math.ceil((n - 1) / 2)
        assert path_length("dilated convolution", n, 3) == next(m for m in range(1, 9) if 3**m > n - 1)
        assert path_length("restricted self-attention", n, 3) == math.ceil((n - 1) / 4)

    def test_depth(self) -> None:
        assert graph_depth("recurrent", 20, 4) - graph_depth("recurrent", 10, 4) >= 10
        assert graph_depth("self-attention", 20, 4) == graph_depth("self-attention", 10, 4)

    def test_restricted_attention_is_attention_with_a_band_for_a_mask(self) -> None:
        x = torch.randn(2, 21, 6)
        places = torch.arange(21)
        distance = places[None, :] - places[:, None]
        band = (distance >= -(WINDOW // 2)) & (distance < WINDOW // 2)
        expected = attention_weights(x, x, band) @ x
        torch.testing.assert_close(make_layer("restricted self-attention", 6)(x), expected)

    def test_both_ways_to_compute_attention_agree(self) -> None:
        x = torch.randn(2, 7, 4)
        torch.testing.assert_close(make_layer("self-attention", 4)(x), make_layer("fused self-attention", 4)(x))

    def test_memory(self) -> None:
        """The weights are n x n floats; the output of any layer is n x d."""
        x = torch.randn(1, 50, 4, requires_grad=True)
        assert saved_activation_bytes(make_layer("self-attention", 4), x) >= 4 * 50 * 50
        assert 4 * 50 * 4 <= saved_activation_bytes(make_layer("fused self-attention", 4), x) < 4 * 50 * 50

    def test_times_of_layers_that_take_turns(self) -> None:
        turns: list[str] = []

        class Layer(torch.nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                turns.append(name_of[self])
                return super().forward(x)

        layers = {"one": Layer(4, 4), "other": Layer(4, 4)}
        name_of = {layer: name for name, layer in layers.items()}
        times = time_layers(layers, torch.randn(1, 5, 4), rounds=3)
        assert turns == ["one", "other"] * 4  # the first round is a warm-up
        assert {name: len(each) for name, each in times.items()} == {"one": 3, "other": 3}
        assert all(0 < each < 1e4 for values in times.values() for each in values)


class TestDecoding:
    def test_steps_are_fed_what_was_chosen(self, measured: dict[str, Numbers]) -> None:
        example = measured["step-by-step"]["example"]
        for name in ("greedy", "beam"):
            steps = example[name]["steps"]
            assert steps[0]["fed"] == "<bos>"
            assert steps[-1]["chosen"] == "<eos>"
            assert [step["fed"] for step in steps[1:]] == [step["chosen"] for step in steps[:-1]]
            log = sum(math.log(step["probability"]) for step in steps)
            assert log == pytest.approx(example[name]["log"], abs=1e-4)
            for step in steps:
                values = [value for _, value in step["best"]]
                assert len(values) == 5
                assert values == sorted(values, reverse=True)
                assert step["rank"] > 5 or step["best"][step["rank"] - 1][0] == step["chosen"]
        assert all(step["rank"] == 1 for step in example["greedy"]["steps"])

    def test_a_given_model(self, quick_settings: Settings, measured: dict[str, Numbers]) -> None:
        (folder,) = (path.parent for path in quick_settings.work_folder.glob("runs/corpus-seed1-*/*/config.json"))
        numbers = to_json_values(load_experiment("step-by-step").measure(replace(quick_settings, model_folder=folder)))
        assert numbers["found"] == [measured["step-by-step"]["found"][0]]

    def test_no_model(self, quick_settings: Settings, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="no such folder; expected a model folder"):
            load_experiment("step-by-step").measure(replace(quick_settings, model_folder=tmp_path / "none"))
