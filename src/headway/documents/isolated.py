"""Read and write documents in a separate process, with limits on memory, time and file size.

Parsers written in C can crash, and malicious documents can make them use a lot of memory or time. Such failures end
only this process, and its parent reports an error. The process loads neither a model nor PyTorch, has the lowest
priority, and ends when its parent ends.

Usage: ``python -P -m headway.documents.isolated read|write FOLDER FORMAT OPTIONS PARENT``. FOLDER contains the document
as ``source``. OPTIONS is a JSON object, and PARENT is the id of the parent process. "read" writes ``texts.json``, a
list of (syntax, text) pairs, and ``size.json``, the size of the texts. "write" reads ``translations.json``, a list of
texts, and writes ``target``. If the document is refused, ``error.json`` contains the message as a string.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from headway.config import Config
from headway.documents.content import TIMEOUT_MESSAGE, DocumentError, DocumentLimits, DocumentText, ReadingOptions
from headway.errors import HeadwayError

SOURCE, TARGET = "source", "target"
_TEXTS, _SIZE, _TRANSLATIONS, _ERROR = "texts.json", "size.json", "translations.json", "error.json"
_MEMORY_BYTES = 2 << 30
_FILE_BYTES = 1 << 30
_LOWEST_PRIORITY = 19
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_WALL_S = 300.0
_MAX_TEXT_BYTES = 64 << 20  # maximum size of a file that the parent reads


class DocumentSize(Config):
    """The size of a document's texts.

    Attributes:
        num_texts: Number of texts.
        num_characters: Number of characters of all texts together.
        max_characters: Number of characters of the longest text.
    """

    num_texts: int
    num_characters: int
    max_characters: int


async def read_isolated(
    folder: Path, format_name: str, options: ReadingOptions, check: Callable[[DocumentSize], None]
) -> list[DocumentText]:
    """Return the texts of the document ``source`` in a folder.

    Args:
        folder: The folder that contains the document.
        format_name: Name of the document's format.
        options: How the document is read.
        check: Called before the texts are read into this process. It raises an exception if there are too many texts
            or if they are too long.

    Raises:
        DocumentError: The document was refused, or the process failed.
    """
    await _run("read", folder, format_name, options)
    check(DocumentSize.model_validate_json((folder / _SIZE).read_bytes()))
    if (folder / _TEXTS).stat().st_size > _MAX_TEXT_BYTES:
        raise DocumentError("the document contains too much text")
    data = await asyncio.to_thread(lambda: json.loads((folder / _TEXTS).read_bytes()))
    return [DocumentText(text, syntax) for syntax, text in data]


async def write_isolated(folder: Path, format_name: str, options: ReadingOptions, translations: list[str]) -> None:
    """Write the document ``target`` in a folder, with the translations of the texts of ``source``.

    Raises:
        DocumentError: The document cannot be written, or the process failed.
    """
    await asyncio.to_thread(lambda: (folder / _TRANSLATIONS).write_text(json.dumps(translations), encoding="ascii"))
    await _run("write", folder, format_name, options)


async def _run(step: Literal["read", "write"], folder: Path, format_name: str, options: ReadingOptions) -> None:
    (folder / _ERROR).unlink(missing_ok=True)
    arguments = step, str(folder.absolute()), format_name, options.model_dump_json(), str(os.getpid())
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
        raise DocumentError(TIMEOUT_MESSAGE) from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if (folder / _ERROR).exists():
        raise DocumentError(json.loads((folder / _ERROR).read_bytes()))
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        raise DocumentError(TIMEOUT_MESSAGE)
    if status != 0:
        raise DocumentError("the document cannot be processed; it is damaged, or needs too much memory")


def main(step: str, folder: Path, format_name: str, options: ReadingOptions) -> None:
    """Run the step "read" or "write" in this process."""
    from headway.documents.formats import FORMATS, read_document

    try:
        content = read_document(folder / SOURCE, FORMATS[format_name], options)
        if step == "read":
            data = json.dumps([[text.syntax, text.text] for text in content.texts])
            (folder / _TEXTS).write_text(data, encoding="ascii")
            lengths = [len(text.text) for text in content.texts]
            size = DocumentSize(
                num_texts=len(lengths), num_characters=sum(lengths), max_characters=max(lengths, default=0)
            )
            (folder / _SIZE).write_text(size.model_dump_json(), encoding="ascii")
        else:
            content.write(json.loads((folder / _TRANSLATIONS).read_bytes()), folder / TARGET)
    except HeadwayError as error:
        (folder / _ERROR).write_text(json.dumps(str(error)), encoding="ascii")


def _limit_resources(limits: DocumentLimits) -> None:
    """Limit the resources of this process. Windows has no such limits, but the service does not run on Windows."""
    import resource

    os.nice(_LOWEST_PRIORITY)
    for limit, value in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CPU, math.ceil(limits.processor_s)),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (soft, soft))


def _end_with_parent(parent: int) -> None:
    """Let the system end this process when its parent ends, even if the parent is killed. Only Linux supports this."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent has already ended
            sys.exit(1)


if __name__ == "__main__":
    _end_with_parent(int(sys.argv[5]))
    options = ReadingOptions.model_validate_json(sys.argv[4])
    _limit_resources(options.limits)
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], options)
