"""Attention in numbers: a small worked example, and the conclusions that a notebook draws from it.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V                  (Vaswani et al. 2017, equation 1)

The notebook applies self-attention without projections, Q = K = V = X, to x1 = (0, 0, 1), x2 = (0, 0, 2) and
x3 = (1, 0, 0), and prints the weights .2992, .5329, .1679 of the first query, .2228, .7070, .0702 of the second and
.2645, .2645, .4711 of the third. The experiment computes the same, and judges what it says of each.

In addition, random vectors drawn from N(0, 1) show how often a vector attends mostly to itself. Without projections,
the score of a vector with itself is its squared length, which grows faster with d_k than its scores with other vectors.
With independent random projections of query and key, as at the start of training, a vector has no such advantage.

Lengthening a key multiplies its scores: positive scores grow, and negative ones fall further. The mean weight over all
queries may still grow, because exp() is convex and the two effects need not cancel.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from headway.experiments.experiment import Claim, Experiment, Numbers, Settings
from headway.experiments.figures import heat_map, label, plot_lines, subplots
from headway.experiments.verdicts import Verdict, decide
from headway.nn.attention import attention_weights, scaled_dot_product_attention

EXAMPLE_VECTORS = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
VECTOR_NAMES = ("x1", "x2", "x3")
WIDTHS = (2, 4, 8, 16, 32, 64, 128)
VECTOR_NORMS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
NUM_KEYS, WIDTH = 8, 16  # number of keys per random example, and default d_k

TITLE = "Attention in numbers"
_SOURCE = "notebook, self attention"
CLAIMS = (
    Claim("With a single query, self-attention is an identity.", _SOURCE),
    Claim("A vector can have a greater dot product with another vector than with itself.", _SOURCE),
    Claim("The first vector is mapped to a combination that consists mostly of itself.", _SOURCE),
    Claim("So is the second, more extremely.", _SOURCE),
    Claim("The most compatible vectors become more similar.", _SOURCE),
    Claim("The third, less compatible one is normalized.", _SOURCE),
)


def measure(settings: Settings) -> Numbers:
    """Compute the example, and weights of random vectors."""
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
        "scores": scores,
        "vectors": EXAMPLE_VECTORS,
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
    """Judge the claims by the numbers of the example, and by the error with one key."""
    error, scores, weights = numbers["single_key_error"], numbers["scores"], numbers["weights"]
    before, after = ([torch.tensor(row) for row in numbers[name]] for name in ("vectors", "results"))
    distances = [float((vectors[0] - vectors[1]).norm()) for vectors in (before, after)]
    angles = [math.degrees(math.acos(min(_cosine(vectors[0], vectors[1]), 1.0))) for vectors in (before, after)]
    lengths = [float(vectors[2].norm()) for vectors in (before, after)]
    identity = (
        f"result and value differ by at most {error:.2g} for any query and key, because the softmax of a single number "
        "is 1. With two or more keys this is not so"
    )
    normalized = (
        f"its length changes from {lengths[0]:g} to {lengths[1]:.3f}. Weights add up to 1; vectors are not normalized"
    )
    return (
        decide(identity, supported=error < 1e-12),
        decide(
            f"x1 has the product {scores[0][1]:g} with x2, and {scores[0][0]:g} with itself",
            supported=scores[0][1] > scores[0][0],
        ),
        *(_judge_own_weight(weights, index) for index in (0, 1)),
        decide(
            f"the distance of x1 and x2 changes from {distances[0]:.3g} to {distances[1]:.3g}, their angle from "
            f"{angles[0]:.2g} to {angles[1]:.2g} degrees",
            supported=distances[1] < distances[0],
        ),
        decide(normalized, supported=abs(lengths[1] - 1) < 1e-6),
    )


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))


def _judge_own_weight(weights: list[list[float]], index: int) -> Verdict:
    own_weight = weights[index][index]
    others = [weight for place, weight in enumerate(weights[index]) if place != index]
    shares = f"own weight {own_weight:.4f}, the others' {' and '.join(f'{weight:.4f}' for weight in others)}"
    words = "half or more comes from others"
    if own_weight < max(others):
        words = f"another vector has the largest weight, and {1 - own_weight:.0%} comes from others"
    return decide(shares if own_weight > 0.5 else f"{shares}: {words}", supported=own_weight > 0.5)


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
