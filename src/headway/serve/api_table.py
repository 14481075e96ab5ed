"""The APIs of the service: their routes, where their requests contain keys, and their error formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.responses import Response
from starlette.routing import Route

from headway.serve import page
from headway.serve.apis import (
    aws,
    azure,
    deepl,
    deepl_documents,
    deepl_fields,
    deeplx,
    google,
    huggingface,
    libretranslate,
    open_inference,
    openai,
)
from headway.serve.apis.keys import KeyLocation
from headway.serve.apis.native.errors import error_reply as native_error_reply
from headway.serve.apis.native.fields import KEY_LOCATION as NATIVE_KEYS
from headway.serve.dispatch import NATIVE, PAGE, api_of_head
from headway.serve.documents import ServedDocuments
from headway.serve.errors import BadKeyError, QuotaExceededError, RefusedError, UnknownDictionaryError
from headway.serve.http_errors import http_error
from headway.serve.service import Service

_MAX_MESSAGE = 500  # maximum number of characters of an error message


@dataclass(frozen=True)
class Api:
    """An HTTP API of the service.

    Attributes:
        error: Returns an error reply in the API's format.
        keys: The places where the API's requests contain their key.
        routes: Returns the API's routes. None means that FastAPI handles them.
        statuses: HTTP statuses of errors for which the API differs from the default.
        queued_paths: Paths whose requests are refused before their bodies are read if the queue is full and there are
            neither a cache nor API keys.
        document_routes: Returns the API's routes for documents. None means that it has no such routes.
    """

    error: Callable[[str, int, dict[str, str] | None], Response]
    keys: KeyLocation
    routes: Callable[[Service], Sequence[Route]] | None
    statuses: Mapping[type[Exception], int] = field(default_factory=dict)
    queued_paths: tuple[str, ...] = ()
    document_routes: Callable[[Service, ServedDocuments], Sequence[Route]] | None = None


APIS = {
    NATIVE: Api(
        native_error_reply,
        NATIVE_KEYS,
        None,
        queued_paths=tuple(f"/api/v1/{name}" for name in ("translate", "generate", "classify", "fill", "score")),
    ),
    PAGE: Api(native_error_reply, page.KEY_LOCATION, page.routes),
    "openai": Api(
        openai.error_reply,
        openai.KEY_LOCATION,
        openai.routes,
        {BadKeyError: 401},
        queued_paths=("/v1/completions", "/v1/chat/completions"),
    ),
    "deepl": Api(
        deepl.error_reply,
        deepl_fields.KEY_LOCATION,
        deepl.routes,
        {QuotaExceededError: 456, UnknownDictionaryError: 404},
        queued_paths=("/v2/translate",),
        document_routes=deepl_documents.routes,
    ),
    "aws": Api(aws.error_reply, aws.KEY_LOCATION, aws.routes),
    "azure": Api(
        azure.error_reply,
        azure.KEY_LOCATION,
        azure.routes,
        {BadKeyError: 401, QuotaExceededError: 403},
        queued_paths=("/translate",),
    ),
    "deeplx": Api(
        deeplx.error_reply, deeplx.KEY_LOCATION, deeplx.routes, {BadKeyError: 401}, queued_paths=("/translate",)
    ),
    "google": Api(google.error_reply, google.KEY_LOCATION, google.routes),
    "huggingface": Api(huggingface.error_reply, huggingface.KEY_LOCATION, huggingface.routes, {BadKeyError: 401}),
    "open-inference": Api(
        open_inference.error_reply, open_inference.KEY_LOCATION, open_inference.routes, {BadKeyError: 401}
    ),
    "libretranslate": Api(
        libretranslate.error_reply,
        libretranslate.KEY_LOCATION,
        libretranslate.routes,
        queued_paths=("/translate",),
        document_routes=libretranslate.document_routes,
    ),
}


def error_reply(api: str, message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return an error reply in the format of an API. Long messages are truncated."""
    if len(message) > _MAX_MESSAGE:
        message = message[:_MAX_MESSAGE] + "…"
    # A message may quote invalid Unicode from the request, which a reply cannot contain.
    return APIS[api].error(message.encode("utf-8", "backslashreplace").decode(), status, headers)


def error_reply_for_url(url: bytes, message: str, status: int) -> Response:
    """Return an error reply in the format of the API that a URL belongs to. The URL may be invalid."""
    path, _, query = url.partition(b"?")
    return error_reply(
        api_of_head({"method": "", "path": path.decode("latin-1"), "query_string": query, "headers": []}),
        message,
        status,
    )


def reply_to_error(error: Exception, api: str) -> Response:
    """Return the reply to a request that has failed with ``error``, in the format of an API."""
    if isinstance(error, RefusedError):
        return error.response
    reply = http_error(error)
    status, headers = APIS[api].statuses.get(reply.kind, reply.status), reply.headers
    if status == 401:  # required by RFC 9110, section 15.5.2
        headers = {**headers, "WWW-Authenticate": "Bearer"}
    return error_reply(api, reply.message, status, headers)
