"""The result of reading a document: its texts, and a function that writes the translated document."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from headway.config import Config
from headway.documents.encodings import likely_encodings, python_codec_name
from headway.errors import DataError

TextSyntax = Literal["plain", "html", "tagged"]


@dataclass(frozen=True)
class DocumentText:
    """A text in a document: a paragraph, a table cell, a subtitle or a message.

    Attributes:
        text: The text to translate.
        syntax: "plain"; "html"; or "tagged", which is text with the inline tags of
            :mod:`headway.documents.inline_tags`. Translations must have the same syntax.
    """

    text: str
    syntax: TextSyntax = "plain"


class DocumentLimits(Config):
    """Limits on documents. A document that exceeds a limit is refused.

    Attributes:
        file_bytes: Maximum size of a document file.
        unpacked_bytes: Maximum size of an office document after unpacking.
        xml_bytes: Maximum size of an XML file in an office document.
        files: Maximum number of files in an office document.
        compression_ratio: Maximum compression ratio of an XML file in an office document.
        processor_s: Maximum processor time to read a document, and also to write it, in seconds.
    """

    file_bytes: int = 64 << 20
    unpacked_bytes: int = 512 << 20
    xml_bytes: int = 64 << 20
    files: int = 10_000
    compression_ratio: int = 200
    processor_s: float = 300


DEFAULT_LIMITS = DocumentLimits()


class ReadingOptions(Config):
    """Options for reading a document."""

    limits: DocumentLimits = Field(DEFAULT_LIMITS, description="Larger documents are refused.")
    encoding: str | None = Field(
        None,
        description="Encoding of a text file. By default, the encoding that the file declares, or UTF-8 if it "
        "declares none.",
    )
    text_syntax: Literal["plain", "html"] | None = Field(
        None,
        description="XLIFF: whether the texts are escaped HTML. By default, this is declared in the file or detected.",
    )

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, name: str | None) -> str | None:
        if name is not None and python_codec_name(name) is None:
            raise ValueError(f"unknown encoding {name!r}; examples: windows-1252, iso-8859-2, shift_jis")
        return name


DEFAULT_READING_OPTIONS = ReadingOptions()
TIMEOUT_MESSAGE = "the document takes too long to process"


class DocumentError(DataError):
    """A document cannot be read: it is damaged, encrypted, too large, or its format is not supported."""


class UnknownEncodingError(DocumentError):
    """A text file is not in the encoding that it declares, or not in UTF-8 if it declares none.

    Attributes:
        likely_encodings: The encodings that the file may have, the most probable one first.
    """

    def __init__(self, what: str, likely: Sequence[str]) -> None:
        self.likely_encodings = tuple(likely)
        names = f"it may be {' or '.join(likely)}; " if likely else ""
        super().__init__(what, hint=f"{names}convert it to UTF-8")


@contextmanager
def limit_processor_time(limits: DocumentLimits) -> Iterator[None]:
    """Limit the processor time of the ``with`` block to ``limits.processor_s``.

    The limit needs a signal, which only the main thread of a process can receive. In other threads, and on systems
    without this signal (Windows), the time is not limited.

    Raises:
        DocumentError: The block has used up its processor time.
    """
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return

    def end(*_: object) -> None:
        raise DocumentError(TIMEOUT_MESSAGE, accepted=f"at most {limits.processor_s:g} s of processor time")

    previous = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, limits.processor_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


@dataclass(frozen=True)
class DocumentContent:
    """The content of a document.

    Attributes:
        texts: The texts to translate, in reading order if the format defines one.
        write: Writes a copy of the document in which each text is replaced by its translation.
    """

    texts: Sequence[DocumentText]
    write: Callable[[Sequence[str], Path], None]


@dataclass(frozen=True)
class EncodedText:
    """The content of a text file and its encoding.

    Attributes:
        text: The decoded characters, without a byte order mark.
        encoding: Python's name of the encoding.
        byte_order_mark: The byte order mark at the start of the file, or empty bytes.
    """

    text: str
    encoding: str
    byte_order_mark: bytes = b""

    def write(self, text: str, target: Path) -> None:
        """Write another text in the same encoding.

        Raises:
            DocumentError: The text contains a character that the encoding cannot represent.
        """
        try:
            data = text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise DocumentError(
                f"the file is encoded in {self.encoding}, which lacks the character {error.object[error.start]!r} of "
                "the translation; convert the file to UTF-8"
            ) from None
        target.write_bytes(self.byte_order_mark + data)


_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


def read_text(path: Path, encoding: str | None = None) -> EncodedText:
    """Read a text file.

    Args:
        path: Path of the text file.
        encoding: The file's encoding, unless a byte order mark declares UTF-8 or UTF-16. None means UTF-8.

    Raises:
        DocumentError: The file has another encoding, or is not a text file.
    """
    data = path.read_bytes()
    mark, name = next(((mark, name) for mark, name in _MARKS if data.startswith(mark)), (b"", encoding or "utf-8"))
    try:
        text = data[len(mark) :].decode(name)
    except UnicodeDecodeError as error:
        raise UnknownEncodingError(
            f"the file is not valid {name.upper()} (byte {error.start + len(mark):,})", likely_encodings(data)
        ) from None
    if "\0" in text:
        raise DocumentError("the file is not a text file, because it contains null characters")
    return EncodedText(text, name, mark)
