"""Locate the key in the requests of an API, and determine which requests need no key.

The gateway finds the key before anything else in a request is parsed. A key in the body is therefore found by searching
for the names of its fields: any value that follows such a name may be the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from urllib.parse import unquote_plus

from starlette.requests import HTTPConnection
from starlette.responses import Response

from headway.serve.clients import Client

# Maximum number of values per field in which to look for the key. Decoding this many form values takes about 30 ms.
_MAX_OCCURRENCES = 100
_JSON_VALUE = re.compile(rb'\s{0,100}:\s{0,100}("(?:[^"\\]|\\.){0,1000}")')
_FORM_VALUE = re.compile(rb"([^&]{0,3000})(?:&|\Z)")
_PART_VALUE = re.compile(rb"(?:;[^\r\n]{0,1000})?\r\n(?:[^\r\n]{1,300}\r\n){0,5}\r\n([^\r\n]{0,1000})\r\n--")
_NOTHING = re.compile(r"(?!)")
_EVERYTHING = re.compile("")


@dataclass(frozen=True)
class KeyLocation:
    """The places where the requests of an API contain the key. Paths do not include the API's prefix.

    Attributes:
        read_head: Returns the key in the headers or the query, or None if they do not contain a key.
        field_names: Names of the fields that may contain the key in a body or in the query.
        body_paths: Matches the beginnings of paths whose request bodies may contain the key.
        public_paths: Matches the paths whose GET requests need no key.
        is_required: Whether requests must contain a key even if the service has no keys. Any key is then accepted.
        make_refusal: Returns the reply to a request with a wrong or missing key, or None for the default reply.
    """

    read_head: Callable[[HTTPConnection], str | None]
    field_names: tuple[str, ...] = ()
    body_paths: re.Pattern[str] = _EVERYTHING
    public_paths: re.Pattern[str] = _NOTHING
    is_required: bool = False
    make_refusal: Callable[[HTTPConnection, str | None], Response | None] = lambda _, __: None

    def is_public(self, method: str, path: str) -> bool:
        """Return whether a request needs no key."""
        return method in ("GET", "HEAD") and self.public_paths.fullmatch(path) is not None

    def may_be_in_body_of(self, path: str) -> bool:
        """Return whether the body of a request to this path may contain the key."""
        return bool(self.field_names) and self.body_paths.match(path) is not None

    def find_in_head(self, head: HTTPConnection) -> str | None:
        """Return the key in the headers or the query, or None if they do not contain a key."""
        key = self.read_head(head)
        if key is None:
            key = next(filter(None, map(head.query_params.get, self.field_names)), None)
        return key

    def find_in_body(self, content_type: str, body: bytes) -> Iterator[str]:
        """Yield possible keys in a body, without parsing the rest of the body."""
        kind = content_type.partition(";")[0].strip().lower()
        for name in map(str.encode, self.field_names):
            if kind == "application/x-www-form-urlencoded":
                first = _FORM_VALUE.match(body, len(name) + 1) if body.startswith(name + b"=") else None
                others = _values_after(b"&" + name + b"=", _FORM_VALUE.match, body)
                values = others if first is None else chain([first[1]], others)
                yield from (unquote_plus(value.decode("utf-8", "replace")).strip() for value in values)
            elif kind == "multipart/form-data":
                quoted, bare = b'name="' + name + b'"', b"name=" + name
                values = chain(
                    _values_after(quoted, _PART_VALUE.match, body), _values_after(bare, _PART_VALUE.match, body)
                )
                yield from (value.decode("utf-8", "replace").strip() for value in values)
            else:
                for value in _values_after(b'"' + name + b'"', _JSON_VALUE.match, body):
                    with suppress(ValueError):
                        yield str(json.loads(value)).strip()


def client_of(request: HTTPConnection) -> Client:
    """Return the client that has sent a request, which the gateway has determined."""
    client: Client = request.state.client
    return client


def _values_after(
    beginning: bytes, match_value: Callable[[bytes, int], re.Match[bytes] | None], body: bytes
) -> Iterator[bytes]:
    """Yield the values that follow occurrences of ``beginning``, the name of a field."""
    start = 0
    for _ in range(_MAX_OCCURRENCES):
        start = body.find(beginning, start)
        if start < 0:
            return
        start += len(beginning)
        if match := match_value(body, start):
            yield match[1]
