"""Functions that score how well a query matches a key: the paper's scaled dot product and its alternatives.

    scaled dot      q.k / sqrt(d_k)                     Vaswani et al. 2017, equation 1
    dot             q.k
    additive        v.tanh(W q + U k)                   Bahdanau et al. 2015
    general         q.W k                               Luong et al. 2015
    cosine          q.k / (|q| |k|), divided by a learned temperature
    feed-forward    two layers with ReLU, applied to q and k
    hidden          the scaled product of queries and keys that are projected with a hidden layer of ReLU

Time and memory are measured on a single attention layer, forward and backward. The functions take turns on the same
input, so that other load on the machine affects them equally. Memory is what is saved for the backward pass. Product
functions compute the scores of all queries and keys in one matrix product. Additive and feed-forward functions pass
every pair of a query and a key through a hidden layer. A hidden layer in the projections processes each query and each
key once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from headway.engine.accelerate import accelerate
from headway.experiments import comparison
from headway.experiments.experiment import Claim, Experiment, Numbers, Settings
from headway.experiments.figures import label, subplots
from headway.experiments.layer_measurements import saved_activation_bytes, time_layers
from headway.experiments.verdicts import Verdict, decide
from headway.nn.attention import MultiHeadAttention

PAPER, ADDITIVE = "scaled dot (paper)", "additive"
VARIANTS: dict[str, dict[str, Any]] = {
    PAPER: {},
    "dot, not scaled": {"score": "dot"},
    "general": {"score": "general"},
    "cosine": {"score": "cosine"},
    ADDITIVE: {"score": "additive"},
    "feed-forward": {"score": "feed_forward"},
    "hidden projections": {"qk_projection": "hidden"},
}
MIN_TIME_RATIO = 2.0  # "much faster" means at most half the time; 10 % could be reversed on another machine
MIN_MEMORY_RATIO = 1.1  # "more space-efficient" means at least a tenth less; memory does not vary between runs

CLAIMS = (Claim.quote("dot-product attention is much faster and more space-efficient in practice", "paper, 3.2.1"),)


def measure(settings: Settings) -> Numbers:
    """Measure the cost of one layer with each function."""
    costs = _costs(settings)
    table = [
        {"function": name, "layer time (ms)": np.median(costs[name]["ms"]), "layer memory (MiB)": costs[name]["mib"]}
        for name in VARIANTS
    ]
    return {"costs": costs, "tables": {"One attention layer, forward and backward": table}}


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
    """Judge by time and memory of one layer. Times are compared within each round, in which the load is similar."""
    costs = numbers["costs"]
    low, middle, high = comparison.median_ci(
        [a / b for a, b in zip(costs[ADDITIVE]["ms"], costs[PAPER]["ms"], strict=True)]
    )
    memory = costs[ADDITIVE]["mib"] / costs[PAPER]["mib"]
    decided = decide(
        f"additive attention takes {middle:.3g} [{low:.3g}, {high:.3g}] times as long as the scaled dot product "
        f"(median over rounds; {MIN_TIME_RATIO:g} or more counts as much slower) and {memory:.3g} times as much "
        f"memory for the backward pass ({MIN_MEMORY_RATIO:g} or more counts)",
        supported=low > MIN_TIME_RATIO and memory > MIN_MEMORY_RATIO,
        refuted=high < 1 or memory < 1,
        exact=False,
    )
    return (decided,)


def draw(numbers: Numbers) -> Figure:
    """Draw time and memory, with one row per function."""
    picture, (time, memory) = subplots("Attention score functions", ncols=2, size=(13.0, 5.0))
    for axes, key in ((time, "ms"), (memory, "mib")):
        lengths = [float(np.median(numbers["costs"][name][key])) for name in VARIANTS]
        bars = axes.barh(range(len(lengths)), lengths, height=0.6)
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.set_yticks(range(len(lengths)), list(VARIANTS) if axes is time else [])
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * max(lengths))
        axes.grid(visible=False, axis="y")
    label(time, "Time of one attention layer", "ms, forward and backward (median)", "")
    label(memory, "Memory of one attention layer", "MiB saved for the backward pass", "")
    return picture


TITLE = "Attention scores: how a query is compared with a key"
EXPERIMENT = Experiment("attention-scores", TITLE, __doc__, CLAIMS, measure, judge, draw)
