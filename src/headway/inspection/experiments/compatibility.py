"""How well does a query match a key? The paper's product against other compatibility functions, and non-linear ones.

    scaled dot      q.k / sqrt(d_k)                     Vaswani et al. 2017, equation 1
    additive        v.tanh(W q + U k)                   Bahdanau et al. 2015
    general         q.W k                               Luong et al. 2015
    cosine          q.k / (|q| |k|), over a learned temperature
    feed-forward    two layers with ReLU, of q and k
    hidden          the scaled product of queries and keys that are projected with a hidden layer of ReLU

The same Transformer is trained with each of them (``training.py`` says how; the full form is 18 runs, three of which
other experiments share). Time and memory are those of one attention layer alone, forward and backward, all functions
in turn on the same numbers, so that what else the machine does meets all of them; memory is what is kept for the
backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import fmean, median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from headway.inspection.experiments.comparing import (
    column,
    difference,
    judge_alike,
    judge_greater,
    mean_with_spread,
    median_interval,
    strips,
)
from headway.inspection.experiments.corpora import corpora
from headway.inspection.experiments.drawing import COLOURS, label, panels
from headway.inspection.experiments.experiment import Claim, Experiment, Numbers, Settings, Verdict
from headway.inspection.experiments.training import sweep
from headway.nn.attention import MultiHeadAttention

PAPER, ADDITIVE = "scaled dot (paper)", "additive"
VARIANTS: dict[str, dict[str, Any]] = {
    PAPER: {},
    "general": {"score": "general"},
    "cosine": {"score": "cosine"},
    ADDITIVE: {"score": "additive"},
    "feed-forward": {"score": "feed_forward"},
    "hidden projections": {"qk_projection": "hidden"},
}
NON_LINEAR = (ADDITIVE, "feed-forward", "hidden projections")
MUCH = 1.1  # "much faster" is at least this many times
NOTICEABLE = 1.0  # BLEU; less than that is "similar", and no benefit to speak of
ROUNDS = {"quick": 15, "full": 25}

CLAIMS = (
    Claim("Dot-product attention is much faster and more space-efficient in practice than additive.", "paper, 3.2.1"),
    Claim("For small values of d_k the two mechanisms perform similarly.", "paper, 3.2.1 (here d_k is 32)"),
    Claim("A more sophisticated compatibility function than dot product may be beneficial.", "paper, 6.2"),
    Claim("Including a non-linearity affects the performance.", "notebook, open question"),
)


def measure(settings: Settings) -> Numbers:
    """The quality of a model with each function, and the cost of a layer with it."""
    runs = sweep(settings, corpora(settings), {name: {"model": keys} for name, keys in VARIANTS.items()})
    costs = _costs(settings)
    table = [
        {
            "function": name,
            "BLEU": mean_with_spread(column({"runs": runs}, "bleu", variant=name)),
            "loss (nats a token)": mean_with_spread(column({"runs": runs}, "loss", variant=name)),
            "layer time (ms)": median(costs[name]["ms"]),
            "layer memory (MiB)": costs[name]["mib"],
            "training (min)": fmean(column({"runs": runs}, "minutes", variant=name)),
        }
        for name in VARIANTS
    ]
    return {"runs": runs, "costs": costs, "tables": {"Means over seeds, with standard deviations": table}}


def _costs(settings: Settings) -> dict[str, dict[str, Any]]:
    """Milliseconds of every round, and MiB, of a layer with each function; all in float32."""
    device = "cuda" if torch.cuda.is_available() and not settings.quick else "cpu"
    rows, length, width = (16, 16, 32) if settings.quick else (64, 32, 128)
    with torch.random.fork_rng():
        torch.manual_seed(settings.seeds[0])
        x = torch.randn(rows, length, width, device=device)
        layers = {name: MultiHeadAttention(width, 4, **keys).to(device) for name, keys in VARIANTS.items()}
    costs: dict[str, dict[str, Any]] = {
        name: {"ms": [], "mib": _kept(partial(layer, x)) / 2**20} for name, layer in layers.items()
    }
    for number in range(ROUNDS["quick" if settings.quick else "full"] + 1):
        for name, layer in layers.items():
            begin = time.perf_counter()
            layer(x).sum().backward()
            if device == "cuda":
                torch.cuda.synchronize()
            if number:  # the first round warms up
                costs[name]["ms"].append((time.perf_counter() - begin) * 1e3)
    return costs


def _kept(forward: Callable[[], Tensor]) -> int:
    """Bytes that ``forward`` keeps for the backward pass, weights included."""
    held: dict[int, Tensor] = {}  # held, so that no address is used twice

    def note(tensor: Tensor) -> Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward()
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """By time and memory of a layer, and by BLEU over seeds."""
    bleu = {name: column(numbers, "bleu", variant=name) for name in VARIANTS}
    similar = judge_alike(
        difference(bleu[ADDITIVE], bleu[PAPER]), "BLEU of additive less that of scaled dot", within=NOTICEABLE
    )
    others = [name for name in VARIANTS if name != PAPER]
    best = max(others, key=lambda name: fmean(bleu[name]))
    gain = judge_greater(
        difference(bleu[best], bleu[PAPER], len(others)),
        f"BLEU of the best other function ({best}) less that of scaled dot, widened for {len(others)} comparisons",
        least=NOTICEABLE,
    )
    return _judge_cost(numbers["costs"]), similar, gain, _judge_non_linearity(bleu)


def _judge_cost(costs: dict[str, dict[str, Any]]) -> Verdict:
    """Round by round, so that both have met the same machine."""
    ratios = median_interval([a / b for a, b in zip(costs[ADDITIVE]["ms"], costs[PAPER]["ms"], strict=True)])
    memory = costs[ADDITIVE]["mib"] / costs[PAPER]["mib"]
    reason = (
        f"additive takes {ratios} times as long (median over rounds) and keeps {memory:.3g} times as much; supported "
        f"where both are certainly above {MUCH:g}"
    )
    if ratios.low > MUCH and memory > MUCH:
        return Verdict("supported", reason)
    return Verdict("refuted" if ratios.high < MUCH or memory < MUCH else "inconclusive", reason)


def _judge_non_linearity(bleu: dict[str, list[float]]) -> Verdict:
    found = {name: difference(bleu[name], bleu[PAPER], len(NON_LINEAR)) for name in NON_LINEAR}
    reason = "BLEU less that of scaled dot: " + "; ".join(f"{name} {each}" for name, each in found.items())
    if any(each.low > 0 or each.high < 0 for each in found.values()):
        return Verdict("supported", f"{reason}; one at least is certainly not 0")
    if all(abs(edge) <= NOTICEABLE for each in found.values() for edge in (each.low, each.high)):
        return Verdict("refuted", f"{reason}; all of them within {NOTICEABLE:g} of 0")
    return Verdict("inconclusive", f"{reason}; each may be 0, and not each is within {NOTICEABLE:g} of it")


def draw(numbers: Numbers) -> Figure:
    """Quality beside cost, the functions in the same rows."""
    picture, (quality, time_panel, memory) = panels("Compatibility functions", columns=3, size=(15.0, 5.0))
    strips(quality, {name: column(numbers, "bleu", variant=name) for name in VARIANTS})
    label(quality, "Quality (dots: seeds)", "BLEU of the test set", "")
    values = [numbers["costs"][name] for name in VARIANTS]
    for axes, lengths in ((time_panel, [median(each["ms"]) for each in values]), (memory, [v["mib"] for v in values])):
        bars = axes.barh(range(len(values)), lengths, color=COLOURS[0], height=0.6)
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.set_yticks(range(len(values)), [])
        axes.set_ylim(quality.get_ylim())
        axes.set_xlim(0, 1.15 * max(lengths))
        axes.grid(visible=False, axis="y")
    label(time_panel, "Time of one attention layer", "ms, forward and backward (median)", "")
    label(memory, "Memory of one attention layer", "MiB kept for the backward pass", "")
    return picture


def explain(numbers: Numbers) -> str:
    """What is compared, and how to read it."""
    seeds = len(column(numbers, "bleu", variant=PAPER))
    return (
        f"The same Transformer, trained {seeds} times with each function that compares a query with a key. On the left "
        "each dot is one training; where the shaded bars of two functions overlap much, chance alone may part them.\n\n"
        "Products compare all queries with all keys in one matrix product. Additive and feed-forward functions pass "
        "every single pair of a query and a key through a hidden layer; a hidden layer in the projections works on "
        "each query and each key once. The two panels on the right say what that costs."
    )


EXPERIMENT = Experiment(
    "compatibility",
    "Compatibility functions: how a query is compared with a key",
    CLAIMS,
    measure,
    judge,
    draw,
    explain,
)
