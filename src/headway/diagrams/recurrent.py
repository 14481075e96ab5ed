"""Recurrent models, unrolled over the tokens of a text: states, attention in its four steps, and the decoder.

The attention of one step of the decoder is drawn, that of its first step. Without a text, tokens have general names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from headway.diagrams.drawing import Box, Drawing
from headway.diagrams.layers import count
from headway.diagrams.text_width import shortened
from headway.models.recurrent import RecurrentModel
from headway.models.recurrent_lm import RecurrentLM
from headway.nn.recurrent_decoders import AttentionDecoder, BahdanauDecoder, FixedVectorDecoder, LuongDecoder

PITCH = 60.0  # between two tokens
_CELL, _GAP = 40.0, 40.0  # height of a cell, and the space below the first layer
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
    cell, steps = config.cell.upper(), len(tokens.inputs)
    lines = (cell, "→ ←") if config.bidirectional else (cell,)
    drawing.sentences.append(f"The encoder reads {' '.join(tokens.source)}.")
    encoder = _layers(drawing, 0.0, tokens.source, lines, config.encoder_layers)
    states = [drawing.box(box.center, box.y - 18, (_z(number, tokens),), "state", width=40, height=24)
              for number, box in enumerate(encoder[-1], start=1)]  # fmt: skip
    for box, state in zip(encoder[-1], states, strict=True):
        drawing.arrow((box.center, box.y), (box.center, state.bottom))
    gutter, start = states[-1].right + 18, (len(tokens.source)) * PITCH + 44
    summary = drawing.box(start, -22, ("z =", config.summary), "state", width=50, height=34)
    drawing.arrow((states[-1].right, states[-1].middle), (gutter, states[-1].middle), (gutter, summary.middle),
                  (summary.x, summary.middle))  # fmt: skip
    drawing.sentences.append(f"z is the {config.summary} state of the encoder, and h₀, the decoder's first, tanh(V z).")
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
        _attention(drawing, config.score_kind or "", tokens, states, query, gutter + 20, layers[0], readouts[0])
    elif config.reads_z_only_at_start is False:
        channel = start + PITCH / 2
        drawing.arrow((summary.right, summary.middle), (channel, summary.middle), (channel, _CONTEXT),
                      (layers[0][0].center - 14, _CONTEXT), (layers[0][0].center - 14, bottom))  # fmt: skip
        _later_contexts(drawing, layers[0], ["z"] * steps)
    if isinstance(decoder, LuongDecoder) and decoder.d_fed:
        for before, box, after in zip(readouts, layers[0], layers[0][1:], strict=False):
            channel = box.center + PITCH / 2
            drawing.arrow((before.right, before.middle), (channel, before.middle), (channel, _CONTEXT - 9),
                          (after.center + 14, _CONTEXT - 9), (after.center + 14, after.bottom))  # fmt: skip
        drawing.sentences.append("The output of each step is also an input of the next.")
    embeddings = nn.ModuleList([model.source_embedding, model.target_embedding])
    parts = {"embeddings": embeddings, "encoder": model.encoder, "decoder": decoder}
    _outputs(drawing, readouts, tokens.outputs, model, parts, shapes=shapes)


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
    _outputs(drawing, layers[-1], tokens.outputs, model, parts, shapes=shapes)


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
        rows.append([drawing.box(x, bottom, lines, "linear", width=44, height=_CELL) for x in columns])
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


def _z(number: int, tokens: Tokens) -> str:
    subscripts = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
    return f"z{number}".translate(subscripts)


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
            x = box.center + 26.5
            drawing.arrow((box.center + 25, -34), (x, -34), (x, readout.bottom))
        boxes.append(readout)
    drawing.sentences.append(f"Output of each step: {' '.join(lines)}.")
    return boxes


def _attention(
    drawing: Drawing,
    score: str,
    tokens: Tokens,
    states: list[Box],
    query: tuple[float, float],
    gutter: float,
    cells: list[Box],
    readout: Box,
) -> None:
    """Draw scores, softmax, weighted sum and context vector above the states, and the arrows to the decoder."""
    left, right = states[0].x - 8, states[-1].right + 8
    center, width = (left + right) / 2, right - left
    is_before = query[0] < cells[0].x
    state = "h₀" if is_before else "h₁"
    scores = drawing.box(center, states[0].y - 22, (f"2 Scores with {state}", f"({score.replace('_', '-')})"),
                         "attention", width=width)  # fmt: skip
    softmax = drawing.box(center, scores.y - 20, ("3 Softmax",), "softmax", width=width)
    mixture = drawing.box(center, softmax.y - 34, ("3 Weighted sum of the z",), "attention", width=width)
    context = drawing.box(center, mixture.y - 20, ("c₁: context vector",), "state", width=width)
    weights = [f"{weight:.2f}" for weight in tokens.weights] or ["α"] * len(states)
    for box, weight in zip(states, weights, strict=True):
        for lower, upper in ((box.y, scores.bottom), (scores.y, softmax.bottom), (softmax.y, mixture.bottom)):
            drawing.arrow((box.center, lower), (box.center, upper))
        drawing.text(box.center + 4, softmax.y - 12, weight, role="small")
    drawing.arrow((center, mixture.y), (center, context.bottom))
    drawing.arrow((states[0].x, states[0].middle), (left - 10, states[0].middle), (left - 10, mixture.middle),
                  (left, mixture.middle))  # fmt: skip
    drawing.text(left - 14, states[0].middle + 4, "1", anchor="end", role="small")
    above = query[1] - 9
    drawing.arrow(
        query, (query[0], above), (gutter + 14, above), (gutter + 14, scores.middle), (scores.right, scores.middle)
    )
    carried = (context.right, context.middle), (gutter, context.middle)
    if is_before:
        x = cells[0].center - 14
        drawing.arrow(*carried, (gutter, _CONTEXT), (x, _CONTEXT), (x, cells[0].bottom))
        _later_contexts(drawing, cells, ["c₁", "c₂", "c₃", "c₄"])
    drawing.arrow(*carried, (gutter, readout.middle), (readout.x, readout.middle))
    drawing.text(readout.x - 6, readout.middle - 5, "4 c₁", anchor="end", role="small")
    drawing.sentences.append(
        f"Attention of the first step: 1, the states z; 2, their scores with {state}; 3, softmax and weighted sum of "
        f"the states, the context vector c₁; 4, c₁ enters {'the cell and ' if is_before else ''}the output of the step."
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
    *,
    shapes: bool,
) -> None:
    """Draw the output projection over all steps, the predicted tokens, and the tie of the projection, if there is one.

    The numbers of weights of all parts are listed below the drawing.
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
    notes = []
    if tied is not None:
        outer = box.right + 14
        drawing.arrow(
            (below[-1].center + 25, -27), (outer, -27), (outer, box.middle), (box.right, box.middle),
            head=False, dashed=True,
        )  # fmt: skip
        notes.append("Dashed: embedding and linear layer have the same weights.")
    if shapes:
        notes.append("Weights: " + ", ".join(f"{name} {number:,}" for name, number in numbers.items()) + ".")
    left, _, right, y = drawing.bounds()
    for note in [*notes, *_steps(drawing)]:
        y = drawing.paragraph(left, y, note, right - left)


def _steps(drawing: Drawing) -> list[str]:
    """Return the sentence about the steps of attention, if they are drawn."""
    return [sentence for sentence in drawing.sentences if sentence.startswith("Attention of the first step")]
