"""Add the drawing ``model.svg`` to a model folder and its model card."""

from __future__ import annotations

from pathlib import Path

from headway.diagrams.draw import add_caption, draw
from headway.diagrams.svg import to_svg
from headway.errors import ConfigError
from headway.models.base import Model
from headway.storage import atomic_write_text

DRAWING_FILE = "model.svg"


def add_drawing(folder: Path, model: Model) -> None:
    """Draw a model into its folder, and add the drawing to its card. Architectures of other packages are skipped."""
    try:
        drawing = add_caption(draw(model))
    except ConfigError:
        return
    atomic_write_text(folder / DRAWING_FILE, to_svg(drawing))
    card = (folder / "README.md").read_text(encoding="utf-8").rstrip()
    if f"]({DRAWING_FILE})" in card:  # finished training was started again
        return
    section = f"## Architecture\n\n![{drawing.title}. {drawing.caption}]({DRAWING_FILE})\n"
    atomic_write_text(folder / "README.md", f"{card}\n\n{section}")
