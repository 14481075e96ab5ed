"""Read the paragraphs in all files of a Word document (.docx) or a PowerPoint presentation (.pptx)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headway.documents.content import DocumentContent, DocumentError, DocumentLimits
from headway.documents.office_package import OfficePackage
from headway.documents.office_paragraph import office_paragraphs
from headway.documents.safe_xml import local_name

if TYPE_CHECKING:
    from lxml.etree import _Element

_STRICT = "{http://purl.oclc.org/ooxml/"  # the strict variant of ISO/IEC 29500
_TYPES_FILE = "[Content_Types].xml"


def read_office_open_xml(
    path: Path, limits: DocumentLimits, *, main_type: str, types: Sequence[str], kind: str
) -> DocumentContent:
    """Read a Word document or a PowerPoint presentation.

    Args:
        path: Path of the document.
        limits: Limits on the size of the document.
        main_type: Content type of the main file, which every document of this kind contains.
        types: Content types of the files that contain texts, as regular expressions, in the order of the texts.
        kind: Name of this kind of document, for error messages.

    Raises:
        DocumentError: The document is damaged, encrypted, too large, or of another type, or it may contain macros.
        MissingPackageError: lxml is not installed.
    """
    package = OfficePackage(path, limits)
    if _TYPES_FILE not in package.names:
        raise DocumentError(f"the file is not a {kind}")
    declared = _content_types(package.names, package.read_xml(_TYPES_FILE).root)
    if any("macroEnabled" in content_type or "vbaProject" in content_type for content_type in declared.values()):
        raise DocumentError("the document's type allows macros; save it in a format without macros")
    if main_type not in declared.values():
        raise DocumentError(f"the file is not a {kind}")
    files = {
        name: package.read_xml(name)
        for wanted in types
        for name in sorted(
            (name for name, content_type in declared.items() if re.fullmatch(wanted, content_type)), key=_in_order
        )
    }
    if any(str(file.root.tag).startswith(_STRICT) for file in files.values()):
        raise DocumentError(
            f"the {kind} uses the Strict Open XML variant", hint="save it as an ordinary .docx or .pptx file"
        )
    paragraphs = [paragraph for file in files.values() for paragraph in office_paragraphs(file.root)]

    def write(translations: Sequence[str], target: Path) -> None:
        remaining = iter(translations)
        for paragraph in paragraphs:
            paragraph.fill(remaining)
        package.write({name: file.to_bytes() for name, file in files.items()}, target)

    return DocumentContent([text.source for paragraph in paragraphs for text in paragraph.texts], write)


def _in_order(name: str) -> tuple[list[int], str]:
    """Return a sort key that puts slide2 before slide10."""
    return [int(digits) for digits in re.findall(r"\d+", name)], name


def _content_types(names: Iterable[str], root: _Element) -> dict[str, str]:
    """Return the content type of each file: its Override if it has one, otherwise the Default for its extension.

    Names and extensions are case-insensitive (ISO/IEC 29500-2, 7.2.3).
    """
    defaults: dict[str, str] = {}
    overrides: dict[str, str] = {}
    for entry in root:
        content_type = entry.get("ContentType", "")
        if local_name(entry) == "Override":
            overrides[entry.get("PartName", "").removeprefix("/").lower()] = content_type
        elif local_name(entry) == "Default":
            defaults[entry.get("Extension", "").lower()] = content_type
    return {name: overrides.get(name.lower(), defaults.get(name.rpartition(".")[2].lower(), "")) for name in names}
