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
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from headway.experiments.experiment import Numbers, Settings, decide_claims
from headway.experiments.figures import label, shared_legend, subplots
from headway.experiments.verdicts import Verdict

WIDTHS = (1, 4, 16, 64, 256, 1024)
NUM_KEYS = 64  # number of keys per query
UNSCALED, SCALED = "q·k", "q·k / √d_k"
QUANTITIES = ("variance", "entropy", "gradient", "low", "high")  # that are drawn, the first three in panels

TITLE = "Why divide by √d_k?"


def measure(settings: Settings) -> Numbers:
    """Measure every quantity for each seed and d_k, with and without the factor."""
    queries = 200 if settings.quick else 20_000
    rows = list[dict[str, float | str]]()
    for seed, width in product(settings.seeds, WIDTHS):
        generator = torch.Generator().manual_seed(1000 * seed + width)
        parts = [  # each query has random keys of its own
            torch.randn(200, 1, width, generator=generator) @ torch.randn(200, width, NUM_KEYS, generator=generator)
            for _ in range(queries // 200)
        ]
        scores = torch.cat(parts).squeeze(1).double()
        for kind, divisor in ((UNSCALED, 1.0), (SCALED, math.sqrt(width))):
            rows.append({"softmax of": kind, "seed": seed, "d_k": width, **_quantities(scores / divisor)})
    return {"queries": queries, "rows": rows, "tables": {f"Softmax over {NUM_KEYS} keys": rows}}


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


def _values(numbers: Numbers, kind: str, name: str) -> NDArray[np.float64]:
    """Return a quantity (seeds x widths)."""
    values = [row[name] for row in numbers["rows"] if row["softmax of"] == kind]
    return np.array(values).reshape(-1, len(WIDTHS))


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge by the variance over d_k, the median gradient at the largest d_k, and the effect of scaling."""
    plain, scaled = (_values(numbers, kind, "gradient") for kind in (UNSCALED, SCALED))
    ratios = _values(numbers, UNSCALED, "variance").mean(0) / WIDTHS
    off = float(np.abs(_values(numbers, UNSCALED, "mean").mean(0) / np.sqrt(WIDTHS)).max())
    # Variance / d_k is an average of |q|^2 / d_k, which has a variance of 2 / d_k.
    error = math.sqrt(2 / (numbers["queries"] * len(plain)))
    falls: list[float] = (plain[:, -1] / plain.max(1)).tolist()
    spread = float((scaled[:, 2:].max(1) / scaled[:, 2:].min(1)).max())
    ratio = float(scaled[:, -1].mean() / max(plain[:, -1].mean(), 1e-300))
    values = {"off": off, "error": error, "lowest": ratios.min(), "highest": ratios.max(), "first": WIDTHS[0]}
    values |= {"third": WIDTHS[2], "last": WIDTHS[-1], "fall": np.mean(falls), "equal": math.log(NUM_KEYS)}
    values |= {"spread": spread, "times": f"{ratio:.3g} times" if ratio < 1e4 else f"10^{math.log10(ratio):.0f} times"}
    values |= {"vanished": _values(numbers, UNSCALED, "vanished")[:, -1].mean()}
    values |= {name: _values(numbers, SCALED, name)[:, -1].mean() for name in ("variance", "entropy")}
    return decide_claims(
        "scaling",
        values,
        {"supported": max(off, float(abs(ratios - 1).max())) < 4 * error, "exact": False},
        {"supported": max(falls) < 0.01, "refuted": min(falls) > 0.5, "exact": False},
        {"supported": spread < 1.2 and ratio > 2, "refuted": ratio <= 1, "exact": False},
    )


def draw(numbers: Numbers) -> Figure:
    """Draw variance, entropy and gradient against d_k, with and without the factor."""
    picture, (variance, entropy, gradient) = subplots("Why the scores are divided by √d_k", 1, 3, size=(16, 6))
    for kind, color, marker in ((UNSCALED, "C1", "o"), (SCALED, "C0", "s")):
        curves = {name: _values(numbers, kind, name).mean(0).clip(1e-12) for name in QUANTITIES}  # avoid log 0
        for axes, name in zip(picture.axes, QUANTITIES, strict=False):
            axes.plot(WIDTHS, curves[name], color + marker + "-", label=f"scores {kind}")
        gradient.fill_between(WIDTHS, curves["low"], curves["high"], color=color, alpha=0.15)
    entropy.axhline(math.log(NUM_KEYS), color="#777777", linestyle=":", label=f"equal weights (ln {NUM_KEYS})")
    entropy.set_ylim(bottom=0)
    for axes, title, y, log in (
        (variance, "Variance of the scores", "variance (score²)", "xy"),
        (entropy, f"Entropy of the softmax ({NUM_KEYS} keys)", "entropy (nats)", "x"),
        (gradient, "Size of the softmax's gradient", "‖∂p/∂s‖: median, 10 to 90 % of queries", "xy"),
    ):
        label(axes, title, "width d_k (units)", y, log=log, xticks=WIDTHS)
    shared_legend(picture, entropy)
    return picture
