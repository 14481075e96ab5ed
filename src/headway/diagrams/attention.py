"""Draw attention layers as in figure 2 of Vaswani et al. 2017: the heads, and each step with its line of code."""

from __future__ import annotations

import torch
from torch import nn

from headway.diagrams.attention_steps import attention_steps, score_steps
from headway.diagrams.column import Column
from headway.diagrams.drawing import PAGE_WIDTH, Drawing, Mask, MaskRows, Style, weights_of
from headway.diagrams.layers import attention_name, attention_options, describe_window, mask_rows
from headway.nn.attention import MultiHeadAttention
from headway.nn.recurrent_decoders import BahdanauDecoder, RecurrentAttention

_LEFT, _RIGHT, _EDGE = -190.0, 120.0, -PAGE_WIDTH / 2 + 12  # centers of both parts, and left edge of the code
_NARROW = 70.0  # width of a box for queries, keys or values
Attention = MultiHeadAttention | RecurrentAttention
_SELF = "{}: queries, keys and values come from the input of the block. Each position attends to {}."
_CROSS = "Attention from decoder to encoder: queries come from {}, keys and values from all positions of the encoder."


def attention_variants(model: nn.Module) -> dict[str, tuple[Attention, MaskRows]]:
    """Map a description of the inputs and the mask to each attention layer of a model that differs in these."""
    uses: dict[str, tuple[Attention, MaskRows]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, RecurrentAttention):
            when = "before" if isinstance(model.get_submodule("decoder"), BahdanauDecoder) else "after"
            uses[_CROSS.format(f"the decoder's state {when} a step")] = layer, mask_rows(False, None)
        elif isinstance(layer, MultiHeadAttention) and name.endswith("cross_attention"):
            uses.setdefault(_CROSS.format("the decoder"), (layer, mask_rows(False, None)))
        elif isinstance(layer, MultiHeadAttention):
            causal, window = "decoder" in name.split("."), layer.window
            seen = describe_window(*window) if window else "itself and those before it" if causal else "all positions"
            kind = "Masked self-attention in the decoder" if causal else "Self-attention in the encoder"
            uses.setdefault(_SELF.format(kind, seen), (layer, mask_rows(causal, window)))
    return uses


def draw_attention(uses: dict[str, tuple[Attention, MaskRows]], drawing: Drawing) -> None:
    """Draw the attention layers of a model, which differ only in their inputs and masks."""
    layer, y = next(iter(uses.values()))[0], 40.0
    kind = "scaled_dot" if layer.score is None else layer.score.kind
    name = f"{score_steps(kind)[0]} attention"
    if isinstance(layer, MultiHeadAttention):
        steps = attention_steps(kind, layer.d_key, layer.dropout.p, has_bias=layer.relative_bias is not None)
        _draw_heads(drawing, layer, name)
    else:
        steps = attention_steps(kind, layer.score.width)
    _draw_steps(drawing, name, steps)
    for number, (_, code) in enumerate(steps, start=1):
        drawing.text(_EDGE, y, f"{number}  {code}", "code", "start")
        y += 15
    for words, (_, mask) in uses.items():
        drawing.shapes.append(Mask(_EDGE, y + 6, 6.0, mask))
        y = max(drawing.paragraph(_EDGE + 50, y + 2, words, PAGE_WIDTH - 90), y + 42) + 8


def _draw_steps(drawing: Drawing, name: str, steps: list[tuple[str, str]]) -> None:
    inputs = ["Q: T × K", "K: S × K"] if drawing.show_sizes else ["Q", "K"]
    column = Column(drawing, [_LEFT - 40, _LEFT + 40], inputs, side=-1)
    for number, (title, _) in enumerate(steps, start=1):
        style: Style = "softmax" if title == "SoftMax" else "linear" if "MatMul" not in title else "attention"
        column.add_layer(f"{number}  {title}", style, shape="T × S")
        column.ports = [_LEFT]
    side = column.newest_box.right + 24
    drawing.text(side, 0, "V")
    drawing.arrow(side, -14, column.newest_box.center_y, column.newest_box.right)
    column.draw_outputs(name)


def _draw_heads(drawing: Drawing, layer: MultiHeadAttention, name: str) -> None:
    """Draw the projections for each head, the attention, and the concatenation of the heads."""
    inputs = (("Q", layer.query_outer, layer.query_norm), ("K", layer.key_outer, layer.key_norm), ("V", None, None))
    columns = []
    for place, (role, outer, norm) in enumerate(inputs):
        column = Column(drawing, [_RIGHT + (1 - place) * (_NARROW + 18)], [role], width=_NARROW)
        linear = "Linear" if outer is None else "Linear, ReLU, linear"
        weights = [torch.split(part, list(layer.widths))[place] for part in layer.projection.parameters()]
        heads = layer.num_kv_heads if place else layer.num_heads
        text = f"{linear} for\n{heads} head{'s' * (heads > 1)}"
        column.add_layer(text, "linear", [*weights, *weights_of(outer)], gap=20.0, stacked=True)
        if norm is not None:
            column.add_layer("Norm", "linear", weights_of(norm), gap=20.0, stacked=True)
        if layer.rotary is not None and role != "V":
            column.add_layer("Rotate by position", "linear", gap=20.0, stacked=True)
        columns.append(column)
    bottom = min(column.y for column in columns) - 28
    for column in columns:
        column.draw_arrows(column.y - bottom)
    joined = Column(drawing, [_RIGHT], width=3 * _NARROW + 36, y=bottom)
    text = "\n".join([f"{name}, {layer.num_heads} heads", *attention_options(layer)])
    joined.add_layer(text, "attention", weights_of(layer.score, layer.relative_bias), gap=0.0, stacked=True)
    joined.add_layer("Concat", "feed_forward", shape=f"T × {layer.output.in_features:,}")
    joined.add_layer("Linear", "linear", weights_of(layer.output), shape=f"T × {layer.output.out_features:,}")
    joined.draw_outputs(attention_name(layer))
