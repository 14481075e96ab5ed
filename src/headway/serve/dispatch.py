"""Route each request to its API or to the page. The query, headers or body distinguish APIs that share a path.

Only this module determines the API; routes, errors, metrics and early refusals use the result. Every API except the
native API also has its own prefix, as in ``/deepl/v2/translate``, which its routes do not contain.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope

from headway.serve.apis.request_fields import parse_json_object
from headway.serve.errors import BadRequestError

NATIVE = "native"
PAGE = "page"
_DEFAULT = "libretranslate"
_PREFIXED = (_DEFAULT, PAGE, "aws", "azure", "deepl", "deeplx", "google", "huggingface", "open-inference", "openai")
# The segments after /v2/ in paths of the Open Inference Protocol and of the Triton extensions that are refused.
_OPEN_INFERENCE = (
    "health", "models", "repository", "trace", "logging", "systemsharedmemory", "cudasharedmemory",
)  # fmt: skip
# The first prefix that matches a path determines its API. LibreTranslate's paths have no common prefix.
_PATHS = (
    ("/api/", NATIVE),
    ("/ready/", NATIVE),
    ("/metrics/", NATIVE),
    ("/v1/", "openai"),
    ("/language/translate/v2", "google"),
    ("/v3/projects/", "google"),
    ("/models/", "huggingface"),
    *((f"/v2/{name}/", "open-inference") for name in _OPEN_INFERENCE),
    ("/v2/", "deepl"),
    ("/v3/", "deepl"),
)
_WHOLE_PATHS = {"/v2": "open-inference", "/info": "huggingface"}
_DEEPLX_FIELDS = {"text", "source_lang", "target_lang"}
_DEEPLX_FIELD = re.compile(rb'"(?:text|source_lang|target_lang)"\s*:')
_LIBRETRANSLATE_FIELD = re.compile(rb'"q"\s*:')


def is_shared_path(scope: Scope, api: str) -> bool:
    """Return whether the body is needed to distinguish LibreTranslate from DeepLX.

    ``api`` is the API that :func:`api_of_head` has returned.
    """
    return (api, scope["method"], scope["path"]) == (_DEFAULT, "POST", "/translate")


async def api_of_body(body: bytes) -> str:
    """Return the name of the API that a body is meant for, on a path shared by LibreTranslate and DeepLX."""
    if _DEEPLX_FIELD.search(body) is None:
        return _DEFAULT
    return "deeplx" if await _is_deeplx(body) else _DEFAULT


def likely_api_of_body(body: bytes) -> str:
    """Guess the result of :func:`api_of_body` without parsing the body."""
    return "deeplx" if _DEEPLX_FIELD.search(body) and not _LIBRETRANSLATE_FIELD.search(body) else _DEFAULT


def api_of_head(scope: Scope) -> str:
    """Return the name of the API that the path, query and headers of a request indicate."""
    path: str = scope["path"]
    for name in _PREFIXED:
        if f"{path}/".startswith(f"/{name}/"):
            return name
    if any(name == b"x-amz-target" for name, _ in scope["headers"]):
        return "aws"
    if path == "/" and scope["method"] == "POST":
        return "huggingface"
    if path == "/" and scope["method"] in ("GET", "HEAD"):
        return PAGE
    if path in _WHOLE_PATHS:
        return _WHOLE_PATHS[path]
    name = next((name for beginning, name in _PATHS if f"{path}/".startswith(beginning)), _DEFAULT)
    if name == _DEFAULT and _is_azure(scope["query_string"], scope["headers"]):
        return "azure"
    return name


def _is_azure(query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a request has the version parameter or one of the headers of Azure's API."""
    names = [name.lower() for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)]
    return "api-version" in names or any(name.startswith(b"ocp-apim-") for name, _ in headers)


async def _is_deeplx(body: bytes) -> bool:
    """Return whether a body has fields of DeepLX and lacks the field that LibreTranslate requires."""
    try:
        fields = await parse_json_object(body)
    except BadRequestError:
        return False
    return "q" not in fields and not _DEEPLX_FIELDS.isdisjoint(fields)


def split_prefix(path: str, api: str) -> tuple[str, str]:
    """Split a path into the prefix of its API (or "") and the rest, which is matched against the API's routes."""
    prefix = f"/{api}"
    return (prefix, path[len(prefix) :] or "/") if f"{path}/".startswith(f"{prefix}/") else ("", path)


def replay(messages: Iterable[Message], receive: Receive) -> Receive:
    """Return a receive function that first replays ``messages``, which were already read, then calls ``receive``."""
    left = deque(messages)

    async def receive_again() -> Message:
        return left.popleft() if left else await receive()

    return receive_again
