"""The supported document formats, looked up by file name extension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headway.documents.content import DEFAULT_READING_OPTIONS, DocumentContent, DocumentError, ReadingOptions
from headway.documents.docx import read_docx
from headway.documents.gettext_catalog import read_po
from headway.documents.html_file import read_html
from headway.documents.json_strings import read_json
from headway.documents.markdown import read_markdown
from headway.documents.odt import read_odt
from headway.documents.plain_text import read_plain_text
from headway.documents.pptx import read_pptx
from headway.documents.subtitles import read_subtitles
from headway.documents.xliff import read_xliff


@dataclass(frozen=True)
class DocumentFormat:
    """A document format.

    Attributes:
        name: Name of the format, which is also its first extension.
        extensions: The file name extensions of the format, in lower case.
        media_type: The media type (MIME type) of files in this format.
        read: Reads a file of this format.
    """

    name: str
    extensions: tuple[str, ...]
    media_type: str
    read: Callable[[Path, ReadingOptions], DocumentContent]

    @property
    def is_text_file(self) -> bool:
        """Whether the files are text files, whose lines can be translated one by one."""
        return self.name not in _PACKAGES


_PACKAGES = ("docx", "odt", "pptx")
_OFFICE = "application/vnd.openxmlformats-officedocument"
FORMATS = {
    each.name: each
    for each in (
        DocumentFormat("txt", (".txt",), "text/plain", read_plain_text),
        DocumentFormat("html", (".html", ".htm", ".xhtml"), "text/html", read_html),
        DocumentFormat("md", (".md", ".markdown"), "text/markdown", read_markdown),
        DocumentFormat("srt", (".srt",), "application/x-subrip", read_subtitles),
        DocumentFormat("vtt", (".vtt",), "text/vtt", read_subtitles),
        DocumentFormat("po", (".po", ".pot"), "text/x-gettext-translation", read_po),
        DocumentFormat("xliff", (".xliff", ".xlf"), "application/xliff+xml", read_xliff),
        DocumentFormat("json", (".json",), "application/json", read_json),
        DocumentFormat("docx", (".docx",), f"{_OFFICE}.wordprocessingml.document", read_docx),
        DocumentFormat("odt", (".odt",), "application/vnd.oasis.opendocument.text", read_odt),
        DocumentFormat("pptx", (".pptx",), f"{_OFFICE}.presentationml.presentation", read_pptx),
    )
}
_BY_EXTENSION = {extension: each for each in FORMATS.values() for extension in each.extensions}
_WITH_MACROS = (".docm", ".dotm", ".pptm", ".potm", ".ppsm")


def document_extensions() -> tuple[str, ...]:
    """Return the file name extensions of all formats."""
    return tuple(_BY_EXTENSION)


def document_format(name: str) -> DocumentFormat:
    """Return the format of a file, determined by its extension.

    Raises:
        DocumentError: No format has this extension.
    """
    extension = Path(name).suffix.lower()
    if extension in _WITH_MACROS:
        raise DocumentError(f"a {extension} document may contain macros; save it in a format without macros")
    file_format = _BY_EXTENSION.get(extension)
    if file_format is None:
        raise DocumentError(
            f"documents with the extension {extension!r} are not supported"
            if extension
            else "the file has no extension",
            accepted=", ".join(_BY_EXTENSION),
        )
    return file_format


def read_document(
    path: str | Path, format_: DocumentFormat, options: ReadingOptions = DEFAULT_READING_OPTIONS
) -> DocumentContent:
    """Read a document.

    Raises:
        DocumentError: The document is too large, damaged, encrypted, or not of this format.
        MissingPackageError: A library that this format needs is not installed.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise DocumentError("it is not a file" if path.exists() else "there is no such file")
        size = path.stat().st_size
        if size > options.limits.file_bytes:
            raise DocumentError(f"the file has {size:,} bytes", accepted=f"at most {options.limits.file_bytes:,}")
        return format_.read(path, options)
    except OSError as error:
        raise DocumentError(f"the file cannot be read ({error.strerror})") from None
    except RecursionError:
        raise DocumentError("the document is nested too deeply") from None
