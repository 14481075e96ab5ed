"""Draw models with blocks: the encoder-decoder as in figure 1 of Vaswani et al. 2017, language models and classifiers.

A drawing with ``show_steps`` contains only the blocks.
"""

from __future__ import annotations

from typing import Any

from headway.diagrams.column import FRAME_HALF_WIDTH, Column
from headway.diagrams.drawing import Drawing
from headway.diagrams.layers import add_blocks, add_outer_modules
from headway.models.classifier import EncoderClassifier
from headway.models.decoder_only import DecoderOnly
from headway.models.masked import MaskedTransformer
from headway.models.sequence_classifier import SequenceClassifier
from headway.models.transformer import Transformer

_GUTTER = 28.0  # distance between the frames of encoder and decoder


def draw_transformer(model: Transformer, drawing: Drawing) -> None:
    """Draw the encoder and the decoder at equal distances from x = 0."""
    x, config = FRAME_HALF_WIDTH + _GUTTER / 2, model.config
    encoder = _column(drawing, -x, "Inputs", "B × S", config, side=-1)
    add_outer_modules(encoder, (model.source_embedding, "Input embedding"), model.source_positions, model.source_norm)
    add_blocks(encoder, model.encoder, "encoder block")
    drawing.text(-x, encoder.y - 30, "memory (encoder output)" + f" {encoder.shape}" * drawing.show_sizes, "small")
    decoder = _column(drawing, x, "Outputs (shifted right)", "B × T", config)
    add_outer_modules(decoder, (model.target_embedding, "Output embedding"), model.target_positions, model.target_norm)
    add_blocks(decoder, model.decoder, "decoder block", encoder)
    _add_output(decoder, model, "Output probabilities")


def draw_language_model(model: DecoderOnly | MaskedTransformer, drawing: Drawing) -> None:
    """Draw a decoder-only or a masked language model."""
    causal = isinstance(model, DecoderOnly)
    column = _body(model, drawing, "Text so far" if causal else "Text, some tokens hidden")
    if isinstance(model, MaskedTransformer):
        add_outer_modules(column, (model.head.dense, ", activation"), model.head.norm)
    _add_output(column, model, f"Probabilities of the {'next token' if causal else 'hidden tokens'}")


def draw_classifier(model: EncoderClassifier | SequenceClassifier, drawing: Drawing) -> None:
    """Draw a classifier. Its body may be a language model."""
    column = _body(model.body if isinstance(model, SequenceClassifier) else model, drawing, "Text")
    add_outer_modules(column, (model.pooling, "without padding" if model.config.masked else "with padding"))
    if isinstance(model, SequenceClassifier):
        add_outer_modules(column, (model.dense, f", {model.config.dense}"), model.dense_norm)
    _add_output(column, model, "Probabilities of the classes")


def _column(drawing: Drawing, x: float, words: str, shape: str, config: Any, *, side: int = 1) -> Column:
    if drawing.show_steps:
        words, shape = "Embeddings, or the block below", f"{shape} × {config.d_model:,}"
    return Column(drawing, [x], [words], shape, side=side)


def _body(model: Any, drawing: Drawing, words: str) -> Column:
    """Draw the layers from the embedding to the last block."""
    column = _column(drawing, 0.0, words, "B × T", model.config)
    segments = (getattr(model, "segment_embedding", None), "Segment\nembedding")
    others = (getattr(model, name, None) for name in ("embedding_norm", "convolution"))
    add_outer_modules(column, (model.embedding, "Embedding"), model.positions, segments, *others)
    is_decoder = isinstance(model, DecoderOnly)
    add_blocks(column, model.decoder if is_decoder else model.encoder, "block" if is_decoder else "encoder block")
    return column


def _add_output(column: Column, model: Any, words: str) -> None:
    """Draw the layers from the last block to the probabilities."""
    add_outer_modules(column, model.projection)
    if not column.drawing.show_steps:
        column.add_layer("Softmax", "softmax")
    column.draw_outputs("" if column.drawing.show_steps else words)
