"""OpenDocument Text (.odt): paragraphs, headings, lists, tables, headers, footers, notes, comments and text boxes.

Formatting, links, fields, pictures, bookmarks and tracked changes are kept. Deleted text in tracked changes is not
translated. Tabs and line breaks separate texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headway.documents.content import DocumentContent, DocumentError, ReadingOptions
from headway.documents.mixed_content import InlineElement, MixedContent, fill_all
from headway.documents.office_package import OfficePackage
from headway.documents.safe_xml import local_name

if TYPE_CHECKING:
    from lxml.etree import _Element

_MIME_TYPE = b"application/vnd.oasis.opendocument.text"
_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns"
_TEXT, _OFFICE = f"{{{_NAMESPACE}:text:1.0}}", f"{{{_NAMESPACE}:office:1.0}}"
_PARAGRAPHS = (f"{_TEXT}p", f"{_TEXT}h")
_PAIRS = {f"{_TEXT}{name}" for name in ("span", "a", "meta", "meta-field")}
_BREAKS = {f"{_TEXT}tab", f"{_TEXT}line-break"}
_RANGE_NAMES = (f"{_TEXT}name", f"{_TEXT}change-id", f"{_TEXT}id", f"{_OFFICE}name")
_NOT_VISIBLE = {f"{_TEXT}{name}" for name in ("note", "ruby", "script", "hidden-text", "hidden-paragraph")}


def read_odt(path: Path, options: ReadingOptions) -> DocumentContent:
    """Read an OpenDocument Text file.

    Raises:
        DocumentError: The document is damaged, encrypted, too large, or of another type.
        MissingPackageError: lxml is not installed.
    """
    package = OfficePackage(path, options.limits)
    if "mimetype" not in package.names or package.read("mimetype").strip() != _MIME_TYPE:
        raise DocumentError("the file is not an OpenDocument Text file")
    if b"encryption-data" in package.read("META-INF/manifest.xml"):
        raise DocumentError("the document is encrypted; save it without a password")
    files = {name: package.read_xml(name) for name in ("content.xml", "styles.xml") if name in package.names}
    contents = [
        MixedContent(element, _classify, has_layout=True)
        for file in files.values()
        for element in _paragraphs(file.root)
    ]

    def write(translations: Sequence[str], target: Path) -> None:
        fill_all(contents, translations)
        package.write({name: file.to_bytes() for name, file in files.items()}, target)

    return DocumentContent([text.source for content in contents for text in content.texts], write)


def _paragraphs(root: _Element) -> Iterator[_Element]:
    deleted = {
        paragraph for changes in root.iter(f"{_TEXT}tracked-changes") for paragraph in changes.iter(*_PARAGRAPHS)
    }
    return (paragraph for paragraph in root.iter(*_PARAGRAPHS) if paragraph not in deleted)


def _classify(element: _Element) -> InlineElement:
    tag, name = element.tag, local_name(element)
    if tag in _PAIRS:
        return InlineElement("pair")
    if tag in _BREAKS:
        return InlineElement("break")
    if tag == f"{_TEXT}s":
        return InlineElement("space")
    if tag == f"{_OFFICE}annotation" and element.get(_OFFICE + "name"):
        return InlineElement("start", ("annotation", element.get(_OFFICE + "name")))
    kind, _, end = name.rpartition("-")
    if end in ("start", "end"):
        key = next(filter(None, map(element.get, _RANGE_NAMES)), None)
        return InlineElement("start" if end == "start" else "end", (kind, key))
    is_visible = str(tag).startswith(_TEXT) and tag not in _NOT_VISIBLE
    has_paragraphs = next(element.iter(*_PARAGRAPHS), None) is not None
    return InlineElement("keep" if is_visible and not has_paragraphs else "object")
