"""The DeepL API for documents (https://developers.deepl.com/api-reference/document)."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from headway.documents import DocumentError
from headway.serve.apis.deepl_fields import (
    check_formality,
    check_unsupported_fields,
    optional_text,
    required_text,
    unsupported_language_error,
)
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.keys import client_of
from headway.serve.apis.request_fields import read_fields, read_upload
from headway.serve.documents import ServedDocument, ServedDocuments
from headway.serve.errors import (
    BadRequestError,
    DocumentNotDoneError,
    RefusedError,
    UnknownDocumentError,
    UnknownLanguageError,
)
from headway.serve.service import Service

DOCUMENT_PATH = "/v2/document"
_STATUSES = {"waiting": "queued", "running": "translating", "done": "done", "failed": "error"}
_CHARACTERS_PER_SECOND = 200.0  # a rough guess, because clients do not rely on the remaining time


def routes(service: Service, documents: ServedDocuments) -> list[Route]:
    """Return the routes for documents."""
    api = _Documents(service, documents)
    return [
        Route(DOCUMENT_PATH, api.upload, methods=["POST"]),
        Route(f"{DOCUMENT_PATH}/{{identifier}}", api.status, methods=["GET", "POST"]),
        Route(f"{DOCUMENT_PATH}/{{identifier}}/result", api.result, methods=["GET", "POST"]),
    ]


class _DeletingFileResponse(FileResponse):
    """A file response that calls ``delete`` after the whole file has been sent."""

    def __init__(self, path: Path, delete: Callable[[], None], **options: Any) -> None:
        super().__init__(path, **options)
        self._delete = delete

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        is_sent = False

        async def watched_send(message: Message) -> None:
            nonlocal is_sent
            await send(message)
            is_sent = message["type"] == "http.response.body" and not message.get("more_body", False)

        await super().__call__(scope, receive, watched_send)
        is_part = scope["method"] == "HEAD" or "range" in Headers(scope=scope)
        if is_sent and not is_part:
            self._delete()


class _Documents:
    def __init__(self, service: Service, documents: ServedDocuments) -> None:
        self._service, self._documents = service, documents

    async def upload(self, request: Request) -> Response:
        fields, file = await read_upload(request)
        client = client_of(request)
        source, target = optional_text(fields, "source_lang"), required_text(fields, "target_lang")
        if file is None:
            raise BadRequestError("Parameter 'file' not specified.")
        check_formality(fields)
        check_unsupported_fields(fields)
        name = optional_text(fields, "filename") or file.name
        wanted = optional_text(fields, "output_format")
        if wanted is not None and wanted.lower() != Path(name).suffix.lower().removeprefix("."):
            raise BadRequestError("Value for 'output_format' not supported.")
        glossary = None
        if identifier := optional_text(fields, "glossary_id"):
            if source is None:
                raise BadRequestError("Use of a glossary requires the source_lang parameter to be specified")
            glossary = self._service.glossaries.get(client.name, identifier)
        try:
            adding = self._documents.add(client, name, file.content, source or "auto", target, glossary=glossary)
            document = await cancel_on_disconnect(request, adding)
        except UnknownLanguageError as error:
            raise BadRequestError(unsupported_language_error(error)) from None
        except DocumentError as error:
            raise BadRequestError(f"Invalid file data: {error}") from None
        return JSONResponse({"document_id": document.id, "document_key": document.secret})

    async def status(self, request: Request) -> Response:
        document = await self._document(request)
        answer: dict[str, Any] = {"document_id": document.id, "status": _STATUSES[document.status]}
        if document.status == "running":
            rest = document.num_characters * (1 - document.num_done / max(1, document.num_texts))
            answer["seconds_remaining"] = max(1, round(rest / _CHARACTERS_PER_SECOND))
        if document.status == "done":
            answer["billed_characters"] = document.num_characters
        if document.error is not None:
            answer["error_message"] = document.error
        return JSONResponse(answer)

    async def result(self, request: Request) -> Response:
        """Return the document. As in the DeepL API, it is deleted after it has been sent completely."""
        document = await self._document(request)
        try:
            path = document.fetch()
        except DocumentNotDoneError:
            raise RefusedError(JSONResponse({"message": "Document not ready"}, 503)) from None

        delete = partial(self._documents.remove, document)
        return _DeletingFileResponse(path, delete, media_type=document.format.media_type, filename=document.name)

    async def _document(self, request: Request) -> ServedDocument:
        fields = await read_fields(request)
        client = client_of(request)
        key = required_text(fields, "document_key")
        document = self._documents.get(client.name, request.path_params["identifier"])
        if not hmac.compare_digest(document.secret.encode(), key.encode("utf-8", "surrogatepass")):
            raise UnknownDocumentError(document.id)
        return document
