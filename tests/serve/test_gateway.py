"""What a request without a key can cost: before its key is known nothing of its body is interpreted, or even read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from itertools import product
from typing import Any

import httpx
import pytest
from hostile_texts import assert_linear
from in_process import application, key_config, make_service
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Scope

from headway.serve.api_table import APIS
from headway.serve.apis import request_fields
from headway.serve.apis.keys import KeyLocation
from headway.serve.apis.native.router import router as native_router
from headway.serve.app import make_app
from headway.serve.config import LimitsConfig
from headway.serve.dispatch import NATIVE, PAGE
from headway.serve.documents import ServedDocuments
from headway.serve.errors import OverloadedError
from headway.serve.loop_turns import LoopTurns
from headway.serve.received_bytes import ReceivedBytes, ReceivedRequest, sender_id
from headway.serve.service import Service
from headway.serve.turns import FairSemaphore

KEY, OURS = "the key", "https://ours.example"
PIECE = b'{"q": "' + b"a" * 260_000
BODY_BYTES = 4 << 20
# Requests that need no key, as docs/serving.md says.
PUBLIC = {
    "/", "/page/x", "/ready", "/metrics", "/api/v1/openapi.json", "/languages", "/frontend/settings", "/health",
    "/spec", "/download_file/x", "/v2", "/v2/health/live", "/v2/health/ready", "/models/x/health",
}  # fmt: skip


@pytest.fixture(scope="module")
def http() -> TestClient:
    """A client of a service without keys and models."""
    return application({}, allowed_origins=(OURS,))


@pytest.fixture(scope="module")
def keyed_http() -> TestClient:
    """A client of a service with a key."""
    return application({}, allowed_origins=(OURS,), keys=(key_config("one", KEY),))


def service_with_key() -> Service:
    return make_service(
        {}, keys=(key_config("one", KEY),), limits=LimitsConfig(body_bytes=BODY_BYTES, document_bytes=1 << 20)
    )


def all_routes(service: Service, documents: ServedDocuments) -> Iterator[tuple[str, str, str]]:
    """Yield the API, the method and the path of each route."""
    for name, api in APIS.items():
        if name == PAGE:
            yield from product([PAGE], ["GET", "HEAD"], ["/", "/page/x"])
            continue
        routes: list[Any] = list(api.routes(service) if api.routes else native_router(service, documents).routes)
        routes += api.document_routes(service, documents) if api.document_routes else []
        prefix = "" if name == NATIVE else f"/{name}"
        for route in routes:
            for method in sorted(route.methods):
                yield name, method, prefix + re.sub(r"\{[^}]+\}", "x", route.path)
    yield from product([NATIVE], ["GET"], ["/ready", "/metrics", "/api/v1/openapi.json"])


class Call:
    """A request whose body never ends.

    Attributes:
        status: The status of the reply.
        num_bytes: How much of the body was received.
    """

    def __init__(self, app: ASGIApp, method: str, path: str, content_type: str = "application/json") -> None:
        self.status = self.num_bytes = 0
        headers = {"host": "localhost", "content-type": content_type, "transfer-encoding": "chunked"}
        scope: Scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": b"", "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "http_version": "1.1", "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1),
        }  # fmt: skip
        asyncio.run(app(scope, self.receive, self.send))  # type: ignore[arg-type]

    async def receive(self) -> Message:
        self.num_bytes += len(PIECE)
        return {"type": "http.request", "body": PIECE, "more_body": True}

    async def send(self, message: Message) -> None:
        self.status = message.get("status", self.status)


def test_every_route_refuses_a_request_without_a_key_before_it_reads_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("interpreted before the key was found")

    for name in ("read_json", "_parse_form", "_read_multipart", "_check_json_size"):
        monkeypatch.setattr(request_fields, name, fail)
    service = service_with_key()
    documents = ServedDocuments(service)
    app, refused, public = make_app(service, documents), 0, set()
    for name, method, path in all_routes(service, documents):
        call, rest = Call(app, method, path), path if name == PAGE else path.removeprefix(f"/{name}") or "/"
        if method in ("GET", "HEAD") and rest in PUBLIC and not (name == "huggingface" and rest == "/"):
            assert (call.num_bytes, call.status in (200, 400, 404, 503)) == (0, True), (method, path, call.status)
            public.add(rest)
            continue
        refused += 1
        if APIS[name].keys.may_be_in_body_of(rest):
            assert BODY_BYTES < call.num_bytes <= BODY_BYTES + len(PIECE), (method, path)
            assert call.status in (400, 413), (method, path, call.status)
        else:
            assert (call.num_bytes, call.status in (401, 403)) == (0, True), (method, path, call.status)
    assert public == PUBLIC
    assert refused > 80
    assert service.received.num_bytes == 0


@pytest.mark.parametrize("path", ["/nothing", "/v2/nothing", "/v1/nothing", "/azure/nothing"])
def test_a_path_without_a_route_reads_nothing(path: str) -> None:
    service = service_with_key()
    call = Call(make_app(service, ServedDocuments(service)), "POST", path)
    assert (call.status, call.num_bytes) == (404, 0)


TEXTS = ['a "key": "b', "&key=x", '\r\n--b\r\nContent-Disposition: form-data; name="key"\r\n\r\nx\r\n--b', "ü\\", ""]


@pytest.mark.parametrize("key", ["k", "k ü+&=%", 'k"\\k'])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["json", "spaced", "form", "multipart", "file"])
def test_a_key_is_found_anywhere_in_a_body(kind: str, text: str, key: str) -> None:
    place = KeyLocation(lambda _: None, field_names=("auth_key",))
    for order in (("text", "auth_key"), ("auth_key", "text"), ("text", "auth_key", "last"), ("auth_key",)):
        fields = {name: key if name == "auth_key" else text for name in order}
        if kind in ("json", "spaced"):
            request = httpx.Request(
                "POST", "http://a", content=json.dumps(fields, indent=1 if kind == "spaced" else None)
            )
        elif kind == "form":
            request = httpx.Request("POST", "http://a", data=fields)
        else:
            file = ("a.txt", f'<input name="auth_key">{text}'.encode())
            files: dict[str, Any] = {name: (None, value.encode()) for name, value in fields.items()}
            request = httpx.Request("POST", "http://a", files=files | ({"file": file} if kind == "file" else {}))
        assert key in place.find_in_body(request.headers.get("content-type", "application/json"), request.read())


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/x-www-form-urlencoded", "multipart/form-data"]
)
@pytest.mark.parametrize(
    "item",
    [b'"key"', b'"key":"', b'"key":"\\', b"&key=", b"&key=a", b'name="key"\r\n', b'name="key"\r\na\r\n', b"name=key;",
     b'name="key"\r\n\r\na'],
)  # fmt: skip
def test_the_search_for_a_key_takes_a_time_that_grows_with_the_length_only(content_type: str, item: bytes) -> None:
    place = KeyLocation(lambda _: None, field_names=("key",))

    assert_linear(
        lambda body: list(place.find_in_body(content_type, body)),
        lambda num_bytes: item * (num_bytes // len(item)),
        "find_in_body",
        size=500_000,
        negligible_s=0.005,
    )


@pytest.mark.parametrize(
    ("content_type", "item"),
    [("application/json", b'"key":"\\u0041",'), ("application/x-www-form-urlencoded", b"&key=%41"),
     ("multipart/form-data; boundary=a", b'name="key"\r\n\r\na\r\n--')],
)  # fmt: skip
def test_few_of_many_values_are_decoded(content_type: str, item: bytes) -> None:
    values = list(KeyLocation(lambda _: None, field_names=("key",)).find_in_body(content_type, item * 10_000))
    assert 10 < len(values) <= 100


class TestReceivedBytes:
    @pytest.fixture
    def received(self) -> Iterator[ReceivedBytes]:
        """A bound of a megabyte. All bytes are given back at the end."""
        received = ReceivedBytes(lambda: LimitsConfig(receiving_mb=1.0))
        yield received
        assert received.num_bytes == received.num_unknown_bytes == 0

    def test_no_sender_shuts_out_the_others(self, received: ReceivedBytes) -> None:
        """Each may take as much as is left for others: 1/2, 1/4, 1/8 and so on of the bound."""
        with contextlib.ExitStack() as requests:

            def open_request(sender: str) -> ReceivedRequest:
                return requests.enter_context(received.track_request(sender, is_known=True))

            for sender, share in (("one", 500_000), ("two", 250_000), ("three", 125_000)):
                first = open_request(sender)
                first.add(8192 + share - 10_000)
                second = open_request(sender)
                second.add(8192 + 10_000)
                with pytest.raises(OverloadedError):
                    second.add(5000)
            assert received.num_bytes == 875_000

    def test_requests_without_a_known_key_have_an_eighth(self, received: ReceivedBytes) -> None:
        unknown = partial(received.track_request, is_known=False)
        with unknown("a") as first, unknown("a") as second, unknown("b") as other:
            first.add(8192 + 62_500)
            with pytest.raises(OverloadedError):
                second.add(8192 + 1)
            other.add(8192 + 31_250)
            with received.track_request("key", is_known=True) as known:
                known.add(450_000)
            first.identify("key")
            other.add(40_000)

    def test_a_request_that_announces_its_length_is_refused_at_its_start_or_not_at_all(
        self, received: ReceivedBytes
    ) -> None:
        with received.track_request("a", is_known=True) as first, received.track_request("a", is_known=True) as second:
            first.announce(8192 + 400_000)
            with pytest.raises(OverloadedError):
                second.announce(8192 + 200_000)
            for _ in range(4):
                first.add(102_048)
            assert received.num_bytes == 400_000

    def test_a_single_request_is_always_accepted_and_short_ones_do_not_count(self, received: ReceivedBytes) -> None:
        with received.track_request("a", is_known=False) as one, received.track_request("key", is_known=True) as known:
            one.add(5_000_000)
            known.add(5_000_000)
            for sender in ("a", "b"):
                with received.track_request(sender, is_known=False) as short:
                    short.add(8000)

    @pytest.mark.parametrize(
        ("address", "other", "is_same"),
        [
            ("10.0.0.1", "10.0.0.1", True),
            ("10.0.0.1", "10.0.0.2", False),
            ("10.0.0.1", "::ffff:10.0.0.1", True),
            ("2001:db8::1", "2001:db8::ffff:1", True),  # a host has 2^64 addresses
            ("2001:db8::1", "2001:db8:0:1::1", False),
            ("::1", "127.0.0.1", False),
            (None, "10.0.0.1", False),
        ],
    )
    def test_senders_without_a_key_are_addresses_or_networks(self, address: str, other: str, is_same: bool) -> None:
        assert (sender_id(address) == sender_id(other)) is is_same


def test_uploads_of_one_address_leave_room_for_another() -> None:
    """Also for a service without keys."""
    for keys in ((), (key_config("one", KEY),)):
        service = make_service({}, keys=keys, limits=LimitsConfig(receiving_mb=0.8 if keys else 0.1))
        app = make_app(service, ServedDocuments(service))
        with service.received.track_request(sender_id("10.0.0.1"), is_known=not keys) as hog:
            hog.add(8192 + 50_000)
            for address, is_refused in (("10.0.0.1", True), ("10.0.0.2", False)):
                http = TestClient(app, "http://localhost", client=(address, 1))
                reply = http.post("/translate", json={"q": "a" * 20_000})
                assert (reply.status_code == 429) is is_refused, (keys, reply.text)


def test_a_service_that_receives_too_much_refuses_bodies_and_goes_on() -> None:
    service = make_service({}, limits=LimitsConfig(receiving_mb=0.1))
    service.received.num_bytes = 1_000_000  # of others
    http = application_of(service)
    reply = http.post("/translate", json={"q": "a" * 20_000})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert http.post("/translate", json={"q": "a" * 2000}).status_code == 400
    assert service.received.num_bytes == 1_000_000


def application_of(service: Service) -> TestClient:
    return TestClient(make_app(service, ServedDocuments(service)), "http://localhost")


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("path", ["/translate", "/translate_file", "/v2/translate", "/v2/document"])
@pytest.mark.parametrize("charset", ["punycode", "idna", "utf-7", '"punycode"'])
def test_only_utf8_is_decoded(keyed_http: TestClient, path: str, charset: str, key: str | None) -> None:
    """Some decoders of Python take a time that grows with the square of the length."""
    field = "auth_key" if path.startswith("/v2") else "api_key"
    part = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    body = part.format("q-", "e28h" + "a" * 300_000) + (part.format(field, key) if key else "") + "--x--\r\n"
    began = time.process_time()
    reply = keyed_http.post(
        path, content=body, headers={"content-type": f"multipart/form-data; boundary=x; charset={charset}"}
    )
    assert reply.status_code == (400 if key else 403), reply.text
    assert time.process_time() - began < 5


@pytest.mark.parametrize("charset", ["utf-8", "UTF-8", "us-ascii"])
def test_utf8_may_be_named(http: TestClient, charset: str) -> None:
    body = '--x\r\nContent-Disposition: form-data; name="q"\r\n\r\nü\r\n--x--\r\n'
    headers = {"content-type": f"multipart/form-data; boundary=x; charset={charset}"}
    assert "missing source" in http.post("/translate", content=body, headers=headers).text


FOREIGN = "https://evil.example"


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin", "origin": "http://localhost"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "none", "origin": "chrome-extension://abc"}, True),
        ({"sec-fetch-site": "cross-site", "origin": "moz-extension://abc"}, True),
        ({"origin": "app://obsidian.md"}, True),
        ({"origin": "http://localhost"}, True),
        ({"origin": "https://localhost"}, True),  # a proxy has the certificate
        ({"origin": "http://LOCALHOST:80"}, True),
        ({"origin": "http://localhost:8000"}, False),
        ({"sec-fetch-site": "same-site", "origin": "http://localhost:8000"}, False),
        ({"sec-fetch-site": "cross-site", "origin": FOREIGN}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"origin": FOREIGN}, False),
        ({"origin": "null"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "null"}, False),
        ({"origin": "http://localhost:x"}, False),
        ({"origin": "http://localhost.evil.example"}, False),
        ({"origin": "http://[evil"}, False),
        ({"sec-fetch-site": "cross-site", "origin": OURS}, True),
        ({"origin": OURS}, True),
        ({"origin": "https://ours.example:444"}, False),
    ],
)
def test_pages_of_other_sites_are_refused(http: TestClient, headers: dict[str, str], accepted: bool) -> None:
    form = {"q": "a", "source": "en", "target": "de"}
    requests = [
        http.post("/translate", data=form, headers=headers),
        http.post("/v1/completions", content="{}", headers=headers | {"content-type": "text/plain"}),
        http.post("/api/v1/documents", files={"file": ("a.txt", b"a")}, headers=headers),
        http.get("/v2/translate?auth_key=a&text=a&target_lang=DE", headers=headers),
    ]
    for reply in requests:
        assert ("allowed_origins" in reply.text) is not accepted, reply.text
        assert (reply.status_code == 403) is not accepted
    assert http.get("/", headers=headers).status_code == 200  # a link from another site leads to the page
    assert http.get("/health", headers=headers).status_code == 200


def test_no_reply_is_taken_for_another_type(keyed_http: TestClient) -> None:
    http, origin = keyed_http, {"origin": OURS, "access-control-request-method": "POST"}
    replies = [
        *map(http.get, ("/", "/health", "/metrics", "/api/v1/openapi.json", "/nothing", "/v1/models")),
        http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"}),
        http.post("/translate", json={}),
        http.options("/translate", headers=origin),
        http.get("/health", headers={"host": "other"}),
    ]
    assert [reply.headers.get_list("x-content-type-options") for reply in replies] == [["nosniff"]] * len(replies)


@pytest.mark.parametrize(("path", "status"), [("/v1/completions", 401), ("/nothing", 404), ("/health", 405)])
def test_a_body_that_the_client_offers_and_nobody_reads_ends_the_connection(
    keyed_http: TestClient, path: str, status: int
) -> None:
    """The client may send it or not, so nobody knows where the next request begins."""
    for headers, connection in (({"expect": "100-continue"}, "close"), ({}, None)):
        reply = keyed_http.post(path, content=b"a" * 100, headers=headers)
        assert (reply.status_code, reply.headers.get("connection")) == (status, connection)


@pytest.mark.parametrize("key", [None, "", " "])
@pytest.mark.parametrize("path", ["/v1/models", "/api/v1/models", "/v2/usage", "/v3/projects/x/supportedLanguages"])
def test_no_key_is_never_a_key(path: str, key: str | None) -> None:
    """Even if the configuration, which refuses it, had the digest of the empty string."""
    service = service_with_key()
    keys = tuple(config.model_copy(update={"sha256": sha256(b"").hexdigest()}) for config in service.config.keys)
    service.config = service.config.model_copy(update={"keys": keys})
    headers = {} if key is None else {"authorization": f"Bearer {key}", "x-api-key": key, "x-goog-api-key": key}
    assert application_of(service).get(path, headers=headers).status_code in (400, 401, 403)


def test_large_replies_are_sent_in_pieces() -> None:
    """A slow client makes the service store a piece only."""
    service = make_service({})
    sizes: list[int] = []

    async def run() -> None:
        scope: Scope = {
            "type": "http", "method": "GET", "path": "/api/v1/openapi.json", "raw_path": b"/", "root_path": "",
            "query_string": b"", "headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http",
            "server": ("localhost", 80), "client": ("127.0.0.1", 1),
        }  # fmt: skip

        async def receive() -> Message:
            raise AssertionError

        async def send(message: Message) -> None:
            sizes.append(len(message.get("body", b"")))

        await make_app(service, ServedDocuments(service))(scope, receive, send)

    asyncio.run(run())
    whole = application_of(service).get("/api/v1/openapi.json").content
    assert (sum(sizes), max(sizes) <= 16_384) == (len(whole), True)
    json.loads(whole)


def test_json_that_takes_long_to_parse_is_refused(http: TestClient) -> None:
    bodies = ['{"q": [' + ",".join(["[]"] * 400_000) + "]}", "{" + ",".join(['"a" :1'] * 500_000) + "}"]
    for path, body in product(("/translate", "/api/v1/translate", "/v1/completions"), bodies):
        reply = http.post(path, content=body, headers={"content-type": "application/json"})
        assert (reply.status_code, "lists, objects or fields" in reply.text) == (400, True), reply.text
    for path, field in (("/translate", "q"), ("/api/v1/translate", "text"), ("/api/v1/jobs", "options")):
        body = '{"' + field + '": [' + ",".join(["1"] * 1_000_000) + "]}"
        reply = http.post(path, content=body, headers={"content-type": "application/json"})
        assert (reply.status_code, "commas" in reply.text) == (400, True), reply.text


def test_senders_take_turns_at_the_thread_that_parses() -> None:
    parsed: list[str] = []

    async def parse(name: str) -> None:
        request_fields.current_sender.set(name)
        await request_fields.call_in_thread_if_large(lambda body: parsed.append(body[0]), name * 100_000)

    async def run() -> None:
        await asyncio.gather(*map(parse, "aaab"))

    asyncio.run(run())
    assert "".join(parsed) == "abaa"


def test_a_key_is_the_sender_whose_turn_it_is_to_parse(keyed_http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    senders, take = [], FairSemaphore.slot

    def seen_take(turns: FairSemaphore, owner: str, most: int) -> Any:
        senders.append(owner)
        return take(turns, owner, most)

    monkeypatch.setattr(FairSemaphore, "slot", seen_take)
    body = json.dumps({"text": "a" * 100_000, "target": "de"})
    keyed_http.post("/api/v1/translate", content=body, headers={"authorization": f"Bearer {KEY}"})
    assert set(senders) == {"key one"}


def test_only_glossaries_have_many_rows(http: TestClient) -> None:
    rows = [["a", f"b{number}"] for number in range(30_000)]
    reply = http.post("/api/v1/translate", json={"text": "a", "target": "de", "glossary": rows})
    assert (reply.status_code, "create a glossary" in reply.text) == (400, True)
    dictionaries = [{"source": "en", "target": "de", "entries": rows}]
    reply = http.post("/api/v1/glossaries", json={"name": "a", "dictionaries": dictionaries})
    assert "create a glossary" not in reply.text


def test_tasks_take_turns_in_each_iteration_of_the_loop() -> None:
    async def run() -> list[int]:
        turns, iteration, begun = LoopTurns(3), 0, []

        async def task() -> None:
            await turns.wait()
            begun.append(iteration)

        tasks = [asyncio.ensure_future(task()) for _ in range(10)]
        canceled = asyncio.ensure_future(task())
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            iteration += 1
            canceled.cancel()
        return begun

    begun = asyncio.run(run())
    assert len(begun) == 10
    assert max(begun.count(iteration) for iteration in begun) <= 3
    assert begun == sorted(begun)
