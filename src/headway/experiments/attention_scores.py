"""Functions that score how well a query matches a key: the paper's scaled dot product and its alternatives.

    scaled dot      q.k / sqrt(d_k)                     Vaswani et al. 2017, equation 1
    dot             q.k
    additive        v.tanh(W q + U k)                   Bahdanau et al. 2015
    general         q.W k                               Luong et al. 2015
    cosine          q.k / (|q| |k|), divided by a learned temperature
    feed-forward    two layers with ReLU, applied to q and k
    hidden          the scaled product of queries and keys that are projected with a hidden layer of ReLU

The same Transformer is trained with each function. The full version has 30 runs, six of which are shared with other
experiments. The paper (3.2.1) compares additive attention with the unscaled dot product for small and for larger d_k.
These two functions, and the scaled dot product for comparison, are therefore also trained with one head, which makes
d_k four times as large as in the common recipe. Each dot is one run. If the shaded bars of two functions overlap a lot,
the difference may be due to chance.

Time and memory are measured on a single attention layer, forward and backward. The functions take turns on the same
input, so that other load on the machine affects them equally. Memory is what is saved for the backward pass. Product
functions compute the scores of all queries and keys in one matrix product. Additive and feed-forward functions pass
every pair of a query and a key through a hidden layer. A hidden layer in the projections processes each query and each
key once.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from headway.engine.accelerate import accelerate
from headway.experiments import comparison
from headway.experiments.comparison import by_variant, column, judge_greater, mean_diff, row_cells
from headway.experiments.corpus import MULTI30K, experiment_corpus
from headway.experiments.experiment import Claim, Experiment, Numbers, Settings, Verdict, decide
from headway.experiments.figures import label, subplots
from headway.experiments.layer_measurements import saved_activation_bytes, time_layers
from headway.experiments.training import sweep
from headway.nn.attention import MultiHeadAttention

PAPER, DOT, ADDITIVE = "scaled dot (paper)", "dot, not scaled", "additive"
WIDE_DOT, WIDE_ADDITIVE = "dot, not scaled, 1 head", "additive, 1 head"
VARIANTS: dict[str, dict[str, Any]] = {
    PAPER: {},
    DOT: {"score": "dot"},
    "general": {"score": "general"},
    "cosine": {"score": "cosine"},
    ADDITIVE: {"score": "additive"},
    "feed-forward": {"score": "feed_forward"},
    "hidden projections": {"qk_projection": "hidden"},
    "scaled dot, 1 head": {"num_heads": 1},
    WIDE_DOT: {"score": "dot", "num_heads": 1},
    WIDE_ADDITIVE: {"score": "additive", "num_heads": 1},
}
NON_LINEAR_VARIANTS = (ADDITIVE, "feed-forward", "hidden projections")
SOPHISTICATED_VARIANTS = ("general", "cosine", *NON_LINEAR_VARIANTS)
MIN_TIME_RATIO = 2.0  # "much faster" means at most half the time; 10 % could be reversed on another machine
MIN_MEMORY_RATIO = 1.1  # "more space-efficient" means at least a tenth less; memory does not vary between runs
MIN_BLEU_DIFFERENCE = 1.0  # about the difference between seeds: "similarly" means less than this, "outperforms" more

CLAIMS = (
    Claim.quote("dot-product attention is much faster and more space-efficient in practice", "paper, 3.2.1"),
    Claim.quote("for small values of d_k the two mechanisms perform similarly", "paper, 3.2.1 (d_k is 32)"),
    Claim.quote(
        "additive attention outperforms dot product attention without scaling for larger values of d_k",
        "paper, 3.2.1, after Britz et al. 2017 (d_k is 128)",
    ),
    Claim.quote("a more sophisticated compatibility function than dot product may be beneficial", "paper, 6.2"),
    Claim("Including a non-linearity affects the performance.", "notebook, open question"),
)


def measure(settings: Settings) -> Numbers:
    """Measure the quality of a model with each function, and the cost of one layer."""
    runs = sweep(settings, experiment_corpus(settings), {name: {"model": keys} for name, keys in VARIANTS.items()})
    costs = _costs(settings)
    table = [
        {
            "function": name,
            **row_cells(runs, name),
            "layer time (ms)": np.median(costs[name]["ms"]),
            "layer memory (MiB)": costs[name]["mib"],
            "training (min)": fmean(column(runs, "minutes", variant=name)),
        }
        for name in VARIANTS
    ]
    return {"runs": runs, "costs": costs, "tables": {"Means over seeds, with standard deviations": table}}


def _costs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the time of every round (ms) and the memory (MiB) of a layer with each function, in float32."""
    device = "cuda" if torch.cuda.is_available() and not settings.quick else "cpu"
    rows, length, width, rounds = (16, 16, 32, 15) if settings.quick else (64, 32, 128, 25)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seeds[0])
        x = torch.randn(rows, length, width, device=device)
        layers = {
            name: accelerate(MultiHeadAttention(width, **{"num_heads": 4, **keys})).to(device)
            for name, keys in VARIANTS.items()
        }
    times = time_layers(layers, x, rounds)
    return {
        name: {"ms": times[name], "mib": saved_activation_bytes(layer, x) / 2**20} for name, layer in layers.items()
    }


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge the claims by time and memory of one layer, and by BLEU over seeds."""
    bleu, least = by_variant(numbers["runs"], "bleu"), MIN_BLEU_DIFFERENCE
    what = "BLEU of additive minus unscaled dot product"
    wide = mean_diff(bleu[WIDE_ADDITIVE], bleu[WIDE_DOT])
    gain = "BLEU of the best other function ({}) minus scaled dot product"
    return (
        _judge_cost(numbers["costs"]),
        comparison.judge_equivalent(mean_diff(bleu[ADDITIVE], bleu[DOT]), what, tolerance=least),
        judge_greater(wide, f"with one head, {what}", margin=least),
        comparison.judge_best(bleu, SOPHISTICATED_VARIANTS, PAPER, gain, margin=least),
        _judge_non_linearity(bleu),
    )


def _judge_cost(costs: dict[str, dict[str, Any]]) -> Verdict:
    """Compare times round by round, because the load on the machine is similar within a round."""
    ratios = comparison.median_ci([a / b for a, b in zip(costs[ADDITIVE]["ms"], costs[PAPER]["ms"], strict=True)])
    memory = costs[ADDITIVE]["mib"] / costs[PAPER]["mib"]
    return decide(
        f"additive attention takes {ratios} times as long as the paper's scaled dot product (median over rounds; "
        f"{MIN_TIME_RATIO:g} or more is much slower) and saves {memory:.3g} times as much memory for the backward pass "
        f"({MIN_MEMORY_RATIO:g} or more counts)",
        supported=ratios.low > MIN_TIME_RATIO and memory > MIN_MEMORY_RATIO,
        refuted=ratios.high < MIN_TIME_RATIO or memory < MIN_MEMORY_RATIO,
    )


def _judge_non_linearity(bleu: dict[str, list[float]]) -> Verdict:
    differences = {name: mean_diff(bleu[name], bleu[PAPER], len(NON_LINEAR_VARIANTS)) for name in NON_LINEAR_VARIANTS}
    reason = "BLEU minus scaled dot product: " + "; ".join(
        f"{name} {difference}" for name, difference in differences.items()
    )
    least = MIN_BLEU_DIFFERENCE
    away = any(difference.low > least or difference.high < -least for difference in differences.values())
    within = all(-least <= difference.low and difference.high <= least for difference in differences.values())
    words = f"no interval is more than {least:g} away from 0, but not all are within {least:g} of 0"
    if away:
        words = f"at least one interval is more than {least:g} away from 0"
    elif within:
        words = f"all intervals are within {least:g} of 0"
    return decide(f"{reason}; {words}", supported=away, refuted=within)


def draw(numbers: Numbers) -> Figure:
    """Draw quality and cost side by side, with one row per function."""
    picture, (bleu, time, memory) = subplots("Attention score functions", ncols=3, size=(15.0, 7.0))
    comparison.strip_plot(bleu, by_variant(numbers["runs"], "bleu"), "Quality (dots: seeds)", "BLEU of the test set")
    for axes, key in ((time, "ms"), (memory, "mib")):
        lengths = [float(np.median(numbers["costs"][name][key])) for name in VARIANTS]
        bars = axes.barh(range(len(lengths)), lengths, height=0.6)
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.set_yticks(range(len(lengths)), [])
        axes.set_ylim(bleu.get_ylim())
        axes.set_xlim(0, 1.15 * max(lengths))
        axes.grid(visible=False, axis="y")
    label(time, "Time of one attention layer", "ms, forward and backward (median)", "")
    label(memory, "Memory of one attention layer", "MiB saved for the backward pass", "")
    return picture


TITLE = "Attention scores: how a query is compared with a key"
EXPERIMENT = Experiment("attention-scores", TITLE, __doc__, CLAIMS, measure, judge, draw, data_files=MULTI30K)
