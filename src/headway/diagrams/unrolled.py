"""A Transformer over the tokens of a text: what each position reads, and what it predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.diagrams.drawing import Box, Drawing
from headway.diagrams.recurrent import Tokens, draw_recurrent, draw_recurrent_language_model
from headway.diagrams.text_width import shortened
from headway.models.base import Model
from headway.models.recurrent import RecurrentModel
from headway.models.recurrent_lm import RecurrentLM
from headway.models.transformer import Transformer

_PITCH, _APART = 58.0, 30.0  # between two tokens, and between encoder and decoder
_RECURRENT_TOKENS = 4  # drawn of source and target
MAX_TOKENS = {True: 5, False: 9}  # whether there are two sides: the number of tokens drawn of each


def elided(tokens: Sequence[str], most: int) -> list[str]:
    """Return at most ``most`` tokens: the first ones, an ellipsis and the last one if there are more."""
    tokens = [token if token.strip() else "␣" for token in tokens]
    return tokens if len(tokens) <= most else [*tokens[: most - 2], "…", tokens[-1]]


def draw_tokens(
    model: Model,
    drawing: Drawing,
    source: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    weights: Sequence[float] = (),
) -> None:
    """Draw the tokens that a model reads and predicts.

    Args:
        model: The model.
        drawing: The drawing to add shapes to.
        source: The tokens that the encoder reads; empty for models with one side.
        inputs: The tokens that the decoder or the only stack reads.
        outputs: The tokens that it predicts, or a label.
        weights: The weights of a recurrent decoder's first step on the tokens of the source.
    """
    most = _RECURRENT_TOKENS
    match model:
        case RecurrentModel():
            if len(weights) > most:
                weights = [*weights[: most - 2], sum(weights[most - 2 : -1]), weights[-1]]
            tokens = Tokens(elided(source, most), elided(inputs, most), elided(outputs, most), weights)
            draw_recurrent(model, drawing, shapes=False, tokens=tokens)
        case RecurrentLM():
            tokens = Tokens((), elided(inputs, 2 * most), elided(outputs, 2 * most))
            draw_recurrent_language_model(model, drawing, shapes=False, tokens=tokens)
        case _:
            _draw_unrolled(model, drawing, source, inputs, outputs)


def _draw_unrolled(
    model: Model, drawing: Drawing, source: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """Draw boxes over all tokens, with an arrow for each of them."""
    config: Any = model.config
    two_sided = isinstance(model, Transformer)
    source, inputs, outputs = (elided(tokens, MAX_TOKENS[two_sided]) for tokens in (source, inputs, outputs))
    memory = None
    if two_sided:
        memory = _stack(drawing, 0.0, source, [
            (("Input embedding, positions",), "embedding"),
            ((f"{config.encoder_layers} × encoder block", "each position attends to all"), "attention"),
        ])[-1]  # fmt: skip
        drawing.text(memory.center, memory.y - 20, "memory (encoder output)", anchor="middle", role="small")
    body = getattr(config, "body", config)
    start = 0.0 if memory is None else memory.right + _APART + _width(inputs) / 2 - (len(inputs) - 1) * _PITCH / 2
    causal = hasattr(body, "decoder_layers")
    blocks = body.decoder_layers if causal else body.encoder_layers
    memory_words = ("and to the memory",) if two_sided else ()
    words = "each position attends to those before it" if causal else "each position attends to all"
    boxes = _stack(drawing, start, inputs, [
        (("Output embedding, positions" if two_sided else "Embedding, positions",), "embedding"),
        ((f"{blocks} × {'decoder block' if two_sided else 'block'}", words, *memory_words),
         "attention"),
        ((("Linear, softmax",) if len(outputs) == len(inputs) else ("Pooling, linear, softmax",)), "softmax"),
    ])  # fmt: skip
    if memory is not None:
        gutter, block = memory.right + _APART / 2, boxes[1]
        drawing.arrow((memory.center, memory.y), (memory.center, memory.y - 14), (gutter, memory.y - 14),
                      (gutter, block.middle), (block.x, block.middle))  # fmt: skip
    top = boxes[-1].y
    places = [start + number * _PITCH for number in range(len(inputs))]
    if len(outputs) != len(inputs):
        places = [boxes[-1].center]
    for x, token in zip(places, outputs, strict=False):
        drawing.arrow((x, top), (x, top - 18))
        drawing.text(x, top - 24, shortened(token, 12, _PITCH - 4), anchor="middle")
    drawing.sentences += [f"The model reads {' '.join([*source, *inputs])} and predicts {' '.join(outputs)}."]


def _width(tokens: Sequence[str]) -> float:
    """Return the width of a box over all tokens."""
    return max(len(tokens) * _PITCH - 6, 150.0)


def _stack(
    drawing: Drawing, start: float, tokens: Sequence[str], layers: Sequence[tuple[tuple[str, ...], Any]]
) -> list[Box]:
    """Draw tokens, and boxes over all of them, with an arrow at each token below each box."""
    center = start + (len(tokens) - 1) * _PITCH / 2
    columns = [start + number * _PITCH for number in range(len(tokens))]
    for x, token in zip(columns, tokens, strict=True):
        drawing.text(x, 0, shortened(token, 12, _PITCH - 4), anchor="middle")
    boxes: list[Box] = []
    for lines, style in layers:
        below = boxes[-1].y if boxes else -14.0
        boxes.append(drawing.box(center, below - 20, lines, style, width=_width(tokens)))
        for x in columns:
            drawing.arrow((x, below), (x, below - 20))
        drawing.sentences.append(", ".join(lines) + ".")
    return boxes
