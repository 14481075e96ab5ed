"""Attention in numbers: a small worked example, and the conclusions that a notebook draws from it.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V                  (Vaswani et al. 2017, equation 1)

The notebook applies self-attention without projections, Q = K = V = X, to x1 = (0, 0, 1), x2 = (0, 0, 2) and
x3 = (1, 0, 0), and prints the weights .2992, .5329, .1679 of the first query, .2228, .7070, .0702 of the second and
.2645, .2645, .4711 of the third. The experiment computes the same weights, and tests what the notebook says about each
query. On the right of the figure, arrows lead from each vector to the result of its query.
"""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

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
    error, scores, weights = numbers["single_key_error"], numbers["scores"], numbers["weights"]
    before, after = ([torch.tensor(row) for row in numbers[name]] for name in ("vectors", "results"))
    distances = [float((vectors[0] - vectors[1]).norm()) for vectors in (before, after)]
    angles = [math.degrees(math.acos(min(_cosine(vectors[0], vectors[1]), 1.0))) for vectors in (before, after)]
    lengths = [float(vectors[2].norm()) for vectors in (before, after)]
    identity = (
        f"the result differs from the query by at most {error:.2g}, for (0.1, 0.1, 0.8) and 200 random queries: the "
        "softmax of a single number is 1. With two or more keys, the result differs"
    )
    normalized = (
        f"its length changes from {lengths[0]:g} to {lengths[1]:.3f}. The weights add up to 1, but vectors are not "
        "normalized"
    )
    return (
        decide(identity, supported=error < 1e-12),
        decide(
            f"the dot product of x1 with x2 is {scores[0][1]:g}, and with itself {scores[0][0]:g}",
            supported=scores[0][1] > scores[0][0],
        ),
        *(_judge_own_weight(weights, index) for index in (0, 1)),
        decide(
            f"the distance between x1 and x2 changes from {distances[0]:.3g} to {distances[1]:.3g}, and their angle "
            f"from {angles[0]:.2g} to {angles[1]:.2g} degrees",
            supported=distances[1] < distances[0],
        ),
        decide(normalized, supported=abs(lengths[1] - 1) < 1e-6),
    )


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))


def _judge_own_weight(weights: list[list[float]], index: int) -> Verdict:
    own_weight = weights[index][index]
    others = [weight for place, weight in enumerate(weights[index]) if place != index]
    shares = f"its own weight is {own_weight:.4f}, the others are {' and '.join(f'{weight:.4f}' for weight in others)}"
    words = "half or more comes from the others"
    if own_weight < max(others):
        words = f"another vector has the largest weight, and {1 - own_weight:.0%} comes from the others"
    return decide(shares if own_weight > 0.5 else f"{shares}: {words}", supported=own_weight > 0.5)


def draw(numbers: Numbers) -> Figure:
    """Draw the example's weights, and its vectors before and after attention."""
    picture, (weights, vectors) = subplots(TITLE, 1, 2, size=(13, 6))
    texts = [[f"{weight:.4f}" for weight in row] for row in numbers["weights"]]
    heat_map(
        weights,
        numbers["weights"],
        texts,
        row_labels=VECTOR_NAMES,
        column_labels=VECTOR_NAMES,
        dark_above=0.6,
        text_style=lambda *_: {"fontsize": 15},
        vmin=0,
        vmax=1,
    )
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
