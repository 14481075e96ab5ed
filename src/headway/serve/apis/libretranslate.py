"""The LibreTranslate API (https://libretranslate.com/docs)."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from headway.decode.request import DecodingOptions
from headway.documents import document_extensions
from headway.predict.translation.options import TranslateOptions
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.failed_texts import refuse_failed_texts
from headway.serve.apis.keys import KeyLocation, client_of
from headway.serve.apis.libretranslate_specification import SPECIFICATION
from headway.serve.apis.request_fields import read_fields, read_upload
from headway.serve.documents import ServedDocument, ServedDocuments
from headway.serve.errors import BadRequestError, UnavailableError, UnknownDocumentError, UnknownLanguageError
from headway.serve.languages import english_name
from headway.serve.service import Service

TRANSLATE_FILE_PATH = "/translate_file"
DOWNLOAD_PATH = "/download_file/"  # the rest of the path is a secret, because a download needs no key
_MAX_ALTERNATIVES = 10
_CHECK_S = 0.5  # time between two checks whether the service is shutting down


KEY_LOCATION = KeyLocation(
    lambda _: None,
    field_names=("api_key", "apiKey"),  # the npm client uses the second name
    public_paths=re.compile(rf"/languages|/frontend/settings|/health|/spec|{DOWNLOAD_PATH}.*", re.DOTALL),
)


def routes(service: Service) -> list[Route]:
    """Return the routes of the API."""
    api = _LibreTranslate(service)
    return [
        Route("/translate", api.translate, methods=["POST"]),
        Route("/detect", api.detect, methods=["POST"]),
        Route("/languages", api.languages, methods=["GET"]),
        Route("/frontend/settings", api.settings, methods=["GET"]),
        Route("/suggest", api.suggest, methods=["POST"]),
        Route("/health", api.health, methods=["GET"]),
        Route("/spec", api.spec, methods=["GET"]),
    ]


def document_routes(service: Service, documents: ServedDocuments) -> list[Route]:
    """Return the routes for documents."""
    api = _LibreTranslateDocuments(service, documents)
    return [
        Route(TRANSLATE_FILE_PATH, api.translate_file, methods=["POST"]),
        Route(DOWNLOAD_PATH + "{name}", api.download_file, methods=["GET"]),
    ]


def error_reply(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return an error reply in the format of this API."""
    return JSONResponse({"error": message}, status, headers)


class _LibreTranslate:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def translate(self, request: Request) -> Response:
        client, fields = client_of(request), await read_fields(request)
        texts, is_list = _texts(fields)
        source, target = _required(fields, "source"), _required(fields, "target")
        format_ = fields.get("format") or "text"
        if format_ not in ("text", "html"):
            raise BadRequestError(f"{format_} format is not supported")
        alternatives = _alternatives(fields)
        decoding = DecodingOptions()
        if alternatives:
            width = max(decoding.beam_size, alternatives + 1)
            decoding = decoding.model_copy(update={"beam_size": width, "n_best": alternatives + 1})
        options = TranslateOptions(decoding=decoding, markup="html" if format_ == "html" else None)
        work = self._service.translate(client, texts, source, target, options=options)
        with _language_errors():
            translations, detected = await cancel_on_disconnect(request, work)
        refuse_failed_texts(translations)
        answer: dict[str, Any] = {
            "translatedText": _one_or_list([translation.text for translation in translations], is_list)
        }
        if alternatives:
            others = [[candidate.text for candidate in translation.candidates[1:]] for translation in translations]
            answer["alternatives"] = _one_or_list(others, is_list)
        if detected is not None:
            answer["detectedLanguage"] = _one_or_list([_confidence(language) for language in detected], is_list)
        return JSONResponse(answer)

    async def detect(self, request: Request) -> Response:
        fields = await read_fields(request)
        texts, _ = _texts(fields)
        work = self._service.detect(client_of(request), texts[:1] or [""])
        return JSONResponse([_confidence(language) for language in await cancel_on_disconnect(request, work)])

    async def languages(self, _: Request) -> Response:
        def targets_of_languages() -> list[dict[str, Any]]:
            targets: dict[str, set[str]] = {}
            for pair in self._service.pairs:
                targets.setdefault(pair.source, set()).add(pair.target)
                targets.setdefault(pair.target, set())  # clients look for both languages of a pair in this list
            return [
                {"code": code, "name": english_name(code), "targets": sorted(codes)}
                for code, codes in sorted(targets.items())
            ]

        content = await self._service.cached_list("LibreTranslate", targets_of_languages)
        return Response(content, media_type="application/json")

    async def settings(self, _: Request) -> Response:
        limits, models = self._service.config.limits, self._service.models_that("translates")
        first = models[0] if models else None
        return JSONResponse(
            {
                "apiKeys": bool(self._service.config.keys),
                "charLimit": limits.characters,
                "filesTranslation": limits.documents > 0,
                "frontendTimeout": 500,
                "keyRequired": bool(self._service.config.keys),
                "language": {
                    "source": {"code": "auto", "name": "Auto Detect"},
                    "target": {"code": first.target_languages[0], "name": english_name(first.target_languages[0])}
                    if first
                    else None,
                },
                "suggestions": False,
                "supportedFilesFormat": list(document_extensions()),
            }
        )

    async def suggest(self, _: Request) -> Response:
        return error_reply("Suggestions are disabled on this server.", 403)

    async def spec(self, _: Request) -> Response:
        return JSONResponse(SPECIFICATION)

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})


class _LibreTranslateDocuments:
    def __init__(self, service: Service, documents: ServedDocuments) -> None:
        self._service, self._documents = service, documents

    async def translate_file(self, request: Request) -> Response:
        """Translate a file, and return the URL of the result."""
        fields, file = await read_upload(request)
        client = client_of(request)
        source, target = _required(fields, "source"), _required(fields, "target")
        if file is None:
            raise BadRequestError("Invalid request: missing file parameter")
        if not file.name:
            raise BadRequestError("Invalid request: empty file")
        adding = self._documents.add(client, file.name, file.content, source, target)
        with _language_errors():
            document = await cancel_on_disconnect(request, adding)
        try:
            await cancel_on_disconnect(request, self._finished(document))
        except BaseException:
            self._documents.remove(document)
            raise
        if document.error is not None:
            self._documents.remove(document)
            raise BadRequestError(document.error)
        address = f"{str(request.base_url).removesuffix('/')}{DOWNLOAD_PATH}{document.secret}.{quote(document.name)}"
        return JSONResponse({"translatedFileUrl": address})

    async def _finished(self, document: ServedDocument) -> None:
        """Wait until a document is translated. Raises :class:`UnavailableError` if the service shuts down."""
        while not document.finished.is_set():
            if self._service.is_draining:
                raise UnavailableError
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(document.finished.wait(), _CHECK_S)

    async def download_file(self, request: Request) -> Response:
        """Return a translated file. Its URL contains a secret, so that no key is needed."""
        secret, _, name = request.path_params["name"].partition(".")
        document = self._documents.find_by_secret(secret)
        if name != document.name:
            raise UnknownDocumentError(name)
        return FileResponse(document.fetch(), media_type=document.format.media_type, filename=document.name)


def _required(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not value:
        raise BadRequestError(f"Invalid request: missing {name} parameter")
    if not isinstance(value, str):
        raise BadRequestError(f"Invalid request: {name} is not a string")
    return value


def _texts(fields: dict[str, Any]) -> tuple[list[str], bool]:
    """Return the texts in the field ``q``, and whether the field is a list."""
    q = fields.get("q")
    if q is None or q == "":
        raise BadRequestError("Invalid request: missing q parameter")
    if isinstance(q, str):
        return [q], False
    if isinstance(q, list) and all(isinstance(text, str) for text in q):
        return q, True
    raise BadRequestError("Invalid request: q is neither a string nor a list of strings")


@contextmanager
def _language_errors() -> Iterator[None]:
    """Context manager that reports an unsupported pair of languages in LibreTranslate's words."""
    try:
        yield
    except UnknownLanguageError as error:
        if error.side != "pair":
            raise  # its message is the same as LibreTranslate's
        source, target = (f"{english_name(code)} ({code})" for code in (error.source, error.target))
        raise BadRequestError(
            f"{error.text_prefix}{target} is not available as a target language from {source}"
        ) from None


def _alternatives(fields: dict[str, Any]) -> int:
    value = fields.get("alternatives", 0)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise BadRequestError("Invalid request: alternatives is not a number") from None
    if not 0 <= number <= _MAX_ALTERNATIVES:
        raise BadRequestError(f"Invalid request: alternatives is not from 0 to {_MAX_ALTERNATIVES}")
    return number


def _confidence(detected: Any) -> dict[str, Any]:
    return {"confidence": round(100 * detected.confidence), "language": detected.code}


def _one_or_list(values: Sequence[Any], is_list: bool) -> Any:
    return list(values) if is_list else values[0]
