"""Detect requests that are sent by pages of other sites, in the browser of a user who can reach the service.

Browsers report the site in ``Sec-Fetch-Site``, but only to servers that they trust (HTTPS and localhost), and old
browsers never send this header. Every request that may change state has an ``Origin`` header with the site of the page.
Programs other than browsers send neither header. The origins of extensions and apps have other schemes, which no page
can have.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers

_DEFAULT_PORTS = {"http": 80, "https": 443}
_OPAQUE = "null"  # the value for an opaque origin, such as the origin of a sandboxed frame
_OWN_SITES = ("same-origin", "none")  # "none" means that the user or an extension, not a page, has sent the request


def is_from_foreign_page(headers: Headers, allowed_origins: Collection[str]) -> bool:
    """Return whether a request was sent by a page of another origin that is not allowed."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site in _OWN_SITES or (site is None and origin is None):
        return False
    if origin is None:
        return "*" not in allowed_origins
    if origin in allowed_origins or "*" in allowed_origins:
        return False
    scheme = origin.partition(":")[0].lower()
    if origin != _OPAQUE and scheme not in _DEFAULT_PORTS:
        return False
    return site is not None or _address(origin) != _address(f"{scheme}://{headers.get('host', '')}")


def _address(origin: str) -> tuple[str | None, int | None] | None:
    """Return the host and the port of an origin, or None if the origin is invalid."""
    try:
        parts = urlsplit(origin)
        return parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
