"""Statements about the architecture that a computation decides, whatever a model has learned.

Each statement is tested by a computation with random weights and small sizes, which needs no training. Differences of
about 1e-6 are rounding errors of float32. The statements are from the paper or from texts that explain it. Some of them
are wrong, and a few are right only under a condition, which the verdict names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from headway.experiments.experiment import Claim, Experiment, Numbers, Settings
from headway.experiments.figures import label, subplots
from headway.experiments.verdicts import Verdict, decide
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.attention import MultiHeadAttention, attention_weights, scaled_dot_product_attention
from headway.nn.blocks import FeedForward
from headway.nn.dropout import Dropout
from headway.nn.loss import label_smoothed_cross_entropy

EXACT = 1e-5  # a difference in float32 that is rounding
LAYERS = 24  # layers of attention without anything else
_WORDS = 40  # vocabulary
_SIZES = {"d_model": 32, "num_heads": 4, "d_ff": 64, "dropout": 0.0}
_STACK = {**_SIZES, "encoder_layers": 2, "decoder_layers": 2}

Values = dict[str, float]


@dataclass(frozen=True)
class Check:
    """A statement, the computation that decides it, and the words of the verdict.

    Attributes:
        claim: The statement.
        compute: Returns named values.
        words: The reason, with the values' names in braces.
        holds: Whether the values bear the statement out.
    """

    claim: Claim
    compute: Callable[[], Values]
    words: str
    holds: Callable[[Values], bool]


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def _cross_attention() -> Values:
    memory, target = torch.randn(1, 5, 8), torch.randn(1, 3, 8)
    rows = scaled_dot_product_attention(target, memory, memory).size(1)
    weights = attention_weights(memory, memory)  # the other reading: 5 weights for each of 5 queries, but 3 values
    return {"rows": rows, "queries": weights.size(1), "weights": weights.size(2), "values": target.size(1)}


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
    row = {"gap": _gap(finite[0], infinite[0]), "finite": float(finite[1].max()), "ours": float(ours.max())}
    return row | {"undefined": float(infinite[1].isnan().all())}


def _scaled_by_length() -> Values:
    query, key = torch.randn(1, 64), 100 * torch.randn(64, 64)
    lengths = query.norm(dim=-1, keepdim=True) * key.norm(dim=-1)
    by_length, by_width = (scores.softmax(-1).max() for scores in (query @ key.T / lengths, query @ key.T / 8))
    return {"length": float(by_length), "width": float(by_width), "bound": math.e**2 / (math.e**2 + 63)}


def _closeness() -> Values:
    query, near, far = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])
    return {"near": float(query @ near), "far": float(query @ far), "distance": float((query - far).norm())}


def _transformer(**keys: object) -> Transformer:
    config = TransformerConfig.parse({**_STACK, **keys}, "exact-checks")
    return Transformer(config, _WORDS, _WORDS).eval()


def _order() -> Values:
    model, source = _transformer(positions="none"), torch.randint(4, _WORDS, (1, 9))
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
    result = Values()
    start = torch.randn(1, 16, 32)
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


CHECKS = (
    Check(
        Claim(
            "In the decoder's second attention layer, queries and keys come from the encoder, values from the decoder.",
            "article",
        ),
        _cross_attention,
        "in the paper, only queries come from the decoder, which gives {rows:.0f} results for 3 target tokens. The "
        "other way gives {queries:.0f} queries with {weights:.0f} weights each, but only {values:.0f} values to weight",
        lambda n: n["weights"] == n["values"],
    ),
    Check(
        Claim("The feed-forward layer can be described as two convolutions with kernel size 1.", "paper, 3.3"),
        _convolution,
        "outputs of the layer and of two such convolutions with the same weights differ by at most {gap:.1g}. Texts "
        "that say it is not a convolution mean wider kernels",
        lambda n: n["gap"] < EXACT,
    ),
    Check(
        Claim("Each head needs three linear layers of its own.", "article; paper, 3.2.2"),
        _three_projections,
        "outputs with three matrices for each head, and with one product of all matrices stacked (our code), differ "
        "by at most {gap:.1g}",
        lambda n: n["gap"] < EXACT,
    ),
    Check(
        Claim("The same weights work for sequences of any length.", "notebook, which calls it difficult to see"),
        _any_length,
        "the layer returns {rows:.0f} results for 50 vectors. For 3 vectors, results alone and beside 50 masked "
        "vectors differ by at most {gap:.1g}",
        lambda n: n["gap"] < EXACT and n["rows"] == 50,
    ),
    Check(
        Claim("A classifier needs no mask.", "classifier"),
        _unmasked_padding,
        "without a mask, six padding tokens change the mean of an attention layer's results by {gap:.2g}; with a "
        "mask, by {masked:.1g}. No mask is needed only if all texts have the same length",
        lambda n: n["gap"] < EXACT,
    ),
    Check(
        Claim(
            "A score of -1e9 masks a key like a score of minus infinity.",
            "notebook, code; paper, 3.2.3: minus infinity",
        ),
        _large_negative,
        "if some keys are not masked, the weights differ by {gap:.1g}. If all are masked, each key gets a weight of "
        "{finite:.3f} with -1e9, NaN with minus infinity, and {ours:.0f} in our layers",
        lambda n: n["gap"] == 0 and not n["undefined"],
    ),
    Check(
        Claim("Scores are scaled by the length of the query and key vectors.", "classifier; its formula has √d_k"),
        _scaled_by_length,
        "divided by the lengths of the vectors, scores are cosines, and no weight of 64 keys can exceed {bound:.3f} "
        "(here: {length:.3f}). Divided by √d_k, as in the formula, scores give weights of up to {width:.3f}",
        lambda n: abs(n["length"] - n["width"]) < EXACT,
    ),
    Check(
        Claim("The closer two vectors are, the more compatible they are.", "notebook"),
        _closeness,
        "the score of the query (1, 0) is {near:g} with (1, 0), at a distance of 0, and {far:g} with (3, 0), at a "
        "distance of {distance:g}",
        lambda n: n["near"] > n["far"],
    ),
    Check(
        Claim.quote(
            "in order for the model to make use of the order of the sequence, we must inject some information about "
            "the relative or absolute position of the tokens in the sequence",
            "paper, 3.5; here of the encoder",
        ),
        _order,
        "if the inputs of an encoder without positions are reordered, its outputs are reordered in the same way, and "
        "change by at most {encoder:.1g}",
        lambda n: n["encoder"] < EXACT,
    ),
    Check(
        Claim("A decoder without positions cannot use the order of its inputs.", "paper, 3.5, read for decoders"),
        _order,
        "swapping the first two target tokens changes the last logits by {decoder:.2g}. The number of tokens that a "
        "position can see differs between positions because of the causal mask, and reveals the order",
        lambda n: n["decoder"] < EXACT,
    ),
    Check(
        Claim("The causal mask is applied in the attention over the encoder's output.", "summary"),
        _misplaced_mask,
        "with the mask there instead of in self-attention, a later token changes earlier logits by {misplaced:.2g}. "
        "With the mask in self-attention, as in the paper, it changes them by {right:.1g}",
        lambda n: n["misplaced"] < EXACT,
    ),
    Check(
        Claim("The softmax can be applied to one score at a time.", "notes, code"),
        _one_at_a_time,
        "every weight is then 1: the result differs from the plain sum of all values by {gap:.1g}, and from attention "
        "by {wrong:.2g}",
        lambda n: n["wrong"] < EXACT,
    ),
    Check(
        Claim("Many layers of attention without anything else make all vectors equal.", "Dong et al. 2021, abstract"),
        _collapse,
        f"after {LAYERS} layers of one head, the vectors differ from their mean by {{plain:.1g}} of their length. With "
        "residual connections and norms, the effect is slower, and they differ by {residual:.2g}",
        lambda n: n["plain"] < 1e-3,
    ),
    Check(
        Claim("Cross-entropy is the sum of the divergence KL(q || p) and the entropy H(q).", "classifier"),
        _divergence,
        "our loss with label smoothing of 0.1 differs from that sum, computed from an explicit q, by at most "
        "{gap:.1g} nats",
        lambda n: n["gap"] < 1e-4,
    ),
    Check(
        Claim("Dropout on embeddings and positions reduces the strength of the signal.", "notebook"),
        _dropout,
        "dropout of 0.1 keeps the mean of a signal of 1 ({mean:.3f}) and raises its variance from 0 to {variance:.3f} "
        "(p / (1 - p) = {expected:.3f}): the signal becomes noisier, not weaker",
        lambda n: n["mean"] < 0.99,
    ),
)


@torch.inference_mode()
def measure(settings: Settings) -> Numbers:
    """Compute all checks, with weights of the first seed."""
    values = []
    for check in CHECKS:
        torch.manual_seed(settings.seeds[0])
        values.append(check.compute())
    rows = [
        {"statement": check.claim.text, "value": name, "computed": value}
        for check, computed in zip(CHECKS, values, strict=True)
        for name, value in computed.items()
    ]
    return {"values": values, "tables": {"All computed values": rows}}


def judge(numbers: Numbers) -> tuple[Verdict, ...]:
    """Judge each statement by its values."""
    pairs = zip(CHECKS, numbers["values"], strict=True)
    return tuple(decide(check.words.format(**values), supported=check.holds(values)) for check, values in pairs)


def draw(numbers: Numbers) -> Figure:
    """Draw the differences that decide, on both sides of rounding."""
    picture, (axes,) = subplots("What a computation decides", size=(12.0, 6.5))
    names = {
        "masked": "padding, with a mask",
        "encoder": "encoder without positions: order",
        "decoder": "decoder without positions: order",
        "misplaced": "causal mask in cross-attention",
        "right": "causal mask in self-attention",
        "plain": f"{LAYERS} layers of attention only",
        "residual": "with residual connections and norms",
    }
    changes = {names[key]: value for values in numbers["values"] for key, value in values.items() if key in names}
    bars = axes.barh(list(changes), [max(value, 1e-9) for value in changes.values()])
    axes.bar_label(bars, [f"{value:.1g}" for value in changes.values()], padding=4)
    axes.axvline(EXACT, color="#777777", linestyle=":")
    axes.set_xlim(1e-9, 10)
    axes.invert_yaxis()
    label(axes, "Left of the line: rounding", "largest change or difference (no unit)", "what is compared", log="x")
    return picture


EXPERIMENT = Experiment(
    "exact-checks",
    "What a computation decides",
    __doc__,
    tuple(check.claim for check in CHECKS),
    measure,
    judge,
    draw,
)
