"""Word documents (.docx): body, tables, text boxes, headers, footers, footnotes, endnotes, comments and diagrams."""

from __future__ import annotations

from pathlib import Path

from headway.documents.content import DocumentContent, ReadingOptions
from headway.documents.office_open_xml import read_office_open_xml

_WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml"
_MAIN = f"{_WORD}.document.main+xml"
_TYPES = (
    rf"{_WORD}\.document\.main\+xml",
    rf"{_WORD}\.(?:footnotes|endnotes)\+xml",
    rf"{_WORD}\.(?:header|footer)\+xml",
    rf"{_WORD}\.comments\+xml",
    r"application/vnd\.openxmlformats-officedocument\.drawingml\.(?:chart|diagramData)\+xml",
    r"application/vnd\.ms-office\.drawingml\.diagramDrawing\+xml",
)


def read_docx(path: Path, options: ReadingOptions) -> DocumentContent:
    """Read a Word document. Raises the same exceptions as :func:`read_office_open_xml`."""
    return read_office_open_xml(path, options.limits, main_type=_MAIN, types=_TYPES, kind="Word document")
