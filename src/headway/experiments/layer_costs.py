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
fast depends on the hardware. The table of factors shows it for this machine. The recurrent layer is PyTorch's nn.RNN
with tanh, the cheapest recurrent layer: an LSTM has four times as many operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from statistics import fmean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headway.experiments.experiment import OURS, Claim, Experiment, Numbers, Settings
from headway.experiments.figures import heat_map, label, plot_lines, shared_legend, subplots
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
from headway.experiments.verdicts import Verdict, decide

PATH_LENGTH_KINDS = ("self-attention", "recurrent", "convolution", "dilated convolution", "restricted self-attention")
MEMORY_KINDS = ("self-attention", "fused self-attention", "recurrent", "convolution", "restricted self-attention")
CORE, WHOLE, RECURRENT = "self-attention", "whole self-attention", "recurrent"
RESTRICTED, DILATED = "restricted self-attention", "dilated convolution"
MAPPED = (CORE, WHOLE, RECURRENT)  # layers whose times are drawn as maps
LINEAR, SQUARE = 1.25, 1.5  # powers of n; growth is linear up to the first and quadratic from the second on

CLAIMS = (
    Claim(
        "Complexity per layer: self-attention O(n²·d), recurrent O(n·d²), convolutional O(k·n·d²), restricted "
        "self-attention O(r·n·d).",
        "paper, table 1",
    ),
    Claim(
        "Sequential operations: O(n) for recurrent layers, O(1) for the others. Longest path: O(1) for self-attention, "
        "O(n) recurrent, O(n/k) convolutional or O(log_k n) dilated, O(n/r) restricted.",
        "paper, 4 and table 1",
    ),
    Claim.quote(
        "In terms of computational complexity, self-attention layers are faster than recurrent layers when the "
        "sequence length n is smaller than the representation dimensionality d",
        "paper, 4",
    ),
    Claim("If n < d, the self-attention layer of table 1 also takes less time than a recurrent layer.", OURS),
    Claim("If n < d, a whole self-attention layer with its projections also takes fewer operations.", OURS),
    Claim(
        "Time and memory of self-attention that is restricted to r positions grow with n instead of n².",
        "paper, table 1",
    ),
    Claim("The memory of self-attention necessarily grows with n².", f"{OURS}: a common reading of table 1"),
)


def measure(settings: Settings) -> Numbers:
    """Measure counts and depths on a small grid of n and d, times for all n and d, and memory for all n."""
    torch.manual_seed(settings.seeds[0])
    device = torch.device("cuda" if torch.cuda.is_available() and not settings.quick else "cpu")
    lengths, widths = ((8, 32, 128), (16, 64, 128)) if settings.quick else ((16, 32, 64, 128, 256, 512, 1024),) * 2
    short = (4, 8, 16, 32) if settings.quick else (4, 8, 16, 32, 64, 128)
    counts = [
        {"layer": kind, "n": n, "d": d, "counted": count_multiplications(kind, n, d), "formula": table1_ops(kind, n, d)}
        for kind, n, d in product(LAYER_KINDS, (16, 64), (32, 128))
    ]
    depths = {kind: {str(n): graph_depth(kind, n, 8) for n in short} for kind in LAYER_KINDS}
    paths = {kind: {str(n): path_length(kind, n, 4) for n in short} for kind in PATH_LENGTH_KINDS}
    times = []
    batch, repeats = (2, 3) if settings.quick else (16, 5)
    for n in lengths:
        settings.say(f"layer-costs: timing n = {n}")
        for d in widths:
            layers = {kind: make_layer(kind, d).to(device) for kind in LAYER_KINDS}
            rounds = time_layers(layers, torch.randn(batch, n, d, device=device, requires_grad=True), repeats)
            times.append({"n": n, "d": d} | {kind: min(rounds[kind]) for kind in LAYER_KINDS})
    kept = dict[str, dict[str, int]]()
    for kind, n in product(MEMORY_KINDS, lengths):
        x = torch.randn(1, n, 64, requires_grad=True)
        kept.setdefault(kind, {})[str(n)] = saved_activation_bytes(make_layer(kind, 64), x)
    tables = {
        f"Time of a forward and a backward pass over {batch} sequences on {device.type}, in ms (best of {repeats})": [
            {"n < d": row["n"] < row["d"], **row} for row in times
        ],
        "Multiplications of one sequence": counts,
        "Longest path, in layers (recurrent: steps)": _over_n(paths),
        "Depth of the graph, in operations": _over_n(depths),
    }
    measured = {"counts": counts, "depths": depths, "paths": paths, "times": times, "kept": kept}
    return {**measured, "batch": batch, "tables": tables}


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
    """Judge the claims by counts, graph depths, path lengths, costs for n < d, and the growth of memory."""
    counts = numbers["counts"]
    return (
        _judge_counts(counts),
        _judge_order(numbers["depths"], numbers["paths"]),
        _judge_operations(counts, CORE, "the layer of table 1 (n²·d against n·d²)"),
        _judge_times(numbers["times"]),
        _judge_operations(counts, WHOLE, "the whole layer (with 4·n·d² for its projections)"),
        _judge_restricted(numbers["times"], numbers["kept"]),
        _judge_memory(numbers["kept"]),
    )


def _judge_counts(counts: list[dict[str, Any]]) -> Verdict:
    ratios = {kind: [row["counted"] / row["formula"] for row in counts if row["layer"] == kind] for kind in LAYER_KINDS}
    worst = max(max(kind_ratios) / min(kind_ratios) for kind_ratios in ratios.values())
    constants = ", ".join(f"{kind} {kind_ratios[0]:.3g}" for kind, kind_ratios in ratios.items())
    return decide(
        f"the ratio of counted multiplications to the formula varies over n and d by a factor of {worst:.3g} "
        f"({constants}). The formula of the whole layer includes 2·n·d² for its projections",
        supported=worst < 1.1,
    )


def _judge_order(depths: dict[str, dict[str, int]], paths: dict[str, dict[str, int]]) -> Verdict:
    recurrent = _exponent(depths["recurrent"])
    others = max(abs(_exponent(by_length)) for kind, by_length in depths.items() if kind != "recurrent")
    n = int(list(paths["recurrent"])[-1])
    expected = {
        "self-attention": 1,
        "recurrent": n,
        "convolution": n / (KERNEL_SIZE - 1),
        "dilated convolution": math.log(n, KERNEL_SIZE),
        "restricted self-attention": n / (WINDOW // 2),
    }
    off = max(abs(paths[kind][str(n)] - value) for kind, value in expected.items())
    return decide(
        f"at n = {n}, the first input reaches the last output after "
        + ", ".join(f"{paths[kind][str(n)]} ({kind})" for kind in expected)
        + " layers or steps. The depth of the graph grows with "
        f"n^{recurrent:.2f} for the recurrent layer and with n^{others:.2f} at most for the others",
        supported=recurrent > 0.8 and others < 0.2 and off <= 1.01,
    )


def _judge_operations(counts: list[dict[str, Any]], kind: str, words: str) -> Verdict:
    """Compare a layer's number of multiplications with the recurrent layer's."""
    multiplications = {(row["layer"], row["n"], row["d"]): row["counted"] for row in counts}
    ratios = {(n, d): multiplications[kind, n, d] / multiplications[RECURRENT, n, d] for _, n, d in multiplications}
    below, above = ([ratio for (n, d), ratio in ratios.items() if (n < d) is side] for side in (True, False))
    reason = f"{words} takes {_range(below)} times the multiplications of the recurrent layer if n < d, and "
    return decide(f"{reason}{_range(above)} times otherwise", supported=max(below) < 1, refuted=min(below) >= 1)


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _judge_times(times: list[dict[str, Any]]) -> Verdict:
    below, above = [[row for row in times if (row["n"] < row["d"]) is side] for side in (True, False)]
    (core, beyond), whole = ([_faster(rows, kind) for rows in (below, above)] for kind in (CORE, WHOLE))
    longest, ratios = max(row["n"] for row in times), [row[RECURRENT] / row[CORE] for row in below]
    reason = (
        f"the layer of table 1 is faster in {core:.0%} of the measured pairs with n < d (by a factor of "
        f"{min(ratios):.2g} to {max(ratios):.2g}) and in {beyond:.0%} of the others, up to n = {longest}; the whole "
        f"layer in {whole[0]:.0%} and {whole[1]:.0%}"
    )
    if core >= 0.95 and beyond > 0.5:
        reason += ". So n = d is not the length at which recurrence becomes faster"
    return decide(reason, supported=core >= 0.95, refuted=core < 0.5, exact=False)


def _faster(rows: list[dict[str, Any]], kind: str) -> float:
    """Return the share of rows in which the layer takes less time than the recurrent layer."""
    return fmean(row[kind] < row[RECURRENT] for row in rows)


def _judge_restricted(times: list[dict[str, Any]], kept: Mapping[str, Mapping[str, float]]) -> Verdict:
    width = max(row["d"] for row in times)
    grows = {
        kind: (_exponent({str(row["n"]): row[kind] for row in times if row["d"] == width}), _exponent(kept[kind]))
        for kind in (CORE, RESTRICTED)
    }
    reason = "; ".join(f"{kind}: time n^{time:.2f}, memory n^{memory:.2f}" for kind, (time, memory) in grows.items())
    return decide(
        f"between the two largest n, with r = {WINDOW} and d = {width}: {reason}",
        supported=max(grows[RESTRICTED]) <= LINEAR < SQUARE <= min(grows[CORE]),
        refuted=max(grows[RESTRICTED]) >= SQUARE,
        exact=False,
    )


def _judge_memory(kept: Mapping[str, Mapping[str, float]]) -> Verdict:
    plain, fused = _exponent(kept["self-attention"]), _exponent(kept["fused self-attention"])
    reason = (
        f"at the largest n, memory grows with n^{plain:.2f} if all weights are stored, and with n^{fused:.2f} in a "
        "fused kernel with the same result"
    )
    least = min(plain, fused)
    if least <= 1.3:
        reason += ". Attention can be computed without storing them"
    return decide(reason, supported=least > 1.7, refuted=least <= 1.3)


def draw(numbers: Numbers) -> Figure:
    """Draw the time of three layers over n and d, table 1 with measured values, and path and memory over n."""
    picture, (*maps, table, path, memory) = subplots("What a layer costs (Table 1)", 2, 3, size=(22, 13))
    for axes, kind in zip(maps, MAPPED, strict=True):
        _draw_map(axes, numbers["times"], kind)
    rows = _table1(numbers)
    heat_map(table, [[0.0] * 3] * len(rows), list(rows.values()), row_labels=[name.replace(" ", "\n") for name in rows])
    table.set_xticks(range(3), ["multiplications", "sequential steps", "longest path"])
    label(table, "Table 1: formula and measured value", "cost of a layer", "layer")
    order = (*LAYER_KINDS, "fused self-attention", "dilated convolution")
    kilobytes = {
        kind: {n: value / 1024 for n, value in by_length.items()} for kind, by_length in numbers["kept"].items()
    }
    for axes, values, title, unit in (
        (path, numbers["paths"], "Longest path", "layers (recurrent: steps)"),
        (memory, kilobytes, "Memory of one sequence, d = 64", "saved for the backward pass (KiB)"),
    ):
        lengths = [int(n) for n in values[RECURRENT]]
        plot_lines(axes, lengths, {kind: list(by_length.values()) for kind, by_length in values.items()}, order=order)
        label(axes, title, "length n (tokens)", unit, log="xy", xticks=lengths)
    shared_legend(picture, path, memory)
    return picture


def _table1(numbers: Numbers) -> dict[str, list[str]]:
    """Return the rows of the paper's table 1: each formula with the measured value below it."""
    formulas = {
        CORE: ("n²·d", "O(1)", "O(1)"),
        RECURRENT: ("n·d²", "O(n)", "O(n)"),
        "convolution": ("k·n·d²", "O(1)", "O(n/k)\ndilated: O(logₖ n)"),
        RESTRICTED: ("r·n·d", "O(1)", "O(n/r)"),
    }
    paths, rows = numbers["paths"], dict[str, list[str]]()
    n = list(paths[CORE])[-1]
    for kind, (operations, sequential, longest) in formulas.items():
        constant = next(row["counted"] / row["formula"] for row in numbers["counts"] if row["layer"] == kind)
        steps = f"{paths[kind][n]}{f' and {paths[DILATED][n]}' if kind == 'convolution' else ''}"
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


EXPERIMENT = Experiment("layer-costs", "What a layer costs", __doc__, CLAIMS, measure, judge, draw)
