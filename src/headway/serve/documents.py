"""Documents that clients upload. They are translated as bulk jobs, and their results are fetched later.

Documents are read and written in separate processes, so that a malformed document can crash only such a process. They
are stored in a temporary folder, belong to the key that uploaded them, and are deleted after some time.
"""

from __future__ import annotations

import asyncio
import html
import json
import logging
import math
import re
import secrets
import shutil
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.documents import DocumentError, DocumentLimits, DocumentText, document_format
from headway.documents.content import ReadingOptions
from headway.documents.formats import DocumentFormat
from headway.documents.isolated import SOURCE, TARGET, DocumentSize, read_isolated, write_isolated
from headway.documents.translation import MARKUP_BY_SYNTAX
from headway.errors import HeadwayError
from headway.predict import Source, TranslateOptions, Translation
from headway.serve.bulk_jobs import BulkJob, BulkWork
from headway.serve.clients import Client
from headway.serve.errors import (
    DocumentNotDoneError,
    DocumentsFullError,
    UnknownDictionaryError,
    UnknownDocumentError,
    UnknownLanguageError,
)
from headway.serve.glossaries import StoredGlossary
from headway.serve.service import Service
from headway.serve.turns import FairSemaphore
from headway.storage import TemporaryFolder
from headway.text.languages import base_language

_log = logging.getLogger("headway.serve")
_FOLDER = "headway-documents-"
_DETECTED_CHARACTERS = 10_000
_MAX_PROCESSES = 2  # maximum number of processes that read or write documents at a time
_PROCESSOR_S = 20  # CPU time limit of each of these processes
_RETRY_S = 60
_MAX_NAME = 200  # characters
_MAX_EXAMPLES = 20
_EXAMPLE_CHARACTERS = 100
_TAG = re.compile(r"<[^<>]*>")
_EMPTY_TAG = re.compile(r"<(?:(?:br|img)\b[^<>]*|[^<>]*/)>")
_SYNTAX_LETTERS = {
    syntax[0]: syntax for syntax in MARKUP_BY_SYNTAX
}  # the first letter of a job's text encodes its syntax


@dataclass
class DocumentWarning:
    """A kind of warning about the translation of a document, and the affected texts.

    Attributes:
        kind: A flag (see :mod:`headway.predict.translation.quality`), "unlikely" (see
            :mod:`headway.predict.translation.calibration`), "glossary" (an entry is not satisfied), or "failed" (the
            text is not translated).
        num_texts: Number of affected texts.
        examples: The beginnings of the first affected texts.
    """

    kind: str
    num_texts: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(eq=False)
class ServedDocument:
    """An uploaded document and the state of its translation.

    Attributes:
        id: Unique id of the document.
        secret: A random string that only the client receives, for APIs that require one.
        owner: Name of the key that uploaded the document.
        name: Name of the uploaded file.
        format: Format of the document.
        folder: Folder that contains the source and target files.
        num_bytes: Size of the source file.
        seconds: Time for which the result is kept.
        source_language: The language to translate from.
        num_characters: Number of characters that were counted for the quota.
        job: The bulk job that translates the document's texts.
        created: Time of the upload, in seconds since 1970.
        ended: Time at which the translation ended, or None.
        error: The reason for the failure, or None.
        warnings: Possible errors in the finished translation.
        was_fetched: Whether the client has fetched the result.
        finished: Set when the translation has ended or the document has been removed.
        writing: The task that waits for the translations and writes the target file.
        expiry: The timer that deletes the document some time after its end.
    """

    id: str
    secret: str
    owner: str
    name: str
    format: DocumentFormat
    folder: Path
    num_bytes: int
    seconds: float
    source_language: str = ""
    num_characters: int = 0
    job: BulkJob | None = None
    created: float = field(default_factory=time.time)
    ended: float | None = None
    error: str | None = None
    warnings: list[DocumentWarning] = field(default_factory=list)
    was_fetched: bool = False
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    writing: asyncio.Task[None] | None = None
    expiry: asyncio.TimerHandle | None = None

    @property
    def status(self) -> str:
        """The status of the document: waiting, running, done or failed."""
        if self.ended is not None:
            return "done" if self.error is None else "failed"
        return "running" if self.num_done or (self.job is not None and self.job.num_started) else "waiting"

    @property
    def num_texts(self) -> int:
        """The number of texts in the document, or 0 before it has been read."""
        return 0 if self.job is None else self.job.num_texts

    @property
    def num_done(self) -> int:
        """The number of translated texts."""
        return 0 if self.job is None else self.job.num_done

    @property
    def expires(self) -> float | None:
        """The time at which the document is deleted, in seconds since 1970, or None before the translation ends."""
        return None if self.ended is None else self.ended + self.seconds

    def fetch(self) -> Path:
        """Return the path of the translated document, and mark the document as fetched.

        Raises:
            DocumentNotDoneError: The translation has not finished or has failed.
        """
        if self.status != "done":
            raise DocumentNotDoneError(self.status if self.error is None else f"{self.status}: {self.error}")
        self.was_fetched = True
        return self.folder / TARGET


class ServedDocuments:
    """The documents that clients of a service have uploaded."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._documents: dict[str, ServedDocument] = {}
        self._turns = FairSemaphore(_MAX_PROCESSES)
        self._folder: TemporaryFolder | None = None
        TemporaryFolder.remove_abandoned(_FOLDER)

    async def add(
        self,
        client: Client,
        name: str,
        data: bytes,
        source: str,
        target: str,
        model: str | None = None,
        glossary: StoredGlossary | None = None,
        *,
        encoding: str | None = None,
        text_syntax: str | None = None,
    ) -> ServedDocument:
        """Read a document, count all its characters, and start translating it.

        If the client already has the maximum number of documents, the oldest document whose result was fetched is
        deleted.

        Args:
            client: The client that uploads the document.
            name: Name of the file. Its extension determines the format.
            data: Content of the file.
            source: Language of the document, or "auto" to detect it.
            target: Language to translate into.
            model: Name of the model to use. None means the first model for the languages.
            glossary: Glossary to apply. If the language is detected and the glossary has no dictionary for it, the
                glossary has no effect.
            encoding: Encoding of a text file, unless the file declares it.
            text_syntax: For XLIFF: "html" if its texts contain escaped HTML, otherwise "plain". None means that the
                file declares it.

        Raises:
            ConfigError: The encoding or syntax is unknown.
            DocumentsFullError: The client has too many documents.
            DocumentError: The document cannot be read.
            HeadwayError: The model cannot apply the glossary.
            UnknownDictionaryError: The glossary has no dictionary for the languages.
            UnknownLanguageError: No model translates this pair of languages.
            UnknownModelError: No translation model has this name.
            JobsFullError, QuotaExceededError, TooLargeError: See :meth:`Service.add_job`.
        """
        file_bytes = self._service.config.limits.document_bytes
        limits = DocumentLimits(file_bytes=file_bytes, processor_s=_PROCESSOR_S)
        reading = ReadingOptions.parse({"limits": limits, "encoding": encoding, "text_syntax": text_syntax}, "document")
        document = self._new(client, name, len(data))
        try:
            document.folder.mkdir(mode=0o700, parents=True)  # the system may have deleted the temporary folder
            await asyncio.to_thread((document.folder / SOURCE).write_bytes, data)
            async with self._turn(document):
                texts = await read_isolated(document.folder, document.format.name, reading, self._check_size)
            is_detected = source == "auto"
            document.source_language = await self._language(client, texts) if is_detected else source
            languages = document.source_language, target
            work = await self._choose_work(client, bool(texts), languages, model, glossary, is_detected=is_detected)
            encoded = [text.syntax[0] + text.text for text in texts]
            document.num_characters = sum(len(text.text) for text in texts)
            document.job = self._service.add_job(client, encoded, work, characters=document.num_characters)
        except BaseException:
            self.remove(document)
            raise
        document.writing = asyncio.ensure_future(self._finish(document, document.job, texts, reading))
        return document

    def _turn(self, document: ServedDocument) -> AbstractAsyncContextManager[None]:
        """Wait for a process slot to read or write a document. With keys, one slot is reserved for other keys."""
        most = _MAX_PROCESSES - 1 if self._service.config.keys else _MAX_PROCESSES
        return self._turns.slot(document.owner, most)

    def _check_size(self, size: DocumentSize) -> None:
        self._service.sizes.check_job_size(size.num_texts, size.num_characters, size.max_characters)

    async def _choose_work(
        self,
        client: Client,
        has_texts: bool,
        languages: tuple[str, str],
        model: str | None,
        glossary: StoredGlossary | None,
        *,
        is_detected: bool,
    ) -> BulkWork:
        """Return a function that translates the texts of a document, if there is a suitable model.

        Raises the same exceptions as :meth:`add`.
        """
        source, target = languages
        if is_detected and base_language(target) == base_language(source):
            return _unchanged
        if has_texts or not is_detected:
            try:
                direction = self._service.find_direction(source, target, model)
            except UnknownLanguageError as error:
                raise error.at_text(0, 1) if is_detected else error from None
            if glossary is not None:
                try:
                    dictionary = glossary.dictionary(direction.source, direction.target)
                except UnknownDictionaryError:
                    if not is_detected:
                        raise
                    glossary = None
                else:
                    await self._service.check_dictionaries(client.name, [(dictionary, direction.model)])
        return self._work(client, source, target, model, glossary)

    def get(self, owner: str, identifier: str) -> ServedDocument:
        """Return the document with this id.

        Raises:
            UnknownDocumentError: No document has this id, or the document has another owner.
        """
        document = self._documents.get(identifier)
        if document is None or document.owner != owner:
            raise UnknownDocumentError(identifier)
        return document

    def find_by_secret(self, secret: str) -> ServedDocument:
        """Return the document with this secret. Raises :class:`UnknownDocumentError` if there is none."""
        for document in self._documents.values():
            if secrets.compare_digest(document.secret.encode(), secret.encode("utf-8", "surrogatepass")):
                return document
        raise UnknownDocumentError(secret)

    def remove(self, document: ServedDocument) -> None:
        """Cancel the translation of a document and delete its files."""
        self._documents.pop(document.id, None)
        if document.expiry is not None:
            document.expiry.cancel()
        if document.writing is not None and document.writing is not asyncio.current_task():
            document.writing.cancel()
        if document.job is not None:
            self._service.jobs.remove(document.job)
        if document.ended is None:
            document.ended, document.error = time.time(), "it was deleted"
        document.finished.set()
        shutil.rmtree(document.folder, ignore_errors=True)

    def close(self) -> None:
        """Delete all documents."""
        for document in list(self._documents.values()):
            self.remove(document)
        self.delete_files()

    def delete_files(self) -> None:
        """Delete the files of all documents without canceling translations, when the process is about to exit."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def _new(self, client: Client, name: str, num_bytes: int) -> ServedDocument:
        format_, limits = document_format(name), self._service.config.limits
        documents = [document for document in self._documents.values() if document.owner == client.name]
        if len(documents) >= limits.documents:
            oldest = next((document for document in documents if document.was_fetched), None)
            if oldest is None:
                ends = [document.expires - time.time() for document in documents if document.expires is not None]
                raise DocumentsFullError(max(1, math.ceil(min(ends, default=_RETRY_S))))
            self.remove(oldest)
        if self._folder is None:
            self._folder = TemporaryFolder(_FOLDER)
        identifier = str(uuid.uuid4())
        document = ServedDocument(
            id=identifier,
            secret=secrets.token_hex(32),
            owner=client.name,
            name=_file_name(name),
            format=format_,
            folder=self._folder.path / identifier,
            num_bytes=num_bytes,
            seconds=limits.job_seconds,
        )
        self._documents[identifier] = document
        return document

    async def _language(self, client: Client, texts: Sequence[DocumentText]) -> str:
        """Detect the language of a document from its beginning."""
        beginning, size = list[str](), 0
        most = min(_DETECTED_CHARACTERS, self._service.config.limits.characters)
        for text in texts:
            beginning.append(_remove_tags(text))
            size += len(text.text)
            if size > most:
                break
        (detected,) = await self._service.detect(client, ["\n".join(beginning)[:most]], is_counted=True)
        return detected.code

    def _work(
        self, client: Client, source: str, target: str, model: str | None, glossary: StoredGlossary | None
    ) -> BulkWork:
        """Return a function that translates texts of a document, each of which begins with the letter of its syntax."""
        background = client.for_background_job()

        async def work(encoded: Sequence[str]) -> list[bytes]:
            results: dict[int, bytes] = {}
            for letter, syntax in _SYNTAX_LETTERS.items():
                numbers = [number for number, text in enumerate(encoded) if text[0] == letter]
                if not numbers:
                    continue
                sources = [Source(encoded[number][1:], split_sentences=True) for number in numbers]
                translations, _ = await self._service.translate(
                    background,
                    sources,
                    source,
                    target,
                    model,
                    glossary,
                    TranslateOptions(markup=MARKUP_BY_SYNTAX[syntax]),
                )
                for number, translation in zip(numbers, translations, strict=True):
                    results[number] = json.dumps(_summarize_translation(translation)).encode()
            return [results[number] for number in range(len(encoded))]

        return work

    async def _finish(
        self, document: ServedDocument, job: BulkJob, texts: Sequence[DocumentText], reading: ReadingOptions
    ) -> None:
        """Wait for the translations, and write the document."""
        await job.finished.wait()
        try:
            if job.error is not None:
                raise DocumentError(job.error)
            results = [json.loads(result) for result in job.results()]
            # Texts that could not be translated remain unchanged.
            translations = [result.get("text", text.text) for text, result in zip(texts, results, strict=True)]
            document.warnings = _collect_warnings(texts, results)
            async with self._turn(document):
                await write_isolated(document.folder, document.format.name, reading, translations)
        except HeadwayError as error:
            document.error = str(error)
        except OSError as error:
            _log.error("a document cannot be written: %s", error)
            document.error = "the service cannot write it"
        except Exception:
            _log.exception("a document cannot be written")
            document.error = "internal error"
        finally:
            self._service.jobs.remove(job)
        document.ended = time.time()
        with suppress(OSError):  # the system may have deleted the temporary folder
            for path in document.folder.iterdir():
                if path.name != TARGET or document.error is not None:
                    path.unlink()
        document.expiry = asyncio.get_running_loop().call_later(document.seconds, self.remove, document)
        document.finished.set()


async def _unchanged(encoded: Sequence[str]) -> list[bytes]:
    return [json.dumps({"text": text[1:], "warnings": []}).encode() for text in encoded]


def _summarize_translation(translation: Translation | HeadwayError) -> dict[str, Any]:
    """Return a dictionary with a translation's text and the kinds of its warnings, or an empty one for an error."""
    if isinstance(translation, HeadwayError):
        return {}
    kinds: list[str] = [*(["unlikely"] if translation.unlikely else []), *translation.flags]
    if any(not term.met for term in translation.glossary or ()):
        kinds.append("glossary")
    return {"text": translation.text, "warnings": kinds}


def _collect_warnings(texts: Sequence[DocumentText], results: Sequence[dict[str, Any]]) -> list[DocumentWarning]:
    """Group the warnings of all results from :func:`_summarize_translation` by kind."""
    by_kind: dict[str, DocumentWarning] = {}
    for text, result in zip(texts, results, strict=True):
        for kind in result.get("warnings", ["failed"]):
            warning = by_kind.setdefault(kind, DocumentWarning(kind))
            warning.num_texts += 1
            if len(warning.examples) < _MAX_EXAMPLES:
                example = " ".join(_remove_tags(text).split())
                is_long = len(example) > _EXAMPLE_CHARACTERS
                warning.examples.append(f"{example[: _EXAMPLE_CHARACTERS - 1]}…" if is_long else example)
    return list(by_kind.values())


def _remove_tags(text: DocumentText) -> str:
    """Return a text without markup. Line breaks, images and self-closing tags become spaces."""
    return text.text if text.syntax == "plain" else html.unescape(_TAG.sub("", _EMPTY_TAG.sub(" ", text.text)))


def _file_name(name: str) -> str:
    """Return the last part of a path. Characters that a header or a URL cannot contain are replaced."""
    last = re.split(r"[/\\]", name)[-1]
    return re.sub(r"[^\w.() -]", "_", last)[-_MAX_NAME:]
