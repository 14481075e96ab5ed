"""The HTTP application: the routes of all APIs, and what is common to them: limits, errors, metrics and logs."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import prometheus_client
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.serve import page
from headway.serve.apis import (
    aws,
    azure,
    deepl,
    deepl_documents,
    deeplx,
    google,
    huggingface,
    libretranslate,
    open_inference,
    openai,
)
from headway.serve.apis.deepl_documents import DOCUMENT_PATH
from headway.serve.apis.libretranslate import TRANSLATE_FILE_PATH
from headway.serve.apis.native import translation
from headway.serve.apis.native.documents import DOCUMENTS_PATH
from headway.serve.apis.native.errors import error as native_error
from headway.serve.apis.native.jobs import JOBS_PATH
from headway.serve.apis.native.router import router as native_router
from headway.serve.dispatch import NATIVE, PAGE, api_of_head, api_of_request, split_prefix
from headway.serve.documents import ServedDocuments
from headway.serve.errors import BadKeyError, OverloadedError, QuotaExceededError, RefusedError, UnknownDictionaryError
from headway.serve.http_errors import STATUSES, http_error
from headway.serve.reports import EndedRequest, RequestReports
from headway.serve.service import Service, used_pivots
from headway.version import __version__

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_UPLOAD_PATHS = (DOCUMENTS_PATH, DOCUMENT_PATH, TRANSLATE_FILE_PATH)
_FORM_BYTES = 65_536  # maximum size of a form, not counting a document
_TOO_LARGE = "The body has more than {:,} bytes"
_MAX_MESSAGE = 500  # maximum number of characters of an error message
_MAX_PROBLEMS = 10  # maximum number of problems that an error lists
_ALWAYS_ANSWERED = ("/health", "/ready", "/metrics", "/v2/health/live")  # answered even while the service shuts down


def make_app(service: Service, documents: ServedDocuments) -> ASGIApp:
    """Return the application. The documents are deleted when it ends."""
    reports = RequestReports(service)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        reports.flush()
        documents.close()
        await service.pool.close()

    native = FastAPI(
        title="Headway",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        exception_handlers=dict(_HANDLERS),
    )
    native.include_router(native_router(service, documents))

    @native.api_route("/ready", methods=["GET", "HEAD"], include_in_schema=False)
    async def ready() -> JSONResponse:
        pool = service.pool
        if (reason := service.unavailable_reason) is not None:
            return JSONResponse({"status": "unavailable", "reason": reason}, 503)
        if pool.num_ready < pool.num_workers:
            reason = f"{pool.num_ready} of {pool.num_workers} workers are ready"
            return JSONResponse({"status": "degraded", "reason": reason})
        return JSONResponse({"status": "ready"})

    @native.get("/metrics", include_in_schema=False)
    async def show_metrics() -> Response:
        return Response(await reports.metrics(), media_type=prometheus_client.CONTENT_TYPE_LATEST)

    direct = Route("/api/v1/translate", translation.DirectTranslation(service, native), methods=["POST"])
    before_native = Starlette(routes=[direct], exception_handlers=_HANDLERS, lifespan=lifespan)
    before_native.router.default = native
    # Each API is a separate application, so that a request is compared only with the routes of its API.
    apps: dict[str, ASGIApp] = {NATIVE: before_native}
    for name, api in _APIS.items():
        if api.routes is not None:
            routes = list(api.routes(service))
            if api.document_routes is not None:
                routes += api.document_routes(service, documents)
            apps[name] = Starlette(routes=routes, exception_handlers=_HANDLERS)
    guarded: ASGIApp = _Gateway(apps, service, reports)
    if service.config.allowed_origins:
        guarded = CORSMiddleware(
            guarded,
            list(service.config.allowed_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Request-Id", "X-Pivot-Language"],
        )
    return guarded


# Errors, in the form of the API that the request is meant for.


@dataclass(frozen=True)
class _Api:
    """An API.

    Attributes:
        error: Returns an error in the form of the API.
        routes: Returns its routes. None means that FastAPI has them.
        statuses: Its own HTTP statuses for some errors.
        queued: While the queue is full, requests to these paths are refused before their bodies are read.
        document_routes: Returns its routes for documents, if it has any.
    """

    error: Callable[[str, int, dict[str, str] | None], Response]
    routes: Callable[[Service], Sequence[Route]] | None
    statuses: Mapping[type[Exception], int] = field(default_factory=dict)
    queued: tuple[str, ...] = ()
    document_routes: Callable[[Service, ServedDocuments], Sequence[Route]] | None = None


_APIS = {
    NATIVE: _Api(
        native_error,
        None,
        queued=tuple(f"/api/v1/{name}" for name in ("translate", "generate", "classify", "fill", "score")),
    ),
    PAGE: _Api(native_error, page.routes),
    "openai": _Api(openai.error, openai.routes, {BadKeyError: 401}, queued=("/v1/completions", "/v1/chat/completions")),
    "deepl": _Api(
        deepl.error,
        deepl.routes,
        {QuotaExceededError: 456, UnknownDictionaryError: 404},
        queued=("/v2/translate",),
        document_routes=deepl_documents.routes,
    ),
    "aws": _Api(aws.error, aws.routes),
    "azure": _Api(azure.error, azure.routes, {BadKeyError: 401, QuotaExceededError: 403}, queued=("/translate",)),
    "deeplx": _Api(deeplx.error, deeplx.routes, {BadKeyError: 401}, queued=("/translate",)),
    "google": _Api(google.error, google.routes),
    "huggingface": _Api(huggingface.error, huggingface.routes, {BadKeyError: 401}),
    "open-inference": _Api(open_inference.error, open_inference.routes, {BadKeyError: 401}),
    "libretranslate": _Api(
        libretranslate.error,
        libretranslate.routes,
        queued=("/translate",),
        document_routes=libretranslate.document_routes,
    ),
}


def error_reply(api: str, message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return an error in the form of an API. Long messages are shortened."""
    if len(message) > _MAX_MESSAGE:
        message = message[:_MAX_MESSAGE] + "…"
    # A message may quote text of the request that is not valid Unicode, which no reply can contain.
    return _APIS[api].error(message.encode("utf-8", "backslashreplace").decode(), status, headers)


def error_for_url(url: bytes, message: str, status: int) -> Response:
    """Return an error in the form of the API that a URL, which may be invalid, belongs to."""
    path, _, query = url.partition(b"?")
    return error_reply(
        api_of_head({"method": "", "path": path.decode("latin-1"), "query_string": query, "headers": []}),
        message,
        status,
    )


async def _answer_error(request: Request, error: Exception) -> Response:
    return _reply_to(error, request.state.api)


def _reply_to(error: Exception, api: str) -> Response:
    reply = http_error(error)
    status, headers = _APIS[api].statuses.get(reply.kind, reply.status), reply.headers
    if status == 401:  # RFC 9110, section 15.5.2, demands it
        headers = {**headers, "WWW-Authenticate": "Bearer"}
    return error_reply(api, reply.message, status, headers)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Answer an unknown path or method, or a body that does not fit the native API."""
    if isinstance(error, RequestValidationError):
        problems = [
            f"{'.'.join(map(str, problem['loc'][1:])) or 'body'}: {problem['msg']}" for problem in error.errors()
        ]
        return error_reply(request.state.api, "; ".join(problems[:_MAX_PROBLEMS]), 422)
    assert isinstance(error, HTTPException)
    return error_reply(request.state.api, str(error.detail), error.status_code, dict(error.headers or {}))


async def _answer_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return error.response


_HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    **dict.fromkeys(STATUSES, _answer_error),
    RefusedError: _answer_refused,
    **dict.fromkeys((HTTPException, RequestValidationError), _answer_http_error),
}


class _Gateway:
    """Gives each request to the application of its API.

    Refuses foreign hosts, bodies that are too large, and requests while the service ends; counts and logs.
    """

    def __init__(self, apps: Mapping[str, ASGIApp], service: Service, reports: RequestReports) -> None:
        self._apps, self._service, self._reports = apps, service, reports
        self._root_path = service.config.root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._apps[NATIVE](scope, receive, send)
            return
        start, request_id, status, started = time.perf_counter(), secrets.token_hex(16), 0, 0.0
        pivots: list[str] = []
        used_pivots.set(pivots)
        if scope["path"].startswith(f"{self._root_path}/"):  # a proxy has not removed the prefix
            scope = {**scope, "path": scope["path"].removeprefix(self._root_path)}
        path, api = scope["path"], api_of_head(scope)
        prefix, rest = split_prefix(path, api)
        limit = self._body_limit(rest)
        size = 0

        async def limited_receive() -> Message:
            nonlocal size
            message = await receive()
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                if size > limit:
                    raise HTTPException(413, _TOO_LARGE.format(limit))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], time.perf_counter()
                headers = [(b"x-request-id", request_id.encode())]
                if pivots:
                    headers.append((b"x-pivot-language", ", ".join(pivots).encode()))
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        self._reports.open_requests += 1
        try:
            refusal = self._refusal(scope, api, limit)
            if refusal is None:
                api, body = await api_of_request(scope, limited_receive, api)  # paths that APIs share have no prefix
                refusal = self._refusal_when_unavailable(rest, api)
            if refusal is not None:
                await refusal(scope, receive, counted_send)
            else:
                root, state = self._root_path + prefix, {**scope.get("state", {}), "api": api}
                routed = {**scope, "root_path": root, "path": root + rest, "state": state}
                await self._apps[api](routed, body, counted_send)
        finally:
            self._reports.open_requests -= 1
            seconds, first_seconds = time.perf_counter() - start, started - start if started else None
            self._reports.add(EndedRequest(request_id, scope["method"], path, api, status, seconds, first_seconds))

    def _body_limit(self, path: str) -> int:
        """Return the maximum size of the body of a request to a path, which has no prefix."""
        limits = self._service.config.limits
        if path == JOBS_PATH:
            return max(limits.body_bytes, limits.job_bytes)
        if path in _UPLOAD_PATHS:
            return max(limits.body_bytes, limits.document_bytes + _FORM_BYTES)
        return limits.body_bytes

    def _refusal(self, scope: Scope, api: str, limit: int) -> Response | None:
        headers, form = dict(scope["headers"]), partial(error_reply, api)
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        config = self._service.config
        own_host = f"[{config.host}]" if ":" in config.host else config.host
        known = {*_LOCAL_HOSTS, *map(str.lower, (*config.allowed_hosts, own_host))}
        if name.lower() not in known and "*" not in known:
            return form(f"The Host header '{host}' is not accepted; the setting allowed_hosts lists what is", 421)
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > config.limits.header_bytes:
            return form("The headers are too large", 431)
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            return form(_TOO_LARGE.format(limit), 413)
        return None

    def _refusal_when_unavailable(self, path: str, api: str) -> Response | None:
        """Refuse requests while the service ends, and requests for work while the queue is full."""
        if self._service.is_draining and path not in _ALWAYS_ANSWERED:
            return _APIS[api].error("The service is ending", 503, {"Retry-After": "5", "Connection": "close"})
        config = self._service.config
        if path in _APIS[api].queued and not config.limits.cache_mb and not config.keys:
            try:  # while the queue is full, a refusal must take as little of the machine's time as possible
                self._service.admission.check_capacity()
            except OverloadedError as error:
                return _reply_to(error, api)
        return None
