"""Read and write documents in a separate process, with limits on memory, time and file size.

Parsers written in C can crash, and malicious documents can make them use much memory or time. Such failures end only
this process, and its parent reports an error. The process loads neither a model nor PyTorch.

Usage: ``python -P -m headway.documents.isolated read|write FOLDER FORMAT``. FOLDER contains the document as ``source``.
"read" writes ``texts.json``, a list of (syntax, text) pairs. "write" reads ``translations.json``, a list of texts, and
writes ``target``. If the document is refused, ``error.json`` contains the message as a string.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

from headway.documents.content import DocumentError, DocumentLimits, DocumentText
from headway.errors import HeadwayError

SOURCE, TARGET = "source", "target"
_TEXTS, _TRANSLATIONS, _ERROR = "texts.json", "translations.json", "error.json"
_MEMORY_BYTES = 2 << 30
_CPU_S = 120
_FILE_BYTES = 1 << 30
_WALL_S = 300.0
_MAX_TEXT_BYTES = 64 << 20  # maximum size of a file that the parent reads


async def read_isolated(folder: Path, format_name: str, limits: DocumentLimits) -> list[DocumentText]:
    """Return the texts of the document ``source`` in a folder.

    Raises:
        DocumentError: The document was refused, or the process failed.
    """
    await _run("read", folder, format_name, limits)
    if (folder / _TEXTS).stat().st_size > _MAX_TEXT_BYTES:
        raise DocumentError("the document has too much text")
    data = await asyncio.to_thread(lambda: json.loads((folder / _TEXTS).read_bytes()))
    return [DocumentText(text, syntax) for syntax, text in data]


async def write_isolated(folder: Path, format_name: str, limits: DocumentLimits, translations: list[str]) -> None:
    """Write the document ``target`` in a folder, with the translations of the texts of ``source``.

    Raises:
        DocumentError: The document cannot be written, or the process failed.
    """
    await asyncio.to_thread(lambda: (folder / _TRANSLATIONS).write_text(json.dumps(translations), encoding="ascii"))
    await _run("write", folder, format_name, limits)


async def _run(step: Literal["read", "write"], folder: Path, format_name: str, limits: DocumentLimits) -> None:
    (folder / _ERROR).unlink(missing_ok=True)
    arguments = step, str(folder.absolute()), format_name, limits.model_dump_json()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "headway.documents.isolated", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_WALL_S):
            status = await process.wait()
    except TimeoutError:
        raise DocumentError("the document takes too long to process") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if (folder / _ERROR).exists():
        raise DocumentError(json.loads((folder / _ERROR).read_bytes()))
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        raise DocumentError("the document takes too long to process")
    if status != 0:
        raise DocumentError("the document cannot be processed; it is damaged, or needs too much memory")


def main(step: str, folder: Path, format_name: str, limits: DocumentLimits) -> None:
    """Run the step "read" or "write" in this process."""
    from headway.documents.formats import FORMATS, read_document

    try:
        content = read_document(folder / SOURCE, FORMATS[format_name], limits)
        if step == "read":
            data = json.dumps([[text.syntax, text.text] for text in content.texts])
            (folder / _TEXTS).write_text(data, encoding="ascii")
        else:
            content.write(json.loads((folder / _TRANSLATIONS).read_bytes()), folder / TARGET)
    except HeadwayError as error:
        (folder / _ERROR).write_text(json.dumps(str(error)), encoding="ascii")


def _limit_resources() -> None:
    """Limit the resources of this process. Windows has no such limits, but the service does not run on Windows."""
    import resource

    for limit, value in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (soft, soft))


if __name__ == "__main__":
    _limit_resources()
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], DocumentLimits.model_validate_json(sys.argv[4]))
