"""Statements about the architecture that a computation decides, whatever a model has learned.

Each statement is tested by a computation with random weights and small sizes, which needs no training. Differences of
about 1e-6 are rounding errors of float32. The statements are from the paper or from texts that explain it. Some of them
are wrong, and a few are right only under a condition, which the verdict names.

The first six are about an example of a notebook, which applies self-attention without projections,

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V,  Q = K = V = X        (Vaswani et al. 2017, equation 1)

to x1 = (0, 0, 1), x2 = (0, 0, 2) and x3 = (1, 0, 0), and prints the weights .2992, .5329, .1679 of the first query,
.2228, .7070, .0702 of the second and .2645, .2645, .4711 of the third. On the right of the figure, arrows lead from
each of these vectors to the result of its query.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.nn import functional as F

from headway.experiments.experiment import Claim, Numbers, Settings, read_declarations
from headway.experiments.figures import bars, heat_map, label, subplots
from headway.experiments.layer_measurements import make_layer
from headway.experiments.verdicts import Verdict, decide
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.attention import MultiHeadAttention, attention_weights, scaled_dot_product_attention
from headway.nn.blocks import FeedForward
from headway.nn.dropout import Dropout
from headway.nn.loss import label_smoothed_cross_entropy
from headway.nn.masks import Causal

EXACT = 1e-5  # a difference in float32 that is rounding
LAYERS = 24  # layers of attention without anything else
_WORDS, _WIDTH = 40, 32  # vocabulary, width
_STACK = {"d_model": _WIDTH, "num_heads": 4, "d_ff": 64, "dropout": 0.0, "encoder_layers": 2, "decoder_layers": 2}

TITLE = "What a computation decides"
CHECKS = read_declarations("claims.toml")["exact-checks"]
CLAIMS = tuple(Claim(text, source) for *_, text, source, _ in CHECKS)

EXAMPLE = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
VECTOR_NAMES = ("x1", "x2", "x3")

Values = dict[str, float]


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def _single_query() -> Values:
    sizes = torch.logspace(-3, 6, 200, dtype=torch.float64)[:, None]
    queries = torch.cat([torch.tensor([[0.1, 0.1, 0.8]]).double(), sizes * torch.randn(200, 3, dtype=torch.float64)])
    one_by_one = queries[:, None]
    return {"gap": _gap(scaled_dot_product_attention(one_by_one, one_by_one, one_by_one), one_by_one)}


def _three_vectors() -> Values:
    weights, results = attention_weights(EXAMPLE, EXAMPLE), scaled_dot_product_attention(EXAMPLE, EXAMPLE, EXAMPLE)
    values = {f"w{query + 1}{key + 1}": float(weights[query, key]) for query in (0, 1) for key in range(3)}
    for name, (first, second, third) in (("before", EXAMPLE), ("after", results)):
        cosine = float(F.cosine_similarity(first, second, dim=0))
        values |= {f"distance_{name}": float((first - second).norm()), f"length_{name}": float(third.norm())}
        values |= {f"angle_{name}": math.degrees(math.acos(min(cosine, 1.0)))}
    values |= {"own": float(EXAMPLE[0] @ EXAMPLE[0]), "other": float(EXAMPLE[0] @ EXAMPLE[1])}
    values |= {"own_minus_other": values["own"] - values["other"]}
    values |= {"others_1": 1 - values["w11"], "others_2": 1 - values["w22"]}
    values |= {"moved": values["distance_after"] - values["distance_before"]}
    return values | {"off": abs(values["length_after"] - 1)}


def _cross_attention() -> Values:
    memory, target = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
    rows = scaled_dot_product_attention(target, memory, memory).size(1)
    weights = attention_weights(memory, memory)  # the other reading: 5 weights for each of 5 queries, but 3 values
    values: Values = {"rows": rows, "queries": weights.size(1), "weights": weights.size(2), "values": target.size(1)}
    return values | {"missing": values["weights"] - values["values"]}


def _convolution() -> Values:
    layer, x = FeedForward(8, 32), torch.randn(2, 7, 8)
    hidden = F.conv1d(x.mT, layer.inner.weight[:, :, None], layer.inner.bias).relu()
    return {"gap": _gap(layer(x), F.conv1d(hidden, layer.outer.weight[:, :, None], layer.outer.bias).mT)}


def _three_projections() -> Values:
    layer, x = MultiHeadAttention(8, 2, bias=False), torch.randn(1, 6, 8)
    query, key, value = torch.split(layer.projection.weight, 8)
    heads = [
        scaled_dot_product_attention(x @ query[rows].T, x @ key[rows].T, x @ value[rows].T)
        for rows in (slice(0, 4), slice(4, 8))
    ]
    return {"gap": _gap(layer(x), torch.cat(heads, -1) @ layer.output.weight.T)}


def _any_length() -> Values:
    layer, short, long = MultiHeadAttention(8, 2), torch.randn(1, 3, 8), torch.randn(1, 50, 8)
    joined = torch.cat([short, long], 1)
    mask = torch.arange(53) < 3
    alone, within = layer(short), layer(joined, mask=mask.expand(1, 53, 53))[:, :3]
    values = {"gap": _gap(alone, within), "rows": float(layer(long).size(1))}
    return values | {"differs": max(values["gap"], abs(values["rows"] - 50))}


def _unmasked_padding() -> Values:
    layer, text, padding = MultiHeadAttention(8, 2), torch.randn(1, 9, 8), torch.randn(1, 1, 8).expand(1, 6, 8)
    padded, mask = torch.cat([text, padding], 1), torch.arange(15) < 9
    alone = layer(text).mean(1)
    masked = layer(padded, mask=mask.expand(1, 15, 15))[:, :9].mean(1)
    return {"gap": _gap(layer(padded).mean(1), alone), "masked": _gap(masked, alone)}


def _large_negative() -> Values:
    scores, mask = torch.randn(2, 6), torch.tensor([[True, False, True, True, False, False], [False] * 6])
    finite = scores.masked_fill(~mask, -1e9).softmax(-1)
    infinite = scores.masked_fill(~mask, -math.inf).softmax(-1)
    x = torch.randn(1, 6, 4)
    ours = attention_weights(x, x, mask[1].expand(1, 6, 6))
    values = {"gap": _gap(finite[0], infinite[0]), "finite": float(finite[1].max()), "ours": float(ours.max())}
    return values | {"differs": max(values["gap"], float(infinite[1].isnan().all()))}


def _scaled_by_length() -> Values:
    query, key = torch.randn(1, 64), 100 * torch.randn(64, 64)
    lengths = query.norm(dim=-1, keepdim=True) * key.norm(dim=-1)
    by_length, by_width = ((query @ key.T / divisor).softmax(-1) for divisor in (lengths, 8))
    values = {"gap": _gap(by_length, by_width), "bound": math.e**2 / (math.e**2 + 63)}
    return values | {"length": float(by_length.max()), "width": float(by_width.max())}


def _closeness() -> Values:
    query, near, far = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])
    values = {"near": float(query @ near), "far": float(query @ far), "distance": float((query - far).norm())}
    return values | {"excess": values["far"] - values["near"]}


def _order() -> Values:
    config = TransformerConfig.parse({**_STACK, "positions": "none"}, "exact-checks")
    model, source = Transformer(config, _WORDS, _WORDS).eval(), torch.randint(4, _WORDS, (1, 9))
    mask, order = torch.ones(1, 1, 9, dtype=torch.bool), torch.randperm(9)
    encoded, shuffled = model.encode(source, mask), model.encode(source[:, order], mask)
    target = torch.randint(4, _WORDS, (1, 9))
    swapped = target.clone()
    swapped[:, :2] = target[:, :2].flip(1) if target[0, 0] != target[0, 1] else (target[:, :2] + 1) % _WORDS
    decoded = (model(source, tokens)[:, -1] for tokens in (target, swapped))
    return {"encoder": _gap(encoded[:, order], shuffled), "decoder": _gap(*decoded)}


def _misplaced_mask() -> Values:
    class Misplaced(Transformer):
        def decode(self, target: Tensor, memory: Tensor, source_mask: Tensor) -> Tensor:
            size = target.size(1)
            everything = torch.ones(1, size, size, dtype=torch.bool)
            causal = everything.tril()[:, :, : memory.size(1)] & source_mask
            hidden: Tensor = self.decoder(self.embed_target(target), memory, everything, causal)
            return hidden

    config, result = TransformerConfig.parse(_STACK, "exact-checks"), Values()
    source, target = (torch.randint(4, _WORDS, (1, 9)) for _ in range(2))
    changed = target.clone()
    changed[0, -1] = 4 + (int(target[0, -1]) - 3) % (_WORDS - 4)
    for name, kind in (("misplaced", Misplaced), ("right", Transformer)):
        model = kind(config, _WORDS, _WORDS).eval()
        result[name] = _gap(model(source, target)[:, :-1], model(source, changed)[:, :-1])
    return result


def _one_at_a_time() -> Values:
    query, key, value = torch.randn(1, 8), torch.randn(5, 8), torch.randn(5, 8)
    total = sum(torch.softmax(query @ row[:, None], -1) * item for row, item in zip(key, value, strict=True))
    assert isinstance(total, Tensor)
    return {"gap": _gap(total, value.sum(0)), "wrong": _gap(total, scaled_dot_product_attention(query, key, value))}


def _collapse() -> Values:
    result, start = {"layers": float(LAYERS)}, torch.randn(1, 16, 32)
    for name in ("plain", "residual"):
        x = start
        for _ in range(LAYERS):
            attended = MultiHeadAttention(32, 1)(x)
            x = F.layer_norm(attended + x, (32,)) if name == "residual" else attended
        result[name] = float((x - x.mean(1, keepdim=True)).norm() / x.norm())
    return result


def _divergence() -> Values:
    logits, targets = 5 * torch.randn(40, 30), torch.randint(30, (40,))
    q = F.one_hot(targets, 30).double() * 0.9 + 0.1 / 30
    divergence = (q * (q.log() - logits.double().log_softmax(-1))).sum(-1)
    smoothed = label_smoothed_cross_entropy(logits, targets, 0.1)
    return {"gap": float((smoothed - divergence + (q * q.log()).sum(-1)).abs().max())}


def _dropout() -> Values:
    x = torch.ones(1_000_000)
    dropped = Dropout(0.1).train()(x)
    return {"mean": float(dropped.mean()), "variance": float(dropped.var()), "expected": 0.1 / 0.9}


def _distances_after(layer: Callable[[Tensor], Tensor], distances: Tensor) -> Tensor:
    """Return the distance of each output position of a layer from each source (positions x sources).

    An output depends on an input if its gradient is not 0, and is one step further away than the nearest such input.

    Args:
        layer: A function of a sequence (1, positions, width).
        distances: The distances of the inputs (positions x sources).
    """
    x, direction = torch.randn(1, len(distances), _WIDTH), torch.randn(_WIDTH)
    gradients: Tensor = jacobian(lambda x: layer(x)[0] @ direction, x)  # type: ignore[no-untyped-call]
    depends = gradients.abs().sum((1, 3)) > 0
    return 1 + torch.where(depends[:, :, None], distances, math.inf).amin(1)


@torch.inference_mode(mode=False)
def _paths() -> Values:
    """Find the longest of the shortest paths from source to target positions, in blocks or steps of a cell."""
    model = Transformer(TransformerConfig.parse(_STACK, "exact-checks"), _WORDS, _WORDS).requires_grad_(False)
    cell, attention, result = nn.GRUCell(_WIDTH, _WIDTH), MultiHeadAttention(_WIDTH, 4), Values()
    step = lambda x: cell(x[:, 0], x[:, 1]).unsqueeze(1)  # noqa: E731
    attend = lambda x: attention(x[:, :1], x[:, 1:])  # noqa: E731
    decode = lambda block, x: block(*reversed(x.chunk(2, 1)), Causal())  # noqa: E731
    for n in (8, 32):
        sources, unreached = torch.where(torch.eye(n).bool(), 0.0, math.inf), torch.full((n, n), math.inf)
        states = [unreached[:1]]
        for source in sources:
            states.append(_distances_after(step, torch.stack([source, states[-1][0]])))
        memory = torch.cat(states[1:])
        fixed = attending = states[-1]
        for _ in range(n):
            fixed = _distances_after(step, torch.cat([states[-1], fixed]))
            attending = _distances_after(
                step, torch.cat([_distances_after(attend, torch.cat([attending, memory])), attending])
            )
        encoded, decoded, convolved = sources, unreached, sources
        for block in model.encoder.blocks:
            encoded = _distances_after(block, encoded)
        for block in model.decoder.blocks:
            decoded = _distances_after(partial(decode, block), torch.cat([encoded, decoded]))
        while not convolved[-1, 0].isfinite():
            convolved = _distances_after(make_layer("convolution", _WIDTH), convolved)
        paths = {"fixed": (fixed, n + 1), "attending": (attending, 3), "blocks": (decoded, 3)}
        for name, (distances, expected) in {**paths, "convolved": (convolved[-1:], math.ceil((n - 1) / 2))}.items():
            longest = float(distances.max())
            off = max(result.get(f"{name}_off", 0.0), abs(longest - expected))
            result |= {f"{name}_{n}": longest, f"{name}_off": off}
    return result


COMPUTATIONS = (
    _single_query, _three_vectors, _cross_attention, _convolution, _three_projections, _any_length, _unmasked_padding,
    _large_negative, _scaled_by_length, _closeness, _order, _misplaced_mask, _one_at_a_time, _collapse, _divergence,
    _dropout, _paths,
)  # fmt: skip


@torch.inference_mode()
def measure(settings: Settings) -> Numbers:
    """Compute all checks, with weights of the first seed."""
    values = dict[str, Values]()
    for compute in COMPUTATIONS:
        torch.manual_seed(settings.seeds[0])
        values[compute.__name__[1:]] = compute()
    rows = [
        {"computation": name.replace("_", " "), "value": key, "computed": value}
        for name, computed in values.items()
        for key, value in computed.items()
    ]
    x = EXAMPLE
    columns = (VECTOR_NAMES, x, x @ x.T, attention_weights(x, x), scaled_dot_product_attention(x, x, x))
    names = ("vector", "x", "scores", "weights", "result")
    steps = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    caption = "The example, step by step (scores X Xᵀ; weights softmax(scores / √3); result weights X)"
    return {"values": values, "example": steps, "tables": {caption: steps, "All computed values": rows}}


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge each statement by whether one of its values is below a limit."""
    values = numbers["values"]
    return tuple(
        decide(words.format(**values[name]), supported=values[name][key] < limit)
        for name, key, limit, _, _, words in CHECKS
    )


def draw(numbers: Numbers) -> Figure:
    """Draw the differences that decide, on both sides of rounding, and the example's weights and vectors."""
    picture, (axes, weights, vectors) = subplots(TITLE, 1, 3, size=(24.0, 6.5))
    names = {
        "masked": "padding, with a mask",
        "encoder": "encoder without positions: order",
        "decoder": "decoder without positions: order",
        "misplaced": "causal mask in cross-attention",
        "right": "causal mask in self-attention",
        "plain": f"{LAYERS} layers of attention only",
        "residual": "with residual connections and norms",
    }
    changes = {
        names[key]: value for values in numbers["values"].values() for key, value in values.items() if key in names
    }
    bars(axes, changes, texts="%.1g", least=1e-9)
    axes.axvline(EXACT, color="#777777", linestyle=":")
    axes.set_xlim(1e-9, 10)
    label(axes, "Left of the line: rounding", "largest change or difference (no unit)", "what is compared", log="x")
    table = [row["weights"] for row in numbers["example"]]
    style: Any = {"dark_above": 0.6, "text_style": lambda *_: {"fontsize": 15}, "vmin": 0, "vmax": 1}
    texts = [[f"{weight:.4f}" for weight in row] for row in table]
    heat_map(weights, table, texts, row_labels=VECTOR_NAMES, column_labels=VECTOR_NAMES, **style)
    label(weights, "Weights of the example", "key (attended to)", "query (each row sums to 1)")
    for index, row in enumerate(numbers["example"]):
        (x, _, z), (new_x, _, new_z) = row["x"], row["result"]
        vectors.plot([x], [z], f"C{index}o", markersize=10)
        vectors.annotate(row["vector"], (x, z), xytext=(14, -14), textcoords="offset points")
        arrow = {"arrowstyle": "->", "color": f"C{index}", "linewidth": 2}
        vectors.annotate("", (new_x, new_z), (x, z), arrowprops=arrow)
    vectors.set(xlim=(-0.1, 1.25), ylim=(-0.2, 2.2))
    label(vectors, "Vectors, and arrows to their results", "first component (no unit)", "third component (no unit)")
    return picture
