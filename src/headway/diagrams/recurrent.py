"""Recurrent models, unrolled over the tokens of a text: states, attention in its four steps, and the decoder.

The attention of one step of the decoder is drawn, that of its first step. Without a text, tokens have general names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from headway.diagrams.drawing import FONT_SIZES, Box, Drawing, Frame
from headway.diagrams.layers import count
from headway.diagrams.text_width import shortened
from headway.models.recurrent import RecurrentConfig, RecurrentModel
from headway.models.recurrent_lm import RecurrentLM
from headway.nn.recurrent_decoders import AttentionDecoder, BahdanauDecoder, FixedVectorDecoder, LuongDecoder

PITCH = 60.0  # between two tokens
_CELL, _GAP = 40.0, 40.0  # height of a cell, and the space below the first layer
_SUMMARIES = {"mean": "mean", "max": "maximum"}
_CONTEXT = -64.0  # y of the line that carries the context vector to the cells


@dataclass(frozen=True)
class Tokens:
    """The tokens that are drawn: the source, the decoder's input and output, and the weights of its first step."""

    source: Sequence[str] = ("x₁", "x₂", "x₃", "<eos>")
    inputs: Sequence[str] = ("<bos>", "y₁", "y₂")
    outputs: Sequence[str] = ("y₁", "y₂", "<eos>")
    weights: Sequence[float] = ()


def draw_recurrent(model: RecurrentModel, drawing: Drawing, *, shapes: bool, tokens: Tokens | None = None) -> None:
    """Draw encoder and decoder from left to right."""
    tokens, config, decoder = tokens or Tokens(), model.config, model.decoder
    cell = config.cell.upper()
    lines = (cell, "→ ←") if config.bidirectional else (cell,)
    drawing.sentences.append(f"The encoder reads {' '.join(tokens.source)}.")
    encoder = _layers(drawing, 0.0, tokens.source, lines, config.encoder_layers)
    last, names = encoder[-1][-1].center + 20, _numbered("z", tokens.source, "ₛ")
    frame = Frame(-40, encoder[-1][0].y - 48, last + 48, 36)
    drawing.shapes.append(frame)
    states = [drawing.box(box.center, box.y - 18, (name,), "state", width=40, height=24)
              for name, box in zip(names, encoder[-1], strict=True)]  # fmt: skip
    for box, state in zip(encoder[-1], states, strict=True):
        drawing.arrow((box.center, box.y), (box.center, state.bottom))
    gutter, start, middle = last + 18, len(tokens.source) * PITCH + 44, states[-1].middle
    summary_lines, words = _summary(config, names)
    summary = drawing.box(start, -22, summary_lines, "state", width=58, height=34)
    is_last = config.summary == "final" and not config.bidirectional
    drawing.arrow((last if is_last else last + 8, middle), (gutter, middle), (gutter, summary.middle),
                  (summary.x, summary.middle))  # fmt: skip
    cells = "" if config.cell == "gru" else " and c₀ = V′\u00a0z"
    notes = [f"z is {words}. The decoder starts with h₀ = tanh(V\u00a0z){cells}."]
    layers = _layers(drawing, start + PITCH, tokens.inputs, (cell,), config.decoder_layers)
    bottom, top = layers[0][0].bottom, layers[-1][0].y
    initial_words = ("h₀ =", "tanh V z") if config.cell == "gru" else ("h₀, c₀", "of V z")
    initial = drawing.box(start, bottom, initial_words, "state", width=58, height=bottom - top)
    drawing.arrow((start, summary.y), (start, initial.bottom))
    for row in layers:
        drawing.arrow((initial.right, row[0].middle), (row[0].x, row[0].middle))
    readouts = _readouts(drawing, decoder, layers)
    if isinstance(decoder, AttentionDecoder):
        first = initial if isinstance(decoder, BahdanauDecoder) else layers[-1][0]
        query = (first.center - (0 if first is initial else 12), first.y)
        score = (config.score_kind or "").replace("_", "-")
        notes.append(_attention(drawing, score, tokens, frame, states, query, gutter + 20, layers[0], readouts[0]))
    elif not config.reads_z_only_at_start:
        side, end = start + 18, layers[0][0].center - 14
        drawing.arrow((side, summary.y), (side, _CONTEXT), (end, _CONTEXT), (end, bottom))
        _later_contexts(drawing, layers[0], ["z"] * len(tokens.inputs))
    if isinstance(decoder, LuongDecoder) and decoder.d_fed:
        for before, box, after in zip(readouts, layers[0], layers[0][1:], strict=False):
            channel = box.center + PITCH / 2
            drawing.arrow((before.right, before.middle), (channel, before.middle), (channel, _CONTEXT - 9),
                          (after.center + 14, _CONTEXT - 9), (after.center + 14, after.bottom))  # fmt: skip
        notes.append("The output of each step is also an input of the next.")
    embeddings = nn.ModuleList([model.source_embedding, model.target_embedding])
    parts = {"embeddings": embeddings, "encoder": model.encoder, "decoder": decoder}
    _outputs(drawing, readouts, tokens.outputs, model, parts, notes, shapes=shapes)


def _summary(config: RecurrentConfig, names: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return what z is, as the lines of a box and in words."""
    if config.summary != "final":
        return ("z =", config.summary), f"the {_SUMMARIES[config.summary]} of the encoder's states"
    if not config.bidirectional:
        return (f"z = {names[-1]}",), f"the last state, {names[-1]}"
    halves = f"the forward half (→) of {names[-1]} and the backward half (←) of {names[0]}"
    return (f"z = {names[-1]}→", f"and {names[0]}←"), halves


def draw_recurrent_language_model(
    model: RecurrentLM, drawing: Drawing, *, shapes: bool, tokens: Tokens | None = None
) -> None:
    """Draw the layers from left to right."""
    tokens, config = tokens or Tokens(), model.config
    layers = _layers(drawing, 0.0, tokens.inputs, (config.cell.upper(),), config.num_layers)
    for row in layers:
        drawing.arrow((row[0].x - 26, row[0].middle), (row[0].x, row[0].middle))
    words = "last state" if config.carry_state else "zeros"
    drawing.text(layers[-1][0].x, layers[-1][0].y - 8, words, anchor="end", role="small")
    parts = {"embedding": model.embedding, "layers": model.layers}
    _outputs(drawing, layers[-1], tokens.outputs, model, parts, [], shapes=shapes)


def _layers(
    drawing: Drawing, start: float, tokens: Sequence[str], lines: tuple[str, ...], count: int
) -> list[list[Box]]:
    """Draw tokens, their embeddings, and the cells of all layers, with arrows between the steps of each layer."""
    columns = [start + number * PITCH for number in range(len(tokens))]
    below = []
    for x, token in zip(columns, tokens, strict=True):
        drawing.text(x, 0, shortened(token, 12, PITCH - 4), anchor="middle")
        below.append(drawing.box(x, -22, ("embed",), "embedding", width=50, height=24))
        drawing.arrow((x, -12), (x, -22))
    rows: list[list[Box]] = []
    for number in range(count):
        bottom = below[0].y - (20 if number else _GAP)
        rows.append([drawing.box(x, bottom, lines, "linear", width=42, height=_CELL) for x in columns])
        for lower, box in zip(below, rows[-1], strict=True):
            drawing.arrow((box.center, lower.y), (box.center, box.bottom))
        for left, right in zip(rows[-1], rows[-1][1:], strict=False):
            forward, backward = (-8, 8) if len(lines) > 1 else (0, 0)
            drawing.arrow((left.right, left.middle + forward), (right.x, left.middle + forward))
            if backward:
                drawing.arrow((right.x, left.middle + backward), (left.right, left.middle + backward))
        below = rows[-1]
    drawing.sentences.append(f"{count} layer{'s' if count > 1 else ''} of cells: {', '.join(lines)}.")
    return rows


def _numbered(letter: str, tokens: Sequence[str], last: str) -> list[str]:
    """Return the letter with the number of each token; ``last`` is that of the last one if some are left out."""
    names = [f"{letter}{number}" for number in "₁₂₃₄₅₆₇₈₉"[: len(tokens)]]
    return [*names[:-2], "…", f"{letter}{last}"] if "…" in tokens[-2:-1] else names


def _readouts(drawing: Drawing, decoder: nn.Module, layers: list[list[Box]]) -> list[Box]:
    """Draw the layer between the last state and the projection, if the decoder has one."""
    if isinstance(decoder, FixedVectorDecoder) and not decoder.every_step:
        return layers[-1]
    luong = isinstance(decoder, LuongDecoder)
    lines = (
        ("tanh of", "c, h") if luong else ("Maxout", f"h, y, {'z' if isinstance(decoder, FixedVectorDecoder) else 'c'}")
    )
    boxes = []
    for box in layers[-1]:
        readout = drawing.box(box.center, box.y - 34, lines, "feed_forward", width=54, height=_CELL)
        drawing.arrow((box.center, box.y), (box.center, readout.bottom))
        if not luong:
            start, side, end = box.center + 17, box.center + 28, readout.bottom
            drawing.arrow((start, -46), (start, -55), (side, -55), (side, end + 10), (start, end + 10), (start, end))
        boxes.append(readout)
    drawing.sentences.append(f"Output of each step: {' '.join(lines)}.")
    return boxes


def _attention(
    drawing: Drawing,
    score: str,
    tokens: Tokens,
    frame: Frame,
    states: list[Box],
    query: tuple[float, float],
    gutter: float,
    cells: list[Box],
    readout: Box,
) -> str:
    """Draw scores, softmax, weighted sum and context vector above the states, and the arrows to the decoder.

    Return the description of these steps.
    """
    center, width = frame.x + frame.width / 2, frame.width
    alphas = _numbered("α", tokens.source, "ₛ")
    total = " + ".join(alpha + alpha.replace("α", "z") if alpha != "…" else alpha for alpha in alphas)
    is_before = query[0] < cells[0].x
    state = "h₀" if is_before else "h₁"
    # Scores and softmax leave room at the left for the arrow from the states to their sum.
    lines = (f"1 Scores with {state}", f"({score})")
    scores = drawing.box(center + 6, frame.y - 16, lines, "attention", width=width - 12)
    softmax = drawing.box(center + 6, scores.y - 20, ("2 Softmax",), "softmax", width=width - 12)
    mixture = drawing.box(center, softmax.y - 34, ("3 Weighted sum",), "attention", width=width)
    context = drawing.box(center, mixture.y - 20, (f"c₁ = {total}",), "state", width=width)
    labels = [f"{alpha}: {weight:.2f}" for alpha, weight in zip(alphas, tokens.weights, strict=False)] or alphas
    for box, label in zip(states, labels, strict=True):
        for lower, upper in ((box.y, scores.bottom), (scores.y, softmax.bottom), (softmax.y, mixture.bottom)):
            drawing.arrow((box.center, lower), (box.center, upper))
        drawing.text(box.center + 4, softmax.y - 12, label, role="small")
    drawing.arrow((center, mixture.y), (center, context.bottom))
    drawing.arrow((frame.x + 6, frame.y), (frame.x + 6, mixture.bottom))
    above = query[1] - 9
    drawing.arrow(
        query, (query[0], above), (gutter + 14, above), (gutter + 14, scores.middle), (scores.right, scores.middle)
    )
    carried = (context.right, context.middle), (gutter, context.middle)
    if is_before:
        x = cells[0].center - 14
        drawing.arrow(*carried, (gutter, _CONTEXT), (x, _CONTEXT), (x, cells[0].bottom))
        _later_contexts(drawing, cells, _numbered("c", tokens.inputs, "ₜ"))
    drawing.arrow(*carried, (gutter, readout.middle), (readout.x, readout.middle))
    drawing.text(readout.x - 6, readout.middle - 5, "4 c₁", anchor="end", role="small")
    return (
        f"Attention of the first step: 1, scores of all states z with {state}; 2, their softmax, the weights α; 3, the "
        f"sum of the z, weighted by α, the context vector c₁; 4, its use in {'the cell and ' if is_before else ''}"
        "the output of the step."
    )


def _later_contexts(drawing: Drawing, cells: list[Box], names: Sequence[str]) -> None:
    """Draw the arrows of later steps for what the first step gets from the encoder."""
    for box, name in list(zip(cells, names, strict=False))[1:]:
        drawing.text(box.center - 14, _CONTEXT + 12, name, anchor="middle", role="small")
        drawing.arrow((box.center - 14, _CONTEXT), (box.center - 14, box.bottom))


def _outputs(
    drawing: Drawing,
    below: list[Box],
    tokens: Sequence[str],
    model: RecurrentModel | RecurrentLM,
    parts: dict[str, nn.Module],
    notes: list[str],
    *,
    shapes: bool,
) -> None:
    """Draw the output projection over all steps, the predicted tokens, and the tie of the projection, if there is one.

    Notes and, with ``shapes``, the numbers of weights of all parts are below the drawing.
    """
    center, bottom = (below[0].center + below[-1].center) / 2, below[0].y - 20
    width = max(below[-1].center - below[0].center + 54, 120)
    box = drawing.box(center, bottom, ("Linear, softmax",), "softmax", width=width)
    for lower, token in zip(below, tokens, strict=True):
        drawing.arrow((lower.center, lower.y), (lower.center, bottom))
        drawing.arrow((lower.center, box.y), (lower.center, box.y - 16))
        drawing.text(lower.center, box.y - 20, shortened(token, 12, PITCH - 4), anchor="middle")
    drawing.sentences.append(f"A linear layer and softmax predict {' '.join(tokens)}.")
    embedding = next(iter(parts.values())).parameters()
    tied = next((matrix for matrix in embedding if matrix is model.projection.weight), None)
    parts = {**parts, "linear layer": model.projection}
    numbers = {name: count(part, without=tied if part is model.projection else None) for name, part in parts.items()}
    drawing.weights += numbers.values()
    if tied is not None:
        outer, start = box.right + 8, (below[-1].center + 25, -34)
        drawing.arrow(start, (outer, -34), (outer, box.middle), (box.right, box.middle), head=False, dashed=True)
        drawing.text(outer + 4 + FONT_SIZES["small"], (box.middle - 34) / 2, "same weights", anchor="middle",
                     role="small", upright=True)  # fmt: skip
        drawing.sentences.append("The embedding and the linear layer have the same weights.")
    drawing.sentences += notes
    if shapes:
        notes = ["Weights: " + ", ".join(f"{name} {number:,}" for name, number in numbers.items()) + ".", *notes]
    left, _, right, y = drawing.bounds()
    for note in notes:
        y = drawing.paragraph(left, y, note, right - left)
