"""Parse untrusted XML without custom entities, document types or network access, and with bounded depth."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING

from headway.documents.content import DocumentError, DocumentLimits
from headway.errors import MissingPackageError

if TYPE_CHECKING:
    from lxml.etree import _Element

_DECLARATION = re.compile(rb"(?:\xef\xbb\xbf)?(?:<\?xml\s[^>]*\?>)?\s*")
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class XmlFile:
    """A parsed XML file.

    Attributes:
        root: The root element.
        encoding: The encoding in which the file is written.
        declaration: The XML declaration before the content, or empty. None if the encoding is not kept.
        trailing_space: The white space at the end.
    """

    root: _Element
    encoding: str
    declaration: bytes | None
    trailing_space: bytes

    def to_bytes(self) -> bytes:
        """Serialize the file with the current content of the root element."""
        from lxml import etree

        tree = self.root.getroottree()
        content: bytes = etree.tostring(tree, encoding=self.encoding, xml_declaration=self.declaration is None)
        return content if self.declaration is None else self.declaration + content.lstrip() + self.trailing_space


def parse_xml(data: bytes, limits: DocumentLimits, where: str | None = None) -> XmlFile:
    """Parse XML.

    Args:
        data: The bytes of the file.
        limits: Limits on the size of the file.
        where: Name of the file inside a package, for error messages.

    Raises:
        DocumentError: The XML is too large, is not valid, or has a document type, which could define entities.
        MissingPackageError: lxml is not installed.
    """
    try:
        from lxml import etree
    except ImportError:
        raise MissingPackageError("translating this document", "lxml") from None
    if len(data) > limits.xml_bytes:
        raise DocumentError(f"the XML has {len(data):,} bytes", where=where, accepted=f"at most {limits.xml_bytes:,}")
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, strip_cdata=False
    )
    try:
        tree = etree.parse(BytesIO(data), parser)
    except etree.XMLSyntaxError as error:
        reason = " ".join(str(error.msg).split())  # the message may contain line breaks
        raise DocumentError(f"the XML is not valid ({reason})", where=where) from None
    info = tree.docinfo
    if info.doctype or info.internalDTD is not None:
        raise DocumentError("the XML has a document type, which is refused because it can define entities", where=where)
    encoding = (info.encoding or "UTF-8").upper()
    start = _DECLARATION.match(data)
    if start is None or not encoding.startswith(("UTF-8", "US-ASCII", "ISO-8859")):
        return XmlFile(tree.getroot(), "UTF-8", None, b"")
    return XmlFile(tree.getroot(), encoding, start.group(), data[len(data.rstrip()) :])


def local_name(element: _Element) -> str:
    """Return the name of an element without its namespace, or "" for comments and processing instructions."""
    tag = element.tag
    return _without_namespace(tag) if isinstance(tag, str) else ""


@lru_cache(maxsize=1000)
def _without_namespace(tag: str) -> str:
    return tag.rpartition("}")[2]


def remove_invalid_characters(text: str) -> str:
    """Return a text without the characters that XML cannot contain."""
    return _NOT_XML.sub("", text)
