"""The file with the result of a chunk: a line of JSON that describes it, then the output.

{"lines": 4096, "failed": 1, "bytes": 240113, "blake2b": "9f…", "counts": {"repetitive": 3}, "host": "n17", …}
erste Zeile
…
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any


class DamagedResultError(ValueError):
    """The file of a result is incomplete, or its content differs from its checksum."""


@dataclass(frozen=True)
class ChunkResult:
    """The result of a chunk, which depends on nothing but the job and the chunk.

    Attributes:
        output: The output for all lines of the chunk.
        num_lines: Number of lines of the chunk.
        failures: For each failed line, its number in its file and the reason.
        counts: What the operation has counted, such as lines to look at.
    """

    output: bytes
    num_lines: int
    failures: tuple[tuple[int, str], ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def checksum(self) -> str:
        """The BLAKE2b hash of the output, in hexadecimal."""
        return hashlib.blake2b(self.output, digest_size=20).hexdigest()

    def encode(self, about: dict[str, Any]) -> bytes:
        """Return the content of the file. ``about`` describes the worker."""
        header = {
            "lines": self.num_lines,
            "failed": len(self.failures),
            "bytes": len(self.output),
            "blake2b": self.checksum,
            "counts": self.counts,
            **about,
        }
        return json.dumps(header, ensure_ascii=False).encode() + b"\n" + self.output


def read_header(content: bytes) -> dict[str, Any]:
    """Return the description of a result, given the content of its file or its beginning.

    Raises:
        DamagedResultError: It is incomplete.
    """
    line, newline, _ = content.partition(b"\n")
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not newline or not isinstance(header, dict) or "blake2b" not in header:
        raise DamagedResultError("its first line is damaged")
    return header


def decode(content: bytes, *, verify: bool = False) -> tuple[dict[str, Any], bytes]:
    """Return the description of a result, and its output.

    Raises:
        DamagedResultError: It is incomplete, or with ``verify``, its checksum differs.
    """
    header = read_header(content)
    output = content[content.index(b"\n") + 1 :]
    if len(output) != header["bytes"]:
        raise DamagedResultError(f"it has {len(output):,} bytes instead of {header['bytes']:,}")
    if verify and hashlib.blake2b(output, digest_size=20).hexdigest() != header["blake2b"]:
        raise DamagedResultError("its content differs from its checksum")
    return header, output
