"""Read the fields of requests, for all APIs."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import HTTPConnection, Request

from headway.serve.errors import BadRequestError
from headway.serve.model_info import ModelInfo
from headway.serve.turns import FairSemaphore

T = TypeVar("T")
DataT = TypeVar("DataT", str, bytes)
FieldsT = TypeVar("FieldsT", bound=BaseModel)
_MAX_DEPTH = 20
_MAX_FIELDS = 10_000
_LARGE = 65_536  # size in characters or bytes above which parsing takes long
_PIECE = 32_768  # number of bytes of a form to parse at a time
_CHARSETS = (b"utf-8", b"utf8", b"us-ascii", b"ascii")
# Maximum number of lists and objects in a JSON body: _MAX_CONTAINERS or, if that is more, one per _MIN_BYTES bytes.
_MAX_CONTAINERS = 200_000
_MIN_BYTES = 16
# Maximum number of commas in a JSON body, which limits the number of values in lists: _MAX_COMMAS or, if that is more,
# one per _BYTES_PER_COMMA bytes.
_MAX_COMMAS = 500_000
_BYTES_PER_COMMA = 8
# Maximum number of lists that directly follow another list. Only requests that create glossaries need more.
_MAX_ROWS = 20_000
_ROW = re.compile(rb"\]\s*,\s*\[")
_parser, _parser_turns = ThreadPoolExecutor(1, "parser"), FairSemaphore(1)
current_sender: ContextVar[str] = ContextVar("sender", default="")
"""The sender of the current task's request: its key or, while the key is not known, its address."""
_FIELD = re.compile(rb'"\s*:')


def authorization(head: HTTPConnection, *schemes: str) -> str | None:
    """Return the key in the header ``Authorization: SCHEME KEY``, or None if the header has none of the schemes."""
    scheme, _, key = head.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() in schemes else None


async def parse_body(request: Request, kind: type[FieldsT]) -> FieldsT:
    """Parse the JSON object in the body of a request, and return an instance of ``kind``.

    Raises:
        BadRequestError: The body is not valid JSON, or its fields do not match ``kind``.
    """
    return await call_in_thread_if_large(
        lambda body: parse_fields(kind, _as_object(read_json(body))), await request.body()
    )


def parse_fields(kind: type[FieldsT], fields: dict[str, Any]) -> FieldsT:
    """Validate the fields of a request, and return an instance of ``kind``.

    Raises:
        BadRequestError: The fields do not match ``kind``.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadRequestError(f"{place}: {first['msg']}") from None


def optional_text(fields: dict[str, Any], name: str, problem: str = "{} is not a string") -> str | None:
    """Return the string in a field, or None if the field is missing or empty.

    Raises:
        BadRequestError: The field is not a string. The message is ``problem``, with {} replaced by the field's name.
    """
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequestError(problem.format(name))
    return value or None


async def read_fields(request: Request) -> dict[str, Any]:
    """Return the fields in the query string and the body of a request. The body takes precedence.

    The body may be JSON, a form, or multipart. A field that occurs several times becomes a list.

    Raises:
        BadRequestError: The body is invalid.
    """
    fields: dict[str, Any] = _joined(request.query_params.multi_items())
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if not body:
        return fields
    if kind == "application/x-www-form-urlencoded":  # Starlette would decode unescaped text as Latin-1
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            raise BadRequestError("the form is not valid UTF-8") from None
        return fields | _joined(await call_in_thread_if_large(_parse_form, text))
    if kind == "multipart/form-data":
        return fields | (await _read_multipart(request))[0]
    return fields | await parse_json_object(body)


@dataclass(frozen=True)
class UploadedFile:
    """A file that was uploaded in a form."""

    name: str
    content: bytes


async def read_upload(request: Request) -> tuple[dict[str, Any], UploadedFile | None]:
    """Return the fields of a request like :func:`read_fields`, and the file in the field ``file``, or None.

    Raises:
        BadRequestError: The body is not a valid form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise BadRequestError("the body is not a form with a file (multipart/form-data)")
    fields, files = await _read_multipart(request)
    return _joined(request.query_params.multi_items()) | fields, files.get("file")


async def _read_multipart(request: Request) -> tuple[dict[str, Any], dict[str, UploadedFile]]:
    """Return the fields and the files in a form.

    Only UTF-8 is accepted as the declared charset, because some of Python's decoders take quadratic time.
    """
    charset = parse_options_header(request.headers["content-type"])[1].get(b"charset", b"utf-8")
    if charset.lower() not in _CHARSETS:
        raise BadRequestError("the charset of the form is not UTF-8")
    body = await request.body()

    async def pieces() -> AsyncGenerator[bytes]:
        for start in range(0, len(body), _PIECE):
            yield body[start : start + _PIECE]
            await asyncio.sleep(0)  # so that other requests can be answered meanwhile

    try:
        form = await MultiPartParser(request.headers, pieces()).parse()
    except (MultiPartException, ValueError, KeyError):
        raise BadRequestError("the form is not valid") from None
    try:
        items = form.multi_items()
        fields = _joined([(name, value) for name, value in items if not isinstance(value, UploadFile)])
        files = [(name, value) for name, value in items if isinstance(value, UploadFile)]
        return fields, {name: UploadedFile(value.filename or "", await value.read()) for name, value in files}
    finally:
        await form.close()


async def parse_json(body: bytes) -> Any:
    """Parse a JSON body. Large bodies are parsed in a thread.

    Raises:
        BadRequestError: The body is not valid JSON, is nested too deeply, or has too many lists and objects.
    """
    return await call_in_thread_if_large(read_json, body)


async def check_json_size(body: bytes, *, may_have_rows: bool) -> None:
    """Raise :class:`BadRequestError` if a JSON body has more lists, objects and fields than can be parsed quickly."""
    await call_in_thread_if_large(partial(_check_json_size, may_have_rows=may_have_rows), body)


async def call_in_thread_if_large(function: Callable[[DataT], T], data: DataT) -> T:
    """Call a function. If its argument is large, call it in a thread, so that other requests can be answered meanwhile.

    A single thread handles all large arguments, because several threads would compete with the event loop for the
    interpreter lock. Senders take turns.
    """
    if len(data) <= _LARGE:
        return function(data)
    async with _parser_turns.slot(current_sender.get(), 1):
        return await asyncio.get_running_loop().run_in_executor(_parser, function, data)


def read_json(body: bytes) -> Any:
    """Parse a JSON body in the current thread. Raises the same exceptions as :func:`parse_json`."""
    _check_json_size(body)
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested too deeply
        raise BadRequestError("the body is not valid JSON") from None
    check_nesting(value)
    return value


def _check_json_size(body: bytes, *, may_have_rows: bool = True) -> None:
    commas = max(_MAX_COMMAS, len(body) // _BYTES_PER_COMMA)
    if body.count(b",") > commas:
        raise BadRequestError(f"the body has more than {commas:,} commas between values or in texts")
    bound = max(_MAX_CONTAINERS, len(body) // _MIN_BYTES)
    is_large = body.count(b"[") + body.count(b"{") > bound
    if is_large or (body.count(b":") > bound and sum(1 for _ in _FIELD.finditer(body)) > bound):
        raise BadRequestError(f"the body has more than {bound:,} lists, objects or fields")
    if not may_have_rows and sum(1 for _ in itertools.islice(_ROW.finditer(body), _MAX_ROWS + 1)) > _MAX_ROWS:
        raise BadRequestError(
            f"the body has a list of more than {_MAX_ROWS:,} lists; create a glossary for many entries"
        )


def _parse_form(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise BadRequestError(f"the form has more than {_MAX_FIELDS:,} fields") from None


def choose_languages(model: ModelInfo, source: str | None, target: str | None) -> tuple[str, str]:
    """Return the languages in a request, which default to the model's languages.

    Raises:
        BadRequestError: The model has several target languages and the request specifies none, or the model's languages
            are unknown.
    """
    if target is None and len(model.target_languages) > 1:
        raise BadRequestError(f"target_language is missing; {model.name} has several target languages")
    if not (model.source_languages and model.target_languages):
        raise BadRequestError(f"the languages of {model.name} are unknown")
    return source or model.source_languages[0], target or model.target_languages[0]


def check_nesting(value: Any, max_fields: int = _MAX_FIELDS) -> None:
    """Check that a JSON value is not nested too deeply, and has at most ``max_fields`` object fields in total.

    Raises:
        BadRequestError: The value exceeds a limit.
    """
    level, num_fields = [value], 0
    for _ in range(_MAX_DEPTH):
        containers = [item for item in level if isinstance(item, (dict, list))]
        objects = [item for item in containers if isinstance(item, dict)]
        num_fields += sum(map(len, objects))
        if num_fields > max_fields:
            raise BadRequestError(f"the body has more than {max_fields:,} fields")
        lists = [item for item in containers if isinstance(item, list)]
        level = [*itertools.chain(*lists), *itertools.chain(*(item.values() for item in objects))]
        if not level:
            return
    raise BadRequestError("the body is nested too deeply")


async def parse_json_object(body: bytes) -> dict[str, Any]:
    """Parse a body that must be a JSON object.

    Raises:
        BadRequestError: The body is not a JSON object.
    """
    return _as_object(await parse_json(body))


def _as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequestError("the body is not a JSON object")
    return value


def _joined(items: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in items:
        if name not in fields:
            fields[name] = value
        elif isinstance(fields[name], list):
            fields[name].append(value)
        else:
            fields[name] = [fields[name], value]
    return fields
