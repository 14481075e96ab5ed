"""The result file of a chunk: a header, which is one line of JSON, and the output.

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
    """A result file is incomplete, or its content does not match its checksum."""


@dataclass(frozen=True)
class ChunkResult:
    """The result of a chunk, which depends only on the job and the chunk.

    Attributes:
        output: The output for all lines of the chunk.
        num_lines: Number of lines in the chunk.
        failures: Line number in the file and reason of each failed line.
        counts: The operation's own counts by name, such as the number of repetitive lines.
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
        """Return the content of the result file. ``about`` describes the worker, and is added to the header."""
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
    """Return the header of a result file, given its content or the beginning of its content.

    Raises:
        DamagedResultError: The header is incomplete or damaged.
    """
    line, newline, _ = content.partition(b"\n")
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not newline or not isinstance(header, dict) or "blake2b" not in header:
        raise DamagedResultError("its first line is damaged")
    return header


def decode_result(content: bytes, *, verify: bool = False) -> tuple[dict[str, Any], bytes]:
    """Return the header and the output of a result file.

    Raises:
        DamagedResultError: The file is incomplete or, if ``verify``, the output does not match its checksum.
    """
    header = read_header(content)
    output = content[content.index(b"\n") + 1 :]
    if len(output) != header["bytes"]:
        raise DamagedResultError(f"it has {len(output):,} bytes instead of {header['bytes']:,}")
    if verify and hashlib.blake2b(output, digest_size=20).hexdigest() != header["blake2b"]:
        raise DamagedResultError("its content does not match its checksum")
    return header, output
