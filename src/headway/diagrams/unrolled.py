"""Models over the tokens of a text, with an arrow for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.diagrams.column import Column
from headway.diagrams.drawing import Drawing
from headway.diagrams.text_width import shortened

PITCH = 60.0  # between two tokens
_APART = 30.0  # between encoder and decoder


@dataclass(frozen=True)
class Tokens:
    """The tokens that are drawn.

    Attributes:
        source: What the encoder reads, with general names by default; empty for models with one side.
        inputs: What the decoder or the only stack reads.
        outputs: What it predicts: a token for each input, or a label.
        weights: The weights of a recurrent decoder's first step on the tokens of the source.
    """

    source: Sequence[str] = ("x₁", "x₂", "x₃", "<eos>")
    inputs: Sequence[str] = ("<bos>", "y₁", "y₂")
    outputs: Sequence[str] = ("y₁", "y₂", "<eos>")
    weights: Sequence[float] = ()

    def fitted(self, most: int) -> Tokens:
        """Return at most ``most`` shortened tokens of each side: the first ones, an ellipsis and the last one."""
        source, inputs, outputs = (
            [shortened(token if token.strip() else "␣", PITCH - 4) for token in (
                tokens if len(tokens) <= most else [*tokens[: most - 2], "…", tokens[-1]])]
            for tokens in (self.source, self.inputs, self.outputs)
        )  # fmt: skip
        weights = list(self.weights)
        if len(weights) > most:
            weights = [*weights[: most - 2], sum(weights[most - 2 : -1]), weights[-1]]
        return Tokens(source, inputs, outputs, weights)


def token_column(drawing: Drawing, left: float, tokens: Sequence[str]) -> Column:
    """Return a column over tokens, whose boxes begin at the x ``left``."""
    width = max(len(tokens) * PITCH - 6, 150.0)
    ports = [left + width / 2 + (number - (len(tokens) - 1) / 2) * PITCH for number in range(len(tokens))]
    return Column(drawing, ports, tokens, width=width)


def draw_words(model: Any, drawing: Drawing, tokens: Tokens) -> None:
    """Draw a model with blocks over the tokens that it reads and predicts."""
    config, tokens = getattr(model.config, "body", model.config), tokens.fitted(5 if tokens.source else 9)
    memory, left, more = None, 0.0, ""
    if tokens.source:
        encoder = token_column(drawing, 0.0, tokens.source)
        encoder.layer("Input embedding, positions", "embedding")
        memory = encoder.layer(f"{config.encoder_layers} × encoder block\n{_seen(config, False)}", "attention")
        drawing.text(memory.center, memory.top - 20, "memory (encoder output)", "small")
        left, more = memory.right + _APART, "\nand to the memory"
    causal = hasattr(config, "decoder_layers")
    column = token_column(drawing, left, tokens.inputs)
    column.layer("Output embedding, positions" if memory else "Embedding, positions", "embedding")
    words = f"{config.decoder_layers if causal else config.encoder_layers} × {'decoder ' if memory else ''}block"
    block = column.layer(f"{words}\n{_seen(config, causal)}{more}", "attention")
    pooling = "" if len(tokens.outputs) == len(tokens.inputs) else "Pooling, "
    column.layer(f"{pooling}{'l' if pooling else 'L'}inear, softmax", "softmax")
    column.end(*tokens.outputs)
    if memory is not None:
        gutter = memory.right + _APART / 2
        drawing.arrow(memory.center, memory.top, memory.top - 14, gutter, block.middle, block.left)


def _seen(config: Any, causal: bool) -> str:
    window = config.decoder_window if causal else config.encoder_window
    most = "" if window is None else f" in a window of {window:,}"
    every = " or, in other blocks, to all" if most and getattr(config, "global_every", None) else ""
    return f"each position attends to {'those before it' if causal else 'all'}{most}{every}"
