"""The cost of a layer: the formulas of table 1 (Vaswani et al. 2017, section 4) compared with measurements.

Multiplications are counted while a layer runs. Sequential operations are measured as the depth of autograd's graph. The
longest path is the number of layers (recurrent: steps) after which the last output has a gradient with respect to the
first input. It matters for learning: a gradient passes through all of them between the last position and the first.
Time covers a forward and a backward pass. Memory is what autograd saves for the backward pass.

The paper concludes that "in terms of computational complexity" self-attention is faster than recurrence if n < d. The
claim concerns the operations of the layer in table 1: products of queries with keys and of weights with values take 2
n^2 d multiplications, and the two matrices of a recurrent layer take 2 n d^2. We add two questions. Does that layer
also take less time? And what about the layer that models use, whose four projections need another 4 n d^2
multiplications?

The number of operations does not show that a recurrent layer must compute its steps one after another: it computes n
small products in sequence, while self-attention computes a few large ones. The length n at which the two are equally
fast depends on the hardware. The maps show it for this machine. The recurrent layer is PyTorch's nn.RNN with tanh, the
cheapest recurrent layer: an LSTM has four times as many operations.

Additive attention, v.tanh(W q + U k) (Bahdanau et al. 2015), passes every pair of a query and a key through a hidden
layer, whereas dot products compute the scores of all pairs in one matrix product. Both are timed in whole layers.
Layers that are timed take turns on the same input, so that other load on the machine affects them equally.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor, nn

from headway.engine.accelerate import accelerate
from headway.experiments.experiment import Numbers, Settings, decide_claims, hardware
from headway.experiments.figures import heat_map, label, plot_lines, shared_legend, subplots
from headway.experiments.layer_measurements import (
    KERNEL_SIZE,
    OPERATIONS,
    WINDOW,
    count_multiplications,
    graph_depth,
    make_layer,
    path_length,
    saved_bytes,
    time_in_turns,
)
from headway.experiments.verdicts import Array, Verdict, median_interval
from headway.nn.attention import MultiHeadAttention

LAYERS = tuple(OPERATIONS)
CORE, WHOLE, RECURRENT, CONVOLUTION, RESTRICTED = LAYERS
FUSED, DILATED = "fused self-attention", "dilated convolution"
MAPPED = (CORE, WHOLE, RECURRENT)  # layers whose times are drawn as maps
PATHS: dict[str, Callable[[int], float]] = {  # the longest path by table 1
    CORE: lambda n: 1,
    RECURRENT: lambda n: n,
    CONVOLUTION: lambda n: n / (KERNEL_SIZE - 1),
    DILATED: lambda n: math.log(n, KERNEL_SIZE),
    RESTRICTED: lambda n: n / (WINDOW // 2),
}
FORMULAS = {  # of table 1, as they stand there
    CORE: ("n²·d", "O(1)", "O(1)"),
    RECURRENT: ("n·d²", "O(n)", "O(n)"),
    CONVOLUTION: ("k·n·d²", "O(1)", "O(n/k)\ndilated: O(logₖ n)"),
    RESTRICTED: ("r·n·d", "O(1)", "O(n/r)"),
}
SCORES = ("scaled_dot", "additive")
COUNTED_LENGTHS, COUNTED_WIDTHS = (16, 64), (32, 128)
LINEAR, SQUARE = 1.25, 1.5  # powers of n; growth is linear up to the first and quadratic from the second on
MIN_TIME_RATIO = 2.0  # "much faster" means at most half the time; 10 % could be reversed on another machine
MIN_MEMORY_RATIO = 1.1  # "more space-efficient" means at least a tenth less; memory does not vary between runs

Judged = tuple[dict[str, Any], dict[str, Any]]
"""Values for the text of a verdict, and keyword arguments of ``decide``."""

TITLE = "What a layer costs"


def measure(settings: Settings) -> Numbers:
    """Measure counts and depths on a small grid of n and d, times for all n and d, memory for all n, and scores."""
    torch.manual_seed(settings.seeds[0])
    device = torch.device("cuda" if torch.cuda.is_available() and not settings.quick else "cpu")
    lengths, widths = ((8, 32, 128), (16, 64, 128)) if settings.quick else ((16, 32, 64, 128, 256, 512, 1024),) * 2
    short = (4, 8, 16, 32) if settings.quick else (4, 8, 16, 32, 64, 128)
    counts = {
        kind: [[count_multiplications(kind, n, d) for d in COUNTED_WIDTHS] for n in COUNTED_LENGTHS] for kind in LAYERS
    }
    depths = {kind: [graph_depth(kind, n, 8) for n in short] for kind in LAYERS}
    paths = {kind: [path_length(kind, n) for n in short] for kind in PATHS}
    times = {kind: np.zeros((len(lengths), len(widths))) for kind in LAYERS}
    batch, repeats = (2, 3) if settings.quick else (16, 5)
    for (row, n), (column, d) in product(enumerate(lengths), enumerate(widths)):
        settings.say(f"layer-costs: timing n = {n}, d = {d}")
        x = torch.randn(batch, n, d, device=device, requires_grad=True)
        rounds = _milliseconds({kind: make_layer(kind, d).to(device) for kind in LAYERS}, x, repeats)
        for kind in LAYERS:
            times[kind][row, column] = min(rounds[kind])
    kept = {
        kind: [saved_bytes(make_layer(kind, 64), torch.randn(1, n, 64, requires_grad=True)) for n in lengths]
        for kind in (CORE, FUSED, RECURRENT, CONVOLUTION, RESTRICTED)
    }
    rows, n, d, repeats_of_scores = (16, 16, 32, 15) if settings.quick else (64, 32, 128, 25)
    scoring = {score: accelerate(MultiHeadAttention(d, 4, score=score)).to(device) for score in SCORES}
    x = torch.randn(rows, n, d, device=device)
    milliseconds = _milliseconds(scoring, x, repeats_of_scores)
    mebibytes = {score: saved_bytes(layer, x) / 2**20 for score, layer in scoring.items()}
    caption = f"Forward and backward pass over {batch} sequences on {device.type}, in ms (best of {repeats})"
    table = [
        {"n": n, "d": d} | {kind: times[kind][row, column] for kind in LAYERS}
        for (row, n), (column, d) in product(enumerate(lengths), enumerate(widths))
    ]
    measured: Numbers = {"lengths": lengths, "widths": widths, "short": short, "counts": counts, "depths": depths}
    measured |= {"paths": paths, "times": times, "kept": kept, "milliseconds": milliseconds, "mebibytes": mebibytes}
    return {**measured, "regime": f"{hardware()}, float32", "tables": {caption: table}}


def _milliseconds(layers: Mapping[str, nn.Module], x: Tensor, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each layer's forward and backward pass in each round."""
    passes = [(name, lambda layer=layer: layer(x).sum().backward()) for name, layer in layers.items()]
    return {name: [1e3 * value for value in values] for name, values in time_in_turns(passes, rounds).items()}


def _exponent(lengths: Sequence[int], values: Sequence[float], last: int = 2) -> float:
    """Return the exponent p of the growth n^p over the last lengths: two for exact values, four for noisy times."""
    return float(np.polyfit(np.log(lengths[-last:]), np.log(values[-last:]), 1)[0])


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge the claims by counts, graph depths, path lengths, costs for n < d, the growth of memory, and scores."""
    parts = [_judge_counts(numbers), _judge_order(numbers), _judge_operations(numbers, CORE, "core")]
    parts += (_judge_times(numbers), _judge_operations(numbers, WHOLE, "whole"), _judge_restricted(numbers))
    parts += (_judge_memory(numbers), _judge_scores(numbers))
    values = {key: value for part, _ in parts for key, value in part.items()}
    return decide_claims("layer-costs", values, *(decision for _, decision in parts))


def _constants(numbers: Numbers) -> dict[str, Array]:
    """Return the counted multiplications of each layer as multiples of table 1's (lengths x widths)."""
    n, d = np.ix_(COUNTED_LENGTHS, COUNTED_WIDTHS)
    return {kind: np.divide(numbers["counts"][kind], OPERATIONS[kind](n, d)) for kind in LAYERS}


def _judge_counts(numbers: Numbers) -> Judged:
    constants = _constants(numbers)
    worst = max(float(values.max() / values.min()) for values in constants.values())
    shown = ", ".join(f"{kind} {values[0, 0]:.3g}" for kind, values in constants.items())
    return {"worst": worst, "constants": shown}, {"supported": worst < 1.1}


def _judge_order(numbers: Numbers) -> Judged:
    short, paths = numbers["short"], numbers["paths"]
    growth = {kind: abs(_exponent(short, depths)) for kind, depths in numbers["depths"].items()}
    recurrent, others = growth.pop(RECURRENT), max(growth.values())
    off = max(abs(paths[kind][-1] - length(short[-1])) for kind, length in PATHS.items())
    values = {"n": short[-1], "paths": ", ".join(f"{paths[kind][-1]} ({kind})" for kind in PATHS)}
    values |= {"recurrent": recurrent, "others": others}
    return values, {"supported": recurrent > 0.8 and others < 0.2 and off <= 1.01}


def _judge_operations(numbers: Numbers, kind: str, name: str) -> Judged:
    """Compare a layer's number of multiplications with the recurrent layer's."""
    ratios = np.divide(numbers["counts"][kind], numbers["counts"][RECURRENT])
    below = np.less(*np.ix_(COUNTED_LENGTHS, COUNTED_WIDTHS))
    values = {f"{name}_below": _range(ratios[below]), f"{name}_above": _range(ratios[~below])}
    return values, {"supported": bool((ratios[below] < 1).all()), "refuted": bool((ratios[below] >= 1).all())}


def _range(values: Array) -> str:
    low, high = f"{values.min():.3g}", f"{values.max():.3g}"
    return low if low == high else f"{low} to {high}"


def _judge_times(numbers: Numbers) -> Judged:
    below, values = np.less(*np.ix_(numbers["lengths"], numbers["widths"])), {"longest": numbers["lengths"][-1]}
    for name, kind in (("core", CORE), ("whole", WHOLE)):
        is_faster = np.less(numbers["times"][kind], numbers["times"][RECURRENT])
        values |= {name: float(is_faster[below].mean()), f"{name}_beyond": float(is_faster[~below].mean())}
    ratios = np.divide(numbers["times"][RECURRENT], numbers["times"][CORE])[below]
    values |= {"least": ratios.min(), "most": ratios.max()}
    decision = {"supported": values["core"] >= 0.95, "refuted": values["core"] < 0.5}
    return values, {**decision, "exact": False, "regime": numbers["regime"]}


def _judge_restricted(numbers: Numbers) -> Judged:
    """Compare the growth of memory and, for each width, of time."""
    lengths, grows, words = numbers["lengths"], dict[str, list[float]](), list[str]()
    for kind in (CORE, RESTRICTED):
        times = [_exponent(lengths, column, last=4) for column in zip(*numbers["times"][kind], strict=True)]
        memory = _exponent(lengths, numbers["kept"][kind])
        words.append(f"{kind}: time n^{min(times):.2f} to n^{max(times):.2f}, memory n^{memory:.2f}")
        grows[kind] = [*times, memory]
    linear, (*times, memory) = max(grows[RESTRICTED]) <= LINEAR, grows[RESTRICTED]
    decision = {"supported": linear and min(grows[CORE]) >= SQUARE, "refuted": max(min(times), memory) >= SQUARE}
    values = {"window": WINDOW, "growth": "; ".join(words), "linear": LINEAR, "square": SQUARE}
    return values, {**decision, "exact": False, "regime": numbers["regime"]}


def _judge_memory(numbers: Numbers) -> Judged:
    plain, fused = (_exponent(numbers["lengths"], numbers["kept"][kind]) for kind in (CORE, FUSED))
    least = min(plain, fused)
    return {"plain": plain, "fused": fused}, {"supported": least > 1.7, "refuted": least <= 1.3}


def _judge_scores(numbers: Numbers) -> Judged:
    """Compare times within each round, in which the load is similar."""
    fast, slow = (numbers["milliseconds"][score] for score in SCORES)
    small, large = (numbers["mebibytes"][score] for score in SCORES)
    ratios, memory = np.divide(slow, fast).tolist(), large / small
    low, high = median_interval(ratios)
    values = {"ratio": median(ratios), "low": low, "high": high, "memory": memory}
    values |= {"min_time": MIN_TIME_RATIO, "min_memory": MIN_MEMORY_RATIO}
    is_better = low > MIN_TIME_RATIO and memory > MIN_MEMORY_RATIO
    decision = {"supported": is_better, "refuted": high < 1 or memory < 1}
    return values, {**decision, "exact": False, "regime": numbers["regime"]}


def draw(numbers: Numbers) -> Figure:
    """Draw the time of three layers over n and d, table 1 with measured values, and path and memory over n."""
    picture, (*maps, table, path, memory) = subplots("What a layer costs (Table 1)", 2, 3, size=(23, 13))
    for axes, kind in zip(maps, MAPPED, strict=True):
        _draw_map(axes, numbers, kind)
    rows = _table1(numbers)
    heat_map(table, [[0.0] * 3] * len(rows), list(rows.values()), row_labels=[name.replace(" ", "\n") for name in rows])
    table.set_xticks(range(3), ["multiplications", "sequential steps", "longest path"])
    label(table, "Table 1: formula and measured value", "cost of a layer", "layer")
    kibibytes = {kind: np.divide(values, 1024).tolist() for kind, values in numbers["kept"].items()}
    for axes, lengths, curves, title, unit in (
        (path, numbers["short"], numbers["paths"], "Longest path", "layers (recurrent: steps)"),
        (memory, numbers["lengths"], kibibytes, "Memory of one sequence, d = 64", "saved for the backward pass (KiB)"),
    ):
        plot_lines(axes, lengths, curves, order=(*LAYERS, FUSED, DILATED))
        label(axes, title, "length n (tokens)", unit, log="xy", xticks=lengths)
    shared_legend(picture, path, memory)
    return picture


def _table1(numbers: Numbers) -> dict[str, list[str]]:
    """Return the rows of the paper's table 1: each formula with the measured value below it."""
    constants, paths, rows = _constants(numbers), numbers["paths"], dict[str, list[str]]()
    for kind, (operations, sequential, longest) in FORMULAS.items():
        steps = f"{paths[kind][-1]}{f' and {paths[DILATED][-1]}' if kind == CONVOLUTION else ''}"
        growth = f"∝ n^{abs(_exponent(numbers['short'], numbers['depths'][kind])):.2f}"
        rows[kind] = [f"{operations}\n{constants[kind][0, 0]:g} · {operations}", f"{sequential}\n{growth}"]
        rows[kind].append(f"{longest}\n{steps} at n = {numbers['short'][-1]}")
    return rows


def _draw_map(axes: Axes, numbers: Numbers, kind: str) -> None:
    """Draw a layer's time over n and d as colors, with a line above n = d, and a frame where it is the fastest."""
    lengths, widths = numbers["lengths"], numbers["widths"]
    times = np.array([numbers["times"][other] for other in MAPPED])  # layers x lengths x widths
    shown, least, most = np.array(numbers["times"][kind]), times.min(), times.max()
    is_fastest = shown == times.min(0)
    texts = [[f"{time:.{0 if time >= 10 else 1}f}" for time in row] for row in shown]

    def style(row: int, column: int) -> dict[str, Any]:
        frame = {"facecolor": "none", "edgecolor": "#D55E00"}
        return {"bbox": frame if is_fastest[row, column] else None, "fontsize": 11}

    image: Any = {"norm": LogNorm(least, most), "origin": "lower", "dark_above": least**0.4 * most**0.6}
    heat_map(axes, shown.tolist(), texts, row_labels=lengths, column_labels=widths, text_style=style, **image)
    border = np.less(*np.ix_(lengths, widths)).sum(0) - 0.5
    axes.stairs(border, np.arange(len(widths) + 1) - 0.5, baseline=None, color="black", linewidth=2)
    title = f"{kind.capitalize()}{' without projections' if kind == CORE else ''}: ms (framed: fastest)"
    label(axes, title, "width d (units); below the line: n < d", "length n (tokens)")
