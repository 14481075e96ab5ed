"""Draw models over the tokens of a text, with an arrow for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from headway.diagrams.column import Column
from headway.diagrams.drawing import Box, Drawing, weights_of
from headway.diagrams.text_width import truncate_to_width
from headway.models.recurrent_lm import RecurrentLM

TOKEN_SPACING = 60.0  # distance between two tokens
_APART = 30.0  # distance between encoder and decoder


@dataclass(frozen=True)
class Tokens:
    """The tokens to draw.

    Attributes:
        source: Input tokens of the encoder. Default: placeholder names. Empty for models without an encoder-decoder.
        inputs: Input tokens of the decoder or of the only stack.
        outputs: The predictions: a token for each input, or a label.
        weights: The attention weights of a recurrent decoder's first step over the source tokens.
    """

    source: Sequence[str] = ("x₁", "x₂", "x₃", "<eos>")
    inputs: Sequence[str] = ("<bos>", "y₁", "y₂")
    outputs: Sequence[str] = ("y₁", "y₂", "<eos>")
    weights: Sequence[float] = ()

    def fit(self, most: int) -> Tokens:
        """Return at most ``most`` shortened tokens for each side: the first tokens, an ellipsis and the last token."""
        source, inputs, outputs = (
            [truncate_to_width(token, TOKEN_SPACING - 4) for token in _cut(tokens, most, "…")]
            for tokens in (self.source, self.inputs, self.outputs)
        )
        return Tokens(source, inputs, outputs, _cut(self.weights, most, sum(self.weights[most - 2 : -1])))


def _cut(items: Sequence[Any], most: int, middle: Any) -> Sequence[Any]:
    """Return ``items``. If there are more than ``most``, return the first items, ``middle`` and the last item."""
    return items if len(items) <= most else [*items[: most - 2], middle, items[-1]]


def token_column(drawing: Drawing, left: float, tokens: Sequence[str]) -> Column:
    """Return a column over tokens. The left edge of its boxes is at x = ``left``."""
    width = max(len(tokens) * TOKEN_SPACING - 6, 150.0)
    ports = [left + width / 2 + (number - (len(tokens) - 1) / 2) * TOKEN_SPACING for number in range(len(tokens))]
    return Column(drawing, ports, tokens, width=width)


def number_names(letter: str, tokens: Sequence[str], last: str) -> list[str]:
    """Return a numbered name for each token, such as z₁. If tokens are left out, the last subscript is ``last``."""
    names = [f"{letter}{number}" for number in "₁₂₃₄₅₆₇₈₉"[: len(tokens)]]
    return [*names[:-2], "…", f"{letter}{last}"] if "…" in tokens[-2:-1] else names


def count_parts(model: nn.Module, drawing: Drawing) -> None:
    """Count the weights of each part of a recurrent model, for the caption of a drawing with sizes."""
    numbers = {name.replace("_", " "): drawing.count_new(weights_of(part)) for name, part in model.named_children()}
    words = ", ".join(f"{name} {number:,}" for name, number in numbers.items() if number)
    drawing.caption = f"Weights: {words}. " if drawing.show_sizes else ""


def add_layers(column: Column, embedding: nn.Module, text: str, count: int, links: int = 1) -> list[list[Box]]:
    """Place the token embeddings and the cells of all layers, with arrows between the steps of each layer."""
    column.add_boxes(["embed"] * len(column.ports), "embedding", 10, 50, 24, weights=weights_of(embedding))
    return [column.add_boxes([text] * len(column.ports), "linear", 20 if number else 40, 42, 40, links=links)
            for number in range(count)]  # fmt: skip


def draw_recurrent_language_model(model: RecurrentLM, drawing: Drawing, tokens: Tokens | None = None) -> None:
    """Draw the model's layers over its tokens, from left to right."""
    tokens, config = (tokens or Tokens()).fit(8), model.config
    count_parts(model, drawing)
    column = token_column(drawing, 0.0, tokens.inputs)
    rows = add_layers(column, model.embedding, config.cell.upper(), config.num_layers)
    for cell, *_ in rows:
        drawing.arrow(cell.left - 26, cell.center_y, cell.left, along="x")
    last, words = rows[-1][0], "last state" if config.carry_state else "zeros"
    drawing.text(last.left, last.top - 8, words, "small", "end")
    column.add_layer("Linear, softmax", "softmax", weights_of(model.projection))
    column.draw_outputs(*tokens.outputs)


def draw_blocks_over_tokens(model: Any, drawing: Drawing, tokens: Tokens) -> None:
    """Draw a model with blocks over its input tokens and the tokens that it predicts."""
    config, tokens = getattr(model.config, "body", model.config), tokens.fit(5 if tokens.source else 9)
    memory, left, more = None, 0.0, ""
    if tokens.source:
        encoder = token_column(drawing, 0.0, tokens.source)
        encoder.add_layer("Input embedding, positions", "embedding")
        memory = encoder.add_layer(f"{config.encoder_layers} × encoder block\n{_seen(config, False)}", "attention")
        drawing.text(memory.center_x, memory.top - 20, "memory (encoder output)", "small")
        left, more = memory.right + _APART, "\nand to the memory"
    causal = hasattr(config, "decoder_layers")
    column = token_column(drawing, left, tokens.inputs)
    column.add_layer("Output embedding, positions" if memory else "Embedding, positions", "embedding")
    words = f"{config.decoder_layers if causal else config.encoder_layers} × {'decoder ' if memory else ''}block"
    block = column.add_layer(f"{words}\n{_seen(config, causal)}{more}", "attention")
    pools = len(tokens.outputs) < len(tokens.inputs)
    column.add_layer("Pooling, linear, softmax" if pools else "Linear, softmax", "softmax")
    column.draw_outputs(*tokens.outputs)
    if memory is not None:
        drawing.arrow(memory.center_x, memory.top, memory.top - 14, left - _APART / 2, block.center_y, block.left)


def _seen(config: Any, causal: bool) -> str:
    window = config.decoder_window if causal else config.encoder_window
    every = " or, in other blocks, to all" if window and getattr(config, "global_every", None) else ""
    seen = ("the tokens so far", "the last {:,}, itself included") if causal else ("all", "the {:,} around it")
    return f"each position attends to {seen[window is not None].format(window)}{every}"
