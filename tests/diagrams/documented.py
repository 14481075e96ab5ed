"""The drawings in the documentation. ``make diagrams`` draws all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.inspection.diagram import diagram

__all__ = ["FOLDER", "drawn"]

FOLDER = Path(__file__).parents[2] / "docs" / "diagrams"
DRAWINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer:base", {}),
    "transformer-shapes": ("transformer:base", {"shapes": True}),
    "transformer-block": ("transformer:base", {"level": "block"}),
    "attention": ("transformer:base", {"level": "attention"}),
    "recurrent": ("recurrent:bahdanau", {}),
    "recurrent-no-attention": ("recurrent:cho", {}),
    "gru": ("recurrent:bahdanau", {"level": "cell"}),
    "lstm": ("recurrent_lm:small", {"level": "cell"}),
    "classifier": ("classifier", {}),
    "decoder-only": ("decoder_only:gpt2", {}),
    "llama-attention": ("decoder_only:llama3.2-1b", {"level": "attention"}),
    "masked": ("masked:modernbert-base", {}),
}


def drawn(name: str) -> str:
    """Return the SVG file of a drawing."""
    what, options = DRAWINGS[name]
    return diagram(what, **options).svg


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name in DRAWINGS:
        (FOLDER / f"{file_name}.svg").write_text(drawn(file_name), encoding="utf-8")
