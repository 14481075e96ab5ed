"""Documents: upload them for translation, and fetch the results later."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response

from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.keys import client_of
from headway.serve.apis.native.glossaries import GlossaryBody
from headway.serve.apis.native.jobs import format_iso_time
from headway.serve.apis.request_fields import optional_text, parse_fields, parse_json, read_upload
from headway.serve.clients import Client
from headway.serve.documents import ServedDocument, ServedDocuments
from headway.serve.errors import BadRequestError
from headway.serve.glossaries import StoredGlossary
from headway.serve.service import Service

_text = partial(optional_text, problem="{}: Input should be a string")

DOCUMENTS_PATH = "/api/v1/documents"
_TEXT = {"type": "string"}
_FORM = {
    "type": "object",
    "properties": {
        "file": {
            "type": "string",
            "format": "binary",
            "description": "The document. Its file name determines its format.",
        },
        "target": {**_TEXT, "description": "The language to translate into."},
        "source": {**_TEXT, "default": "auto", "description": "The language of the document; auto detects it."},
        "model": {**_TEXT, "description": "The name of a model. Default: the first model for the languages."},
        "glossary": {**_TEXT, "description": "The id of a glossary that has a dictionary for the languages."},
        "encoding": {
            **_TEXT,
            "description": "The encoding of a text file, unless the file declares it. Default: UTF-8.",
        },
        "text_syntax": {
            **_TEXT,
            "enum": ["plain", "html"],
            "description": "For XLIFF: whether the texts are escaped HTML. Default: as declared in the file.",
        },
        "dictionaries": {
            **_TEXT,
            "contentMediaType": "application/json",
            "description": "Dictionaries as JSON, in the same format as for creating a glossary, instead of the id of "
            "a glossary.",
        },
    },
    "required": ["file", "target"],
}
_UPLOAD = {"requestBody": {"content": {"multipart/form-data": {"schema": _FORM}}, "required": True}}


def add_routes(api: APIRouter, service: Service, documents: ServedDocuments) -> None:
    """Add the routes for documents."""

    @api.post("/documents", status_code=201, openapi_extra=_UPLOAD)
    async def upload_document(request: Request) -> dict[str, Any]:
        """Upload a document, which is translated while the service has little other work.

        Texts that cannot be translated remain unchanged. Only the key that uploaded a document can access it.
        """
        client = client_of(request)
        fields, file = await read_upload(request)
        if file is None:
            raise BadRequestError("file: Field required")
        source, target = _text(fields, "source") or "auto", _text(fields, "target")
        if target is None:
            raise BadRequestError("target: Field required")
        glossary = await _chosen_glossary(service, client, fields)
        model = _text(fields, "model")
        reading = {"encoding": _text(fields, "encoding"), "text_syntax": _text(fields, "text_syntax")}
        adding = documents.add(client, file.name, file.content, source, target, model, glossary, **reading)
        return _document(await cancel_on_disconnect(request, adding))

    @api.get("/documents/{identifier}")
    async def document(identifier: str, request: Request) -> dict[str, Any]:
        """Return the progress of a document.

        When the translation is done, ``warnings`` lists possible errors. The ``kind`` of a warning is a translation
        flag, "unlikely", "glossary" (an entry is not satisfied) or "failed" (the text is not translated). ``num_texts``
        is the number of affected texts, and ``examples`` are the beginnings of some of these texts.
        """
        return _document(documents.get(client_of(request).name, identifier))

    @api.get("/documents/{identifier}/result", response_model=None, response_class=FileResponse)
    async def document_result(identifier: str, request: Request) -> Response:
        """Return a translated document."""
        document = documents.get(client_of(request).name, identifier)
        return FileResponse(document.fetch(), media_type=document.format.media_type, filename=document.name)

    @api.delete("/documents/{identifier}", status_code=204)
    async def delete_document(identifier: str, request: Request) -> None:
        """Cancel the translation of a document, and delete it."""
        documents.remove(documents.get(client_of(request).name, identifier))


async def _chosen_glossary(service: Service, client: Client, fields: dict[str, Any]) -> StoredGlossary | None:
    identifier, dictionaries = _text(fields, "glossary"), _text(fields, "dictionaries")
    if dictionaries is None:
        return None if identifier is None else service.glossaries.get(client.name, identifier)
    if identifier is not None:
        raise BadRequestError("glossary and dictionaries: only one of them is accepted")
    value = await parse_json(dictionaries.encode())

    def read() -> StoredGlossary:
        body = parse_fields(GlossaryBody, {"name": "dictionaries of a document", "dictionaries": value})
        return StoredGlossary.create(client.name, body.name, body.to_dictionaries())

    glossary = await service.read_glossary(client, read)
    service.glossaries.check_entries(glossary)
    return glossary


def _document(document: ServedDocument) -> dict[str, Any]:
    sizes = {"num_texts": document.num_texts, "num_done": document.num_done, "characters": document.num_characters}
    times = {
        "created": format_iso_time(document.created),
        "ended": format_iso_time(document.ended),
        "expires": format_iso_time(document.expires),
    }
    languages = {"source": document.source_language}
    head = {"id": document.id, "name": document.name, "status": document.status}
    warnings = [asdict(warning) for warning in document.warnings]
    return {**head, **languages, **sizes, **times, "error": document.error, "warnings": warnings}
