"""The HTTP application: the routes of all APIs, and their common limits, error replies, metrics and logs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache
from typing import Any

import prometheus_client
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headway.serve.api_table import APIS, error_reply, reply_to_error
from headway.serve.apis.native import translation
from headway.serve.apis.native.router import router as native_router
from headway.serve.dispatch import NATIVE
from headway.serve.documents import ServedDocuments
from headway.serve.errors import RefusedError
from headway.serve.gateway import Gateway
from headway.serve.http_errors import STATUSES
from headway.serve.reports import RequestReports
from headway.serve.service import Service
from headway.version import __version__

_MAX_PROBLEMS = 10  # maximum number of problems that an error lists


def make_app(service: Service, documents: ServedDocuments) -> ASGIApp:
    """Return the ASGI application. When it shuts down, the documents are deleted and the workers are ended."""
    reports = RequestReports(service)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        reports.loop_watch.start()
        description()  # started now, because building it takes about a second
        yield
        reports.loop_watch.stop()
        reports.flush()
        documents.close()
        await service.pool.close()

    native = FastAPI(
        title="Headway",
        version=__version__,
        openapi_url=None,  # FastAPI would serialize the description again for each request
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

    def openapi() -> bytes:
        root_path = service.config.root_path
        servers = {"servers": [{"url": root_path}]} if root_path else {}
        return json.dumps(native.openapi() | servers, ensure_ascii=False, separators=(",", ":")).encode()

    @cache
    def description() -> asyncio.Future[bytes]:
        """Start building openapi.json in a thread, once for all requests."""
        return asyncio.ensure_future(asyncio.to_thread(openapi))

    @native.get("/api/v1/openapi.json", include_in_schema=False)
    async def show_openapi() -> Response:
        return Response(await asyncio.shield(description()), media_type="application/json")

    @native.get("/metrics", include_in_schema=False)
    async def show_metrics() -> Response:
        return Response(await reports.metrics(), media_type=prometheus_client.CONTENT_TYPE_LATEST)

    direct = Route("/api/v1/translate", translation.DirectTranslation(service, native), methods=["POST"])
    before_native = Starlette(routes=[direct], exception_handlers=_HANDLERS, lifespan=lifespan)
    before_native.router.default = native
    # Each API is a separate application, so that a request is compared only with the routes of its API.
    apps: dict[str, ASGIApp] = {NATIVE: before_native}
    for name, api in APIS.items():
        if api.routes is not None:
            routes = list(api.routes(service))
            if api.document_routes is not None:
                routes += api.document_routes(service, documents)
            apps[name] = Starlette(routes=routes, exception_handlers=_HANDLERS)
    guarded: ASGIApp = Gateway(apps, service, reports)
    if service.config.allowed_origins:
        guarded = _SafeCorsMiddleware(
            guarded,
            list(service.config.allowed_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Retry-After", "X-Request-Id", "X-Pivot-Language"],
        )
    return guarded


class _SafeCorsMiddleware(CORSMiddleware):
    """Adds the headers of all other replies to the replies to preflight requests."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the reply to a preflight request."""
        response = super().preflight_response(request_headers)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


# Error replies, in the format of the API that the request is meant for.


async def _answer_error(request: Request, error: Exception) -> Response:
    return reply_to_error(error, request.state.api)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """Reply to a request with an unknown path or method, or with an invalid body for the native API."""
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
