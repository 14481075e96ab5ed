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

The last two panels compare functions that score how well a query matches a key, in whole layers:

    scaled dot      q.k / sqrt(d_k)                     Vaswani et al. 2017, equation 1
    dot             q.k
    additive        v.tanh(W q + U k)                   Bahdanau et al. 2015
    general         q.W k                               Luong et al. 2015
    cosine          q.k / (|q| |k|), divided by a learned temperature
    feed-forward    two layers with ReLU, applied to q and k
    hidden          the scaled product of queries and keys that are projected with a hidden layer of ReLU

Additive and feed-forward functions pass every pair of a query and a key through a hidden layer. Products compute the
scores of all pairs in one matrix product. Layers that are timed take turns on the same input, so that other load on the
machine affects them equally.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from statistics import fmean, median
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headway.engine.accelerate import accelerate
from headway.experiments.experiment import Numbers, Settings, decide_claims
from headway.experiments.figures import bars, heat_map, label, plot_lines, shared_legend, subplots
from headway.experiments.layer_measurements import (
    KERNEL_SIZE,
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
from headway.experiments.verdicts import Verdict, median_interval
from headway.nn.attention import MultiHeadAttention

CORE, WHOLE, RECURRENT, CONVOLUTION, RESTRICTED = LAYER_KINDS
FUSED, DILATED = "fused self-attention", "dilated convolution"
MAPPED = (CORE, WHOLE, RECURRENT)  # layers whose times are drawn as maps
PATHS: dict[str, Callable[[int], float]] = {  # the longest path by table 1
    CORE: lambda n: 1,
    RECURRENT: lambda n: n,
    CONVOLUTION: lambda n: n / (KERNEL_SIZE - 1),
    DILATED: lambda n: math.log(n, KERNEL_SIZE),
    RESTRICTED: lambda n: n / (WINDOW // 2),
}
LINEAR, SQUARE = 1.25, 1.5  # powers of n; growth is linear up to the first and quadratic from the second on
PAPER, ADDITIVE = "scaled dot (paper)", "additive"
SCORES: dict[str, dict[str, Any]] = {
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

Judged = tuple[dict[str, Any], dict[str, bool]]
"""Values for the text of a verdict, and keyword arguments of ``decide``."""

TITLE = "What a layer costs"


def measure(settings: Settings) -> Numbers:
    """Measure counts and depths on a small grid of n and d, times for all n and d, memory for all n, and scores."""
    torch.manual_seed(settings.seeds[0])
    device = torch.device("cuda" if torch.cuda.is_available() and not settings.quick else "cpu")
    lengths, widths = ((8, 32, 128), (16, 64, 128)) if settings.quick else ((16, 32, 64, 128, 256, 512, 1024),) * 2
    short = (4, 8, 16, 32) if settings.quick else (4, 8, 16, 32, 64, 128)
    counts = [
        {"layer": kind, "n": n, "d": d}
        | {"counted": count_multiplications(kind, n, d), "formula": table1_ops(kind, n, d)}
        for kind, n, d in product(LAYER_KINDS, (16, 64), (32, 128))
    ]
    depths = {kind: {str(n): graph_depth(kind, n, 8) for n in short} for kind in LAYER_KINDS}
    paths = {kind: {str(n): path_length(kind, n, 4) for n in short} for kind in PATHS}
    times = []
    batch, repeats = (2, 3) if settings.quick else (16, 5)
    for n, d in product(lengths, widths):
        settings.say(f"layer-costs: timing n = {n}, d = {d}")
        x = torch.randn(batch, n, d, device=device, requires_grad=True)
        rounds = time_layers({kind: make_layer(kind, d).to(device) for kind in LAYER_KINDS}, x, repeats)
        times.append({"n < d": n < d, "n": n, "d": d} | {kind: min(values) for kind, values in rounds.items()})
    kept = {
        kind: {
            str(n): saved_activation_bytes(make_layer(kind, 64), torch.randn(1, n, 64, requires_grad=True))
            for n in lengths
        }
        for kind in (CORE, FUSED, RECURRENT, CONVOLUTION, RESTRICTED)
    }
    rows, n, d, repeats_of_scores = (16, 16, 32, 15) if settings.quick else (64, 32, 128, 25)
    scoring = {name: accelerate(MultiHeadAttention(d, 4, **keys)).to(device) for name, keys in SCORES.items()}
    x = torch.randn(rows, n, d, device=device)
    milliseconds = time_layers(scoring, x, repeats_of_scores)
    mebibytes = {name: saved_activation_bytes(layer, x) / 2**20 for name, layer in scoring.items()}
    tables = {
        f"Forward and backward pass over {batch} sequences on {device.type}, in ms (best of {repeats})": times,
        "Multiplications of one sequence": counts,
        "Longest path, in layers (recurrent: steps)": _over_n(paths),
        "Depth of the graph, in operations": _over_n(depths),
        f"Score functions: one layer over {rows} sequences of {n}, forward and backward": [
            {"function": name, "ms (median)": median(milliseconds[name]), "saved (MiB)": mebibytes[name]}
            for name in SCORES
        ],
    }
    measured = {"counts": counts, "depths": depths, "paths": paths, "times": times, "kept": kept}
    return {**measured, "milliseconds": milliseconds, "mebibytes": mebibytes, "tables": tables}


def _over_n(values: dict[str, dict[str, int]]) -> list[dict[str, Any]]:
    """Return a table with one row for each layer and one column for each n."""
    return [
        {"layer": kind} | {f"n = {n}": value for n, value in by_length.items()} for kind, by_length in values.items()
    ]


def _exponent(values: Mapping[str, float]) -> float:
    """Return the exponent p of the growth n^p between the last two values."""
    (n0, v0), (n1, v1) = list(values.items())[-2:]
    return math.log(v1 / v0, int(n1) / int(n0))


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge the claims by counts, graph depths, path lengths, costs for n < d, the growth of memory, and scores."""
    parts = [_judge_counts(numbers), _judge_order(numbers), _judge_operations(numbers["counts"], CORE, "core")]
    parts += (_judge_times(numbers["times"]), _judge_operations(numbers["counts"], WHOLE, "whole"))
    parts += (_judge_restricted(numbers), _judge_memory(numbers["kept"]), _judge_scores(numbers))
    values = {key: value for part, _ in parts for key, value in part.items()}
    return decide_claims("layer-costs", values, *(decision for _, decision in parts))


def _judge_counts(numbers: Numbers) -> Judged:
    counts = numbers["counts"]
    ratios = {kind: [row["counted"] / row["formula"] for row in counts if row["layer"] == kind] for kind in LAYER_KINDS}
    worst = max(max(kind_ratios) / min(kind_ratios) for kind_ratios in ratios.values())
    constants = ", ".join(f"{kind} {kind_ratios[0]:.3g}" for kind, kind_ratios in ratios.items())
    return {"worst": worst, "constants": constants}, {"supported": worst < 1.1}


def _judge_order(numbers: Numbers) -> Judged:
    depths, paths = numbers["depths"], numbers["paths"]
    recurrent = _exponent(depths[RECURRENT])
    others = max(abs(_exponent(by_length)) for kind, by_length in depths.items() if kind != RECURRENT)
    n = list(paths[RECURRENT])[-1]
    off = max(abs(paths[kind][n] - length(int(n))) for kind, length in PATHS.items())
    values = {"n": n, "paths": ", ".join(f"{paths[kind][n]} ({kind})" for kind in PATHS)}
    values |= {"recurrent": recurrent, "others": others}
    return values, {"supported": recurrent > 0.8 and others < 0.2 and off <= 1.01}


def _judge_operations(counts: list[dict[str, Any]], kind: str, name: str) -> Judged:
    """Compare a layer's number of multiplications with the recurrent layer's."""
    multiplications = {(row["layer"], row["n"], row["d"]): row["counted"] for row in counts}
    ratios = {(n, d): multiplications[kind, n, d] / multiplications[RECURRENT, n, d] for _, n, d in multiplications}
    below, above = ([ratio for (n, d), ratio in ratios.items() if (n < d) is side] for side in (True, False))
    values = {f"{name}_below": _range(below), f"{name}_above": _range(above)}
    return values, {"supported": max(below) < 1, "refuted": min(below) >= 1}


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _judge_times(times: list[dict[str, Any]]) -> Judged:
    below, above = [[row for row in times if row["n < d"] is side] for side in (True, False)]
    (core, beyond), (whole, whole_beyond) = (
        [fmean(row[kind] < row[RECURRENT] for row in rows) for rows in (below, above)] for kind in (CORE, WHOLE)
    )
    ratios = [row[RECURRENT] / row[CORE] for row in below]
    values = {"core": core, "beyond": beyond, "whole": whole, "whole_beyond": whole_beyond}
    values |= {"least": min(ratios), "most": max(ratios), "longest": max(row["n"] for row in times)}
    is_no_border = core >= 0.95 and beyond > 0.5
    so = ". So n = d is not the length at which recurrence becomes faster" if is_no_border else ""
    return {**values, "so": so}, {"supported": core >= 0.95, "refuted": core < 0.5, "exact": False}


def _judge_restricted(numbers: Numbers) -> Judged:
    times, kept = numbers["times"], numbers["kept"]
    width = max(row["d"] for row in times)
    grows = {
        kind: (_exponent({str(row["n"]): row[kind] for row in times if row["d"] == width}), _exponent(kept[kind]))
        for kind in (CORE, RESTRICTED)
    }
    growth = "; ".join(f"{kind}: time n^{time:.2f}, memory n^{memory:.2f}" for kind, (time, memory) in grows.items())
    restricted = max(grows[RESTRICTED])
    decision = {"supported": restricted <= LINEAR < SQUARE <= min(grows[CORE]), "refuted": restricted >= SQUARE}
    return {"window": WINDOW, "width": width, "growth": growth}, {**decision, "exact": False}


def _judge_memory(kept: Mapping[str, Mapping[str, float]]) -> Judged:
    plain, fused = _exponent(kept[CORE]), _exponent(kept[FUSED])
    least = min(plain, fused)
    without = ". Attention can be computed without storing them" if least <= 1.3 else ""
    return {"plain": plain, "fused": fused, "without": without}, {"supported": least > 1.7, "refuted": least <= 1.3}


def _judge_scores(numbers: Numbers) -> Judged:
    """Compare times within each round, in which the load is similar."""
    milliseconds, mebibytes = numbers["milliseconds"], numbers["mebibytes"]
    ratios = [slow / fast for slow, fast in zip(milliseconds[ADDITIVE], milliseconds[PAPER], strict=True)]
    (low, high), memory = median_interval(ratios), mebibytes[ADDITIVE] / mebibytes[PAPER]
    values = {"ratio": median(ratios), "low": low, "high": high, "memory": memory}
    values |= {"min_time": MIN_TIME_RATIO, "min_memory": MIN_MEMORY_RATIO}
    is_better = low > MIN_TIME_RATIO and memory > MIN_MEMORY_RATIO
    return values, {"supported": is_better, "refuted": high < 1 or memory < 1, "exact": False}


def draw(numbers: Numbers) -> Figure:
    """Draw the time of three layers over n and d, table 1 with measured values, path and memory over n, and scores."""
    picture, (*maps, table, path, memory, times, sizes) = subplots("What a layer costs (Table 1)", 2, 4, size=(29, 13))
    for axes, kind in zip(maps, MAPPED, strict=True):
        _draw_map(axes, numbers["times"], kind)
    rows = _table1(numbers)
    heat_map(table, [[0.0] * 3] * len(rows), list(rows.values()), row_labels=[name.replace(" ", "\n") for name in rows])
    table.set_xticks(range(3), ["multiplications", "sequential steps", "longest path"])
    label(table, "Table 1: formula and measured value", "cost of a layer", "layer")
    for axes, key, divisor, title, unit in (
        (path, "paths", 1, "Longest path", "layers (recurrent: steps)"),
        (memory, "kept", 1024, "Memory of one sequence, d = 64", "saved for the backward pass (KiB)"),
    ):
        lengths = [int(n) for n in numbers[key][RECURRENT]]
        curves = {kind: [value / divisor for value in by_n.values()] for kind, by_n in numbers[key].items()}
        plot_lines(axes, lengths, curves, order=(*LAYER_KINDS, FUSED, DILATED))
        label(axes, title, "length n (tokens)", unit, log="xy", xticks=lengths)
    bars(times, {name: median(rounds) for name, rounds in numbers["milliseconds"].items()})
    bars(sizes, numbers["mebibytes"])
    label(times, "Score functions: time of one layer", "ms, forward and backward (median)", "score function")
    label(sizes, "Score functions: memory of one layer", "MiB saved for the backward pass", "score function")
    shared_legend(picture, path, memory)
    return picture


def _table1(numbers: Numbers) -> dict[str, list[str]]:
    """Return the rows of the paper's table 1: each formula with the measured value below it."""
    formulas = {
        CORE: ("n²·d", "O(1)", "O(1)"),
        RECURRENT: ("n·d²", "O(n)", "O(n)"),
        CONVOLUTION: ("k·n·d²", "O(1)", "O(n/k)\ndilated: O(logₖ n)"),
        RESTRICTED: ("r·n·d", "O(1)", "O(n/r)"),
    }
    paths, rows = numbers["paths"], dict[str, list[str]]()
    n = list(paths[CORE])[-1]
    for kind, (operations, sequential, longest) in formulas.items():
        constant = next(row["counted"] / row["formula"] for row in numbers["counts"] if row["layer"] == kind)
        steps = f"{paths[kind][n]}{f' and {paths[DILATED][n]}' if kind == CONVOLUTION else ''}"
        growth = f"∝ n^{abs(_exponent(numbers['depths'][kind])):.2f}"
        rows[kind] = [f"{operations}\n{constant:g} · {operations}", f"{sequential}\n{growth}"]
        rows[kind].append(f"{longest}\n{steps} at n = {n}")
    return rows


def _draw_map(axes: Axes, times: list[dict[str, Any]], kind: str) -> None:
    """Draw a layer's time over n and d as colors, with a line above n = d, and a frame where it is the fastest."""
    lengths, widths = (sorted({row[name] for row in times}) for name in ("n", "d"))
    rows = {(row["n"], row["d"]): row for row in times}
    logs = [[math.log10(rows[n, d][kind]) for d in widths] for n in lengths]
    every = [math.log10(row[other]) for row in times for other in MAPPED]
    texts = [[f"{(time := rows[n, d][kind]):.{0 if time >= 10 else 1}f}" for d in widths] for n in lengths]

    def style(row: int, column: int) -> dict[str, Any]:
        cell = rows[lengths[row], widths[column]]
        is_fastest = cell[kind] == min(cell[other] for other in MAPPED)
        return {"bbox": {"facecolor": "none", "edgecolor": "#D55E00"} if is_fastest else None, "fontsize": 11}

    image: Any = {"vmin": min(every), "vmax": max(every), "origin": "lower", "dark_above": 0.6 * max(every)}
    heat_map(axes, logs, texts, row_labels=lengths, column_labels=widths, text_style=style, **image)
    border = [sum(n < d for n in lengths) - 0.5 for d in widths]
    axes.stairs(border, [edge - 0.5 for edge in range(len(widths) + 1)], baseline=None, color="black", linewidth=2)
    title = f"{kind.capitalize()}: ms (framed: fastest)"
    label(axes, title, "width d (units); below the line: n < d", "length n (tokens)")
