"""Restricted self-attention (Vaswani et al. 2017, section 4; table 1, last row): what it saves and what it costs.

Each position attends to a neighborhood of r positions. Time and memory of one multi-head attention layer with its
projections, forward and backward, are measured at several lengths n in three forms. The plain layer computes all
weights. The accelerated layer computes all pairs too, but from 1,024 tokens on it uses PyTorch's fused operation, which
stores no n x n matrix. The restricted layer divides the queries into blocks and compares each block only with the keys
in its neighborhood, which takes r n d operations and no n x n matrix. The layers take turns on the same input, and the
shortest time of each layer counts. Memory is what is saved for the backward pass. Powers of n are fitted to times and
memory.

The same Transformer is trained with windows of several sizes in encoder and decoder. Each dot is one run. The full
version has 15 runs, three of which are shared with other experiments. Attention from the decoder to the source is never
restricted, so a small window reduces the context within source and target, but not the access to the source. A stack of
blocks also sees further than one block: each block adds half a window on either side.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from headway.engine.accelerate import accelerate
from headway.experiments.comparison import by_variant, judge_equivalent, judge_greater, mean_diff, row_cells, strip_plot
from headway.experiments.corpus import MULTI30K, experiment_corpus
from headway.experiments.experiment import OURS, Claim, Experiment, Numbers, Settings, Verdict, decide
from headway.experiments.figures import label, plot_lines, shared_legend, subplots
from headway.experiments.layer_measurements import WINDOW, saved_activation_bytes, time_layers
from headway.experiments.training import sweep
from headway.nn.attention import MultiHeadAttention

LayerCosts = dict[str, dict[str, dict[str, float]]]  # by layer and length: "ms" and "kib"

PLAIN, FUSED, RESTRICTED = "self-attention", "accelerated self-attention", "restricted self-attention"
ALL_POSITIONS = "all positions"
WINDOW_SIZES = (16, 8, 4, 2)
MIN_BLEU_DIFFERENCE = 1.0  # BLEU; seeds of one recipe differ by about this much
LINEAR, SQUARE = 1.25, 1.5  # powers of n; growth is linear up to the first and quadratic from the second on

TITLE = "Restricted self-attention"
CLAIMS = (
    Claim("Restricted to r positions, the time and memory of self-attention grow with n, not n².", "paper, table 1"),
    Claim(f"With r = {WINDOW}, quality stays: sentences have about 14 tokens, and blocks are stacked.", OURS),
    Claim(f"With r = {WINDOW_SIZES[-1]}, the position itself and the one before, quality suffers.", OURS),
)


def measure(settings: Settings) -> Numbers:
    """Measure the cost of a layer against n, and BLEU against r."""
    costs = _costs(settings)
    variants: dict[str, dict[str, Any]] = {ALL_POSITIONS: {}}
    variants |= {f"r = {size}": {"model": {"encoder_window": size, "decoder_window": size}} for size in WINDOW_SIZES}
    runs = sweep(settings, experiment_corpus(settings), variants)
    layers = [
        {"layer": name, "n": int(n), "shortest time (ms)": cost["ms"], "memory (KiB)": cost["kib"]}
        for name, by_length in costs.items()
        for n, cost in by_length.items()
    ]
    tables = {
        "Means over seeds, with standard deviations": [{"window": name, **row_cells(runs, name)} for name in variants],
        f"One sequence through a layer, forward and backward, r = {WINDOW}": layers,
    }
    return {"runs": runs, "costs": costs, "tables": tables}


def _costs(settings: Settings) -> LayerCosts:
    """Return the shortest time (ms) and the memory (KiB) of each layer at each length, in float32 on a CPU."""
    lengths, rounds = ((256, 512, 1024), 15) if settings.quick else ((512, 1024, 2048, 4096), 11)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seeds[0])
        layers = {
            PLAIN: MultiHeadAttention(64, 4),
            FUSED: accelerate(MultiHeadAttention(64, 4)),
            RESTRICTED: accelerate(MultiHeadAttention(64, 4, window=(WINDOW // 2, (WINDOW - 1) // 2))),
        }
        costs: LayerCosts = {name: {} for name in layers}
        for n in lengths:
            settings.say(f"restricted-attention: timing n = {n}")
            x = torch.randn(1, n, 64, requires_grad=True)
            times = time_layers(layers, x, rounds)
            for name, layer in layers.items():
                costs[name][str(n)] = {"ms": min(times[name]), "kib": saved_activation_bytes(layer, x) / 1024}
    return costs


def _power(by_length: dict[str, dict[str, float]], key: str) -> float:
    """Return the power of n that fits the values best, by least squares on logarithms."""
    n, values = [int(length) for length in by_length], [cost[key] for cost in by_length.values()]
    return float(np.polyfit(np.log(n), np.log(values), 1)[0])


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by the fitted powers of n and by BLEU over seeds."""
    bleu, noticed = by_variant(numbers["runs"], "bleu"), MIN_BLEU_DIFFERENCE
    middle, least = (mean_diff(bleu[ALL_POSITIONS], bleu[f"r = {size}"]) for size in (WINDOW, WINDOW_SIZES[-1]))
    what = "BLEU without a window minus r ="
    return (
        _judge_growth(numbers["costs"]),
        judge_equivalent(middle, f"{what} {WINDOW}", tolerance=noticed),
        judge_greater(least, f"{what} {WINDOW_SIZES[-1]}", margin=noticed),
    )


def _judge_growth(costs: LayerCosts) -> Verdict:
    powers = {name: (_power(costs[name], "ms"), _power(costs[name], "kib")) for name in (PLAIN, RESTRICTED)}
    longest = list(costs[PLAIN])[-1]
    ratios = [costs[name][longest]["ms"] / costs[RESTRICTED][longest]["ms"] for name in (PLAIN, FUSED)]
    return decide(
        "; ".join(f"{name}: time grows with n^{ms:.2f}, memory with n^{kib:.2f}" for name, (ms, kib) in powers.items())
        + f". At n = {longest} the restricted layer with r = {WINDOW} is faster by a factor of {ratios[0]:.2g}, and by "
        f"{ratios[1]:.2g} than accelerated attention to all positions",
        supported=max(powers[RESTRICTED]) <= LINEAR and min(powers[PLAIN]) >= SQUARE,
        refuted=max(powers[RESTRICTED]) >= SQUARE,
    )


def draw(numbers: Numbers) -> Figure:
    """Draw time and memory against n, and BLEU against r."""
    picture, (time, memory, bleu) = subplots(TITLE, ncols=3, size=(16.0, 5.5))
    costs = numbers["costs"]
    lengths = [int(n) for n in costs[PLAIN]]
    for axes, key, title, unit in (
        (time, "ms", "Time of one layer", "forward and backward (ms)"),
        (memory, "kib", "Memory of one layer", "saved for backward (KiB)"),
    ):
        plot_lines(axes, lengths, {name: [cost[key] for cost in rows.values()] for name, rows in costs.items()})
        label(axes, title, "length n (tokens)", unit, log="xy", xticks=lengths)
    strip_plot(bleu, by_variant(numbers["runs"], "bleu"), "Quality (dots: seeds)", "BLEU of the test set")
    shared_legend(picture, time, memory)
    return picture


EXPERIMENT = Experiment("restricted-attention", TITLE, __doc__, CLAIMS, measure, judge, draw, data_files=MULTI30K)
