"""Why dot products are divided by sqrt(d_k) (Vaswani et al. 2017, section 3.2.1 and its footnote 4).

A score q.k is a sum of d_k products. If the components are drawn from N(0, 1), as the footnote assumes, each product
has mean 0 and variance 1, so the score's variance is d_k and its typical size sqrt(d_k). exp() turns differences of
scores into ratios of weights.

Why is the gradient then small? The softmax's Jacobian is dp/ds = diag(p) - p p^T. Its entries are p_i (1 - p_i) and
-p_i p_j. When one weight is nearly 1 and the others nearly 0, every entry is a product with a factor near 0, so little
of the gradient reaches queries and keys, whatever the loss is.

For each d_k, with and without the factor 1 / sqrt(d_k), we measure the variance of the scores, the entropy of
softmax(scores), which is 0 if one key has all the weight, and the Frobenius norm of the Jacobian, which bounds every
gradient that passes back through the softmax.

The verdict uses the median over queries. Occasionally two keys have nearly equal scores, and such queries have large
gradients however sharp the softmax is, so the mean would hide the gradients of all others. The band in the figure
contains 80 % of the queries.
"""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from headway.experiments.experiment import Numbers, Settings, decide_claims
from headway.experiments.figures import label, shared_legend, subplots
from headway.experiments.verdicts import Verdict
from headway.inspection.picture_files import MARKERS

WIDTHS = (1, 4, 16, 64, 256, 1024)
NUM_KEYS = 64  # number of keys per query
SCALING_KINDS = ("without", "with")
SCORE_FORMULAS = {"without": "q·k", "with": "q·k / √d_k"}

TITLE = "Why divide by √d_k?"


def measure(settings: Settings) -> Numbers:
    """Measure every quantity for each d_k, with and without the factor, one value per seed."""
    queries = 200 if settings.quick else 20_000
    quantities: dict[str, dict[str, dict[str, list[float]]]] = {kind: {} for kind in SCALING_KINDS}
    for seed in settings.seeds:
        generator = torch.Generator().manual_seed(seed)
        for width in WIDTHS:
            parts = []
            for _ in range(queries // 200):  # each query has random keys of its own
                query = torch.randn(200, 1, width, generator=generator)
                parts.append(query @ torch.randn(200, width, NUM_KEYS, generator=generator))
            scores = torch.cat(parts).squeeze(1).double()
            for kind in SCALING_KINDS:
                for name, value in _quantities(scores / math.sqrt(width) if kind == "with" else scores).items():
                    quantities[kind].setdefault(name, {}).setdefault(str(width), []).append(value)
    captions = {"variance": "variance", "entropy": "entropy (nats)", "gradient": "gradient, median"}
    captions |= {"vanished": "share of queries with a gradient below 0.001"}
    rows = [
        {"d_k": width, "softmax of": SCORE_FORMULAS[kind]}
        | {caption: fmean(quantities[kind][name][str(width)]) for name, caption in captions.items()}
        for width in WIDTHS
        for kind in SCALING_KINDS
    ]
    tables = {f"{NUM_KEYS} keys, mean over seeds": rows}
    return {"keys": NUM_KEYS, "queries": queries, "widths": WIDTHS, **quantities, "tables": tables}


def _quantities(scores: Float[Tensor, "N S"]) -> dict[str, float]:
    logs = scores.log_softmax(-1)
    weights = logs.exp()
    squares = (weights**2).sum(-1)
    # ||diag(p) - p p^T||^2 = sum p_i^2 - 2 sum p_i^3 + (sum p_i^2)^2
    norm = (squares - 2 * (weights**3).sum(-1) + squares**2).clamp(min=0).sqrt()
    low, middle, high = torch.quantile(norm, torch.tensor([0.1, 0.5, 0.9], dtype=norm.dtype)).tolist()
    return {
        "variance": float(scores.var()),
        "mean": float(scores.mean()),
        "entropy": float(-(weights * logs).sum(-1).mean()),
        "gradient": middle,
        "low": low,
        "high": high,
        "vanished": float((norm < 1e-3).double().mean()),
    }


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by the variance over d_k, the median gradient at the largest d_k, and the effect of scaling."""
    widths, plain, scaled = numbers["widths"], _means(numbers, "without"), _means(numbers, "with")
    ratios = [variance / width for variance, width in zip(plain["variance"], widths, strict=True)]
    off = max(abs(mean) / math.sqrt(width) for mean, width in zip(plain["mean"], widths, strict=True))
    gradients = {kind: np.array(list(numbers[kind]["gradient"].values())) for kind in SCALING_KINDS}  # widths x seeds
    # Variance / d_k is an average of |q|^2 / d_k, which has a variance of 2 / d_k.
    error = math.sqrt(2 / (numbers["queries"] * gradients["without"].shape[1]))
    falls: list[float] = (gradients["without"][-1] / gradients["without"].max(0)).tolist()
    spread = float((gradients["with"][2:].max(0) / gradients["with"][2:].min(0)).max())
    ratio = scaled["gradient"][-1] / max(plain["gradient"][-1], 1e-300)
    times = f"{ratio:.3g} times" if ratio < 1e4 else f"10^{math.log10(ratio):.0f} times"
    values = {"off": off, "error": error, "lowest": min(ratios), "highest": max(ratios), "first": widths[0]}
    values |= {"third": widths[2], "last": widths[-1], "fall": fmean(falls), "vanished": plain["vanished"][-1]}
    values |= {"spread": spread, "times": times, "equal": math.log(numbers["keys"])}
    values |= {"variance": scaled["variance"][-1], "entropy": scaled["entropy"][-1]}
    return decide_claims(
        "scaling",
        values,
        {"supported": max(off, *(abs(ratio - 1) for ratio in ratios)) < 4 * error, "exact": False},
        {"supported": max(falls) < 0.01, "refuted": min(falls) > 0.5, "exact": False},
        {"supported": spread < 1.2 and ratio > 2, "refuted": ratio <= 1, "exact": False},
    )


def _means(numbers: Numbers, kind: str) -> dict[str, list[float]]:
    """Return the mean over seeds of each quantity at each width."""
    return {name: [fmean(values) for values in by_width.values()] for name, by_width in numbers[kind].items()}


def draw(numbers: Numbers) -> Figure:
    """Draw variance, entropy and gradient against d_k, with and without the factor."""
    picture, (variance, entropy, gradient) = subplots("Why the scores are divided by √d_k", 1, 3, size=(16, 6))
    widths, equal = numbers["widths"], math.log(numbers["keys"])
    for color, marker, kind in zip(("C1", "C0"), MARKERS, SCALING_KINDS, strict=False):
        values = _means(numbers, kind)
        low, middle, high = (np.maximum(values[name], 1e-12) for name in ("low", "gradient", "high"))  # avoid log 0
        for axes, curve in ((variance, values["variance"]), (entropy, values["entropy"]), (gradient, middle)):
            axes.plot(widths, curve, color=color, marker=marker, label=f"scores {SCORE_FORMULAS[kind]}")
        gradient.fill_between(widths, low, high, color=color, alpha=0.15)
    entropy.axhline(equal, color="#777777", linestyle=":", label=f"equal weights (ln {numbers['keys']})")
    entropy.set_ylim(bottom=0)
    for axes, title, y, log in (
        (variance, "Variance of the scores", "variance (score²)", "xy"),
        (entropy, f"Entropy of the softmax ({numbers['keys']} keys)", "entropy (nats)", "x"),
        (gradient, "Size of the softmax's gradient", "‖∂p/∂s‖: median, 10 to 90 % of queries", "xy"),
    ):
        label(axes, title, "width d_k (units)", y, log=log, xticks=widths)
    shared_legend(picture, entropy)
    return picture
