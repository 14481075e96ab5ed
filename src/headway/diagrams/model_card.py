"""The drawing in a model folder: ``model.svg``, which the model card shows."""

from __future__ import annotations

from pathlib import Path

from headway.bundle import load_outline
from headway.diagrams.draw import draw, with_caption
from headway.diagrams.svg import to_svg
from headway.errors import ConfigError
from headway.models.base import Model
from headway.storage import atomic_write_text

DRAWING_FILE = "model.svg"


def add_drawing(folder: Path, model: Model | None = None) -> None:
    """Draw the model of a folder into the folder, and show the drawing in its card.

    Architectures of other packages have no drawing. ``model`` is the model if it is in memory in its plain form.
    """
    try:
        drawing = with_caption(draw(load_outline(folder).model if model is None else model))
    except ConfigError:
        return
    atomic_write_text(folder / DRAWING_FILE, to_svg(drawing))
    card = (folder / "README.md").read_text(encoding="utf-8").rstrip()
    section = f"## Architecture\n\n![{drawing.title}. {drawing.caption}]({DRAWING_FILE})\n"
    atomic_write_text(folder / "README.md", f"{card}\n\n{section}")
