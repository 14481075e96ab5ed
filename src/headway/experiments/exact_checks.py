"""Statements about the architecture that a computation decides, whatever a model has learned.

Each statement is tested by a computation with random weights and small sizes, which needs no training. Differences of
about 1e-6 are rounding errors of float32. The statements are from the paper or from texts that explain it. Some of them
are wrong, and a few are right only under a condition, which the verdict names.

The first six are about an example of a notebook, which applies self-attention without projections,

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V,  Q = K = V = X        (Vaswani et al. 2017, equation 1)

to x1 = (0, 0, 1), x2 = (0, 0, 2) and x3 = (1, 0, 0), and prints the weights .2992, .5329, .1679 of the first query,
.2228, .7070, .0702 of the second and .2645, .2645, .4711 of the third. In the last panel of the first row, arrows lead
from each of these vectors to the result of its query.

What a prediction may depend on (sections 3.1 and 3.2.3) is measured by replacing one target token after another, and by
padding source and target further. In the second row, each square shows by how much the logits of one output (row)
change when one target token (column) is replaced. The output at position i is computed from the tokens up to i and
predicts token i + 1, so everything above the diagonal must be 0. This is why all positions can be trained at once: no
prediction sees its answer. As a control, models with a mask removed or misplaced are measured, too: a measurement that
does not detect them proves nothing.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from headway.experiments.experiment import Claim, Numbers, Settings, read_declarations
from headway.experiments.figures import bars, heat_map, label, subplots
from headway.experiments.layer_measurements import PATH_WIDTH, distances_after, path_length
from headway.experiments.verdicts import Verdict, decide
from headway.models.recurrent import RecurrentConfig, RecurrentModel
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.attention import MultiHeadAttention, attention_weights, scaled_dot_product_attention
from headway.nn.blocks import FeedForward
from headway.nn.dropout import Dropout
from headway.nn.loss import label_smoothed_cross_entropy
from headway.nn.masks import Causal
from headway.text.base import BOS, EOS, PAD

EXACT = 1e-5  # a difference in float32 that is rounding
LAYERS = 24  # layers of attention without anything else
_WORDS, _WIDTH = 40, PATH_WIDTH  # vocabulary, width
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


class _NoCausalMask(Transformer):
    """A Transformer that is broken on purpose: every target position sees all others."""

    def decode(
        self, target: Int[Tensor, "B T"], memory: Float[Tensor, "B S D"], source_mask: Bool[Tensor, "B #T S"]
    ) -> Float[Tensor, "B T D"]:
        everything = torch.ones(1, target.size(1), target.size(1), dtype=torch.bool)
        hidden: Tensor = self.decoder(self.embed_target(target), memory, everything, source_mask)
        return hidden


class _MisplacedMask(_NoCausalMask):
    """The causal mask is in the attention over the source instead of self-attention."""

    def decode(
        self, target: Int[Tensor, "B T"], memory: Float[Tensor, "B S D"], source_mask: Bool[Tensor, "B 1 S"]
    ) -> Float[Tensor, "B T D"]:
        causal = torch.ones(target.size(1), memory.size(1), dtype=torch.bool).tril()
        return super().decode(target, memory, source_mask & causal)


class _NoPaddingMask(Transformer):
    """A Transformer that is broken on purpose: padding is attended to like any token."""

    pad = -1


SOUND = "Transformer"
NO_CAUSAL, MISPLACED, NO_PADDING = "no causal mask", "causal mask in cross-attention", "no padding mask"
MODELS: dict[str, tuple[type[Transformer | RecurrentModel], dict[str, str]]] = {
    SOUND: (Transformer, {}),
    "pre-norm, learned positions": (Transformer, {"norm": "pre", "positions": "learned"}),
    "pre-norm, rotary positions": (Transformer, {"norm": "pre", "positions": "rotary"}),
    "additive score": (Transformer, {"score": "additive"}),
    "GRU": (RecurrentModel, {"attention": "none"}),
    "GRU with attention": (RecurrentModel, {"attention": "bahdanau"}),
    "LSTM with attention": (RecurrentModel, {"attention": "luong", "cell": "lstm"}),
    NO_CAUSAL: (_NoCausalMask, {}),
    MISPLACED: (_MisplacedMask, {}),
    NO_PADDING: (_NoPaddingMask, {}),
}
DRAWN = (SOUND, "GRU with attention", NO_CAUSAL)


def influences(name: str) -> tuple[Float[Tensor, "T T"], float]:
    """Return how much a model's logits of each output (row) change when each target token (column) is replaced.

    The second value is the largest change of a logit by more padding after source and target. Sources of the batch have
    different lengths.
    """
    kind, options = MODELS[name]
    if issubclass(kind, Transformer):
        model: nn.Module = kind(TransformerConfig.parse(_STACK | options, name), _WORDS, _WORDS)
    else:
        model = kind(RecurrentConfig.parse({"d_model": _WIDTH, "dropout": 0.0, **options}, name), _WORDS, _WORDS)
    rows, length = 4, 10
    source, target = (torch.randint(4, _WORDS, (rows, length)) for _ in range(2))
    target[:, 0] = BOS
    for row in range(rows):
        source[row, length - 1 - row :] = torch.tensor([EOS, *[PAD] * row])
    before, columns = model.eval()(source, target), list[Tensor]()
    for place in range(length):
        changed = target.clone()
        changed[:, place] = 4 + (target[:, place] - 3) % (_WORDS - 4)
        columns.append((model(source, changed) - before).abs().amax(dim=(0, 2)))
    padded = model(F.pad(source, (0, 3)), F.pad(target, (0, 2)))[:, :length]
    return torch.stack(columns, dim=1), _gap(padded, before)


def _masks() -> Values:
    """Return the largest changes of logits by later tokens and by padding, in sound models and in those without a mask.

    The latter, and what a token changes at its own position, show that changes are detected.
    """
    measured = {name: influences(name) for name in MODELS}
    earlier = {name: float(influence.triu(1).max()) for name, (influence, _) in measured.items()}
    padding = {name: change for name, (_, change) in measured.items()}
    sound = [name for name in MODELS if name not in (NO_CAUSAL, MISPLACED, NO_PADDING)]
    direct = min(float(influence.diagonal()[1:].min()) for influence, _ in measured.values())
    assert min(direct, earlier[NO_CAUSAL], padding[NO_PADDING]) > 100 * EXACT, "the measurement would not detect errors"
    values = {"right": earlier[SOUND], "misplaced": earlier[MISPLACED], "no_causal": earlier[NO_CAUSAL]}
    values |= {"earlier": max(earlier[name] for name in sound), "padding": max(padding[name] for name in sound)}
    return values | {"no_padding": padding[NO_PADDING], "models": len(sound)}


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
            states.append(distances_after(step, torch.stack([source, states[-1][0]])))
        memory = torch.cat(states[1:])
        fixed = attending = states[-1]
        for _ in range(n):
            fixed = distances_after(step, torch.cat([states[-1], fixed]))
            context = distances_after(attend, torch.cat([attending, memory]))
            attending = distances_after(step, torch.cat([context, attending]))
        encoded, decoded = sources, unreached
        for block in model.encoder.blocks:
            encoded = distances_after(block, encoded)
        for block in model.decoder.blocks:
            decoded = distances_after(partial(decode, block), torch.cat([encoded, decoded]))
        paths = {"fixed": (fixed.max(), n + 1), "attending": (attending.max(), 3), "blocks": (decoded.max(), 3)}
        paths["convolved"] = torch.tensor(path_length("convolution", n)), math.ceil((n - 1) / 2)
        for name, (longest, expected) in paths.items():
            off = max(result.get(f"{name}_off", 0.0), abs(float(longest) - expected))
            result |= {f"{name}_{n}": float(longest), f"{name}_off": off}
    return result


COMPUTATIONS = (
    _single_query, _three_vectors, _cross_attention, _convolution, _three_projections, _any_length, _unmasked_padding,
    _large_negative, _scaled_by_length, _closeness, _order, _masks, _one_at_a_time, _collapse, _divergence,
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
    torch.manual_seed(settings.seeds[0])
    drawn, x = {name: influences(name)[0] for name in DRAWN}, EXAMPLE
    columns = (VECTOR_NAMES, x, x @ x.T, attention_weights(x, x), scaled_dot_product_attention(x, x, x))
    names = ("vector", "x", "scores", "weights", "result")
    steps = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    caption = "The example, step by step (scores X Xᵀ; weights softmax(scores / √3); result weights X)"
    tables = {caption: steps, "All computed values": rows}
    return {"values": values, "example": steps, "influences": drawn, "tables": tables}


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge each statement by whether one of its values is below a limit."""
    values = numbers["values"]
    return tuple(
        decide(words.format(**values[name]), supported=values[name][key] < limit)
        for name, key, limit, _, _, words in CHECKS
    )


def draw(numbers: Numbers) -> Figure:
    """Draw the differences that decide, the example's weights and vectors, and what three models' outputs depend on."""
    picture, (axes, weights, vectors, *squares) = subplots(TITLE, 2, 3, size=(24.0, 13.0))
    names = {
        "encoder": "encoder without positions: order",
        "decoder": "decoder without positions: order",
        "misplaced": "causal mask in cross-attention",
        "right": "causal mask in self-attention",
        "padding": "more padding, with a mask",
        "no_padding": "more padding, without a mask",
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
    most = max(max(map(max, influence)) for influence in numbers["influences"].values())
    for panel, (name, influence) in zip(squares, numbers["influences"].items(), strict=True):
        zeros = [["0" if value <= EXACT else "" for value in row] for row in influence]
        image = heat_map(panel, influence, zeros, norm=PowerNorm(0.5, vmin=0, vmax=most))
        picture.colorbar(image, ax=panel, label="largest change of a logit (nats)")
        label(panel, f"Dependence: {name}", "replaced target token (position)", "output (position)")
    return picture
