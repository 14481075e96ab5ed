"""Recurrent models over the tokens of a text. The attention of the decoder's first step has its four steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

from headway.diagrams.column import Column
from headway.diagrams.drawing import Box, Drawing, weights_of
from headway.diagrams.unrolled import PITCH, Tokens, token_column
from headway.models.recurrent import RecurrentConfig, RecurrentModel
from headway.models.recurrent_lm import RecurrentLM
from headway.nn.recurrent_decoders import AttentionDecoder, Decoder, FixedVectorDecoder, LuongDecoder

_BUS = -64.0  # y of the line that carries z or the context vector to the cells


def draw_recurrent_language_model(model: RecurrentLM, drawing: Drawing, tokens: Tokens | None = None) -> None:
    """Draw the layers from left to right."""
    tokens, config = (tokens or Tokens()).fitted(8), model.config
    column = token_column(drawing, 0.0, tokens.inputs)
    rows = _add_layers(column, config.cell.upper(), config.num_layers)
    for cell, *_ in rows:
        drawing.arrow(cell.left - 26, cell.middle, cell.left, along="x")
    words = "last state" if config.carry_state else "zeros"
    drawing.text(rows[-1][0].left, rows[-1][0].top - 8, words, "small", "end")
    _add_output(column, tokens, model, {"embedding": [model.embedding], "layers": [model.layers]}, [])


def draw_recurrent(model: RecurrentModel, drawing: Drawing, tokens: Tokens | None = None) -> None:
    """Draw encoder and decoder from left to right."""
    tokens, config, decoder = (tokens or Tokens()).fitted(4), model.config, model.decoder
    cell, both = config.cell.upper(), config.bidirectional
    encoder = token_column(drawing, 0.0, tokens.source)
    _add_layers(encoder, f"{cell}\n→ ←" if both else cell, config.encoder_layers, links=1 + both)
    frame = Box(0.0, encoder.y - 48, encoder.width, encoder.y - 12, (), "frame")
    drawing.shapes.append(frame)
    names = _numbered("z", tokens.source, "ₛ")
    states = encoder.boxes(names, "state", 18, 40, 24)
    z, meaning = _summary(config, names)
    summary = drawing.box(frame.right + 77, -22, z, "state", width=58, height=34)
    start = states[-1].right if config.summary == "final" and not both else frame.right
    drawing.arrow(start, frame.middle, frame.right + 10, summary.middle, summary.left, along="x")
    column = token_column(drawing, summary.center + PITCH - 27, tokens.inputs)
    rows = _add_layers(column, cell, config.decoder_layers)
    words, more = ("h₀ =\ntanh V z", "") if cell == "GRU" else ("h₀, c₀\nof V z", " and c₀ = V′\u00a0z")
    height = rows[0][0].bottom - rows[-1][0].top
    initial = drawing.box(summary.center, rows[0][0].bottom, words, "state", width=58, height=height)
    drawing.arrow(summary.center, summary.top, initial.bottom)
    for row in rows:
        drawing.arrow(initial.right, row[0].middle, row[0].left, along="x")
    readouts, luong = _add_readouts(column, decoder, rows[-1]), isinstance(decoder, LuongDecoder)
    if isinstance(decoder, AttentionDecoder):
        state, x = ("h₁", rows[-1][0].center - 12) if luong else ("h₀", initial.center)
        scores = f"1 Scores with {state}\n({(config.score_kind or '').replace('_', '-')})"
        context = _add_attention(encoder, frame, tokens, scores, x, initial.top)
        gutter, readout = frame.right + 30, readouts[0]
        drawing.arrow(context.right, context.middle, gutter, readout.middle, readout.left, along="x")
        drawing.text(readout.left - 6, readout.middle - 5, "4 c₁", "small", "end")
        if not luong:
            contexts = _numbered("c", tokens.inputs, "ₜ")
            _carry(drawing, rows[0], contexts, (context.right, context.middle, gutter), along="x")
    elif not config.reads_z_only_at_start:
        _carry(drawing, rows[0], ["z"] * len(rows[0]), (summary.center + 18, summary.top))
    if config.input_feeding:
        for (before, cell_before), (_, after) in pairwise(zip(readouts, rows[0], strict=True)):
            channel, port = cell_before.center + PITCH / 2, after.center + 14
            drawing.arrow(before.right, before.middle, channel, _BUS - 9, port, after.bottom, along="x")
    parts: dict[str, list[nn.Module]] = {
        "embeddings": [model.source_embedding, model.target_embedding],
        "encoder": [model.encoder],
        "decoder": [decoder],
    }
    _add_output(column, tokens, model, parts, [f"z is {meaning}. The decoder starts with h₀ = tanh(V\u00a0z){more}."])


def _summary(config: RecurrentConfig, names: Sequence[str]) -> tuple[str, str]:
    """Return what z is, as the text of a box and in words."""
    if config.summary != "final":
        name = {"mean": "mean", "max": "maximum"}[config.summary]
        return f"z =\n{config.summary}", f"the {name} of the encoder's states"
    if not config.bidirectional:
        return f"z = {names[-1]}", f"the last state, {names[-1]}"
    halves = f"the forward half (→) of {names[-1]} and the backward half (←) of {names[0]}"
    return f"z = {names[-1]}→\nand {names[0]}←", halves


def _numbered(letter: str, tokens: Sequence[str], last: str) -> list[str]:
    """Return the letter with the number of each token; ``last`` is that of the last one if some are left out."""
    names = [f"{letter}{number}" for number in "₁₂₃₄₅₆₇₈₉"[: len(tokens)]]
    return [*names[:-2], "…", f"{letter}{last}"] if "…" in tokens[-2:-1] else names


def _add_layers(column: Column, text: str, count: int, links: int = 1) -> list[list[Box]]:
    """Place the embeddings of tokens and the cells of all layers, with arrows between the steps of each layer."""
    column.boxes(["embed"] * len(column.ports), "embedding", 10, 50, 24)
    return [column.boxes([text] * len(column.ports), "linear", 20 if number else 40, 42, 40, links=links)
            for number in range(count)]  # fmt: skip


def _add_readouts(column: Column, decoder: Decoder, cells: list[Box]) -> list[Box]:
    """Place the layer between the last state and the projection, if the decoder has one."""
    if isinstance(decoder, FixedVectorDecoder) and not decoder.every_step:
        return cells
    luong, vector = isinstance(decoder, LuongDecoder), "z" if isinstance(decoder, FixedVectorDecoder) else "c"
    text = "tanh of\nc, h" if luong else f"Maxout\nh, y, {vector}"
    boxes = column.boxes([text] * len(cells), "feed_forward", 34, 54, 40)
    for box in () if luong else boxes:  # which reads the embedding, too
        port, end = box.center + 17, box.bottom
        column.drawing.arrow(port, -46, -55, box.center + 28, end + 10, port, end)
    return boxes


def _add_attention(encoder: Column, frame: Box, tokens: Tokens, scores_text: str, x: float, y: float) -> Box:
    """Place scores, softmax, weighted sum and context vector above the states. The query comes from (x, y)."""
    drawing, alphas = encoder.drawing, _numbered("α", tokens.source, "ₛ")
    scores = encoder.layer(scores_text, "attention", gap=22)
    softmax = encoder.layer("2 Softmax", "softmax")
    labels = [f"{alpha}: {weight:.2f}" for alpha, weight in zip(alphas, tokens.weights, strict=False)] or alphas
    for port, label in zip(encoder.ports, labels, strict=True):
        drawing.text(port + 4, softmax.top - 12, label, "small", "start")
    mixture = encoder.layer("3 Weighted sum", "attention", gap=34)
    total = " + ".join(alpha if alpha == "…" else alpha + alpha.replace("α", "z") for alpha in alphas)
    context = drawing.box(encoder.x, mixture.top - 20, f"c₁ = {total}", "state", width=encoder.width)
    drawing.arrow(encoder.x, mixture.top, context.bottom)
    drawing.arrow(frame.left, frame.middle, frame.left - 12, mixture.middle, mixture.left, along="x")
    drawing.arrow(x, y, y - 9, frame.right + 44, scores.middle, scores.right)
    return context


def _carry(
    drawing: Drawing, cells: list[Box], names: Sequence[str], start: tuple[float, ...], along: Literal["x", "y"] = "y"
) -> None:
    """Draw the arrows for a vector that the first layer reads at each step."""
    drawing.arrow(*start, _BUS, cells[0].center - 14, cells[0].bottom, along=along)
    drawing.text(cells[0].center - 17, _BUS - 4, names[0], "small", "end")
    for cell, name in list(zip(cells, names, strict=True))[1:]:
        drawing.text(cell.center - 14, _BUS + 12, name, "small")
        drawing.arrow(cell.center - 14, _BUS, cell.bottom)


def _add_output(
    column: Column, tokens: Tokens, model: RecurrentModel | RecurrentLM, parts: dict[str, list[nn.Module]],
    notes: list[str],
) -> None:  # fmt: skip
    """Place the output projection, its tie, and the predicted tokens. Notes are below the drawing."""
    drawing, box = column.drawing, column.layer("Linear, softmax", "softmax")
    column.end(*tokens.outputs)
    numbers = {name: drawing.count(weights_of(*modules)) for name, modules in parts.items()}
    if model.projection.weight in drawing.owners:
        outer = box.right + 8
        start = column.ports[-1] + 25
        drawing.arrow(start, -34, outer, box.middle, box.right, along="x", head=False, dashed=True)
        drawing.text(outer + 15, (box.middle - 34) / 2, "same weights", "small", upright=True)
    numbers["linear layer"] = drawing.count(weights_of(model.projection))
    if drawing.sizes:
        notes = ["Weights: " + ", ".join(f"{name} {number:,}" for name, number in numbers.items()) + ".", *notes]
    left, _, right, y = drawing.bounds()
    for note in notes:
        y = drawing.paragraph(left, y, note, right - left)
