"""The experiments that train models: their verdicts and figures from made-up numbers, and the quick version.

The numbers of each experiment are chosen so that every claim holds; each test then reverses some of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from headway.experiments import choices, depth, load_experiment
from headway.experiments.corpus import MULTI30K
from headway.experiments.experiment import Numbers, Settings, to_json_values
from headway.experiments.figures import figure_style
from headway.experiments.model_measurements import BLOCKS
from headway.experiments.pool import VARIANTS
from headway.experiments.pool_runs import write_record
from headway.experiments.statistics_of_runs import STATISTICS
from headway.experiments.verdicts import settle

pytest_plugins = ["quick_form"]  # the fixtures of that file

SPREAD = (-0.1, 0.0, 0.1)  # around a mean, for three seeds: the interval of a difference is +-0.23
WIDE = (-20.0, 0.0, 20.0)


def depth_numbers(spread: tuple[float, ...] = SPREAD, **changes: float) -> Numbers:
    gradients = [
        {
            "norm": norm,
            "residual": residual,
            "seed": seed,
            "sizes": [10 ** (-lost * (1 + offset) * at) for at in range(3)],
        }
        for norm, residual in product(depth.NORMS, (True, False))
        for lost in [changes.get("lost_residual", -2.0) if residual else changes.get(f"lost_{norm}", 2.0)]
        for seed, offset in enumerate(spread, start=1)
    ]
    return {"depths": [1, 4, 16], "gradients": gradients}


def choice_numbers(spread: tuple[float, ...] = SPREAD, **changes: Any) -> Numbers:
    """All runs are recorded, and every variant differs from its baseline as its claim says."""
    values = dict.fromkeys(STATISTICS, 1.0) | {"bleu": changes.get("bleu", 36.0), "error": changes.get("error", 7.0)}
    runs = [
        {"variant": variant.name, "seed": seed, "values": values, "diverged": False, "seconds_per_step": 0.5}
        for variant in VARIANTS
        for seed in range(1, variant.seeds + 1)
    ]
    for run in runs:
        run["diverged"] = run["variant"] in changes.get("diverged", ())
    signs = {"better": 10, "worse": -10, "equal": 0}  # a claimed difference is ten times the smallest one of interest
    is_less_better = {"loss", "overfitting", "error", "calibration", "confidence", "long"}
    error = 0.05 if spread == SPREAD else 20.0
    effects = dict[str, Any]()
    for claim in choices.COMPARISONS:
        unit = STATISTICS[claim.statistic].min_difference
        size = changes.get("size", 1.0) * signs[claim.direction] * unit
        effects[claim.key] = [[-size if claim.statistic in is_less_better else size, error * unit, 20], error * unit]
    return {"runs": runs, "effects": effects}


def scaling_numbers(spread: tuple[float, ...] = SPREAD, **changes: float) -> Numbers:
    compute, sizes = [1e12, 4e12], [1e5, 4e5]
    runs = [
        {"seed": seed, "compute": each, "weights": weights, "loss": 1.6 + number / 10}
        for seed in range(1, len(spread) + 1)
        for number, (each, weights) in enumerate(product(compute, sizes))
    ]
    alpha, beta, bend = (changes.get(key, value) for key, value in (("alpha", 0.05), ("beta", 0.5), ("bend", 0.0)))
    best = [{"compute": each, "weights": 2e5, "loss": 1.6, "at_end": bool(changes.get("at_end"))} for each in compute]
    fits = [
        {"seed": seed, "best": best, "bend": bend + offset / 100}
        | {"loss": [-alpha - offset / 100, 1.9], "size": [beta + offset / 10, -1.6]}
        for seed, offset in enumerate(spread, start=1)
    ]
    return {"runs": runs, "fits": fits}


def search_numbers(spread: tuple[float, ...] = SPREAD, **changes: float) -> Numbers:
    gain = changes.get("gain", 1.0)  # nats that a beam of 4 finds more than greedy search, and 16 more than 4
    log_probs = [[(gain + offset) * at for at in (0, 0.5, 1, 1.5, 2)] for offset in spread]
    table = {"BLEU over the beam, mean of the models": list[Any]()}
    return {"seeds": [1, 2, 3], "log_probs": log_probs, "sampling": [0.01, 0.01], "example": None, "tables": table}


MAKERS: dict[str, Callable[..., Numbers]] = {
    "depth": depth_numbers,
    "choices": choice_numbers,
    "step-by-step": search_numbers,
    "scaling-laws": scaling_numbers,
}
EQUAL, OPPOSITE, OPEN = "no difference above", "opposite here", "not decidable here"


def outcomes(name: str, numbers: Numbers) -> list[str]:
    (verdicts,) = settle([load_experiment(name).judge(to_json_values(numbers))])
    return [verdict.outcome for verdict in verdicts]


@pytest.mark.parametrize("name", MAKERS)
def test_numbers_that_bear_the_claims_out_reproduce_them(name: str) -> None:
    assert set(outcomes(name, MAKERS[name]())) <= {"reproduced", EQUAL}


@pytest.mark.parametrize("name", MAKERS)
def test_seeds_that_differ_widely_decide_nothing(name: str) -> None:
    assert set(outcomes(name, MAKERS[name](spread=WIDE))) == {OPEN}


@pytest.mark.parametrize(
    ("name", "claim", "changes", "outcome"),
    [
        ("depth", 0, {"lost_post": 0.1}, EQUAL),
        ("depth", 0, {"lost_post": -1.0}, OPPOSITE),
        ("depth", 1, {"lost_none": -1.0}, OPPOSITE),
        ("depth", 2, {"lost_residual": 1.0}, OPPOSITE),
        ("choices", 0, {"size": 1.0}, EQUAL),
        ("choices", 1, {"size": -1.0}, OPPOSITE),
        ("choices", 1, {"size": 0.01}, EQUAL),
        ("choices", 1, {"bleu": 34.9}, OPEN),
        ("choices", 1, {"diverged": ["no-positions"]}, "reproduced"),  # 3 of 3 against 0 of 8: p = 1 / 165
        ("choices", 0, {"diverged": ["learned-positions"]}, OPPOSITE),
        ("choices", 2, {"diverged": ["rotary"]}, OPPOSITE),
        ("step-by-step", 0, {"gain": -1.0}, OPPOSITE),
        ("scaling-laws", 0, {"bend": -0.04}, OPPOSITE),
        ("scaling-laws", 1, {"alpha": 0.1}, OPPOSITE),
        ("scaling-laws", 1, {"alpha": 0.1, "bend": -0.04}, OPEN),  # there is no one exponent
        ("scaling-laws", 2, {"beta": 0.73}, OPPOSITE),
        ("scaling-laws", 3, {"beta": 0.8}, OPPOSITE),
    ],
)
def test_other_numbers_give_other_verdicts(name: str, claim: int, changes: dict[str, Any], outcome: str) -> None:
    assert outcomes(name, MAKERS[name](**changes))[claim] == outcome


def test_more_seeds_are_named_only_if_they_help() -> None:
    def reason(error: float, sampling: float) -> str:
        numbers = choice_numbers(size=0.0)
        key = choices.COMPARISONS[1].key
        numbers["effects"][key] = [[0.0, error, 20], sampling]
        (verdicts,) = settle([choices.judge(numbers)])
        assert verdicts[1].outcome == OPEN
        return verdicts[1].reason

    assert re.search(r"it would take 12 seeds and \d+ core hours to detect half", reason(0.5, 0.0))  # 4 times 3 seeds
    assert re.search(r"it would take 24 seeds", reason(0.5, 0.2))  # 3 / (1/4 - 3/4 * 0.16) = 23.1
    assert "it would take more test items" in reason(0.5, 0.3)


def test_a_best_size_at_the_end_of_the_sizes_decides_nothing() -> None:
    assert outcomes("scaling-laws", scaling_numbers(at_end=1.0))[2:] == [OPEN, OPEN]


def test_a_choice_without_all_of_its_runs_says_what_they_take() -> None:
    numbers = choice_numbers()
    index = [claim.variant for claim in choices.COMPARISONS].index("1-head")
    numbers["runs"] = [run for run in numbers["runs"] if (run["variant"], run["seed"]) != ("1-head", 3)]
    (verdicts,) = settle([load_experiment("choices").judge(numbers)])
    verdict = verdicts[index]
    assert verdict.outcome == OPEN
    # One run of 4,600 steps of half a second is 0.64 hours.
    assert "2 of 3 seeds against 8 of 8 seeds" in verdict.reason
    assert "after 0.6 core hours" in verdict.reason


def test_a_claim_that_is_newer_than_the_numbers_is_open() -> None:
    numbers = choice_numbers()
    del numbers["effects"][choices.COMPARISONS[1].key]
    (verdicts,) = settle([choices.judge(numbers)])
    assert (verdicts[1].outcome, verdicts[0].outcome) == (OPEN, EQUAL)
    assert "measure again" in verdicts[1].reason


def test_the_choice_of_sentences_is_resampled_for_all_seeds_at_once(tmp_path: Path) -> None:
    """Each block has one token, so the error of a mean cost is its standard deviation over the root of their number."""
    for file in (tmp_path / "data" / name for name in MULTI30K):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a b c d\n" * BLOCKS)
    costs = np.random.default_rng(1).normal(0.1, 0.05, (3, BLOCKS))  # of the head over the source, by seed
    for seed, cost in enumerate(costs, start=1):
        heads = {"kinds": ["encoder", "cross"], "whole": [-1.0] * BLOCKS}
        heads["without"] = [[-1.0] * BLOCKS, (-1.0 - cost).tolist()]
        texts = {str(beam): ["a b c d"] * BLOCKS for beam in (1, 4)}
        record = {"seed": seed, "rate": 1e-3, "engine": "", "diverged": False, "starts": [{"processor": ""}]}
        record |= {"cpu_seconds_per_step": 1.0, "num_tokens": [1] * BLOCKS, "translations": texts}
        record |= {"log_probs": [-1.0] * BLOCKS, "log_probs_of_average": [-1.0] * BLOCKS}
        write_record(tmp_path / f"baseline-seed{seed}.json.xz", {**record, "measured": {"heads": heads}})
    settings = Settings(False, (), tmp_path / "data", tmp_path, lambda _: None)
    (value, error, freedom), sampling = choices.measure(settings)["effects"]["cross-heads of baseline"]
    assert value == pytest.approx(costs.mean())
    assert (error, freedom) == (pytest.approx(costs.mean(1).std(ddof=1) / 3**0.5), 2)
    assert sampling == pytest.approx(costs.mean(0).std() / BLOCKS**0.5, rel=0.1)


def test_a_chosen_sentence_decides_no_claim_about_heads() -> None:
    weights = [[0.9, 0.8, 0.1], [0.9, 0.9, 0.9], [0.1, 0.2, 0.3], []]
    assert outcomes("what-heads-see", {"weights": weights}) == [OPEN] * 4
    (verdicts,) = settle([load_experiment("what-heads-see").judge({"weights": weights})])
    assert verdicts[0].reason.startswith("in 2 of 3 models (weights: 0.90, 0.80, 0.10)")


def test_classifiers_have_a_gate_of_their_own() -> None:
    (verdicts,) = settle([load_experiment("choices").judge(choice_numbers(error=12.7, bleu=36.0))])
    judged = zip(choices.COMPARISONS, verdicts, strict=True)
    assert {claim.group for claim, verdict in judged if verdict.outcome == OPEN} == {
        "classification",
        "best classifier",
    }


def test_every_claim_is_about_a_variant_that_measures_what_it_needs() -> None:
    variants = {variant.name: variant for variant in VARIANTS}
    assert len({(claim.key, claim.direction) for claim in choices.COMPARISONS}) == len(choices.COMPARISONS)
    for claim in choices.COMPARISONS:
        assert claim.direction in ("better", "worse", "equal")
        for side in claim.sides:
            assert STATISTICS[claim.statistic].needs.replace("ema", "average") in ("", *variants[side].measured), (
                claim.key
            )
            assert variants[side].classifies == variants[claim.gate[0]].classifies


@pytest.mark.slow_but_every(3)
@pytest.mark.parametrize("name", MAKERS)
def test_the_figure_names_all_that_it_shows(name: str) -> None:
    experiment = load_experiment(name)
    numbers = to_json_values(MAKERS[name]())
    with figure_style():
        picture = experiment.draw(numbers)
        picture.savefig(BytesIO(), format="svg")  # computes the position of every text
    assert isinstance(picture, Figure)
    assert picture.get_suptitle()
    panels = [axes for axes in picture.axes if axes.get_label() != "<colorbar>"]
    assert panels
    for axes in panels:
        assert axes.get_title("left")
        assert axes.get_xlabel() or [tick.get_text() for tick in axes.get_xticklabels()]
        assert axes.get_ylabel() or axes.get_xlabel()


def test_the_quick_form_of_all(quick_folder: Path, measured: dict[str, Numbers]) -> None:
    for name, numbers in measured.items():
        assert {path.suffix for path in quick_folder.glob(f"{name}.*")} == {".json", ".svg", ".png"}
        assert numbers["tables"]
    assert (quick_folder / "report.html").stat().st_size > 1e6
    assert set(outcomes("choices", measured["choices"])) == {OPEN}  # no run is recorded
