"""The experiments that train models: their verdicts and figures from made-up numbers, and the quick version.

The numbers of each experiment are chosen so that every claim holds; each test then reverses some of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from headway.errors import DivergenceError, TrainingError
from headway.experiments import (
    attention_scores,
    heads,
    label_smoothing,
    load_experiment,
    positions,
    pretraining,
    recurrent_lm,
    restricted_attention,
    sentence_length,
    warmup_depth,
    what_heads_see,
)
from headway.experiments.corpus import experiment_corpus
from headway.experiments.experiment import Numbers, Settings, to_json_values
from headway.experiments.figures import figure_style
from headway.experiments.length_sweep import LENGTHS
from headway.experiments.training import TrainedRun, vocabulary_size

pytest_plugins = ["quick_form"]  # the fixtures of that file

SPREAD = (-0.1, 0.0, 0.1)  # around a mean, for three seeds: the interval of a difference is +-0.23
WIDE = (-20.0, 0.0, 20.0)


def rows(means: dict[str, float], key: str = "bleu", spread: tuple[float, ...] = SPREAD) -> list[dict[str, Any]]:
    return [
        {"variant": name, "seed": seed, "bleu": 30.0, "loss": 2.0, "minutes": 1.0, key: mean + offset}
        for name, mean in means.items()
        for seed, offset in enumerate(spread, start=1)
    ]


def attention_score_numbers(
    bleu: dict[str, float] | None = None, spread: tuple[float, ...] = SPREAD, **ratios: float
) -> Numbers:
    better = {"feed-forward": 31.5, attention_scores.WIDE_ADDITIVE: 32.0}
    means = {**dict.fromkeys(attention_scores.VARIANTS, 30.0), **better, **(bleu or {})}
    costs = {name: {"ms": [2.0, 2.1, 2.2], "mib": 4.0} for name in means}
    ms, mib = ratios.get("ms", 3.0), ratios.get("mib", 2.0)
    costs[attention_scores.ADDITIVE] = {"ms": [2.0 * ms, 2.1 * ms, 2.2 * ms], "mib": 4.0 * mib}
    return {"runs": rows(means, spread=spread), "costs": costs}


def heads_numbers(one: float = 29.0, many: float = 29.0, spread: tuple[float, ...] = SPREAD) -> Numbers:
    means = {heads.ONE: one, heads.MIDDLE: 30.0, heads.MANY: many}
    return {"runs": rows(means, spread=spread), "many": 32}


def restricted_numbers(
    power: float = 1.0, all_power: float = 2.0, middle: float = 30.0, least: float = 27.0, spread: Any = SPREAD
) -> Numbers:
    means = {restricted_attention.ALL_POSITIONS: 30.0, "r = 16": 30.0, "r = 8": middle, "r = 4": 29.0, "r = 2": least}
    powers = {
        restricted_attention.PLAIN: all_power,
        restricted_attention.FUSED: all_power,
        restricted_attention.RESTRICTED: power,
    }
    costs = {
        name: {str(n): {"ms": 1e-3 * n**each, "kib": 0.1 * n**each} for n in (512, 1024, 2048)}
        for name, each in powers.items()
    }
    return {"runs": rows(means, spread=spread), "costs": costs}


def length_numbers(curves: dict[str, list[float]], spread: tuple[float, ...] = SPREAD) -> Numbers:
    runs = [
        {"variant": name, "seed": seed, "sentences": count, "bleu": mean + (offset if count != 3 else -offset)}
        for name, means in curves.items()
        for count, mean in zip(LENGTHS, means, strict=True)
        for seed, offset in enumerate(spread, start=1)
    ]
    weights = dict.fromkeys(curves, 1234567)
    return {"runs": runs, "tokens": [14.0 * count for count in LENGTHS], "weights": weights}


def sentence_numbers(spread: tuple[float, ...] = SPREAD, **changes: list[float]) -> Numbers:
    curves = {
        sentence_length.FIXED: changes.get("fixed", [20.0, 14.0, 10.0, 6.0, 3.0]),
        sentence_length.ATTENDING: changes.get("attending", [25.0, 25.0, 24.5, 20.0, 15.0]),
        sentence_length.TRANSFORMER: changes.get("transformer", [30.0, 30.0, 29.0, 20.0, 10.0]),
    }
    return length_numbers(curves, spread)


def position_numbers(spread: tuple[float, ...] = SPREAD, **changes: list[float]) -> Numbers:
    curves = {
        positions.SINUSOIDAL: changes.get("sinusoidal", [30.0, 30.0, 30.0, 29.0, 28.0]),
        positions.LEARNED: changes.get("learned", [30.0, 30.0, 30.0, 20.0, 10.0]),
        positions.ROTARY: [30.0, 30.0, 30.0, 29.0, 28.0],
        positions.NONE: changes.get("none", [20.0, 18.0, 16.0, 14.0, 12.0]),
    }
    return length_numbers(curves, spread)


def smoothing_numbers(spread: tuple[float, ...] = SPREAD, error: float = 1e-6, **smoothed: float) -> Numbers:
    hard = {"perplexity": 8.0, "entropy": 1.0, "accuracy": 50.0, "bleu": 29.0, "confidence": 0.7}
    soft = {"perplexity": 9.0, "entropy": 2.0, "accuracy": 51.0, "bleu": 30.0, "confidence": 0.5, **smoothed}
    runs = [
        {"variant": name, "seed": seed, "identity_error": error, "histogram": [0.05] * label_smoothing.NUM_BINS}
        | {key: value + offset for key, value in means.items()}
        for name, means in ((label_smoothing.SMOOTHED, soft), (label_smoothing.HARD, hard))
        for seed, offset in enumerate(spread, start=1)
    ]
    return {"runs": runs}


def warmup_numbers(spread: tuple[float, ...] = SPREAD, **changes: float) -> Numbers:
    losses = {
        ("post", warmup_depth.WARM): 3.0,
        ("post", warmup_depth.COLD): changes.get("post", 5.0),
        ("post", warmup_depth.BARE): changes.get("bare", 6.0),
        ("pre", warmup_depth.WARM): 3.0,
        ("pre", warmup_depth.COLD): changes.get("pre", 2.6),
    }
    runs = [
        {
            "norm": norm,
            "start": start,
            "seed": seed,
            "loss": loss + offset,
            "failed": 0,
            "curve": [[10, 7.0], [20, 5.0]],
        }
        for (norm, start), loss in losses.items()
        for seed, offset in enumerate(spread, start=1)
    ]
    depths = [1, 4, 16]
    gradients = [
        {
            "norm": norm,
            "residual": residual,
            "seed": seed,
            "sizes": [10 ** (-lost * (1 + offset) * at) for at in range(3)],
        }
        for norm, residual in product(warmup_depth.NORMS, (True, False))
        for lost in [0.0 if residual else changes.get(f"lost_{norm}", 2.0)]
        for seed, offset in enumerate(spread, start=1)
    ]
    return {"runs": runs, "depths": depths, "gradients": gradients}


def heads_seen(spread: tuple[float, ...] = SPREAD, **changes: float) -> Numbers:
    costs = {
        "encoder self-attention": changes.get("itself", 0.3),
        "decoder self-attention": changes.get("itself", 0.3),
        what_heads_see.CROSS_ATTENTION: changes.get("memory", 4.0),
    }
    runs = [
        {
            "bleu": 30.0,
            "heads": [
                {"kind": kind, "layer": layer, "bleu": [30.0 - cost + offset] * 2}
                for kind, cost in costs.items()
                for layer in range(2)
            ],
            "attention": [0.1, changes.get("attention", 0.8) + offset / 10],
            "diagonal": 0.3,
            "links": 500,
        }
        for offset in spread
    ]
    weights = [[[0.8, 0.2], [0.1, 0.9], [0.5, 0.5]]] * 4
    example = {"source": ["ein", "(end)"], "target": ["a", "dog", "(end)"], "layer": 0, "weights": weights}
    return {"runs": runs, "example": example}


def recurrent_numbers(spread: tuple[float, ...] = SPREAD, **changes: float) -> Numbers:
    losses = {
        recurrent_lm.TRANSFORMER: (1.6, 2.0, 1.5),
        recurrent_lm.SAME_TEXT: (changes.get("text", 2.0), changes.get("early", 2.0), changes.get("late", 2.0)),
        recurrent_lm.SAME_TIME: (changes.get("time", 1.9), 2.0, 1.9),
    }
    runs = [
        {"variant": variant, "seed": seed, "minutes": 5.0, "by_context": [3.0, 2.0, early, late]}
        | {"loss": loss + offset / 20, "early": early + offset / 20, "late": late + offset / 20}
        for variant, (loss, early, late) in losses.items()
        for seed, offset in enumerate(spread, start=1)
    ]
    bins = [[0, 1], [1, 2], [2, 4], [4, 8]]
    return {"runs": runs, "bins": bins, "early": [0, 1], "late": [2, 4], "context": 4, "unit": "character"}


def pretraining_numbers(spread: tuple[float, ...] = SPREAD, **changes: float) -> Numbers:
    accuracies = {
        pretraining.PRETRAINED: (changes.get("few", 88.0), 89.0, 90.0, changes.get("all", 93.0)),
        pretraining.SCRATCH: (50.0, 70.0, changes.get("many", 88.5), 91.0),
    }
    runs = [
        {"variant": variant, "seed": seed, "labeled": count}
        | {"accuracy": accuracy + (offset if variant == pretraining.SCRATCH else -offset)}
        for variant, each in accuracies.items()
        for count, accuracy in zip((100, 1000, 10_000, 35_436), each, strict=True)
        for seed, offset in enumerate(spread, start=1)
    ]
    return {"runs": runs, "classes": 4}


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
        {"seed": seed, "best": best, "bend": bend + offset / 20}
        | {"loss": [-alpha - offset / 50, 1.9], "size": [beta + offset / 10, -1.6]}
        for seed, offset in enumerate(spread, start=1)
    ]
    return {"runs": runs, "fits": fits}


MAKERS: dict[str, Callable[..., Numbers]] = {
    "attention-scores": attention_score_numbers,
    "heads": heads_numbers,
    "restricted-attention": restricted_numbers,
    "sentence-length": sentence_numbers,
    "positions": position_numbers,
    "label-smoothing": smoothing_numbers,
    "warmup-depth": warmup_numbers,
    "what-heads-see": heads_seen,
    "recurrent-lm": recurrent_numbers,
    "pretraining": pretraining_numbers,
    "scaling-laws": scaling_numbers,
}
CERTAIN = {("attention-scores", 0), ("restricted-attention", 0), ("label-smoothing", 4)}  # do not depend on seeds


def outcomes(name: str, numbers: Numbers) -> list[str]:
    return [verdict.outcome for verdict in load_experiment(name).judge(to_json_values(numbers))]


@pytest.mark.parametrize("name", MAKERS)
def test_numbers_that_bear_the_claims_out_support_them(name: str) -> None:
    assert set(outcomes(name, MAKERS[name]())) == {"supported"}


@pytest.mark.parametrize("name", MAKERS)
def test_seeds_that_differ_widely_decide_nothing(name: str) -> None:
    found = outcomes(name, MAKERS[name](spread=WIDE))
    undecided = {outcome for index, outcome in enumerate(found) if (name, index) not in CERTAIN}
    assert undecided == {"inconclusive"}


@pytest.mark.parametrize(
    ("name", "claim", "changes"),
    [
        ("attention-scores", 0, {"ms": 1.9}),
        ("attention-scores", 0, {"mib": 1.0}),
        ("attention-scores", 1, {"bleu": {"additive": 32.0}}),
        ("attention-scores", 1, {"bleu": {attention_scores.DOT: 28.0}}),
        ("attention-scores", 2, {"bleu": {attention_scores.WIDE_ADDITIVE: 30.0}}),
        ("attention-scores", 3, {"bleu": {"feed-forward": 30.0}}),
        ("attention-scores", 4, {"bleu": {"feed-forward": 30.1}}),
        ("heads", 0, {"one": 30.0}),
        ("heads", 1, {"many": 30.5}),
        ("heads", 0, {"one": 30.2, "many": 28.0}),
        ("restricted-attention", 0, {"power": 1.9}),
        ("restricted-attention", 1, {"middle": 28.0}),
        ("restricted-attention", 2, {"least": 30.0}),
        ("sentence-length", 0, {"fixed": [20.0] * 5, "attending": [25.0, 22.0, 20.0, 10.0, 5.0]}),
        ("sentence-length", 1, {"attending": [25.0, 22.0, 20.0, 10.0, 5.0]}),
        ("sentence-length", 2, {"transformer": [30.0, 25.0, 20.0, 10.0, 5.0]}),
        ("positions", 0, {"learned": [28.0, 28.0, 28.0, 20.0, 10.0]}),
        ("positions", 1, {"sinusoidal": [30.0, 30.0, 30.0, 20.0, 10.0]}),
        ("positions", 2, {"learned": [30.0, 30.0, 30.0, 30.0, 30.0]}),
        # It keeps a smaller share of its score, but is better nevertheless.
        ("positions", 2, {"learned": [40.0, 40.0, 40.0, 32.0, 31.0]}),
        ("positions", 3, {"none": [30.0, 30.0, 30.0, 30.0, 30.0]}),
        ("label-smoothing", 0, {"perplexity": 7.0}),
        ("label-smoothing", 1, {"entropy": 0.5}),
        ("label-smoothing", 2, {"accuracy": 49.0}),
        ("label-smoothing", 3, {"bleu": 28.0}),
        ("label-smoothing", 4, {"error": 0.01}),
        ("warmup-depth", 0, {"post": 2.5}),
        ("warmup-depth", 1, {"pre": 4.0}),
        ("warmup-depth", 2, {"lost_post": 0.1}),
        ("warmup-depth", 3, {"lost_none": 0.1}),
        ("warmup-depth", 4, {"bare": 2.5}),
        ("what-heads-see", 0, {"attention": 0.2}),
        ("what-heads-see", 1, {"itself": 2.0}),
        ("what-heads-see", 2, {"memory": 0.0}),
        ("recurrent-lm", 0, {"text": 1.5}),
        ("recurrent-lm", 1, {"time": 1.6}),
        ("recurrent-lm", 2, {"early": 2.1}),
        ("recurrent-lm", 3, {"late": 1.5}),
        ("pretraining", 0, {"few": 85.0}),
        ("pretraining", 1, {"few": 50.0}),
        ("pretraining", 2, {"all": 90.0}),
        ("pretraining", 3, {"all": 129.5}),  # the same gain as with few
        ("scaling-laws", 0, {"bend": -0.04}),
        ("scaling-laws", 1, {"alpha": 0.1}),
        ("scaling-laws", 2, {"beta": 0.73}),
        ("scaling-laws", 3, {"beta": 0.8}),
    ],
)
def test_numbers_against_a_claim_refute_it(name: str, claim: int, changes: dict[str, Any]) -> None:
    assert outcomes(name, MAKERS[name](**changes))[claim] == "refuted"


def test_a_best_size_at_the_end_of_the_sizes_decides_nothing() -> None:
    assert outcomes("scaling-laws", scaling_numbers(at_end=1.0)) == ["supported", "supported", *["inconclusive"] * 2]


def test_one_head_is_compared_with_the_best_other_setting() -> None:
    """By hand: compared with 4 heads at 29.1, one head would be as good; 32 heads are at 30."""
    numbers = heads_numbers(one=29.0, many=30.0)
    for row in numbers["runs"]:
        row["bleu"] -= 0.9 if row["variant"] == heads.MIDDLE else 0.0
    verdict = load_experiment("heads").judge(numbers)[0]
    assert verdict.outcome == "supported"
    assert "best other setting (32 heads)" in verdict.reason
    # The standard error is 0.1 sqrt(2/3) = 0.0816; at half of 5 %, t for 4 degrees of freedom is 3.495: 1 - 0.285.
    assert "[0.715, " in verdict.reason


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
    assert "  " not in experiment.explain(numbers)


def test_a_training_that_gave_up_is_judged_and_drawn() -> None:
    numbers = warmup_numbers(post=8.0)
    for row in numbers["runs"]:
        if row["norm"] == "post" and row["start"] == warmup_depth.COLD:
            row |= {"failed": 1, "curve": []}
    experiment = load_experiment("warmup-depth")
    assert experiment.judge(numbers)[0].outcome == "supported"
    with figure_style():
        experiment.draw(numbers)


def test_the_quick_form_of_all(quick_folder: Path, measured: dict[str, Numbers]) -> None:
    for name, numbers in measured.items():
        assert {path.suffix for path in quick_folder.glob(f"{name}.*")} == {".json", ".svg", ".png"}
        assert numbers["tables"]
    assert (quick_folder / "report.html").stat().st_size > 1e6
    assert outcomes("label-smoothing", measured["label-smoothing"])[4] == "supported"
    (whole,) = measured["what-heads-see"]["runs"]
    assert max(whole["attention"]) > 0.4  # chance finds one of the four to six words of a sentence


def test_experiments_share_what_they_train(quick_folder: Path, measured: dict[str, Numbers]) -> None:
    folders = (quick_folder / "work" / "quick" / "runs").iterdir()
    runs = [path.name for path in folders if path.name.startswith(("corpus-", "joined-"))]  # of translation models
    # 10 of attention_scores, 1 more of heads, 1 of label smoothing; 3 of sentence length, 3 of positions; 5 of warm-up;
    # 4 of restricted attention.
    assert len(runs) == 12 + 6 + 5 + 4
    common = {
        name: [row["bleu"] for row in measured[name]["runs"] if row["variant"] == variant]
        for name, variant in (
            ("attention-scores", attention_scores.PAPER),
            ("heads", heads.MIDDLE),
            ("label-smoothing", label_smoothing.SMOOTHED),
        )
    }
    assert len({tuple(scores) for scores in common.values()}) == 1
    ((score,), *_) = common.values()
    assert score > 20  # the model has roughly learned the language


def test_sizes_are_those_of_the_models(quick_settings: Settings, measured: dict[str, Numbers]) -> None:
    """The Transformer's weights by hand: width 32, inner width 64, one block each, and one table of tokens for all."""
    weights = measured["sentence-length"]["weights"]
    assert set(weights) == set(sentence_length.MODEL_NAMES)
    attention, inner, norm = 4 * 32 * (32 + 1), 32 * 64 + 64 + 64 * 32 + 32, 2 * 32
    blocks = 3 * attention + 2 * inner + 5 * norm
    corpus = experiment_corpus(quick_settings)
    words = {word for pair in corpus.read_pairs(corpus.train_name) for side in pair for word in side.split()}
    assert weights[sentence_length.TRANSFORMER] == blocks + 32 * (len(words) + 4)  # four special tokens
    rows = measured["sentence-length"]["tables"]["Size of the models"]
    assert {row["model"]: row["weights"] for row in rows} == weights


@pytest.mark.parametrize(
    ("error", "counted"), [(DivergenceError("infinite"), True), (TrainingError("out of memory"), False)]
)
def test_only_divergence_counts_as_a_failed_training(
    quick_settings: Settings, monkeypatch: pytest.MonkeyPatch, error: TrainingError, counted: bool
) -> None:
    def fail(*_: object) -> TrainedRun:
        raise error

    corpus = experiment_corpus(quick_settings)
    words = {word for pair in corpus.read_pairs(corpus.train_name) for side in pair for word in side.split()}
    size = vocabulary_size(quick_settings, corpus, 1)
    assert size == len(words) + 4
    monkeypatch.setattr(warmup_depth, "train_variant", fail)
    monkeypatch.setattr(warmup_depth, "vocabulary_size", lambda *_: size)
    if counted:
        found = warmup_depth._train(quick_settings, corpus, 1, "post", warmup_depth.COLD)
        assert found == {"loss": math.log(size), "failed": 1, "curve": []}
    else:
        with pytest.raises(TrainingError, match="out of memory"):
            warmup_depth._train(quick_settings, corpus, 1, "post", warmup_depth.COLD)
