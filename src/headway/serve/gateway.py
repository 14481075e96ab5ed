"""The gateway to all APIs: a request reaches its API after its key has been checked and its body has arrived.

The cost of a request before this check is bounded. If requests of the API contain the key in the head, a request with a
wrong key is refused before the first byte of its body is read. If the key may be in the body, the body is received up
to its size limit and searched for the key before anything else in it is parsed. All requests that are being received
share one bound, ``limits.receiving_mb``.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from functools import partial

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.serve.api_table import APIS, error_reply, reply_to_error
from headway.serve.apis import deeplx, libretranslate
from headway.serve.apis.deepl_documents import DOCUMENT_PATH
from headway.serve.apis.keys import KeyLocation
from headway.serve.apis.libretranslate import TRANSLATE_FILE_PATH
from headway.serve.apis.native.documents import DOCUMENTS_PATH
from headway.serve.apis.native.jobs import JOBS_PATH
from headway.serve.apis.request_fields import check_json_size, current_sender
from headway.serve.clients import Client
from headway.serve.config import ServeConfig
from headway.serve.dispatch import (
    NATIVE,
    api_of_body,
    api_of_head,
    is_shared_path,
    likely_api_of_body,
    replay,
    split_prefix,
)
from headway.serve.errors import BadKeyError, RefusedError, TooLargeError
from headway.serve.http_errors import STATUSES
from headway.serve.loop_turns import LoopTurns
from headway.serve.origins import is_from_foreign_page
from headway.serve.received_bytes import ReceivedRequest, sender_id
from headway.serve.refusal_pace import RefusalThrottle
from headway.serve.reports import EndedRequest, RequestReports
from headway.serve.service import Service, used_pivots

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_GLOSSARIES_PATH = "/api/v1/glossaries"
_UPLOAD_PATHS = (DOCUMENTS_PATH, DOCUMENT_PATH, TRANSLATE_FILE_PATH)
_FORM_BYTES = 65_536  # maximum size of a form, not counting a document
_TOO_LARGE = "The body has more than {:,} bytes"
_ALWAYS_ANSWERED = (
    "/health",
    "/ready",
    "/metrics",
    "/v2/health/live",
)  # paths that are answered even while the service shuts down
_PROBES = (
    "/health",
    "/ready",
    "/v2/health/live",
    "/v2/health/ready",
)  # paths that are answered before other requests without a key
_PER_ITERATION = 25  # number of requests without a known key to process per iteration of the event loop
_REFUSED = 400  # the lowest HTTP status of an error
_PIECE = 16_384  # maximum number of bytes of a reply to send at a time
_ERRORS: tuple[type[Exception], ...] = (RefusedError, *(kind for kind in STATUSES if kind is not Exception))
_SHARED_KEYS = KeyLocation(
    lambda head: libretranslate.KEY_LOCATION.find_in_head(head) or deeplx.KEY_LOCATION.find_in_head(head),
    libretranslate.KEY_LOCATION.field_names,
)


class Gateway:
    """Passes each request to the application of its API, together with the client that its key identifies.

    It refuses foreign hosts and pages, wrong keys, bodies that are too large, and requests while the service shuts
    down, and reports every request to the metrics and the log.
    """

    def __init__(self, apps: Mapping[str, ASGIApp], service: Service, reports: RequestReports) -> None:
        self._apps, self._service, self._reports = apps, service, reports
        self._root_path = service.config.root_path
        self._turns = LoopTurns(_PER_ITERATION)  # limits requests without a known key
        self._metrics_turns = LoopTurns(1)  # each reply takes some milliseconds
        self._refusal_pace = RefusalThrottle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._apps[NATIVE](scope, receive, send)
            return
        start, request_id, status, started = time.perf_counter(), secrets.token_hex(16), 0, 0.0
        pivots: list[str] = []
        used_pivots.set(pivots)
        if scope["path"].startswith(f"{self._root_path}/"):  # a proxy has not removed the prefix
            scope = {**scope, "path": scope["path"].removeprefix(self._root_path)}
        path, api = scope["path"], api_of_head(scope)

        async def counted_send(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                if has_keys and message["status"] >= _REFUSED:
                    await asyncio.sleep(self._refusal_pace.delay(received.sender))
                status, started = message["status"], time.perf_counter()
                headers = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
                if pivots:
                    headers.append((b"x-pivot-language", ", ".join(pivots).encode()))
                if not request.is_complete and "expect" in request.head.headers:
                    headers.append((b"connection", b"close"))  # the client may or may not send the body
                message["headers"] = [*message.get("headers", ()), *headers]
            elif len(body := message.get("body", b"")) > _PIECE:
                for position in range(0, len(body) - _PIECE, _PIECE):
                    piece = body[position : position + _PIECE]
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                message["body"] = body[position + _PIECE :]
            await send(message)

        self._reports.open_requests += 1
        has_keys, (address, _) = bool(self._service.config.keys), scope.get("client") or (None, None)
        client = None
        try:
            with self._service.received.track_request(sender_id(address), is_known=not has_keys) as received:
                request = _Request(scope, api, receive, received)
                current_sender.set(received.sender)
                try:
                    client = await self._admit(request)
                except _ERRORS as error:
                    await reply_to_error(error, request.api)(scope, receive, counted_send)
                else:
                    state = {**scope.get("state", {}), "api": request.api, "client": client}
                    root = self._root_path + request.prefix
                    routed = {**scope, "root_path": root, "path": root + request.path, "state": state}
                    await self._apps[request.api](routed, request.receive, counted_send)
            api = request.api
        finally:
            self._reports.open_requests -= 1
            seconds, first_seconds = time.perf_counter() - start, started - start if started else None
            is_anonymous = client is None or (client.key is None and status >= _REFUSED)
            self._reports.add(
                EndedRequest(request_id, scope["method"], path, api, status, seconds, first_seconds, is_anonymous)
            )

    async def _admit(self, request: _Request) -> Client | None:
        """Receive a request, and return the client that has sent it, or None if the request needs no key.

        If the request is refused, raises one of the exceptions in :data:`~headway.serve.http_errors.STATUSES`.
        """
        service, shared = self._service, is_shared_path(request.scope, request.api)
        limit = self._body_limit(request.path)
        keys = _SHARED_KEYS if shared else APIS[request.api].keys
        is_public = keys.is_public(request.scope["method"], request.path)
        self._check_head(request, limit, is_public=is_public)
        if service.is_draining and request.path not in _ALWAYS_ANSWERED:
            headers = {"Retry-After": "5", "Connection": "close"}
            raise RefusedError(error_reply(request.api, "The service is shutting down", 503, headers))
        has_keys = bool(service.config.keys)
        if is_public or (has_keys and not self._has_route(request)):
            if request.path not in _PROBES:
                await (self._metrics_turns if request.path == "/metrics" else self._turns).wait()
            request.receive = replay([{"type": "http.request", "body": b""}], _wait_forever)
            return None
        key = keys.find_in_head(request.head) if has_keys or keys.is_required or shared else None
        if has_keys and not (key and service.clients.has_key(key)):
            await self._turns.wait()  # so that requests with a known key do not wait for requests without one
        if shared and key is not None and libretranslate.KEY_LOCATION.find_in_head(request.head) is None:
            request.api = "deeplx"  # determines the format of a refusal
        if key is None and keys.may_be_in_body_of(request.path) and (has_keys or keys.is_required):
            body = await request.receive_body(limit, self._turns if has_keys else None)
            candidates = list(keys.find_in_body(request.head.headers.get("content-type", ""), body))
            key = next(filter(service.clients.has_key, candidates), candidates[0] if candidates else None)
            if shared:
                request.api = likely_api_of_body(body)
        if not has_keys and keys.is_required and not key:
            raise BadKeyError
        try:
            client = service.clients.authenticate(key)
        except BadKeyError:
            refusal = keys.make_refusal(request.head, key)
            if refusal is None:
                raise
            raise RefusedError(refusal) from None
        if has_keys:
            request.received.identify(f"key {client.name}")
            current_sender.set(request.received.sender)
        if not shared:
            self._check_queue(request)
        body = await request.receive_body(limit)
        if request.api == NATIVE and request.path not in _UPLOAD_PATHS:
            await check_json_size(body, may_have_rows=request.path.startswith(_GLOSSARIES_PATH))
        if shared:
            request.api = await api_of_body(body)
            self._check_queue(request)
        request.body = b""
        return client

    def _has_route(self, request: _Request) -> bool:
        """Return whether an API has a route for a request. If not, its application replies without reading the body."""
        app = self._apps[request.api]
        scope = {**request.scope, "path": request.path, "root_path": ""}
        return (
            request.api == NATIVE
            or not isinstance(app, Starlette)
            or any(route.matches(scope)[0] is Match.FULL for route in app.routes)
        )

    def _body_limit(self, path: str) -> int:
        """Return the maximum body size of a request to ``path``, which is given without the API's prefix."""
        limits = self._service.config.limits
        if path == JOBS_PATH:
            return max(limits.body_bytes, limits.job_bytes)
        if path in _UPLOAD_PATHS:
            return max(limits.body_bytes, limits.document_bytes + _FORM_BYTES)
        return limits.body_bytes

    def _check_head(self, request: _Request, limit: int, *, is_public: bool) -> None:
        """Raise :class:`RefusedError` or :class:`TooLargeError` if the head of a request is not acceptable."""
        headers, scope, config = request.head.headers, request.scope, self._service.config
        refused = partial(_refused, request.api)
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if name.lower() not in _LOCAL_HOSTS and not _is_allowed(name, config):
            raise refused(
                f"The Host header '{host}' is not accepted; the setting allowed_hosts lists the accepted values", 421
            )
        if not is_public and is_from_foreign_page(headers, config.allowed_origins):
            raise refused(
                "Requests from pages of other sites are not accepted; the setting allowed_origins lists exceptions", 403
            )
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > config.limits.header_bytes:
            raise refused("The request headers are too large", 431)
        if request.length > limit:
            raise TooLargeError(_TOO_LARGE.format(limit))

    def _check_queue(self, request: _Request) -> None:
        """Refuse a request while the queue is full, as cheaply as possible."""
        config = self._service.config
        if request.path in APIS[request.api].queued_paths and not config.limits.cache_mb and not config.keys:
            self._service.admission.check_capacity()


def _is_allowed(host: str, config: ServeConfig) -> bool:
    known = {name.lower() for name in (*config.allowed_hosts, *config.host_names)}
    return host.lower() in known or "*" in known


def _refused(api: str, message: str, status: int) -> RefusedError:
    return RefusedError(error_reply(api, message, status))


async def _wait_forever() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


class _Request:
    """A request that is being received.

    Attributes:
        scope: The ASGI scope of the request.
        api: Name of the API that the request is meant for.
        prefix: The API's prefix at the beginning of the path, or "".
        path: The rest of the path, which is matched against the API's routes.
        head: The headers and the query.
        length: Length of the body as announced by the client, or 0.
        body: The body, after it has been received.
        received: Counts the bytes of the request.
        receive: The ASGI receive function for the API's application.
        is_complete: Whether the body has been received.
    """

    def __init__(self, scope: Scope, api: str, receive: Receive, received: ReceivedRequest) -> None:
        self.scope, self.api, self.received = scope, api, received
        self.prefix, self.path = split_prefix(scope["path"], api)
        self.head = HTTPConnection(scope)
        length = self.head.headers.get("content-length", "0")
        self.length = int(length) if length.isdecimal() and length.isascii() else 0
        self.receive = self._receive = receive
        self.body, self.is_complete = b"", False

    async def receive_body(self, limit: int, turns: LoopTurns | None = None) -> bytes:
        """Receive and return the body. If ``turns`` is given, each part of the body waits for its turn.

        Raises:
            TooLargeError: The body has more than ``limit`` bytes.
            OverloadedError: The requests that are being received are too large together.
            ClientDisconnect: The client has disconnected.
        """
        if not self.is_complete:
            self.received.announce(self.length)
            parts = bytearray()
            while not self.is_complete:
                message = await self._receive()
                if turns is not None:
                    await turns.wait()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                part = message.get("body", b"")
                if len(parts) + len(part) > limit:
                    raise TooLargeError(_TOO_LARGE.format(limit))
                self.received.add(len(part))
                parts += part
                self.is_complete = not message.get("more_body", False)
                del message, part  # so that only one copy is in memory while the next part is awaited
            self.body = bytes(parts)
            self.receive = replay([{"type": "http.request", "body": self.body}], self._receive)
        return self.body
