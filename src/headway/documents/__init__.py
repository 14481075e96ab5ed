"""Translate documents. Only text is changed; formatting, layout and all other content are kept.

Each format has a reader, which returns the texts of a document and a function that writes the document with
translations (:class:`~headway.documents.content.DocumentContent`). Formatting inside a text is passed to the translator
as inline tags (:mod:`~headway.documents.inline_tags`), which the translator places by word alignment. The readers do
not depend on a model.

    from headway.documents import translate_document

    translate_document(headway.load("MODEL"), "report.docx", "report.en.docx")

Documents are untrusted input: size, compression, entities and macros are checked before anything is read.
"""

from typing import TYPE_CHECKING, Any

from headway.documents.content import DocumentContent, DocumentError, DocumentLimits, DocumentText, ReadingOptions
from headway.documents.formats import FORMATS, document_extensions, document_format, read_document

if TYPE_CHECKING:
    from headway.documents.translation import DocumentReport, fill_document, translate_document

__all__ = [
    "FORMATS",
    "DocumentContent",
    "DocumentError",
    "DocumentLimits",
    "DocumentReport",
    "DocumentText",
    "ReadingOptions",
    "document_extensions",
    "document_format",
    "fill_document",
    "read_document",
    "translate_document",
]


def __getattr__(name: str) -> Any:
    """Import a name that needs PyTorch when it is first used. The readers do not need PyTorch."""
    if name in __all__:
        from headway.documents import translation

        return getattr(translation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
