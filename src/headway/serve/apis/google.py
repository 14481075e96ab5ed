"""The Google Cloud Translation API: v2 ("Basic") and the REST form of v3 ("Advanced").

See https://cloud.google.com/translate/docs/reference/rest. Requests to v2 may be JSON, forms or query strings.
Unsupported features are refused: custom models, transliteration, and formats other than text and HTML.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.predict.translation.options import TranslateOptions
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.failed_texts import refuse_failed_texts
from headway.serve.apis.keys import KeyLocation, client_of
from headway.serve.apis.request_fields import authorization, optional_text, parse_body, read_fields
from headway.serve.clients import Client
from headway.serve.errors import BadRequestError, RefusedError, UnknownLanguageError
from headway.serve.glossaries import StoredGlossary
from headway.serve.languages import DetectedLanguage, english_name
from headway.serve.service import Service

_text = partial(optional_text, problem="Invalid Value: {}")

_V2, _V3_PARENT = "/language/translate/v2", "/v3/projects/{project}"
# Google's name and reason for each HTTP status. The status 413 (too large) is changed to 400.
_STATUSES = {
    400: ("INVALID_ARGUMENT", "invalid"),
    401: ("UNAUTHENTICATED", "authError"),
    403: ("PERMISSION_DENIED", "forbidden"),
    404: ("NOT_FOUND", "notFound"),
    405: ("UNIMPLEMENTED", "httpMethodNotAllowed"),
    429: ("RESOURCE_EXHAUSTED", "rateLimitExceeded"),
    500: ("INTERNAL", "backendError"),
    503: ("UNAVAILABLE", "backendError"),
    504: ("DEADLINE_EXCEEDED", "backendError"),
}
_MODELS = ("nmt", "base")
_MAX_QUOTED = 500  # characters
_FORMATS = {"text": False, "html": True}
_MIME_TYPES = {"text/plain": False, "text/html": True, "": True}


def _key(head: HTTPConnection) -> str | None:
    """Return the token in ``Authorization: Bearer TOKEN``, or the key in a header or in the query."""
    token = authorization(head, "bearer")
    return head.headers.get("x-goog-api-key") or head.query_params.get("key") if token is None else token


def _refusal(head: HTTPConnection, key: str | None) -> Response | None:
    if authorization(head, "bearer") is not None:
        return error_reply("Request had invalid authentication credentials.", 401)
    return None if key is None else error_reply("API key not valid. Please pass a valid API key.", 400)


KEY_LOCATION = KeyLocation(_key, field_names=("key",), body_paths=re.compile(re.escape(_V2)), make_refusal=_refusal)


def routes(service: Service) -> list[Route]:
    """Return the routes of the API."""
    v2, v3 = _V2Api(service), _V3Api(service)
    return [
        Route(_V2, v2.translate, methods=["GET", "POST"]),
        Route(f"{_V2}/detect", v2.detect, methods=["GET", "POST"]),
        Route(f"{_V2}/languages", v2.languages, methods=["GET", "POST"]),
        *(
            route
            for parent in (f"{_V3_PARENT}/locations/{{location}}", _V3_PARENT)
            for route in (
                Route(f"{parent}:translateText", v3.translate, methods=["POST"]),
                Route(f"{parent}:detectLanguage", v3.detect, methods=["POST"]),
                Route(f"{parent}/supportedLanguages", v3.languages, methods=["GET"]),
            )
        ),
    ]


def error_reply(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return an error reply in the format of this API."""
    status = 400 if status == 413 else status
    name, reason = _STATUSES.get(status, ("UNKNOWN", "unknown"))
    return JSONResponse({"error": _error_value(message, status, name, reason)}, status, headers)


def _error_value(message: str, status: int, name: str, reason: str) -> dict[str, Any]:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    return {"code": status, "message": message, "errors": errors, "status": name}


def _wrong_field(message: str, field: str, description: str, reason: str = "invalid") -> RefusedError:
    """Return the error for a request with an invalid field, which is identified in the error's details."""
    message, description = map(_valid_unicode, (message, description))
    violations = [{"field": field, "description": description}]
    details = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}]
    value = _error_value(message, 400, "INVALID_ARGUMENT", reason) | {"details": details}
    return RefusedError(JSONResponse({"error": value}, 400))


def _valid_unicode(text: str) -> str:
    """Return the beginning of a text, which may quote a request, with lone surrogates escaped."""
    return text[:_MAX_QUOTED].encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class _Translated:
    """A translation, and the detected language, if any."""

    text: str
    detected: DetectedLanguage | None


class _Google:
    """The code that both versions share."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def _translate(
        self,
        request: Request,
        client: Client,
        texts: Sequence[str],
        source: str | None,
        target: str,
        *,
        is_html: bool,
        glossary: StoredGlossary | None = None,
    ) -> list[_Translated]:
        options = TranslateOptions(markup="html" if is_html else None)
        try:
            work = self._service.translate(client, texts, source or "auto", target, glossary=glossary, options=options)
            translations, detected = await cancel_on_disconnect(request, work)
        except UnknownLanguageError as unknown:
            raise self._unknown_language(unknown) from None
        refuse_failed_texts(translations)
        languages: Sequence[DetectedLanguage | None] = detected or [None] * len(texts)
        return [
            _Translated(translation.text, language)
            for translation, language in zip(translations, languages, strict=True)
        ]

    def _unknown_language(self, unknown: UnknownLanguageError) -> RefusedError:
        """Return the error for a pair of languages that no model translates."""
        raise NotImplementedError


class _V2Api(_Google):
    def _unknown_language(self, unknown: UnknownLanguageError) -> RefusedError:
        if unknown.side == "target":
            return _wrong_field("Target language is invalid.", "target", f"Target language: {unknown.target}")
        message = f"{unknown.text_prefix}Bad language pair: {unknown.source}|{unknown.target}"
        return _wrong_field(message, "source", f"Source language: {unknown.source}", "badRequest")

    async def _read(self, request: Request) -> dict[str, Any]:
        fields = _drop_nulls(await read_fields(request))
        if isinstance(fields.get("data"), dict):  # Google's API clients wrap the body
            fields |= _drop_nulls(fields.pop("data"))
        return fields

    async def translate(self, request: Request) -> Response:
        client, fields = client_of(request), await self._read(request)
        texts, target, source = _texts(fields), _text(fields, "target"), _text(fields, "source")
        model, form = _text(fields, "model"), _text(fields, "format") or "html"
        if target is None:
            raise BadRequestError("Required parameter: target")
        if form not in _FORMATS:
            raise BadRequestError("Invalid Value: format")
        if model is not None and model not in _MODELS:
            raise BadRequestError("Invalid Value: model")
        if fields.get("cid"):
            raise BadRequestError("Invalid Value: cid")  # cid specifies a custom model
        translations = await self._translate(request, client, texts, source, target, is_html=_FORMATS[form])
        answers = []
        for translation in translations:
            answer = {"translatedText": translation.text}
            if translation.detected is not None:
                answer["detectedSourceLanguage"] = translation.detected.code
            if model is not None:
                answer["model"] = model
            answers.append(answer)
        return JSONResponse({"data": {"translations": answers}})

    async def detect(self, request: Request) -> Response:
        fields = await self._read(request)
        work = self._service.detect(client_of(request), _texts(fields))
        detected = await cancel_on_disconnect(request, work)
        detections = [
            [{"language": language.code, "isReliable": False, "confidence": language.confidence}]
            for language in detected
        ]
        return JSONResponse({"data": {"detections": detections}})

    async def languages(self, request: Request) -> Response:
        fields = await self._read(request)
        with_names = _text(fields, "target") is not None
        codes = self._service.languages
        languages = [{"language": code} | ({"name": english_name(code)} if with_names else {}) for code in codes]
        return JSONResponse({"data": {"languages": languages}})


def _drop_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null. Google treats null in the same way as a missing field."""
    return {name: value for name, value in fields.items() if value is not None}


class _Fields(BaseModel):
    """The body of a v3 request. Field names may be in camel case or snake case."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_null_fields(cls, fields: Any) -> Any:
        return _drop_nulls(fields) if isinstance(fields, dict) else fields


class _GlossaryConfig(_Fields):
    glossary: str
    ignore_case: bool = False  # has no effect: case is always ignored, unless two entries differ only in case
    contextual_translation_enabled: bool = False


class _TransliterationConfig(_Fields):
    enable_transliteration: bool = False


class _TranslateFields(_Fields):
    contents: list[str] = Field(min_length=1, fail_fast=True)
    mime_type: str = ""
    source_language_code: str = ""
    target_language_code: str = Field(min_length=1)
    model: str = ""
    glossary_config: _GlossaryConfig | None = None
    transliteration_config: _TransliterationConfig | None = None


class _DetectFields(_Fields):
    content: str
    mime_type: str = ""
    model: str = ""


class _V3Api(_Google):
    def _unknown_language(self, unknown: UnknownLanguageError) -> RefusedError:
        if unknown.side == "source":
            message = f"{unknown.text_prefix}Source language is invalid."
            return _wrong_field(message, "source_language_code", f"Source language: {unknown.source}")
        message = f"{unknown.text_prefix}Target language is invalid."
        description = f"Target language: {unknown.target}; source language: {unknown.source}"
        return _wrong_field(message, "target_language_code", description)

    async def translate(self, request: Request) -> Response:
        client, fields = client_of(request), await parse_body(request, _TranslateFields)
        if fields.mime_type not in _MIME_TYPES:
            raise BadRequestError("Invalid mime_type; it may be text/plain or text/html")
        if fields.model.rpartition("/")[2] not in ("", *_MODELS):
            raise BadRequestError("Invalid model; only general/nmt is supported")
        if fields.transliteration_config is not None and fields.transliteration_config.enable_transliteration:
            raise BadRequestError("Transliteration is not supported")
        if fields.glossary_config is not None and fields.glossary_config.contextual_translation_enabled:
            raise BadRequestError("Contextual translation of glossary terms is not supported")
        source, is_html = fields.source_language_code or None, _MIME_TYPES[fields.mime_type]

        async def translate(glossary: StoredGlossary | None = None) -> list[dict[str, Any]]:
            translations = await self._translate(
                request,
                client,
                fields.contents,
                source,
                fields.target_language_code,
                is_html=is_html,
                glossary=glossary,
            )
            answers = []
            for translation in translations:
                answer: dict[str, Any] = {"translatedText": translation.text}
                if fields.model:
                    answer["model"] = fields.model
                if translation.detected is not None:
                    answer["detectedLanguageCode"] = translation.detected.code
                if glossary is not None and fields.glossary_config is not None:
                    answer["glossaryConfig"] = {"glossary": fields.glossary_config.glossary}
                answers.append(answer)
            return answers

        terms = None
        if fields.glossary_config is not None:
            if source is None:
                raise BadRequestError("source_language_code is required with a glossary")
            terms = self._service.glossaries.get(client.name, fields.glossary_config.glossary.rpartition("/")[2])
        answer = {"translations": await translate()}
        if terms is not None:
            answer["glossaryTranslations"] = await translate(terms)
        return JSONResponse(answer)

    async def detect(self, request: Request) -> Response:
        fields = await parse_body(request, _DetectFields)
        if fields.mime_type not in _MIME_TYPES:
            raise BadRequestError("Invalid mime_type; it may be text/plain or text/html")
        work = self._service.detect(client_of(request), [fields.content])
        detected = await cancel_on_disconnect(request, work)
        return JSONResponse(
            {"languages": [{"languageCode": language.code, "confidence": language.confidence} for language in detected]}
        )

    async def languages(self, request: Request) -> Response:
        sources, targets = self._service.source_languages, self._service.target_languages
        with_names = "displayLanguageCode" in request.query_params
        return JSONResponse(
            {
                "languages": [
                    {"languageCode": code, "supportSource": code in sources, "supportTarget": code in targets}
                    | ({"displayName": english_name(code)} if with_names else {})
                    for code in self._service.languages
                ]
            }
        )


def _texts(fields: dict[str, Any]) -> list[str]:
    """Return the values of the field ``q``."""
    q = fields.get("q")
    listed = [q] if isinstance(q, str) else q
    if not listed:
        raise BadRequestError("Required Text")
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise BadRequestError("Invalid Value: q")
    return listed
