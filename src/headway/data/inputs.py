"""What decides what is made of files: hashes of their contents, without reading them again at each start.

The hash of a file is remembered with its size and the time of its last change; while both are the same, so is the
content. A file that changed within two seconds before it was hashed may change again without another time, so its hash
is not trusted later.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

from headway.errors import DataError
from headway.storage import atomic_write

__all__ = ["ContentHashes", "fingerprint"]

_SETTLED_NS = 2_000_000_000  # no file system in use keeps times coarser than that


def fingerprint(*parts: object) -> str:
    """A hash of whatever has the same ``repr`` on every machine."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=20).hexdigest()


class ContentHashes:
    """Hashes of files' contents, remembered in the JSON file ``memory``."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        try:
            known = json.loads(memory.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        self._known: dict[str, object] = known if isinstance(known, dict) else {}

    def of(self, path: Path) -> str:
        """The hash of the content of ``path``, in hexadecimal."""
        try:
            place, state = str(path.resolve()), path.stat()
            entry = self._known.get(place)
            if isinstance(entry, list) and entry[:2] == [state.st_size, state.st_mtime_ns]:
                return str(entry[2])
            settled = time.time_ns() - state.st_mtime_ns > _SETTLED_NS
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); expected a corpus file") from None
        if settled:
            self._known[place] = [state.st_size, state.st_mtime_ns, digest]
            with atomic_write(self._memory) as aside:
                aside.write_text(json.dumps(self._known, indent=2) + "\n", encoding="utf-8")
        return digest
