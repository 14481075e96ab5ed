"""The costs of layers and of models."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from copy import deepcopy
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from pictures import assert_legible

from headway.experiments import layer_costs, load_experiment, model_costs
from headway.experiments.experiment import Numbers, Settings
from headway.experiments.figures import figure_style
from headway.experiments.layer_measurements import (
    OPERATIONS,
    WINDOW,
    count_multiplications,
    graph_depth,
    make_layer,
    path_length,
    saved_bytes,
    time_in_turns,
)
from headway.experiments.model_measurements import TEST, read_pairs
from headway.experiments.verdicts import Verdict, settle
from headway.hardware import processor_has_bfloat16
from headway.nn.attention import attention_weights

pytest_plugins = ["quick_form"]  # the fixtures of that file

HOLDS, FAILS, OPEN = "holds exactly", "does not hold", "not decidable here"
NAMES = ("layer-costs", "model-costs")


def verdicts(name: str, numbers: Numbers) -> tuple[Verdict, ...]:
    (settled,) = settle([load_experiment(name).judge(numbers)])
    return settled


def test_verdicts_of_the_quick_form(measured: dict[str, Numbers]) -> None:
    """Only verdicts that hold by construction are checked; times depend on chance."""
    found = [verdict.outcome for verdict in verdicts("layer-costs", measured["layer-costs"])]
    by_construction = {0: HOLDS, 1: HOLDS, 2: HOLDS, 4: FAILS, 6: FAILS}
    assert {place: found[place] for place in by_construction} == by_construction


@pytest.mark.parametrize("name", NAMES)
def test_timed_claims_name_the_machine(measured: dict[str, Numbers], name: str) -> None:
    regimes = {verdict.regime for verdict in verdicts(name, measured[name])}
    assert regimes == {"", measured[name]["regime"]}
    assert re.search(r"\d+ threads?.*, (float32|bfloat16)$", measured[name]["regime"])


@pytest.mark.parametrize("name", NAMES)
def test_figures_and_words(measured: dict[str, Numbers], name: str) -> None:
    with figure_style():
        assert_legible(load_experiment(name).draw(measured[name]))


def _counted(numbers: Any) -> None:
    numbers["counts"]["self-attention"][0][0] *= 3


def _operations(layer: str, *counted: int) -> Callable[[Any], None]:
    """The layer takes these numbers of operations at the pairs with n < d, the recurrent layer always 100."""

    def change(numbers: Any) -> None:
        below = np.less(*np.ix_(layer_costs.COUNTED_LENGTHS, layer_costs.COUNTED_WIDTHS))
        for kind, values in (("recurrent", [100]), (layer, counted)):
            counts = np.array(numbers["counts"][kind])
            counts[below] = np.resize(values, below.sum())
            numbers["counts"][kind] = counts.tolist()

    return change


def _deep(numbers: Any) -> None:
    numbers["depths"]["self-attention"][-1] = 200


def _far(numbers: Any) -> None:
    numbers["paths"]["recurrent"][-1] = 1


def _times(below: float, above: float, one: float | None = None) -> Callable[[Any], None]:
    """Self-attention takes 1 ms; recurrence takes the given times below and above n = d, and ``one`` in one case."""

    def change(numbers: Any) -> None:
        times = np.where(np.less(*np.ix_(numbers["lengths"], numbers["widths"])), below, above)
        numbers["times"] = {kind: np.ones_like(times).tolist() for kind in OPERATIONS} | {"recurrent": times.tolist()}
        if one is not None:
            numbers["times"]["recurrent"][0][1] = one  # n = 8, d = 64

    return change


def _memory(plain_: int, fused: int) -> Callable[[Any], None]:
    def change(numbers: Any) -> None:
        for kind, exponent in (("self-attention", plain_), ("fused self-attention", fused)):
            numbers["kept"][kind] = [n**exponent for n in numbers["lengths"]]

    return change


def _scores(ms: float, mib: float) -> Callable[[Any], None]:
    """The additive score takes these multiples of the time and the memory of the paper's."""

    def change(numbers: Any) -> None:
        rounds = [2.0 + number / 100 for number in range(15)]
        numbers["milliseconds"] = {"scaled_dot": rounds, "additive": [ms * time for time in rounds]}
        numbers["mebibytes"] = {"scaled_dot": 4.0, "additive": 4.0 * mib}

    return change


def _growth(restricted: float, whole: float, *, of_first: float | None = None) -> Callable[[Any], None]:
    """Time and memory grow with these powers of n; time of restricted attention of the first width with its own."""

    def change(numbers: Any) -> None:
        for kind, power in (("restricted self-attention", restricted), ("self-attention", whole)):
            numbers["kept"][kind] = [n**power for n in numbers["lengths"]]
            numbers["times"][kind] = [[n**power] * len(numbers["widths"]) for n in numbers["lengths"]]
        if of_first is not None:
            for n, times in zip(numbers["lengths"], numbers["times"]["restricted self-attention"], strict=True):
                times[0] = n**of_first

    return change


def _grid(
    recurrent: float, transformer: float, bytes_: float, without_attention: float | None = None
) -> Callable[[Any], None]:
    """Long sequences take these multiples of the time and the memory of short ones, at an equal number of tokens.

    ``without_attention`` replaces both multiples of the recurrent model without attention.
    """

    def change(numbers: Any) -> None:
        for row in numbers["grid"]:
            slower = recurrent if row["model"] in model_costs.RECURRENT else transformer
            larger, is_long = bytes_, row["n"] == 32
            if without_attention is not None and row["model"] == "recurrent, no attention":
                slower = larger = without_attention
            row |= {"seconds": [slower if is_long else 1.0] * 6, "bytes": larger if is_long else 1.0}

    return change


@pytest.mark.parametrize(
    ("name", "claim", "change", "outcome"),
    [
        ("layer-costs", 0, _counted, FAILS),
        ("layer-costs", 1, _deep, FAILS),
        ("layer-costs", 1, _far, FAILS),
        ("layer-costs", 2, _operations("self-attention", 100), FAILS),
        ("layer-costs", 2, _operations("self-attention", 99, 101), OPEN),
        ("layer-costs", 3, _times(2.0, 0.5), "reproduced"),
        ("layer-costs", 3, _times(0.5, 2.0), "opposite here"),
        ("layer-costs", 3, _times(2.0, 0.5, 0.5), OPEN),
        ("layer-costs", 4, _operations("whole self-attention", 1), HOLDS),
        ("layer-costs", 4, _operations("whole self-attention", 1, 101), OPEN),
        ("layer-costs", 5, _growth(1.0, 2.0), "reproduced"),
        ("layer-costs", 5, _growth(1.9, 2.0), "opposite here"),
        ("layer-costs", 5, _growth(1.0, 1.0), OPEN),
        ("layer-costs", 5, _growth(1.0, 2.0, of_first=1.4), OPEN),
        ("layer-costs", 6, _memory(2, 2), HOLDS),
        ("layer-costs", 6, _memory(2, 1), FAILS),
        ("layer-costs", 7, _scores(3.0, 2.0), "reproduced"),
        ("layer-costs", 7, _scores(1.9, 2.0), OPEN),
        ("layer-costs", 7, _scores(0.9, 2.0), "opposite here"),
        ("layer-costs", 7, _scores(3.0, 0.9), "opposite here"),
        ("model-costs", 0, _grid(3.0, 1.5, 1.0), "reproduced"),
        ("model-costs", 0, _grid(1.5, 3.0, 1.0), "opposite here"),
        ("model-costs", 0, _grid(3.0, 3.0, 1.0), OPEN),
        ("model-costs", 0, _grid(3.0, 1.5, 1.0, without_attention=1.0), OPEN),
        ("model-costs", 1, _grid(1.0, 1.0, 1.2, without_attention=1.0), HOLDS),
        ("model-costs", 1, _grid(1.0, 1.0, 1.2), HOLDS),
        ("model-costs", 1, _grid(1.0, 1.0, 1.05), FAILS),
        ("model-costs", 2, _grid(1.0, 1.0, 1.2), HOLDS),
        ("model-costs", 2, _grid(1.0, 1.0, 1.05), FAILS),
        ("model-costs", 3, _grid(1.0, 1.0, 1.2), HOLDS),
        ("model-costs", 3, _grid(1.0, 1.0, 1.05), FAILS),
    ],
)
def test_numbers_that_decide(
    measured: dict[str, Numbers], name: str, claim: int, change: Callable[[Any], None], outcome: str
) -> None:
    numbers = deepcopy(measured[name])
    change(numbers)
    assert verdicts(name, numbers)[claim].outcome == outcome


def test_a_range_of_equal_numbers_is_one_number() -> None:
    assert layer_costs._range(np.array([2.0, 2.0000001])) == "2"
    assert layer_costs._range(np.array([0.5, 0.125])) == "0.125 to 0.5"


class TestModelCosts:
    def test_the_baseline_costs_what_it_costs(self, measured: dict[str, Numbers]) -> None:
        costs = measured["model-costs"]["costs"]
        assert costs["baseline"]["step"][0] == costs["baseline"]["memory"] == 1
        assert costs["recurrent-additive"]["search"] == "float32"  # only Transformers have an int8 search

    def test_variants_that_cost_the_same_are_measured_once(self) -> None:
        names = [variant.name for variant in model_costs.variants_with_costs()]
        assert names[0] == "baseline"
        assert ("bfloat16" in names) == processor_has_bfloat16()
        assert {"1-head", "words", "batch-1024", "recurrent-additive"} <= {*names}
        assert not {"no-dropout", "ema", "baseline-tuned", "rotary-2300-steps", "news-best"} & {*names}

    def test_a_variant_without_a_row_has_empty_columns(self) -> None:
        row = {"step": [2.0, 1.5, 2.5], "decoding": [1.0, 0.9, 1.1], "memory": 3.0, "search": "int8", "weights": 7}
        filled, empty = model_costs.cost_columns(row), model_costs.cost_columns(None)
        assert filled["time of a step"] == "2 [1.5, 2.5]"
        assert list(filled) == list(empty)
        assert set(empty.values()) == {None}

    @pytest.mark.slow
    def test_the_search_translates_to_the_lengths_of_the_references(self, quick_settings: Settings) -> None:
        (corpus,) = quick_settings.work_folder.glob("pairs-*")
        baseline = model_costs.variants_with_costs()[0]
        model = model_costs.UntrainedModel(baseline, corpus, quick_settings.work_folder)
        pairs = read_pairs(corpus, TEST)
        with torch.inference_mode():
            _, search = model.search(pairs)
            lengths = [len(hypotheses[0].tokens) for hypotheses in search()]
        assert lengths == [len(model.tokenizers.target.encode(target)) for _, target in pairs]
        assert len(set(lengths)) > 1


class TestLayers:
    def test_multiplications(self) -> None:
        """By hand for n = 3 and d = 4: two products of 3 x 4 x 3, two of 3 x 4 x 4, and so on."""
        found = {kind: count_multiplications(kind, 3, 4) for kind in OPERATIONS}
        assert found == {
            "self-attention": 2 * 3 * 3 * 4,
            "whole self-attention": 2 * 3 * 3 * 4 + 4 * 3 * 4 * 4,
            "recurrent": 2 * 3 * 4 * 4,
            "convolution": 3 * 3 * 4 * 4,
            "restricted self-attention": 2 * 3 * WINDOW * 4,
        }
        assert OPERATIONS["recurrent"](3, 4) == 3 * 16

    @pytest.mark.parametrize("n", [2, 9, 20])
    def test_paths(self, n: int) -> None:
        """By hand: causal convolutions of width 3 reach back 2, dilated ones 2, 8, 26; windows of 8 reach 4."""
        assert path_length("self-attention", n) == 1
        assert path_length("recurrent", n) == n
        assert path_length("convolution", n) == math.ceil((n - 1) / 2)
        assert path_length("dilated convolution", n) == next(m for m in range(1, 9) if 3**m > n - 1)
        assert path_length("restricted self-attention", n) == math.ceil((n - 1) / 4)

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
        assert saved_bytes(make_layer("self-attention", 4), x) >= 4 * 50 * 50
        assert 4 * 50 * 4 <= saved_bytes(make_layer("fused self-attention", 4), x) < 4 * 50 * 50


def test_functions_that_are_timed_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of three rounds is a warm-up. The time of a function with several turns is their mean."""
    clock, turns, pauses = [0.0], list[str](), cycle([1.0, 3.0])
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def run(name: str, pause: float) -> None:
        turns.append(name)
        clock[0] += pause

    one, other = ("one", lambda: run("one", next(pauses))), ("other", lambda: run("other", 5.0))
    assert time_in_turns([one, other, one], 2) == {"one": [2.0, 2.0], "other": [5.0, 5.0]}
    assert turns == ["one", "other", "one"] * 3
