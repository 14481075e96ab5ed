"""Models with one stack of blocks: decoder-only and masked language models, and classifiers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import nn

from headway.diagrams.column import Column, Item, Layer
from headway.diagrams.drawing import Drawing
from headway.diagrams.layers import (
    blocks_in,
    count,
    embedding_layers,
    final_norm,
    norm_layer,
    output_layers,
    stack_items,
)
from headway.models.classifier import EncoderClassifier
from headway.models.decoder_only import DecoderOnly
from headway.models.masked import MaskedTransformer
from headway.models.sequence_classifier import SequenceClassifier
from headway.nn.pooling import AttentionPooling

_POOLING = {
    "mean": "Mean over positions", "max": "Maximum over positions", "mean_max": "Mean and maximum over positions",
    "first": "State of the first token", "last": "State of the last token", "attention": "Attention pooling",
}  # fmt: skip
Body = DecoderOnly | MaskedTransformer


def draw_language_model(model: Body, drawing: Drawing, *, shapes: bool) -> None:
    """Draw a decoder-only or a masked language model."""
    column = Column(drawing, 0.0, side=1, shapes=shapes)
    masked = isinstance(model, MaskedTransformer)
    column.words("Text, some tokens hidden" if masked else "Text so far", shape="B × T")
    column.add(*_body_items(model))
    vocab = f"B × T × {model.projection.out_features:,}"
    tied = model.projection.weight is model.embedding.weight
    if masked:
        head = cast("MaskedTransformer", model).head
        shape = f"B × T × {model.config.d_model:,}"
        column.add(Layer(("Linear, activation",), "linear", count(head.dense), shape), norm_layer(head.norm, shape))
    column.add(*output_layers(model.projection, vocab, is_tied=tied))
    column.words("Probabilities of the hidden tokens" if masked else "Probabilities of the next token")
    if tied:
        column.tie("embedding", "projection")


def draw_classifier(model: EncoderClassifier, drawing: Drawing, *, shapes: bool) -> None:
    """Draw a classifier that was trained from random weights."""
    config, shape = model.config, f"B × S × {model.config.d_model:,}"
    column = Column(drawing, 0.0, side=1, shapes=shapes)
    column.words("Text", shape="B × S")
    column.add(*embedding_layers("Embedding", model.embedding, model.positions, nn.Identity(), shape))
    if model.convolution is not None:
        lines = (f"Convolution over {config.convolution} positions", "with residual connection")
        column.add(Layer(lines, "linear", count(model.convolution), shape))
    if config.encoder_layers:
        column.add(*stack_items(blocks_in(model.encoder), "encoder block", shape, detailed=False))
    column.add(*final_norm(model.encoder, shape), *_class_items(model, config.pooling, config.masked))
    column.words("Probabilities of the classes")


def draw_sequence_classifier(model: SequenceClassifier, drawing: Drawing, *, shapes: bool) -> None:
    """Draw a classifier on the body of a language model."""
    column = Column(drawing, 0.0, side=1, shapes=shapes)
    column.words("Text", shape="B × S")
    column.add(*_body_items(model.body), *_class_items(model, model.config.pooling, True))
    column.words("Probabilities of the classes")


def draw_block(model: Body | EncoderClassifier | SequenceClassifier, drawing: Drawing, *, shapes: bool) -> None:
    """Draw the blocks of a model with one stack, with all their steps."""
    body = model.body if isinstance(model, SequenceClassifier) else model
    column = Column(drawing, 0.0, side=1, shapes=shapes)
    shape = f"B × T × {body.config.d_model:,}"
    column.words("Embeddings, or the block below", shape=shape)
    stack = body.decoder if isinstance(body, DecoderOnly) else body.encoder
    column.add(*stack_items(blocks_in(stack), "block", shape, detailed=True))
    column.finish()


def _body_items(model: Body) -> Iterator[Item]:
    """Yield the items from the embedding to the states of the last block."""
    shape = f"B × T × {model.config.d_model:,}"
    masked = isinstance(model, MaskedTransformer)
    norm = model.embedding_norm if isinstance(model, MaskedTransformer) else nn.Identity()
    segments = model.segment_embedding if isinstance(model, MaskedTransformer) else None
    stack = model.encoder if isinstance(model, MaskedTransformer) else model.decoder
    yield from embedding_layers("Embedding", model.embedding, model.positions, norm, shape, segments=segments)
    yield from stack_items(blocks_in(stack), "encoder block" if masked else "block", shape, detailed=False)
    yield from final_norm(stack, shape)


def _class_items(model: EncoderClassifier | SequenceClassifier, pooling: str, masked: bool) -> Iterator[Layer]:
    """Yield the items from the states of all positions to the probabilities of the classes."""
    pooled, classes = f"B × {model.pooling.width:,}", f"B × {model.num_classes:,}"
    lines = (_POOLING[pooling], "without padding" if masked else "with padding")
    is_attention = isinstance(model.pooling, AttentionPooling)
    yield Layer(lines, "attention" if is_attention else "plain", count(model.pooling), pooled)
    dense = model.dense if isinstance(model, SequenceClassifier) else None
    if isinstance(model, SequenceClassifier) and dense is not None:
        width = f"B × {dense.out_features:,}"
        yield Layer((f"Linear, {model.config.dense}",), "linear", count(dense), width)
        if model.config.dense_norm:
            yield norm_layer(model.dense_norm, width)
    yield Layer(("Linear",), "linear", count(model.projection), classes)
    yield Layer(("Softmax",), "softmax", shape=classes)
