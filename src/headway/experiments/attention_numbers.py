"""Attention in numbers: a small worked example, and the conclusions that explainers draw from it.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V                  (Vaswani et al. 2017, equation 1)

A well-known notebook applies self-attention to three vectors (Q = K = V = X). It describes one result as "mostly of
itself", although the vector's own weight is .2992 and another vector's weight is .5329. These two weights are enough to
reconstruct the example. Weights add up to 1, so the third is .1679, and the logarithms of neighboring ratios,
ln(.5329 / .2992) and ln(.2992 / .1679), are both .577. This determines the three scaled scores up to a common constant,
but not d_k. Since .577 is 1 / sqrt(3), one possibility is d_k = 3 with scores that differ by 1.

The example here is a = (1, 1, 0), b = (2, 1, 0), c = (0, 1, 1). The scores of a are its dot products with the three
vectors: a.a = 2, a.b = 3, a.c = 1. Divided by sqrt(3), exponentiated and divided by their sum, they become the weights
.2992, .5329 and .1679.

In addition, random vectors drawn from N(0, 1) show how often a vector attends mostly to itself. Without projections,
the score of a vector with itself is its squared length, which grows faster with d_k than its scores with other vectors.
With independent random projections of query and key, as at the start of training, a vector has no such advantage.

Lengthening a key multiplies its scores: positive scores grow, and negative ones fall further. The mean weight over all
queries may still grow, because exp() is convex and the two effects need not cancel.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from headway.experiments.experiment import Claim, Experiment, Numbers, Settings, Verdict, decide
from headway.experiments.figures import heat_map, label, plot_lines, subplots
from headway.nn.attention import attention_weights, scaled_dot_product_attention

EXAMPLE_VECTORS = torch.tensor([[1.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
VECTOR_NAMES = ("a", "b", "c")
WIDTHS = (2, 4, 8, 16, 32, 64, 128)
VECTOR_NORMS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
NUM_KEYS, WIDTH = 8, 16  # number of keys per random example, and default d_k

TITLE = "Attention in numbers"
CLAIMS = (
    Claim("One query with one key is an identity: the value comes out unchanged.", "notebook, attention in numbers"),
    Claim("The new vector is mostly of itself (own weight .2992, another's .5329).", "notebook, attention in numbers"),
    Claim("Larger vectors attract more attention.", "notebook, attention in numbers"),
)


def measure(settings: Settings) -> Numbers:
    """Compute the example, and test three claims with random vectors."""
    scores = EXAMPLE_VECTORS @ EXAMPLE_VECTORS.T
    weights = attention_weights(EXAMPLE_VECTORS, EXAMPLE_VECTORS)
    results = scaled_dot_product_attention(EXAMPLE_VECTORS, EXAMPLE_VECTORS, EXAMPLE_VECTORS)
    repeats = 200 if settings.quick else 5_000
    generators = [torch.Generator().manual_seed(seed) for seed in settings.seeds]
    errors = [_single_key_error(generator, repeats) for generator in generators]
    shares = [_own_shares(generator, repeats) for generator in generators]
    steps = [
        {"vector": name, "x": x, "scores": s, "weights": w, "result": r}
        for name, x, s, w, r in zip(VECTOR_NAMES, EXAMPLE_VECTORS, scores, weights, results, strict=True)
    ]
    return {
        "weights": weights,
        "results": results,
        "single_key_error": max(errors),
        "own": {name: [seed_shares[name] for seed_shares in shares] for name in shares[0]},
        "lengths": VECTOR_NORMS,
        "growth": [_growth(generator, repeats * 10) for generator in generators],
        "tables": {"The example, step by step (scores X Xᵀ; weights softmax(scores / √3); result weights X)": steps},
    }


def _single_key_error(generator: torch.Generator, repeats: int) -> float:
    """Return the largest difference between result and value over random queries and keys, some very large."""
    query, key, value = (torch.randn(repeats, 1, WIDTH, generator=generator, dtype=torch.float64) for _ in range(3))
    scale = torch.logspace(-3, 6, repeats, dtype=torch.float64)[:, None, None]
    return float((scaled_dot_product_attention(query * scale, key, value) - value).abs().max())


def _own_shares(generator: torch.Generator, repeats: int) -> dict[str, float]:
    """Return, by kind and d_k, the share of random vectors whose weight on themselves is above one half."""
    shares = {}
    for width in WIDTHS:
        x = torch.randn(repeats, NUM_KEYS, width, generator=generator, dtype=torch.float64)
        query, key = (_projected(x, generator) for _ in range(2))
        for kind, weights in {
            "no projections": attention_weights(x, x),
            "random projections": attention_weights(query, key),
        }.items():
            self_weights = weights.diagonal(dim1=-2, dim2=-1)
            shares[f"{kind}, {width}"] = float((self_weights > 0.5).double().mean())
    return shares


def _projected(x: Float[Tensor, "N S K"], generator: torch.Generator) -> Float[Tensor, "N S K"]:
    """Project with a random matrix that preserves lengths on average, a different one for each example."""
    width = x.size(-1)
    return x @ (torch.randn(x.size(0), width, width, generator=generator, dtype=x.dtype) / math.sqrt(width))


def _growth(generator: torch.Generator, repeats: int) -> dict[str, list[float]]:
    """Return the mean weight of one key for each length in LENGTHS, by the sign of the query's score."""
    query = torch.randn(repeats, 1, WIDTH, generator=generator, dtype=torch.float64)
    key = torch.randn(repeats, NUM_KEYS, WIDTH, generator=generator, dtype=torch.float64)
    agrees = (query[:, 0] * key[:, 0]).sum(-1) > 0
    weights = []
    for length in VECTOR_NORMS:
        grown = torch.cat([key[:, :1] * length, key[:, 1:]], dim=1)
        weights.append(attention_weights(query, grown)[:, 0, 0])
    doubled, single = weights[VECTOR_NORMS.index(2.0)], weights[VECTOR_NORMS.index(1.0)]
    return {
        "all": [float(length_weights.mean()) for length_weights in weights],
        "positive": [float(length_weights[agrees].mean()) for length_weights in weights],
        "negative": [float(length_weights[~agrees].mean()) for length_weights in weights],
        "gain": [float((doubled > single).double().mean())],
    }


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge the claims by the error with one key, a vector's weight on itself, and the mean weight of a growing key."""
    error = numbers["single_key_error"]
    reason = (
        f"largest difference between result and value: {error:.2g}. The softmax of a single number is 1, whatever "
        "query and key are. With two or more keys this is not the case"
    )
    own_weight, *others = numbers["weights"][0]
    shares = f"own weight {own_weight:.4f}, the others' {' and '.join(f'{weight:.4f}' for weight in others)}"
    words = "its own weight is the largest, but below one half"
    if own_weight > 0.5:
        words = "its own weight is above one half"
    elif own_weight < max(others):
        words = f"another vector has the largest weight, and {1 - own_weight:.0%} of the result comes from others"
    return (
        decide(reason, supported=error < 1e-12),
        decide(f"{shares}: {words}", supported=own_weight > 0.5, refuted=own_weight < max(others)),
        _judge_growth(numbers),
    )


def _judge_growth(numbers: Numbers) -> Verdict:
    start, average = numbers["lengths"].index(1.0), _means(numbers, "all")
    rises = [all(a < b for a, b in pairwise(growth["all"][start:])) for growth in numbers["growth"]]
    gain = fmean(growth["gain"][0] for growth in numbers["growth"])
    reason = (
        f"as a key's length grows from 1 to {numbers['lengths'][-1]:g}, its mean weight over random queries changes "
        f"from {average[start]:.3f} to {average[-1]:.3f}. But only {gain:.0%} of the queries give more "
        "weight to a key of twice the length: those whose score with it is positive. The others give less"
    )
    if all(rises):
        reason += ". The claim holds on average, not for each query"
    return decide(reason, supported=all(rises), refuted=not any(rises))


def _means(numbers: Numbers, kind: str) -> list[float]:
    """Return the mean weight over seeds at each length of the key."""
    return [fmean(values) for values in zip(*(growth[kind] for growth in numbers["growth"]), strict=True)]


def draw(numbers: Numbers) -> Figure:
    """Draw the example's weights, how often the own weight exceeds one half, and the weight of a growing key."""
    picture, (example, own_share, growth) = subplots(TITLE, 1, 3, size=(16, 5.5))
    texts = [[f"{weight:.4f}" for weight in row] for row in numbers["weights"]]
    style: Any = {"text_style": lambda *_: {"fontsize": 15}, "dark_above": 0.6, "vmin": 0, "vmax": 1, "aspect": "equal"}
    heat_map(example, numbers["weights"], texts, row_labels=VECTOR_NAMES, column_labels=VECTOR_NAMES, **style)
    label(example, "Weights of the example", "key (attended to)", "query (each row sums to 1)")
    shares = {
        kind: [100 * fmean(numbers["own"][f"{kind}, {width}"]) for width in WIDTHS]
        for kind in ("no projections", "random projections")
    }
    plot_lines(own_share, WIDTHS, shares, marker="o")
    own_share.set_ylim(-3, 103)
    share = f"share of {NUM_KEYS} random vectors (%)"
    label(own_share, "Own weight above one half", "width d_k (units)", share, log="x", xticks=WIDTHS)
    own_share.legend(loc="center right")
    kinds = {"positive": "queries with positive score", "all": "all queries", "negative": "queries with negative score"}
    means = {words: _means(numbers, name) for name, words in kinds.items()}
    plot_lines(growth, numbers["lengths"], means, marker="o")
    growth.axhline(1 / NUM_KEYS, color="#777777", linestyle=":", label=f"equal shares, 1/{NUM_KEYS}")
    growth.set_ylim(bottom=0)
    length = "length of the key (relative to its original length)"
    label(growth, "Weight of one key as it grows", length, "mean weight (share)")
    growth.legend()
    return picture


def explain(numbers: Numbers) -> str:
    """Describe how often vectors attend to themselves, and how a growing key's weight depends on the score's sign."""
    narrow, wide = f"no projections, {WIDTHS[1]}", f"no projections, {WIDTHS[-1]}"
    shares = [
        f"{fmean(numbers['own'][setting]):.0%}" for setting in (narrow, wide, f"random projections, {WIDTHS[-1]}")
    ]
    start, (positive, negative) = VECTOR_NORMS.index(1.0), (_means(numbers, kind) for kind in ("positive", "negative"))
    return (
        f"{shares[0]} of random vectors give themselves more than half of the weight at d_k = {WIDTHS[1]}, {shares[1]} "
        f"at {WIDTHS[-1]}, and {shares[2]} at {WIDTHS[-1]} with random projections. As a key's length grows from 1 to "
        f"{VECTOR_NORMS[-1]:g}, its mean weight changes from {positive[start]:.3f} to {positive[-1]:.3f} for queries "
        f"with a positive score, and from {negative[start]:.3f} to {negative[-1]:.3f} for the others."
    )


EXPERIMENT = Experiment("attention-numbers", TITLE, __doc__, CLAIMS, measure, judge, draw, explain)
