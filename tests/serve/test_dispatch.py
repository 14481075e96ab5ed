"""Every valid request is recognized as one for its API, and for no other."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import make_service
from starlette.routing import Match, Route
from starlette.types import Scope

from headway.serve.dispatch import api_of_body, api_of_head, is_shared_path, likely_api_of_body, split_prefix

_TEXTS = st.text(max_size=20)
_CODES = st.sampled_from(["de", "en-US", "auto", "zh-Hant"])
_KEYS = st.text("abc019", min_size=1)
_COMMON_HEADERS = st.fixed_dictionaries(
    {}, optional={"accept": st.just("*/*"), "user-agent": _KEYS, "authorization": _KEYS.map("Bearer {}".format)}
)


@dataclass(frozen=True)
class Request:
    api: str
    method: str
    path: str
    query: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def scope(self) -> Scope:
        return {
            "type": "http",
            "method": self.method,
            "path": self.path,
            "query_string": urlencode(self.query, doseq=True, errors="surrogatepass").encode(),
            "headers": [(name.encode(), value.encode()) for name, value in self.headers.items()],
        }


@st.composite
def with_fields(draw: st.DrawFn, api: str, path: str, fields: st.SearchStrategy[dict[str, Any]]) -> Request:
    """Return requests with the same fields as JSON, as a form and in the query string."""
    headers, found = dict(draw(_COMMON_HEADERS)), draw(fields)
    kind = draw(st.sampled_from(["json", "form", "query"]))
    if kind == "query":
        return Request(api, "POST", path, found, headers)
    if kind == "form":
        form = urlencode(found, doseq=True).encode()
        return Request(api, "POST", path, {}, headers | {"content-type": "application/x-www-form-urlencoded"}, form)
    return Request(api, "POST", path, {}, headers | {"content-type": "application/json"}, json.dumps(found).encode())


@st.composite
def bare(draw: st.DrawFn, api: str, method: str, *paths: str) -> Request:
    return Request(api, method, draw(st.sampled_from(paths)), {}, draw(_COMMON_HEADERS))


def libretranslate() -> st.SearchStrategy[Request]:
    q = _TEXTS | st.lists(_TEXTS, min_size=1, max_size=3)
    more = {"api_key": _KEYS, "format": st.sampled_from(["text", "html"]), "alternatives": st.integers(0, 3)}
    translate = st.fixed_dictionaries({"q": q, "source": _CODES, "target": _CODES}, optional=more)
    detect = st.fixed_dictionaries({"q": q}, optional={"api_key": _KEYS})
    name = "libretranslate"
    return st.one_of(
        with_fields(name, "/translate", translate),
        with_fields(name, "/detect", detect),
        bare(name, "GET", "/languages", "/health", "/frontend/settings"),
    )


@st.composite
def azure(draw: st.DrawFn) -> Request:
    version = draw(st.sampled_from(["3.0", "2026-06-06"]))
    path = draw(st.sampled_from(["/translate", "/detect", "/languages"]))
    query: dict[str, Any] = {"to": draw(st.lists(_CODES)), "from": draw(_CODES), "api-version": version}
    headers: dict[str, str] = dict(draw(_COMMON_HEADERS))
    if draw(st.booleans()):
        headers["ocp-apim-subscription-key"] = draw(_KEYS)
    texts = draw(st.lists(_TEXTS, min_size=1, max_size=3))
    name = draw(st.sampled_from(["Text", "text"]))
    body: Any = [{name: text} for text in texts]
    if version != "3.0":
        body = {"inputs": [{"text": text, "targets": [{"language": draw(_CODES)}]} for text in texts]}
    content = b"" if path == "/languages" else json.dumps(body).encode()
    method = "GET" if path == "/languages" else "POST"
    return Request("azure", method, path, query, headers, content)


def deepl() -> st.SearchStrategy[Request]:
    fields = st.fixed_dictionaries(
        {"text": st.lists(_TEXTS, min_size=1, max_size=3), "target_lang": _CODES},
        optional={"source_lang": _CODES, "auth_key": _KEYS},
    )
    paths = "/v2/languages", "/v2/usage", "/v2/glossaries", "/v3/glossaries", "/v3/glossaries/x/entries"
    return with_fields("deepl", "/v2/translate", fields) | bare("deepl", "GET", *paths)


def openai() -> st.SearchStrategy[Request]:
    return bare("openai", "POST", "/v1/completions", "/v1/chat/completions") | bare("openai", "GET", "/v1/models")


def native() -> st.SearchStrategy[Request]:
    return bare("native", "POST", "/api/v1/translate", "/api/v1/detect") | bare("native", "GET", "/ready", "/metrics")


@st.composite
def deeplx(draw: st.DrawFn) -> Request:
    fields = draw(
        st.fixed_dictionaries({"text": _TEXTS, "target_lang": _CODES}, optional={"source_lang": _CODES | st.just("")})
    )
    query = draw(st.fixed_dictionaries({}, optional={"token": _KEYS}))
    return Request("deeplx", "POST", "/translate", query, draw(_COMMON_HEADERS), json.dumps(fields).encode())


def google() -> st.SearchStrategy[Request]:
    fields = st.fixed_dictionaries(
        {"q": _TEXTS | st.lists(_TEXTS, min_size=1, max_size=3), "target": _CODES},
        optional={"source": _CODES, "format": st.sampled_from(["text", "html"]), "key": _KEYS},
    )
    parents = "/v3/projects/one", "/v3/projects/one/locations/global"
    methods = [f"{parent}:{method}" for parent in parents for method in ("translateText", "detectLanguage")]
    return st.one_of(
        with_fields("google", "/language/translate/v2", fields),
        with_fields("google", "/language/translate/v2/detect", fields),
        bare("google", "GET", "/language/translate/v2/languages", *(f"{each}/supportedLanguages" for each in parents)),
        bare("google", "POST", *methods),
    )


@st.composite
def aws(draw: st.DrawFn) -> Request:
    operation = draw(st.sampled_from(["TranslateText", "TranslateDocument", "ListLanguages"]))
    fields = {"Text": draw(_TEXTS), "SourceLanguageCode": draw(_CODES), "TargetLanguageCode": draw(_CODES)}
    credential = f"{draw(_KEYS)}/20260101/eu-west-1/translate/aws4_request"
    signature = draw(st.sampled_from([{}, {"authorization": f"AWS4-HMAC-SHA256 Credential={credential}, Signature=0"}]))
    target = {"x-amz-target": f"AWSShineFrontendService_20170701.{operation}"}
    query = {} if signature else {"X-Amz-Credential": credential}
    headers = draw(_COMMON_HEADERS) | {"content-type": "application/x-amz-json-1.1"} | target | signature
    return Request("aws", "POST", "/", query, headers, json.dumps(fields).encode())


@st.composite
def huggingface(draw: st.DrawFn) -> Request:
    if draw(st.booleans()):
        return Request("huggingface", "GET", draw(st.sampled_from(["/info", "/models/a/b/info", "/models/a/health"])))
    optional = {"parameters": st.just({"src_lang": "en", "tgt_lang": "de"}), "stream": st.booleans()}
    fields = draw(st.fixed_dictionaries({"inputs": _TEXTS | st.lists(_TEXTS, min_size=1)}, optional=optional))
    path = draw(st.sampled_from(["/", "/models/model", "/models/facebook/m2m100"]))
    return Request("huggingface", "POST", path, {}, draw(_COMMON_HEADERS), json.dumps(fields).encode())


@st.composite
def open_inference(draw: st.DrawFn) -> Request:
    name, version = draw(st.sampled_from(["model", "translate", "a/b"])), draw(st.sampled_from(["", "/versions/1"]))
    model, headers = f"/v2/models/{name}{version}", dict(draw(_COMMON_HEADERS))
    if draw(st.booleans()):
        paths = "/v2", "/v2/health/live", "/v2/health/ready", model, f"{model}/ready"
        return Request("open-inference", "GET", draw(st.sampled_from(paths)), {}, headers)
    text = draw(_TEXTS)
    tensor: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
    if not draw(st.booleans()):
        body = json.dumps({"inputs": [tensor]}).encode()
        return Request("open-inference", "POST", f"{model}/infer", {}, headers, body)
    data = text.encode("utf-8", "replace")
    data = len(data).to_bytes(4, "little") + data
    head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(data)}, "data": None}]}).encode()
    headers["inference-header-content-length"] = str(len(head))
    return Request("open-inference", "POST", f"{model}/infer", {}, headers, head + data)


def page() -> st.SearchStrategy[Request]:
    return bare("page", "GET", "/", "/page/main.js") | bare("page", "HEAD", "/")


_APIS = (
    "aws", "azure", "deepl", "deeplx", "google", "huggingface", "libretranslate", "open-inference", "openai",
)  # fmt: skip
_QUERY = st.dictionaries(st.sampled_from(["utm_source", "pretty", "v"]), _KEYS, max_size=1)
_HEADERS = st.dictionaries(
    st.sampled_from(["x-request-id", "x-forwarded-for", "cookie", "origin", "accept-language"]), _KEYS, max_size=2
)


@st.composite
def varied(draw: st.DrawFn, requests: st.SearchStrategy[Request]) -> Request:
    """Return requests with further parameters and headers, and with or without the prefix of their API."""
    request = draw(requests)
    prefix = draw(st.sampled_from(["", f"/{request.api}"])) if request.api in _APIS else ""
    return replace(
        request,
        path=prefix + request.path,
        query=draw(_QUERY) | request.query,
        headers=draw(_HEADERS) | request.headers,
    )


_ALL = (aws, azure, deepl, deeplx, google, huggingface, libretranslate, native, open_inference, openai, page)
REQUESTS = varied(st.one_of(*(each() for each in _ALL)))


@given(REQUESTS)
def test_no_valid_request_is_taken_for_another_api(request: Request) -> None:
    api = api_of_head(request.scope)
    if is_shared_path(request.scope, api):
        assert likely_api_of_body(request.body) == request.api
        api = asyncio.run(api_of_body(request.body))
    assert api == request.api


@cache
def routes(api: str) -> list[Route]:
    module = import_module(f"headway.serve.apis.{api.replace('-', '_')}")
    found: list[Route] = module.routes(make_service({}))
    return found


@given(REQUESTS)
def test_a_valid_request_has_a_route(request: Request) -> None:
    """So the requests above are valid as far as the head is concerned."""
    if request.api in _APIS:
        _, path = split_prefix(request.path, request.api)
        scope = {"type": "http", "method": request.method, "path": path, "root_path": "", "headers": []}
        assert [each for each in routes(request.api) if each.matches(scope)[0] is Match.FULL]


@given(REQUESTS, st.sampled_from(_APIS))
def test_a_prefix_decides(request: Request, prefix: str) -> None:
    scope: Scope = {**request.scope, "path": f"/{prefix}{request.path}"}
    assert api_of_head(scope) == prefix
    assert split_prefix(scope["path"], prefix) == (f"/{prefix}", request.path)


@pytest.mark.parametrize(
    ("path", "api", "prefix", "rest"),
    [
        ("/translate", "azure", "", "/translate"),
        ("/azure/translate", "azure", "/azure", "/translate"),
        ("/azure", "azure", "/azure", "/"),
        ("/azures", "libretranslate", "", "/azures"),
        ("/api/v1/models", "native", "", "/api/v1/models"),
        ("", "libretranslate", "", ""),
    ],
)
def test_the_routes_of_an_api_know_paths_without_its_prefix(path: str, api: str, prefix: str, rest: str) -> None:
    assert split_prefix(path, api) == (prefix, rest)


def test_a_request_without_a_path_gets_the_errors_of_the_default() -> None:
    scope = {"type": "http", "method": "CONNECT", "path": "*", "query_string": b"", "headers": []}
    assert api_of_head(scope) == "libretranslate"
