"""Which API a request is meant for. APIs that share a path are told apart by the query, the headers or the body.

This is the only place that decides it: routes, errors, metrics and the refusals before a route use its result. Every
API but the native one also has a prefix of its own, such as ``/deepl/v2/translate``. The application knows only the
paths with a prefix, and requests without one are routed to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl

from starlette.types import Scope

NATIVE = "native"
_DEFAULT = "libretranslate"
_PREFIXED = (_DEFAULT, "azure", "deepl", "openai")
# The first entry whose beginning a path has tells its API. LibreTranslate's paths have no common beginning.
_PATHS = (
    ("/api/", NATIVE),
    ("/ready", NATIVE),
    ("/metrics", NATIVE),
    ("/v1/", "openai"),
    ("/v2/", "deepl"),
    ("/v3/", "deepl"),
    ("/", _DEFAULT),
)


def api_of(scope: Scope) -> str:
    """Return the name of the API that a request is meant for."""
    path: str = scope["path"]
    for name in _PREFIXED:
        if path.startswith(f"/{name}/"):
            return name
    name = next((name for beginning, name in _PATHS if path.startswith(beginning)), _DEFAULT)
    if name == _DEFAULT and _is_azure(scope["query_string"], scope["headers"]):
        return "azure"
    return name


def _is_azure(query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a request states its version, or has a header, as Azure requires."""
    names = [name.lower() for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)]
    return "api-version" in names or any(name.startswith(b"ocp-apim-") for name, _ in headers)


def routed_path(path: str, api: str) -> str:
    """Return the path under which the application knows a request for an API."""
    return path if api == NATIVE or path.startswith(f"/{api}/") else f"/{api}{path}"
