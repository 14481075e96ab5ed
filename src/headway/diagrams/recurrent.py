"""Draw recurrent encoder-decoders over a text's tokens, with the four steps of attention at the first target token."""

from __future__ import annotations

from collections.abc import Sequence

from headway.diagrams.column import Column
from headway.diagrams.drawing import Box, Drawing, weights_of
from headway.diagrams.unrolled import TOKEN_SPACING, Tokens, add_layers, count_parts, number_names, token_column
from headway.models.recurrent import RecurrentModel
from headway.nn.recurrent_decoders import AttentionDecoder, BahdanauDecoder, FixedVectorDecoder, LuongDecoder

# The layer between the last state and the projection, by the class of the decoder.
_READOUTS = {LuongDecoder: "tanh of\nc, h", BahdanauDecoder: "Maxout\nh, y, c", FixedVectorDecoder: "Maxout\nh, y, z"}


def draw_recurrent(model: RecurrentModel, drawing: Drawing, tokens: Tokens | None = None) -> None:
    """Draw the encoder and the decoder from left to right."""
    tokens, config, decoder = (tokens or Tokens()).fit(4), model.config, model.decoder
    count_parts(model, drawing)
    encoder = token_column(drawing, 0.0, tokens.source)
    states, z = _add_encoder(encoder, model, number_names("z", tokens.source, "ₛ"))
    column = token_column(drawing, z.center_x + TOKEN_SPACING - 27, tokens.inputs)
    rows = add_layers(column, model.target_embedding, config.cell.upper(), config.decoder_layers)
    words, least = ("", 40.0) if config.cell == "gru" else ("\ncell₀ =\nV′z", 62.0)
    words, bottom, top = f"h₀ =\ntanh V z{words}", rows[0][0].bottom + 8, rows[-1][0].top
    initial = drawing.box(z.center_x, bottom, words, "state", width=58, height=max(bottom - top, least))
    drawing.arrow(z.center_x, z.top, initial.bottom)
    for row in rows:
        drawing.arrow(initial.right, row[0].center_y, row[0].left, along="x")
    readouts = rows[-1] if config.reads_z_only_at_start else _add_readouts(column, _READOUTS[type(decoder)])
    if isinstance(decoder, AttentionDecoder):
        luong, gutter, readout = isinstance(decoder, LuongDecoder), states.right + 30, readouts[0]
        scores = f"1 Scores with h{'₁' if luong else '₀'}\n({(config.score_kind or '').replace('_', '-')})"
        context = _add_attention(encoder, states, tokens, scores, rows[-1][0] if luong else initial)
        drawing.arrow(context.right, context.center_y, gutter, readout.center_y, readout.left, along="x")
        drawing.text(readout.left - 6, readout.center_y - 5, "4 Use c₁", "small", "end")
        names = number_names("c", tokens.inputs, "ₜ")
        _enter(drawing, readouts[1:], names[1:])
        if not luong:
            _enter(drawing, rows[0], names, gutter, readout.center_y)
    elif not config.reads_z_only_at_start:
        _enter(drawing, [*rows[0], *readouts], ["z"] * 2 * len(readouts), z.center_x + 18, z.top)
    for before, after in zip(readouts, rows[0][1:] if config.input_feeding else (), strict=False):
        channel, port = before.center_x + TOKEN_SPACING / 2, after.center_x + 14
        drawing.arrow(before.right, before.center_y, channel, after.bottom + 9, port, after.bottom, along="x")
    column.add_layer("Linear, softmax", "softmax", weights_of(model.projection))
    column.draw_outputs(*tokens.outputs)


def _add_encoder(encoder: Column, model: RecurrentModel, names: Sequence[str]) -> tuple[Box, Box]:
    """Place the encoder and its summary z. Return the frame around the states and the box of z."""
    config, drawing, both = model.config, encoder.drawing, model.config.bidirectional
    cell = config.cell.upper() + ("\n→ ←" if both else "")
    add_layers(encoder, model.source_embedding, cell, config.encoder_layers, links=1 + both)
    frame = Box(0.0, encoder.y - 48, encoder.width, encoder.y - 12, (), "frame")
    drawing.shapes.append(frame)
    states = encoder.add_boxes(names, "state", 18, 40, 24)
    last, last_only = f"{names[-1]}→\nand {names[0]}←" if both else names[-1], config.summary == "final"
    words = f"z = {last}" if last_only else f"z =\n{config.summary}"
    z = drawing.box(frame.right + 77, -22, words, "state", width=58, height=34)
    start = states[-1].right if last_only and not both else frame.right
    drawing.arrow(start, frame.center_y, frame.right + 10, z.center_y, z.left, along="x")
    return frame, z


def _add_readouts(column: Column, text: str) -> list[Box]:
    """Place the layer between the last state and the projection. It may also have the embedding y as an input."""
    boxes = column.add_boxes([text] * len(column.ports), "feed_forward", 36, 54, 40)
    for box in boxes if "y" in text else ():
        port, end = box.center_x + 17, box.bottom
        column.drawing.arrow(port, -46, -55, box.center_x + 28, end + 10, port, end)
    return boxes


def _add_attention(encoder: Column, states: Box, tokens: Tokens, scores_text: str, query: Box) -> Box:
    """Place the scores, softmax, weighted sum and context vector above the states, and return the context vector."""
    drawing, alphas = encoder.drawing, number_names("α", tokens.source, "ₛ")
    scores = encoder.add_layer(scores_text, "attention", gap=22)
    softmax = encoder.add_layer("2 Softmax", "softmax")
    labels = [f"{alpha} ≈ {weight:.2f}" for alpha, weight in zip(alphas, tokens.weights, strict=False)] or alphas
    for port, label in zip(encoder.ports, labels, strict=True):
        drawing.text(port + 4, softmax.top - 12, label, "small", "start")
    mixture = encoder.add_layer("3 Weighted sum", "attention", gap=34)
    encoder.ports = [encoder.x]
    total = " + ".join(alpha if alpha == "…" else alpha + alpha.replace("α", "z") for alpha in alphas)
    drawing.arrow(states.left, states.center_y, states.left - 12, mixture.center_y, mixture.left, along="x")
    drawing.arrow(query.center_x - 12, query.top, query.top - 20, states.right + 44, scores.center_y, scores.right)
    return encoder.add_layer(f"c₁ = {total}", "state", gap=20)


def _enter(drawing: Drawing, boxes: Sequence[Box], names: Sequence[str], *start: float) -> None:
    """Draw a short, named arrow into each box that a vector enters, and a line from ``start`` to the first arrow."""
    if start:
        drawing.arrow(*start, boxes[0].bottom + 18, boxes[0].center_x - 16, head=False)
    for box, name in zip(boxes, names, strict=True):
        drawing.arrow(box.center_x - 16, box.bottom + 18, box.bottom)
        drawing.text(box.center_x - 16, box.bottom + 29, name, "small")
