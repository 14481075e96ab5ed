"""The API of Amazon Translate: TranslateText, TranslateDocument for plain text and HTML, and ListLanguages.

See https://docs.aws.amazon.com/translate/latest/APIReference. Every request is a POST to ``/``. The header
``X-Amz-Target`` contains the name of the operation. Requests and replies are JSON (the protocol AWS JSON 1.1), and the
field ``__type`` contains the name of an error. The key is the access key id in the signature (Signature Version 4). The
signature itself is not checked, because the service stores only digests of the keys.

Terminologies are glossaries of this service, and their names are the glossaries' ids. The settings for formality,
profanity and brevity have no effect, as in the original API for languages that do not support them, and replies do not
contain ``AppliedSettings``.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_pascal
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.predict.translation.options import TranslateOptions
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.failed_texts import refuse_failed_texts
from headway.serve.apis.keys import KeyLocation, client_of
from headway.serve.apis.request_fields import authorization, parse_body
from headway.serve.clients import Client
from headway.serve.errors import (
    BadRequestError,
    QuotaExceededError,
    RefusedError,
    TooLargeError,
    UnknownLanguageError,
)
from headway.serve.languages import english_name
from headway.serve.service import Service
from headway.text.languages import base_language

_TARGET_PREFIX = "AWSShineFrontendService_20170701."
_SCHEMES = ("aws4-hmac-sha256", "aws4-ecdsa-p256-sha256")
_MARKUPS = {"text/plain": None, "text/html": "html"}
# Names of errors by HTTP status. If a text or body is too large, the status is changed to 400.
_NAMES = {
    403: "UnrecognizedClientException",
    404: "ResourceNotFoundException",
    413: "TextSizeLimitExceededException",
    429: "TooManyRequestsException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
    504: "ServiceUnavailableException",
}


def _key(head: HTTPConnection) -> str | None:
    """Return the access key id in a signature."""
    signed = (authorization(head, *_SCHEMES) or "").partition("Credential=")[2]
    return (signed or head.query_params.get("X-Amz-Credential", "")).partition("/")[0] or None


def _refusal(_: HTTPConnection, key: str | None) -> Response | None:
    return None if key else _error("MissingAuthenticationTokenException", "Missing Authentication Token", 403)


KEY_LOCATION = KeyLocation(_key, make_refusal=_refusal)


def routes(service: Service) -> list[Route]:
    """Return the routes of the API."""
    return [Route("/", _Aws(service).run, methods=["POST"])]


def error_reply(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return an error reply in the format of this API."""
    name = _NAMES.get(status, "InvalidRequestException")
    headers = dict(headers or {})
    if "Retry-After" in headers:  # in milliseconds for clients of AWS
        headers["x-amz-retry-after"] = f"{headers['Retry-After']}000"
    return _error(name, message, 400 if status == 413 else status, headers)


def _error(
    name: str, message: str, status: int = 400, headers: dict[str, str] | None = None, **fields: str
) -> Response:
    return _JsonReply({"__type": name, "Message": message, **fields}, status, headers)


class _JsonReply(JSONResponse):
    media_type = "application/x-amz-json-1.1"


class _AwsFields(BaseModel):
    """The fields of an operation. Unknown fields are ignored, as in the original API."""

    model_config = ConfigDict(alias_generator=to_pascal)


class _Settings(_AwsFields):
    formality: Literal["FORMAL", "INFORMAL"] | None = None
    profanity: Literal["MASK"] | None = None
    brevity: Literal["ON"] | None = None


_Code = Annotated[str, Field(min_length=2, max_length=32)]


class _TranslationFields(_AwsFields):
    source_language_code: _Code
    target_language_code: _Code
    terminology_names: Annotated[list[str], Field(max_length=1)] | None = None
    settings: _Settings | None = None


class _TextFields(_TranslationFields):
    text: str = Field(min_length=1)


class _Document(_AwsFields):
    content: str
    content_type: str


class _DocumentFields(_TranslationFields):
    document: _Document


class _ListFields(_AwsFields):
    display_language_code: _Code | None = None
    next_token: str | None = None
    max_results: int = Field(500, ge=1, le=500)


class _Aws:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._operations: dict[str, Callable[[Request, Client], Awaitable[dict[str, Any]]]] = {
            "TranslateText": self._translate_text,
            "TranslateDocument": self._translate_document,
            "ListLanguages": self._list_languages,
        }

    async def run(self, request: Request) -> Response:
        """Run the operation that is specified in the request."""
        client = client_of(request)
        name = request.headers.get("x-amz-target", "").removeprefix(_TARGET_PREFIX)
        operation = self._operations.get(name)
        if operation is None:
            return _error("UnknownOperationException", "This operation is not supported", 404)
        return _JsonReply(await operation(request, client))

    async def _translate_text(self, request: Request, client: Client) -> dict[str, Any]:
        fields = await parse_body(request, _TextFields)
        translated, answer = await self._translate(request, client, fields.text, None, fields)
        return {"TranslatedText": translated} | answer

    async def _translate_document(self, request: Request, client: Client) -> dict[str, Any]:
        fields = await parse_body(request, _DocumentFields)
        kind = fields.document.content_type.partition(";")[0].strip().lower()
        if kind not in _MARKUPS:
            raise BadRequestError(f"This content type is not supported; it may be {' or '.join(_MARKUPS)}")
        try:
            text = base64.b64decode(fields.document.content, validate=True).decode()
        except ValueError:
            raise BadRequestError("The document is not Base64-encoded UTF-8 text") from None
        try:
            translated, answer = await self._translate(request, client, text, _MARKUPS[kind], fields)
        except TooLargeError as large:  # the size limit of documents has a separate error
            raise RefusedError(_error("LimitExceededException", str(large))) from None
        return {"TranslatedDocument": {"Content": base64.b64encode(translated.encode()).decode()}} | answer

    async def _translate(
        self, request: Request, client: Client, text: str, markup: str | None, fields: _TranslationFields
    ) -> tuple[str, dict[str, Any]]:
        """Return the translation of a text, and the reply fields that both translation operations have."""
        source, target = fields.source_language_code, fields.target_language_code
        terms = [self._service.glossaries.get(client.name, name) for name in fields.terminology_names or ()]
        glossary = terms[0] if terms else None
        work = self._service.translate(
            client, [text], source, target, glossary=glossary, options=TranslateOptions(markup=markup)
        )
        try:
            translations, detected = await cancel_on_disconnect(request, work)
        except UnknownLanguageError as unknown:
            source = unknown.source  # the detected language if the request has "auto"
            message = f"Unsupported language pair: {source} to {target}."
            error = _error(
                "UnsupportedLanguagePairException", message, SourceLanguageCode=source, TargetLanguageCode=target
            )
            raise RefusedError(error) from None
        except QuotaExceededError:  # not status 429, because clients would retry
            message = "The quota of this key is used up"
            raise RefusedError(_error("LimitExceededException", message)) from None
        refuse_failed_texts(translations)
        answer: dict[str, Any] = {
            "SourceLanguageCode": source if detected is None else detected[0].code,
            "TargetLanguageCode": target,
        }
        if fields.terminology_names:
            answer["AppliedTerminologies"] = [{"Name": name, "Terms": []} for name in fields.terminology_names]
        return translations[0].text, answer

    async def _list_languages(self, request: Request, _: Client) -> dict[str, Any]:
        fields = await parse_body(request, _ListFields)
        display = fields.display_language_code or "en"
        if base_language(display) != "en":
            name, message = "UnsupportedDisplayLanguageCodeException", "Names of languages are in English only"
            raise RefusedError(_error(name, message, DisplayLanguageCode=display))
        codes = self._service.languages
        start = fields.next_token or "0"
        if start not in map(str, range(len(codes) + 1)):
            raise RefusedError(_error("InvalidParameterValueException", "NextToken is not valid"))
        end = int(start) + fields.max_results
        answer: dict[str, Any] = {
            "Languages": [
                {"LanguageName": english_name(code), "LanguageCode": code} for code in codes[int(start) : end]
            ],
            "DisplayLanguageCode": display,
        }
        return answer | ({"NextToken": str(end)} if end < len(codes) else {})
