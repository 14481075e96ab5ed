"""Safely open office documents (zip archives of XML files), and write them with changed files.

Encrypted documents, macros, damaged archives and zip bombs are refused. (Zip bombs are detected by their total size,
number of files and compression ratio.)
"""

from __future__ import annotations

import lzma
import re
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from headway.documents.content import DocumentError, DocumentLimits
from headway.documents.safe_xml import XmlFile, parse_xml

_OLE = b"\xd0\xcf\x11\xe0"  # signature of the container that encrypted documents and the formats before 2007 use
_MACROS = re.compile(r"(?:.*/)?vbaProject\.bin|(?:.*/)?vbaData\.xml|Basic/.+|Scripts/.+", re.IGNORECASE)
_DAMAGED = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError, ValueError)
_PARSED = (".xml", ".rels")  # extensions of files that are read into memory; their compression ratio is limited
_RATIO_BYTES = 1 << 20  # smaller files may have any compression ratio


class OfficePackage:
    """A zip archive whose files have been checked.

    Raises:
        DocumentError: The archive is refused.
    """

    def __init__(self, path: Path, limits: DocumentLimits) -> None:
        self._path, self._limits = path, limits
        with path.open("rb") as file:
            if file.read(len(_OLE)) == _OLE:
                raise DocumentError(
                    "the document is encrypted, or in a format from before 2007; save it without a password"
                )
        try:
            with zipfile.ZipFile(path) as archive:
                self._files = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
            raise DocumentError("the file is not an office document, or it is damaged (no valid zip archive)") from None
        self._check()

    @property
    def names(self) -> list[str]:
        """The names of the files in the archive."""
        return [info.filename for info in self._files]

    def read(self, name: str) -> bytes:
        """Return the content of a file. Raises :class:`DocumentError` if it is missing or damaged."""
        try:
            with zipfile.ZipFile(self._path) as archive:
                info = archive.getinfo(name)
                with archive.open(info) as file:
                    return file.read(info.file_size)  # the declared size limits how much is decompressed
        except KeyError:
            raise DocumentError(f"the document has no file {name}") from None
        except (*_DAMAGED, OSError):
            raise DocumentError("the file is damaged", where=name) from None

    def read_xml(self, name: str) -> XmlFile:
        """Parse an XML file of the archive. Raises the same exceptions as :meth:`read` and :func:`parse_xml`."""
        return parse_xml(self.read(name), self._limits, name)

    def write(self, changed: Mapping[str, bytes], target: Path) -> None:
        """Write the document with changed files, given by name.

        Raises:
            DocumentError: One of the other files is damaged.
        """
        try:
            with zipfile.ZipFile(self._path) as archive, zipfile.ZipFile(target, "w") as written:
                for info in self._files:
                    copy = zipfile.ZipInfo(info.filename, info.date_time)
                    copy.compress_type, copy.external_attr = info.compress_type, info.external_attr
                    if (data := changed.get(info.filename)) is not None:
                        written.writestr(copy, data)
                    else:
                        with archive.open(info) as source, written.open(copy, "w") as file:
                            shutil.copyfileobj(source, file)
        except _DAMAGED:
            raise DocumentError("a file of the document is damaged") from None

    def _check(self) -> None:
        limits, names = self._limits, self.names
        if len(names) > limits.files:
            raise DocumentError(f"the document has {len(names):,} files", accepted=f"at most {limits.files:,}")
        if len(set(names)) < len(names):
            raise DocumentError("the document is damaged, because two of its files have the same name")
        total = sum(info.file_size for info in self._files)
        if total > limits.unpacked_bytes:
            raise DocumentError(
                f"the unpacked document has {total:,} bytes", accepted=f"at most {limits.unpacked_bytes:,}"
            )
        for info in self._files:
            if info.flag_bits & 1:
                raise DocumentError("the document is encrypted; save it without a password")
            if _MACROS.fullmatch(info.filename):
                raise DocumentError("the document contains macros; save it in a format without macros")
            is_parsed = info.filename.lower().endswith(_PARSED)
            if is_parsed and info.file_size > max(_RATIO_BYTES, limits.compression_ratio * info.compress_size):
                ratio = info.file_size // max(1, info.compress_size)
                raise DocumentError(
                    f"a file is compressed by a factor of {ratio:,}",
                    where=info.filename,
                    accepted=f"at most {limits.compression_ratio:,}",
                )
