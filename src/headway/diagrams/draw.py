"""Draw a model with the drawing for its architecture and level. The caption lists its sizes and options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

from headway.config import flatten_items
from headway.diagrams.attention import attention_variants, draw_attention
from headway.diagrams.cell import draw_cell
from headway.diagrams.drawing import PAGE_WIDTH, Drawing, Mask
from headway.diagrams.recurrent import draw_recurrent
from headway.diagrams.transformer import draw_classifier, draw_language_model, draw_transformer
from headway.diagrams.unrolled import Tokens, draw_blocks_over_tokens, draw_recurrent_language_model
from headway.errors import ConfigError
from headway.models.base import ArchitectureConfig, Model
from headway.nn.recurrent import RecurrentLayer

Level = Literal["model", "block", "cell", "attention"]
LEVELS: tuple[Level, ...] = get_args(Level)
_SIZES = ("kind", "d_model", "num_heads", "d_ff", "encoder_layers", "decoder_layers", "num_layers", "dropout")
_LEGEND = "Small squares are masks: rows are queries, columns are keys; filled: the query may attend to the key."
# Maps each kind of model to its name and the function that draws it.
_KINDS: dict[str, tuple[str, Callable[..., None]]] = {
    "transformer": ("Transformer", draw_transformer),
    "recurrent": ("Recurrent encoder-decoder", draw_recurrent),
    "classifier": ("Classifier", draw_classifier),
    "decoder_only": ("Decoder-only language model", draw_language_model),
    "recurrent_lm": ("Recurrent language model", draw_recurrent_language_model),
    "masked": ("Masked language model", draw_language_model),
    "sequence_classifier": ("Classifier on a language model", draw_classifier),
}


def draw(model: Model, *, level: Level = "model", shapes: bool = False) -> Drawing:
    """Return the drawing of a model. The model may be on the meta device, because its weights are not read.

    Raises:
        ConfigError: The model does not support the level, or its architecture is defined by another package.
    """
    title = (
        architecture_name(model)
        + {"model": "", "block": ": blocks", "cell": ": cells", "attention": ": attention"}[level]
    )
    uses = attention_variants(model)
    cells = {name: part for name, part in model.named_modules() if isinstance(part, RecurrentLayer)}
    whole = partial(_KINDS[model.config.kind][1], model)
    levels: dict[Level, Callable[[Drawing], None]] = {"model": whole}
    if cells:
        levels["cell"] = partial(draw_cell, cells)
    elif uses:
        levels["block"] = whole
    if uses:
        levels["attention"] = partial(draw_attention, uses)
    if level not in levels:
        raise ConfigError(f"level = {level!r}: this model has only the levels {', '.join(levels)}")
    drawing = Drawing(title, show_sizes=shapes, show_steps=level == "block")
    levels[level](drawing)
    weights = sum(parameter.numel() for parameter in model.parameters())
    drawing.caption = f"{weights:,} weights. {drawing.caption}{describe_options(model.config)}"
    return drawing


def draw_tokens(model: Model, drawing: Drawing, tokens: Tokens) -> None:
    """Draw a model over its input tokens and the tokens that it predicts."""
    draw_unrolled = _KINDS[model.config.kind][1] if "recurrent" in model.config.kind else draw_blocks_over_tokens
    draw_unrolled(model, drawing, tokens)


def architecture_name(model: Model) -> str:
    """Return the name of a model's architecture.

    Raises:
        ConfigError: The architecture is defined by another package.
    """
    if (kind := model.config.kind) not in _KINDS:
        raise ConfigError(f"model.kind = {kind!r} has no drawing, because it was added by another package")
    without = kind == "recurrent" and not attention_variants(model)
    return _KINDS[kind][0] + (" without attention" if without else "")


def describe_options(config: ArchitectureConfig) -> str:
    """Return the sizes of a model and all options that differ from their defaults, as recipe keys and values."""
    body: Any = getattr(config, "body", None)
    usual = type(config)() if body is None else type(config).parse({"body": {"kind": body.kind}}, "defaults")
    defaults, given = (dict(flatten_items(options.as_dict())) for options in (usual, config))
    shown = {"kind": config.kind, **{key: "none" for key in defaults if key not in given}, **given}
    return ", ".join(
        f"{key} = {f'{value:,}' if type(value) is int else str(value).lower()}"
        for key, value in shown.items()
        if key.rpartition(".")[2] in _SIZES or value != defaults.get(key)
    ) + "."  # fmt: skip


def add_caption(drawing: Drawing) -> Drawing:
    """Add title, legend and caption around the shapes, wrapped to the shapes' width or to two thirds of a page."""
    left, top, right, y = drawing.bounds()
    drawing.text(left, top - 18, drawing.title, "title", "start")
    legend = _LEGEND if any(isinstance(shape, Mask) for shape in drawing.shapes) else ""
    for text in filter(None, (legend, drawing.caption)):
        y = drawing.paragraph(left, y + 10, text, max(right - left, 0.66 * PAGE_WIDTH))
    return drawing
