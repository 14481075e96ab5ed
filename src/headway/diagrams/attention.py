"""Attention as in figure 2 of Vaswani et al. 2017: its steps, numbered as the lines of code below it, and its heads.

The code is run by a test, which compares its result with that of the layer.
"""

from __future__ import annotations

import torch
from torch import nn

from headway.diagrams.column import Column
from headway.diagrams.drawing import PAGE_WIDTH, Drawing, Mask, MaskRows, Style, weights_of
from headway.diagrams.layers import attention_name, attention_options, mask_rows
from headway.nn.attention import MultiHeadAttention
from headway.nn.recurrent_decoders import BahdanauDecoder, RecurrentAttention

_LEFT, _RIGHT, _EDGE = -190.0, 120.0, -PAGE_WIDTH / 2 + 12  # centers of the two parts, and the left edge of the code
_NARROW = 70.0  # width of a box for one of queries, keys and values
Attention = MultiHeadAttention | RecurrentAttention
_SELF = "{}: queries, keys and values come from the input of the block. Each position attends to {}."
_CROSS = (
    "Attention from decoder to encoder: queries come from {}, keys and values from the encoder. All source positions "
    "are visible."
)

_MATMUL = ("MatMul", "scores = query @ key.transpose(-2, -1)")
_PAIRS = "(query.unsqueeze(-2) + key.unsqueeze(-3){})"
_HIDDEN = ("Linear to one number", "scores = (hidden @ score.vector.unsqueeze(-3)).squeeze(-1)")
_PROJECTED = ("Linear for Q, linear for K", "query, key = query @ score.query, key @ score.key")
# For each score function, its name, and the name and the line of code of each step from queries and keys to scores.
_SCORES: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "scaled_dot": ("Scaled dot-product", [_MATMUL, ("Scale by 1 / √{width}", "scores = scores / math.sqrt({width})")]),
    "dot": ("Dot-product", [_MATMUL]),
    "general": ("General (bilinear)", [("Linear for K", "key = key @ score.weight.transpose(-2, -1)"), _MATMUL]),
    "cosine": ("Cosine", [
        ("Normalize Q and K", "query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)"),
        _MATMUL,
        ("Scale by a learned factor", "scores = scores * score.log_scale.exp().view(-1, 1, 1)"),
    ]),
    "additive": ("Additive", [_PROJECTED, ("Sum of each pair, tanh", f"hidden = {_PAIRS.format('')}.tanh()"), _HIDDEN]),
    "feed_forward": ("Feed-forward", [
        _PROJECTED,
        ("Sum of each pair, bias, ReLU", f"hidden = {_PAIRS.format(' + score.bias.unsqueeze(-3)')}.relu()"),
        _HIDDEN,
    ]),
}  # fmt: skip


def attention_uses(model: nn.Module) -> dict[str, tuple[Attention, MaskRows]]:
    """Return the attention layers of a model that differ in inputs or masks, with their masks. Keys say so in words."""
    uses: dict[str, tuple[Attention, MaskRows]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, RecurrentAttention):
            when = "before" if isinstance(model.get_submodule("decoder"), BahdanauDecoder) else "after"
            uses[_CROSS.format(f"the decoder's state {when} a step")] = layer, mask_rows(False, None)
        elif isinstance(layer, MultiHeadAttention) and name.endswith("cross_attention"):
            uses.setdefault(_CROSS.format("the decoder"), (layer, mask_rows(False, None)))
        elif isinstance(layer, MultiHeadAttention):
            causal, window = "decoder" in name.split("."), layer.window
            seen = "itself and those before it" if causal else "all positions"
            if window is not None:
                seen = f"a window: itself, {window[0]:,} before and {0 if causal else window[1]:,} after it"
            kind = "Masked self-attention in the decoder" if causal else "Self-attention in the encoder"
            uses.setdefault(_SELF.format(kind, seen), (layer, mask_rows(causal, window)))
    return uses


def _named_steps(kind: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the name and the steps of a score function. One of another package is a single step."""
    name = kind.replace("_", " ")
    return _SCORES.get(kind, (name.capitalize(), [(f"Score ({name})", "scores = score(query, key)")]))


def attention_steps(kind: str, width: int, dropout: float = 0.0, *, has_bias: bool = False) -> list[tuple[str, str]]:
    """Return name and line of code of each step from query, key, value and mask to the output.

    If it ``has_bias``, the bias by distance is a tensor, too.
    """
    return [
        *((name.format(width=width), code.format(width=width)) for name, code in _named_steps(kind)[1]),
        *([("Add bias by distance", "scores = scores + bias")] if has_bias else []),
        ("Mask", "scores = scores.masked_fill(~mask, -math.inf)"),
        ("SoftMax", "weights = scores.softmax(-1)"),
        *([(f"Dropout {dropout:g}", f"weights = F.dropout(weights, {dropout:g})")] if dropout else []),
        ("MatMul", "output = weights @ value"),
    ]


def draw_attention(uses: dict[str, tuple[Attention, MaskRows]], drawing: Drawing) -> None:
    """Draw the attention layers of a model, which differ only in their inputs and masks."""
    layer, y = next(iter(uses.values()))[0], 40.0
    kind = "scaled_dot" if layer.score is None else layer.score.kind
    name, options = f"{_named_steps(kind)[0]} attention", ""
    if isinstance(layer, MultiHeadAttention):
        steps = attention_steps(kind, layer.d_key, layer.dropout.p, has_bias=layer.relative_bias is not None)
        _draw_steps(drawing, _LEFT, name, steps)
        _draw_heads(drawing, layer, name)
        options = ", ".join(attention_options(layer))
    else:
        steps = attention_steps(kind, layer.score.width)
        _draw_steps(drawing, 0.0, name, steps)
    for number, (_, code) in enumerate(steps, start=1):
        drawing.text(_EDGE, y, f"{number}  {code}", "code", "start")
        y += 15
    if options:
        y = drawing.paragraph(_EDGE, y - 8, f"Options: {options}.", PAGE_WIDTH - 40) + 8
    for words, (_, mask) in uses.items():
        drawing.shapes.append(Mask(_EDGE, y + 6, 6.0, mask))
        y = max(drawing.paragraph(_EDGE + 50, y + 2, words, PAGE_WIDTH - 90), y + 42) + 8


def _draw_steps(drawing: Drawing, x: float, name: str, steps: list[tuple[str, str]]) -> None:
    column = Column(drawing, [x], ["Q, K"], "T × K, S × K", side=-1)
    for number, (title, _) in enumerate(steps, start=1):
        style: Style = "softmax" if title == "SoftMax" else "linear" if "MatMul" not in title else "attention"
        column.layer(f"{number}  {title}", style, shape="T × S")
    side = column.newest.right + 24
    drawing.text(side, 0, "V")
    drawing.arrow(side, -14, column.newest.middle, column.newest.right)
    column.end(name)


def _draw_heads(drawing: Drawing, layer: MultiHeadAttention, name: str) -> None:
    """Draw the projections of each head, attention, and the concatenation of the heads."""
    projection, parts = layer.projection, list(layer.widths)
    biases = [()] * 3 if projection.bias is None else [(bias,) for bias in torch.split(projection.bias, parts)]
    outer, norms = (layer.query_outer, layer.key_outer, None), (layer.query_norm, layer.key_norm, None)
    columns = []
    for place, role in ((2, "V"), (1, "K"), (0, "Q")):
        column = Column(drawing, [_RIGHT + (1 - place) * (_NARROW + 18)], [role], width=_NARROW)
        heads = layer.num_kv_heads if place else layer.num_heads
        linear = "Linear" if outer[place] is None else "Linear, ReLU, linear"
        weights = [torch.split(projection.weight, parts)[place], *biases[place], *weights_of(outer[place])]
        column.layer(f"{linear}\n× {heads}", "linear", weights, gap=20.0, stacked=True)
        if norms[place] is not None:
            column.layer("Norm", "linear", weights_of(norms[place]), gap=20.0, stacked=True)
        if layer.rotary is not None and role != "V":
            column.layer("Rotate by position", "linear", gap=20.0, stacked=True)
        columns.append(column)
    bottom = min(column.y for column in columns) - 28
    for column in columns:
        column.rise(column.y - bottom)
    joined = Column(drawing, [_RIGHT], width=3 * _NARROW + 36, y=bottom)
    joined.layer(
        f"{name}, {layer.num_heads} heads",
        "attention",
        weights_of(layer.score, layer.relative_bias),
        gap=0.0,
        stacked=True,
    )
    joined.layer("Concat", "feed_forward", shape=f"T × {layer.output.in_features:,}")
    joined.layer("Linear", "linear", weights_of(layer.output), shape=f"T × {layer.output.out_features:,}")
    joined.end(attention_name(layer))
