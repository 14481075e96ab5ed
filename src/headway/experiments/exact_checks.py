"""Statements about the architecture that a computation decides, whatever a model has learned.

Each statement is tested by a computation with random weights and small sizes, which needs no training. Differences of
about 1e-6 are rounding errors of float32. The statements are from the paper or from texts that explain it. Some of them
are wrong, and a few are right only under a condition, which the verdict names.
"""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from headway.experiments.experiment import Claim, Numbers, Settings, read_declarations
from headway.experiments.figures import bars, label, subplots
from headway.experiments.verdicts import Verdict, decide
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.attention import MultiHeadAttention, attention_weights, scaled_dot_product_attention
from headway.nn.blocks import FeedForward
from headway.nn.dropout import Dropout
from headway.nn.loss import label_smoothed_cross_entropy

EXACT = 1e-5  # a difference in float32 that is rounding
LAYERS = 24  # layers of attention without anything else
_WORDS = 40  # vocabulary
_STACK = {"d_model": 32, "num_heads": 4, "d_ff": 64, "dropout": 0.0, "encoder_layers": 2, "decoder_layers": 2}

TITLE = "What a computation decides"
_CHECKS = read_declarations("claims.toml")["exact-checks"]["claims"]
CLAIMS = tuple(Claim(text, source) for *_, text, source, _ in _CHECKS)

Values = dict[str, float]


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def _cross_attention() -> Values:
    memory, target = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
    rows = scaled_dot_product_attention(target, memory, memory).size(1)
    weights = attention_weights(memory, memory)  # the other reading: 5 weights for each of 5 queries, but 3 values
    values: Values = {"rows": rows, "queries": weights.size(1), "weights": weights.size(2), "values": target.size(1)}
    return values | {"missing": values["weights"] - values["values"]}


def _convolution() -> Values:
    layer, x = FeedForward(8, 32), torch.randn(2, 7, 8)
    by_convolution = x.transpose(1, 2)
    for linear in (layer.inner, layer.outer):
        by_convolution = F.conv1d(by_convolution, linear.weight[:, :, None], linear.bias)
        by_convolution = by_convolution.relu() if linear is layer.inner else by_convolution
    return {"gap": _gap(layer(x), by_convolution.transpose(1, 2))}


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
    return {"gap": _gap(alone, within), "rows": layer(long).size(1)}


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


COMPUTATIONS = (
    _cross_attention,
    _convolution,
    _three_projections,
    _any_length,
    _unmasked_padding,
    _large_negative,
    _scaled_by_length,
    _closeness,
    _order,
    _misplaced_mask,
    _one_at_a_time,
    _collapse,
    _divergence,
    _dropout,
)


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
    return {"values": values, "tables": {"All computed values": rows}}


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge each statement by whether one of its values is below a limit."""
    values = numbers["values"]
    return tuple(
        decide(words.format(**values[name]), supported=values[name][key] < limit)
        for name, key, limit, _, _, words in _CHECKS
    )


def draw(numbers: Numbers) -> Figure:
    """Draw the differences that decide, on both sides of rounding."""
    picture, (axes,) = subplots(TITLE, size=(12.0, 6.5))
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
    return picture
