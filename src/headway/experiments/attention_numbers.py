"""Attention in numbers: a small worked example, and the conclusions that a notebook draws from it.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V                  (Vaswani et al. 2017, equation 1)

The notebook applies self-attention without projections, Q = K = V = X, to x1 = (0, 0, 1), x2 = (0, 0, 2) and
x3 = (1, 0, 0), and prints the weights .2992, .5329, .1679 of the first query, .2228, .7070, .0702 of the second and
.2645, .2645, .4711 of the third. The experiment computes the same weights, and tests what the notebook says about each
query. On the right of the figure, arrows lead from each vector to the result of its query.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

from headway.experiments.experiment import Numbers, Settings, read_claims
from headway.experiments.figures import heat_map, label, subplots
from headway.experiments.verdicts import Verdict, decide
from headway.nn.attention import attention_weights, scaled_dot_product_attention

EXAMPLE_VECTORS = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
SINGLE_QUERY = torch.tensor([[0.1, 0.1, 0.8]], dtype=torch.float64)
VECTOR_NAMES = ("x1", "x2", "x3")

TITLE = "Attention in numbers"
CLAIMS = read_claims("attention-numbers")


def measure(settings: Settings) -> Numbers:
    """Compute the example, and the error of an identity for the notebook's single query and for random ones."""
    x = EXAMPLE_VECTORS
    scores, weights, results = x @ x.T, attention_weights(x, x), scaled_dot_product_attention(x, x, x)
    generator = torch.Generator().manual_seed(settings.seeds[0])
    sizes = torch.logspace(-3, 6, 200, dtype=torch.float64)[:, None]
    queries = torch.cat([SINGLE_QUERY, torch.randn(200, 3, generator=generator, dtype=torch.float64) * sizes])[:, None]
    steps = [
        {"vector": name, "x": vector, "scores": row, "weights": shares, "result": result}
        for name, vector, row, shares, result in zip(VECTOR_NAMES, x, scores, weights, results, strict=True)
    ]
    return {
        "weights": weights,
        "scores": scores,
        "vectors": x,
        "results": results,
        "single_key_error": float((scaled_dot_product_attention(queries, queries, queries) - queries).abs().max()),
        "tables": {"The example, step by step (scores X Xᵀ; weights softmax(scores / √3); result weights X)": steps},
    }


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge the claims by the numbers of the example, and by the error with one key."""
    error, scores = numbers["single_key_error"], numbers["scores"]
    before, after = (torch.tensor(numbers[name]) for name in ("vectors", "results"))
    distances = [float((vectors[0] - vectors[1]).norm()) for vectors in (before, after)]
    cosines = [float(F.cosine_similarity(vectors[0], vectors[1], dim=0)) for vectors in (before, after)]
    angles = [math.degrees(math.acos(min(cosine, 1.0))) for cosine in cosines]
    lengths = [float(vectors[2].norm()) for vectors in (before, after)]
    return (
        decide(
            f"the result differs from the query by at most {error:.2g}, for (0.1, 0.1, 0.8) and 200 random queries: "
            "the softmax of a single number is 1. With two or more keys, the result differs",
            supported=error < 1e-12,
        ),
        decide(
            f"the dot product of x1 with x2 is {scores[0][1]:g}, and with itself {scores[0][0]:g}",
            supported=scores[0][1] > scores[0][0],
        ),
        *(_judge_own_weight(row, index) for index, row in enumerate(numbers["weights"][:2])),
        decide(
            f"the distance between x1 and x2 changes from {distances[0]:.3g} to {distances[1]:.3g}, and their angle "
            f"from {angles[0]:.2g} to {angles[1]:.2g} degrees",
            supported=distances[1] < distances[0],
        ),
        decide(
            f"its length changes from {lengths[0]:g} to {lengths[1]:.3f}. The weights add up to 1, but vectors are not "
            "normalized",
            supported=abs(lengths[1] - 1) < 1e-6,
        ),
    )


def _judge_own_weight(weights: list[float], index: int) -> Verdict:
    own, others = weights[index], weights[:index] + weights[index + 1 :]
    reason = f"its own weight is {own:.4f}, the others are {' and '.join(f'{weight:.4f}' for weight in others)}"
    if own <= 0.5:
        largest = "another vector has the largest weight, and " * (own < max(others))
        reason += f": {largest}{1 - own:.0%} comes from the others"
    return decide(reason, supported=own > 0.5)


def draw(numbers: Numbers) -> Figure:
    """Draw the example's weights, and its vectors before and after attention."""
    picture, (weights, vectors) = subplots(TITLE, 1, 2, size=(13, 6))
    texts = [[f"{weight:.4f}" for weight in row] for row in numbers["weights"]]
    style: Any = {"dark_above": 0.6, "text_style": lambda *_: {"fontsize": 15}, "vmin": 0, "vmax": 1}
    heat_map(weights, numbers["weights"], texts, row_labels=VECTOR_NAMES, column_labels=VECTOR_NAMES, **style)
    label(weights, "Weights of the example", "key (attended to)", "query (each row sums to 1)")
    pairs = zip(VECTOR_NAMES, numbers["vectors"], numbers["results"], strict=True)
    for index, (name, (x, _, z), (new_x, _, new_z)) in enumerate(pairs):
        vectors.plot([x], [z], f"C{index}o", markersize=10)
        vectors.annotate(name, (x, z), xytext=(14, -14), textcoords="offset points")
        style = {"arrowstyle": "->", "color": f"C{index}", "linewidth": 2}
        vectors.annotate("", (new_x, new_z), (x, z), arrowprops=style)
    vectors.set(xlim=(-0.1, 1.25), ylim=(-0.2, 2.2))
    label(vectors, "Vectors, and arrows to their results", "first component (no unit)", "third component (no unit)")
    return picture
