"""PowerPoint presentations (.pptx): slides with their tables and diagrams, notes and comments."""

from __future__ import annotations

from pathlib import Path

from headway.documents.content import DocumentContent, ReadingOptions
from headway.documents.office_open_xml import read_office_open_xml

_PRESENTATION = "application/vnd.openxmlformats-officedocument.presentationml"
_MAIN = f"{_PRESENTATION}.presentation.main+xml"
_TYPES = (
    rf"{_PRESENTATION}\.slide\+xml",
    rf"{_PRESENTATION}\.notesSlide\+xml",
    r"application/vnd\.openxmlformats-officedocument\.drawingml\.(?:chart|diagramData)\+xml",
    r"application/vnd\.ms-office\.drawingml\.diagramDrawing\+xml",
    r"application/vnd\.ms-powerpoint\.comments\+xml",
)


def read_pptx(path: Path, options: ReadingOptions) -> DocumentContent:
    """Read a presentation. Raises the same exceptions as :func:`read_office_open_xml`."""
    return read_office_open_xml(path, options.limits, main_type=_MAIN, types=_TYPES, kind="PowerPoint presentation")
