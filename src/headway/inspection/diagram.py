"""Drawings of architectures from model folders, recipes and presets (:mod:`headway.diagrams` draws them)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from headway.bundle import AnyBundle, build_without_initialization, load_without_weights
from headway.config import spelling_hint
from headway.diagrams.draw import Level, add_caption, draw
from headway.diagrams.drawing import Drawing
from headway.diagrams.svg import to_svg
from headway.errors import ConfigError
from headway.interop.hub import model_folder
from headway.models.base import ArchitectureConfig, Model
from headway.models.registry import ARCHITECTURES
from headway.storage import atomic_write_text
from headway.tasks import load_recipe

_VOCAB_SIZE, _NUM_CLASSES = 37_000, 2  # sizes for presets; the vocabulary size is from section 5.1 of the paper


@dataclass(frozen=True)
class Diagram:
    """A drawing of an architecture. Notebooks display it.

    Attributes:
        svg: The content of the SVG file.
        title: One line that describes what is drawn.
        caption: The number of weights, the sizes, and the options that differ from their defaults.
        description: The text of the drawing, for people who cannot see it.
    """

    svg: str
    title: str
    caption: str
    description: str

    def save(self, path: str | Path) -> None:
        """Write the SVG file, completely or not at all.

        Raises:
            ConfigError: The name of the file does not end in .svg.
        """
        check_output_format(Path(path))
        atomic_write_text(Path(path), self.svg)

    def __repr__(self) -> str:
        return f"<Diagram: {self.title}. {self.caption}>"

    def _repr_svg_(self) -> str:
        return self.svg


def diagram(
    what: str | Path | Model, *, level: Level = "model", shapes: bool = False, text: str | None = None
) -> Diagram:
    """Draw the architecture of a model from its own configuration.

    Args:
        what: A model folder, the name of a model on the Hugging Face Hub (``hf:NAME``), a recipe, a preset preceded by
            its kind of model (``transformer:base``), or a model.
        level: "model" (blocks, as in figure 1 of the paper), "block" (each step of a block), "cell" (the equations of a
            recurrent layer) or "attention" (the steps of attention, as in figure 2, and its inputs and masks).
        shapes: Whether to write tensor shapes beside arrows and numbers of weights in boxes.
        text: Input text for a model folder. The level "model" then draws the model over the text's tokens, and the
            level "attention" shows the numbers of one head.

    Raises:
        ConfigError: ``what`` does not exist, or the model does not support the level.
        BundleError: A model folder is damaged.
    """
    if not isinstance(what, Model):
        what = model_folder(what)
    if text is None:
        model, note = _outline(what)
        return _finished(draw(model, level=level, shapes=shapes), note)
    if isinstance(what, Model) or not what.is_dir():
        raise ConfigError(
            f"a text needs a trained model, but {what} is not a model folder; leave out the text (--text)"
        )
    from headway.inspection.diagram_of_text import draw_text

    return _finished(draw_text(what, text, level))


def _finished(drawing: Drawing, note: str = "") -> Diagram:
    """Convert a drawing to a diagram. ``note`` is appended to its caption."""
    drawing.caption += note
    return Diagram(to_svg(add_caption(drawing)), drawing.title, drawing.caption, drawing.description())


def check_output_format(path: Path) -> None:
    """Raise :class:`ConfigError` if the name of an output file does not end in .svg."""
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"{path}: expected a picture whose name ends in .svg")


def _outline(what: Path | Model) -> tuple[Model, str]:
    """Return the model to draw, which may be on the meta device, and a note about its sizes."""
    if isinstance(what, Model):
        return what, ""
    if what.is_dir():
        return load_without_weights(what).model, ""
    if what.suffix.lower() == ".toml":
        recipe = load_recipe(what)
        return _built(recipe.model, recipe.tokenizer.vocab_size)
    kind, _, preset = str(what).partition(":")
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"{what}: no such folder or recipe; expected a model folder, a recipe (.toml), or a preset with its kind, "
            f"such as transformer:base ({spelling_hint(kind, ARCHITECTURES)})"
        )
    config_class = ARCHITECTURES[kind].config_class
    return _built(config_class.preset(preset) if preset else config_class(), _VOCAB_SIZE)


def _built(config: ArchitectureConfig, vocab_size: int) -> tuple[Model, str]:
    """Build a model on the meta device. Return it and a note about its vocabulary size."""
    labels = ARCHITECTURES[config.kind].capability == "labels"
    classes = f" and {_NUM_CLASSES} classes" if labels else ""
    with torch.device("meta"):
        model = build_without_initialization(config, vocab_size, _NUM_CLASSES if labels else vocab_size)
    return model, f" The weights are those for a vocabulary of {vocab_size:,} tokens{classes}."


def build_outline(bundle: AnyBundle) -> Model:
    """Build a bundle's model in its plain form on the meta device, whatever its optimized form in memory."""
    source, *target = (tokenizer.vocab_size for tokenizer in bundle.tokenizers.values())
    with torch.device("meta"):
        return build_without_initialization(bundle.model.config, source, len(bundle.labels) or (*target, source)[0])
