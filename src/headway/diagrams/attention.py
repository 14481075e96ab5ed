"""Attention as in figure 2 of Vaswani et al. 2017: its steps, numbered as the lines of code below it, and its heads.

The code is run by a test, which compares its result with that of the layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.diagrams.column import Column, Layer, Mask
from headway.diagrams.drawing import PAGE_WIDTH, Drawing, Grid, Style
from headway.diagrams.layers import attention_name, attention_options, count, mask_picture
from headway.nn.attention import MultiHeadAttention
from headway.nn.recurrent_decoders import RecurrentAttention
from headway.nn.scores import ScoreKind

_LEFT, _RIGHT = -190.0, 120.0  # centers of the two parts of the drawing
_NARROW = 70.0  # width of a box for one of queries, keys and values

_MATMUL = ("MatMul", "scores = query @ key.transpose(-2, -1)")
_PAIRS = "(query.unsqueeze(-2) + key.unsqueeze(-3){})"
_HIDDEN = ("Linear to one number", "scores = (hidden @ score.vector.unsqueeze(-3)).squeeze(-1)")
_PROJECTED = ("Linear for Q, linear for K", "query, key = query @ score.query, key @ score.key")
_SCORES: dict[ScoreKind, tuple[tuple[str, str], ...]] = {
    "scaled_dot": (_MATMUL, ("Scale by 1 / √{width}", "scores = scores / math.sqrt({width})")),
    "dot": (_MATMUL,),
    "general": (("Linear for K", "key = key @ score.weight.transpose(-2, -1)"), _MATMUL),
    "cosine": (
        ("Normalize Q and K", "query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)"),
        _MATMUL,
        ("Scale by a learned factor", "scores = scores * score.log_scale.exp().view(-1, 1, 1)"),
    ),
    "additive": (_PROJECTED, ("Sum of each pair, tanh", f"hidden = {_PAIRS.format('')}.tanh()"), _HIDDEN),
    "feed_forward": (
        _PROJECTED,
        ("Sum of each pair, bias, ReLU", f"hidden = {_PAIRS.format(' + score.bias.unsqueeze(-3)')}.relu()"),
        _HIDDEN,
    ),
}  # fmt: skip
SCORE_NAMES: dict[ScoreKind, str] = {
    "scaled_dot": "Scaled dot-product", "dot": "Dot-product", "general": "General (bilinear)", "cosine": "Cosine",
    "additive": "Additive", "feed_forward": "Feed-forward",
}  # fmt: skip


@dataclass(frozen=True)
class Use:
    """An attention layer of a model, the source of its inputs in words, and its mask."""

    words: str
    layer: MultiHeadAttention | RecurrentAttention
    mask: Mask


def attention_steps(kind: ScoreKind, width: int, dropout: float = 0.0) -> list[tuple[str, str]]:
    """Return name and line of code of each step from query, key, value and mask to the output."""
    steps = [(name.format(width=width), code.format(width=width)) for name, code in _SCORES[kind]]
    steps += [
        ("Mask", "scores = scores.masked_fill(~mask, -math.inf)"),
        ("SoftMax", "weights = scores.softmax(-1)"),
    ]
    if dropout:
        steps.append((f"Dropout {dropout:g}", f"weights = F.dropout(weights, {dropout:g})"))
    return [*steps, ("MatMul", "output = weights @ value")]


def draw_attention(uses: list[Use], drawing: Drawing, *, shapes: bool) -> None:
    """Draw the attention layers of a model, which differ only in their inputs and masks."""
    layer, y, options = uses[0].layer, 40.0, ""
    kind: Any = "scaled_dot" if layer.score is None else layer.score.kind
    name = f"{SCORE_NAMES[kind]} attention"
    if isinstance(layer, MultiHeadAttention):
        steps = attention_steps(kind, layer.d_key, layer.dropout.p)
        _draw_steps(drawing, _LEFT, name, steps, shapes=shapes)
        _draw_heads(drawing, layer, name, shapes=shapes)
        options = ", ".join(attention_options(layer))
    else:
        steps = attention_steps(kind, layer.score.width)
        _draw_steps(drawing, 0.0, name, steps, shapes=shapes)
    for number, (_, code) in enumerate(steps, start=1):
        drawing.text(-PAGE_WIDTH / 2 + 12, y, f"{number}  {code}", role="code")
        y += 15
    if options:
        y = drawing.paragraph(-PAGE_WIDTH / 2 + 12, y - 8, f"Options: {options}.", PAGE_WIDTH - 40) + 8
    for use in uses:
        drawing.shapes.append(Grid(-PAGE_WIDTH / 2 + 12, y + 6, 6.0, use.mask))
        end = drawing.paragraph(-PAGE_WIDTH / 2 + 62, y + 2, use.words, PAGE_WIDTH - 90)
        drawing.sentences.append(use.words)
        y = max(end, y + 42) + 8


def _draw_steps(drawing: Drawing, x: float, name: str, steps: list[tuple[str, str]], *, shapes: bool) -> None:
    column = Column(drawing, x, side=-1, shapes=shapes)
    drawing.sentences.append(f"{name}, from bottom to top:")
    column.words("Q, K", shape="T × K, S × K")
    for number, (title, _) in enumerate(steps, start=1):
        style: Style = "softmax" if title == "SoftMax" else "linear" if "MatMul" not in title else "attention"
        column.add(Layer((f"{number}  {title}",), style, shape="T × S", name=str(number)))
    box = column.boxes[str(len(steps))]
    drawing.text(box.right + 24, 0, "V", anchor="middle")
    drawing.arrow((box.right + 24, -14), (box.right + 24, box.middle), (box.right, box.middle))
    column.words(name)


def _draw_heads(drawing: Drawing, layer: MultiHeadAttention, name: str, *, shapes: bool) -> None:
    """Draw the projections of each head, attention, and the concatenation of the heads."""
    drawing.sentences.append(f"{attention_name(layer)}, from bottom to top:")
    tops = []
    hidden, normed = layer.query_outer is not None, layer.query_norm is not None
    outer = (count(layer.query_outer), count(layer.key_outer), 0)
    norms = (count(layer.query_norm), count(layer.key_norm), 0)
    per_part = [width * (layer.projection.in_features + (layer.projection.bias is not None)) for width in layer.widths]
    for place, (role, part) in enumerate((("V", 2), ("K", 1), ("Q", 0))):
        x = _RIGHT + (place - 1) * (_NARROW + 18)
        drawing.text(x, 0, role, anchor="middle")
        heads = layer.num_heads if role == "Q" else layer.num_kv_heads
        boxes = [(("Linear, ReLU, linear" if hidden and part < 2 else "Linear"), per_part[part] + outer[part])]
        boxes += [("Norm", norms[part])] if normed and part < 2 else []
        boxes += [("Rotate by position", 0)] if layer.rotary is not None and part < 2 else []
        y = -12.0
        for words, weights in boxes:
            drawing.arrow((x, y), (x, y - 20))
            lines = (words, f"× {heads}") if y == -12.0 else (words,)
            lines = (*lines, f"{weights:,} weights") if shapes and weights else lines
            drawing.weights.append(weights)
            y = drawing.box(x, y - 20, lines, "linear", width=_NARROW, stacked=True).y - 8
            drawing.sentences.append(f"{role}: {', '.join(lines)}.")
        tops.append((x, y))
    bottom = min(y for _, y in tops) - 28
    for x, y in tops:
        drawing.arrow((x, y), (x, bottom))
    column = Column(drawing, _RIGHT, side=1, shapes=shapes, width=3 * _NARROW + 36, y=bottom)
    score = count(layer.score)
    column.add(Layer((f"{name}, {layer.num_heads} heads",), "attention", score, "", stacked=True))
    column.add(Layer(("Concat",), "feed_forward", shape=f"T × {layer.output.in_features:,}"))
    column.add(Layer(("Linear",), "linear", count(layer.output), f"T × {layer.output.out_features:,}"))
    column.words(attention_name(layer))


def self_attention(words: str, layer: MultiHeadAttention, *, causal: bool) -> Use:
    """Return the use of a self-attention layer, whose inputs are all from one sequence."""
    mask = "Each position attends to itself and those before it" if causal else "Each position attends to all positions"
    if layer.window is not None:
        before, after = layer.window
        mask = f"Each position attends to a window: itself, {before:,} before and {0 if causal else after:,} after it"
    text = f"{words}: queries, keys and values come from the input of the block. {mask}."
    return Use(text, layer, mask_picture(causal, layer.window))


def cross_attention(words: str, layer: MultiHeadAttention | RecurrentAttention, query: str) -> Use:
    """Return the use of an attention layer from a decoder to the states of an encoder."""
    text = f"{words}: queries come from {query}, keys and values from the encoder. All source positions are visible."
    return Use(text, layer, mask_picture(False, None))
