"""The encoder-decoder as in figure 1 of Vaswani et al. 2017, and its two blocks in detail."""

from __future__ import annotations

from headway.diagrams.column import FRAME_HALF, Column
from headway.diagrams.drawing import Drawing
from headway.diagrams.layers import blocks_in, embedding_layers, final_norm, output_layers, stack_items
from headway.models.transformer import Transformer

_GUTTER = 34.0  # between the two frames


def _columns(drawing: Drawing, *, shapes: bool) -> tuple[Column, Column]:
    """Return the columns of encoder and decoder, at equal distances from x = 0."""
    x = FRAME_HALF + _GUTTER / 2
    return Column(drawing, -x, side=-1, shapes=shapes), Column(drawing, x, side=1, shapes=shapes)


def _shapes(model: Transformer) -> tuple[str, str]:
    return f"B × S × {model.config.d_model:,}", f"B × T × {model.config.d_model:,}"


def draw_transformer(model: Transformer, drawing: Drawing, *, shapes: bool) -> None:
    """Draw the whole model."""
    encoder, decoder = _columns(drawing, shapes=shapes)
    source, target = _shapes(model)
    joint = model.source_embedding is model.target_embedding
    tied = model.projection.weight is model.target_embedding.weight
    drawing.sentences.append("Encoder, from bottom to top:")
    encoder.words("Inputs", shape="B × S")
    encoder.add(
        *embedding_layers("Input embedding", model.source_embedding, model.source_positions, model.source_norm, source),
        *stack_items(blocks_in(model.encoder), "encoder block", source, detailed=False),
        *final_norm(model.encoder, source),
    )
    drawing.sentences.append("Decoder, from bottom to top:")
    decoder.words("Outputs (shifted right)", shape="B × T")
    decoder.add(
        *embedding_layers(
            "Output embedding", model.target_embedding, model.target_positions, model.target_norm, target, is_tied=joint
        ),
        *stack_items(blocks_in(model.decoder), "decoder block", target, detailed=False),
        *final_norm(model.decoder, target),
        *output_layers(model.projection, f"B × T × {model.projection.out_features:,}", is_tied=tied),
    )
    decoder.words("Output probabilities")
    decoder.connect_memory(encoder)
    if joint:
        first, second = encoder.boxes["embedding"], decoder.boxes["embedding"]
        y = max(first.middle, second.middle)
        drawing.arrow((first.right, y), (second.x, y), head=False, dashed=True)
        drawing.text(0, y - 5, "same weights", anchor="middle", role="small")
        drawing.sentences.append("Both embeddings are one matrix.")
    if tied:
        decoder.tie("embedding", "projection")


def draw_blocks(model: Transformer, drawing: Drawing, *, shapes: bool) -> None:
    """Draw an encoder block and a decoder block with all their steps."""
    encoder, decoder = _columns(drawing, shapes=shapes)
    source, target = _shapes(model)
    encoder.words("Source, or the block below", shape=source)
    encoder.add(*stack_items(blocks_in(model.encoder), "encoder block", source, detailed=True))
    decoder.words("Target, or the block below", shape=target)
    decoder.add(*stack_items(blocks_in(model.decoder), "decoder block", target, detailed=True))
    decoder.finish()
    decoder.connect_memory(encoder)
