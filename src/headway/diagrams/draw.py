"""Draw a model: the drawing for its architecture and a level, with its sizes and options as a caption."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, cast, get_args

from headway.config import flat_items
from headway.diagrams.attention import Use, cross_attention, draw_attention, self_attention
from headway.diagrams.cell import draw_cell
from headway.diagrams.drawing import PAGE_WIDTH, Drawing, Grid
from headway.diagrams.language_models import draw_block, draw_classifier, draw_language_model, draw_sequence_classifier
from headway.diagrams.layers import blocks_in
from headway.diagrams.recurrent import draw_recurrent, draw_recurrent_language_model
from headway.diagrams.transformer import draw_blocks, draw_transformer
from headway.errors import ConfigError
from headway.models.base import ArchitectureConfig, Model
from headway.models.classifier import EncoderClassifier
from headway.models.decoder_only import DecoderOnly
from headway.models.masked import MaskedTransformer
from headway.models.recurrent import RecurrentModel
from headway.models.recurrent_lm import RecurrentLM
from headway.models.sequence_classifier import SequenceClassifier
from headway.models.transformer import Transformer
from headway.nn.recurrent import RecurrentLayer, as_recurrent_layers
from headway.nn.recurrent_decoders import AttentionDecoder

Level = Literal["model", "block", "cell", "attention"]
LEVELS: tuple[Level, ...] = get_args(Level)
_SIZES = ("kind", "d_model", "num_heads", "d_ff", "encoder_layers", "decoder_layers", "num_layers", "dropout")
_LEGEND = "Small squares are masks: rows are queries, columns are keys; filled: the query may attend to the key."
_TITLES: dict[Level, str] = {"model": "", "block": ": blocks", "cell": ": cells", "attention": ": attention"}
# The name of each kind of model, and the functions that draw it and its blocks.
_KINDS: dict[type[Model], tuple[str, Callable[..., None], Callable[..., None]]] = {
    Transformer: ("Transformer", draw_transformer, draw_blocks),
    RecurrentModel: ("Recurrent encoder-decoder", draw_recurrent, draw_block),
    EncoderClassifier: ("Classifier", draw_classifier, draw_block),
    DecoderOnly: ("Decoder-only language model", draw_language_model, draw_block),
    RecurrentLM: ("Recurrent language model", draw_recurrent_language_model, draw_block),
    MaskedTransformer: ("Masked language model", draw_language_model, draw_block),
    SequenceClassifier: ("Classifier on a language model", draw_sequence_classifier, draw_block),
}


def draw(model: Model, *, level: Level = "model", shapes: bool = False) -> Drawing:
    """Return the drawing of a model, whose weights are not read: they may be on the meta device.

    Raises:
        ConfigError: The model has no such level, or its architecture is that of another package.
    """
    drawing, levels = Drawing(f"{name_of(model)}{_TITLES[level]}"), _levels(model)
    if level not in levels:
        raise ConfigError(f"level = {level!r}: this model has only the levels {', '.join(levels)}")
    levels[level](drawing, shapes=shapes)
    weights = sum(parameter.numel() for parameter in model.parameters())
    drawing.caption = f"{weights:,} weights. {describe_options(model.config)}"
    return drawing


def name_of(model: Model) -> str:
    """Return the name of a model's architecture.

    Raises:
        ConfigError: The architecture is that of another package.
    """
    if type(model) not in _KINDS:
        raise ConfigError(f"model.kind = {model.config.kind!r} has no drawing: another package has added it")
    without = isinstance(model, RecurrentModel) and model.config.attention == "none"
    return _KINDS[type(model)][0] + (" without attention" if without else "")


def describe_options(config: ArchitectureConfig) -> str:
    """Return the sizes of a model, and all options that do not have their defaults, as keys and values of a recipe."""
    body = getattr(config, "body", None)
    usual = type(config)() if body is None else type(config).parse({"body": {"kind": body.kind}}, "defaults")
    defaults, given = (dict(flat_items(options.as_dict())) for options in (usual, config))
    shown = {"kind": config.kind, **{key: "none" for key in defaults if key not in given}, **given}
    return ", ".join(
        f"{key} = {f'{value:,}' if type(value) is int else str(value).lower()}"
        for key, value in shown.items()
        if key.rpartition(".")[2] in _SIZES or value != defaults.get(key)
    ) + "."  # fmt: skip


def with_caption(drawing: Drawing) -> Drawing:
    """Write title, legend and caption around the shapes, at most as wide as they are or two thirds of a page."""
    left, top, right, y = drawing.bounds()
    drawing.text(left, top - 18, drawing.title, role="title")
    legend = _LEGEND if any(isinstance(shape, Grid) for shape in drawing.shapes) else ""
    for text in filter(None, (legend, drawing.caption)):
        y = drawing.paragraph(left, y + 10, text, max(right - left, 0.66 * PAGE_WIDTH))
    return drawing


def _levels(model: Model) -> dict[Level, Callable[..., None]]:
    """Return the functions that draw the levels that a model has."""
    _, whole, blocks = _KINDS[type(model)]
    uses, layers = _uses(model), _recurrent_layers(model)
    levels: dict[Level, Callable[..., None]] = {"model": partial(whole, model)}
    if layers:
        levels["cell"] = partial(draw_cell, layers)
    elif uses:
        levels["block"] = partial(blocks, model)
    if uses:
        levels["attention"] = partial(draw_attention, uses)
    return levels


def _uses(model: Model) -> list[Use]:
    """Return the attention layers that differ in their inputs or their masks."""
    match model:
        case Transformer():
            first, second = blocks_in(model.encoder)[0], cast("Any", blocks_in(model.decoder)[0])
            return [
                self_attention("Self-attention in the encoder", first.attention, causal=False),
                self_attention("Masked self-attention in the decoder", second.attention, causal=True),
                cross_attention("Attention from decoder to encoder", second.cross_attention, "the decoder"),
            ]
        case RecurrentModel(decoder=AttentionDecoder() as decoder, config=config):
            when = "before" if config.attention == "bahdanau" else "after"
            query = f"the decoder's state {when} a step"
            return [cross_attention("Attention from decoder to encoder", decoder.attention, query)]
        case SequenceClassifier():
            return _uses(model.body)
        case DecoderOnly():
            return [self_attention("Causal self-attention", blocks_in(model.decoder)[0].attention, causal=True)]
        case MaskedTransformer() | EncoderClassifier():
            blocks = blocks_in(model.encoder)
            uses = [self_attention("Self-attention", block.attention, causal=False) for block in blocks]
            return list({use.words: use for use in uses}.values())
        case _:
            return []


def _recurrent_layers(model: Model) -> list[tuple[str, RecurrentLayer]]:
    """Return the recurrent layers with their names."""
    stacks: dict[str, Any] = {}
    if isinstance(model, RecurrentLM):
        stacks = {"Layer": model.layers}
    elif isinstance(model, RecurrentModel):
        forward, backward = model.encoder.forward_layers, model.encoder.backward_layers
        stacks = {"Encoder, forward, layer": forward, "Encoder, backward, layer": backward}
        stacks["Decoder, layer"] = model.decoder.layers
    return [
        (f"{name} {number}", layer)
        for name, stack in stacks.items()
        for number, layer in enumerate(as_recurrent_layers(stack), start=1)
    ]
