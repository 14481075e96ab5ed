"""Read inputs in chunks of whole lines.

Lines end in ``\\n`` or ``\\r\\n``, as in :mod:`headway.data.readers`. The last line may lack a line end, and a byte
order mark at the start of a file is skipped.
"""

from __future__ import annotations

import codecs
import hashlib
from pathlib import Path

import zstandard

from headway.data.readers import read_content
from headway.errors import DataError

_READ_BYTES = 1 << 20


class LineStream:
    """Reads whole lines from a file, which is decompressed if necessary.

    Args:
        path: The file to read.

    Attributes:
        hash: Hash of the decompressed content read so far.
        bom_bytes: Size of the byte order mark in bytes, or 0.
    """

    def __init__(self, path: Path) -> None:
        self.hash = hashlib.blake2b(digest_size=20)
        self._blocks = read_content(path)
        self._content = bytearray()
        self._is_read = False
        self._read_more()
        self.bom_bytes = len(codecs.BOM_UTF8) if self._content.startswith(codecs.BOM_UTF8) else 0
        del self._content[: self.bom_bytes]

    def take(self, max_lines: int, max_bytes: int | None = None) -> bytes:
        """Return the next ``max_lines`` lines, or fewer lines if these already have ``max_bytes`` or more.

        At the end of the file, the remaining lines are returned, and after it, no lines.
        """
        end = _lines_end(self._content, max_lines, max_bytes)
        while end is None and not self._is_read:
            self._read_more()
            end = _lines_end(self._content, max_lines, max_bytes)
        taken = bytes(self._content if end is None else self._content[:end])
        del self._content[: len(taken)]
        return taken

    def _read_more(self) -> None:
        wanted = max(_READ_BYTES, len(self._content))  # doubles the buffer, so that reading a long chunk is linear
        size = len(self._content) + wanted
        while len(self._content) < size:
            block = next(self._blocks, None)
            if block is None:
                self._is_read = True
                return
            self.hash.update(block)
            self._content += block


def _lines_end(content: bytearray, max_lines: int, max_bytes: int | None) -> int | None:
    """Return the offset at which the lines to take end, or None if more content must be read to find it."""
    limit = len(content)
    if max_bytes is not None:
        newline = content.find(b"\n", max_bytes - 1)
        limit = newline + 1 if newline >= 0 else limit
        if content.count(b"\n", 0, limit) <= max_lines and newline >= 0:
            return limit
    if content.count(b"\n", 0, limit) < max_lines:
        return None
    end = 0
    for _ in range(max_lines):
        end = content.index(b"\n", end) + 1
    return end


def count_lines(content: bytes) -> int:
    """Return the number of lines, including a last line without a line end."""
    return content.count(b"\n") + (not content.endswith(b"\n") and bool(content))


def split_lines(content: bytes) -> list[bytes]:
    """Return the lines of a chunk without line ends."""
    if not content:
        return []
    lines = content.removesuffix(b"\n").split(b"\n")
    return [line.removesuffix(b"\r") for line in lines] if b"\r" in content else lines


def chunk_digest(content: bytes) -> int:
    """Return a 63-bit hash, by which workers detect that an input has changed."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


def read_range(path: Path, offset: int, size: int, *, is_frame: bool) -> bytes:
    """Return the content of a byte range of a file. If ``is_frame``, the range is a Zstandard frame to decompress.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(size)
        return zstandard.ZstdDecompressor().decompress(content) if is_frame else content
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; restore it, because it is an input of the job") from None
    except zstandard.ZstdError as error:
        raise DataError(f"{path}: damaged at byte {offset:,} ({error})") from None
