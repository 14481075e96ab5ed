"""The DeepL API for glossaries: /v2 (immutable glossaries with one dictionary) and /v3 (editable, with several).

Both versions return the same glossaries, except that /v2 returns only glossaries with a single dictionary. An entry
consists of a source phrase and a target phrase, without the syntax of :mod:`headway.predict.phrases` for alternatives
and for parts of words.
"""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.errors import DataError
from headway.serve.apis.deepl_fields import optional_text, required_text
from headway.serve.apis.keys import client_of
from headway.serve.apis.request_fields import read_fields
from headway.serve.clients import Client
from headway.serve.errors import BadRequestError, UnknownGlossaryError, UnknownLanguageError
from headway.serve.glossaries import BYTE_ORDER_MARK, Dictionary, StoredGlossary
from headway.serve.service import Service
from headway.text.languages import base_language

_FORM_FIELD = re.compile(r"dictionaries\[(\d{1,4})\]\.(\w+)")


def routes(service: Service) -> list[Route]:
    """Return the routes for glossaries."""
    api = _Glossaries(service)
    v2, v3 = "/v2/glossaries", "/v3/glossaries"
    return [
        Route("/v2/glossary-language-pairs", api.language_pairs, methods=["GET"]),
        Route(v2, api.create_v2, methods=["POST"]),
        Route(v2, api.list_v2, methods=["GET"]),
        Route(f"{v2}/{{identifier}}", api.show_v2, methods=["GET"]),
        Route(f"{v2}/{{identifier}}/entries", api.entries_v2, methods=["GET"]),
        Route(f"{v2}/{{identifier}}", api.delete_v2, methods=["DELETE"]),
        Route(v3, api.create_v3, methods=["POST"]),
        Route(v3, api.list_v3, methods=["GET"]),
        Route(f"{v3}/{{identifier}}", api.show_v3, methods=["GET"]),
        Route(f"{v3}/{{identifier}}/entries", api.entries_v3, methods=["GET"]),
        Route(f"{v3}/{{identifier}}", api.patch, methods=["PATCH"]),
        Route(f"{v3}/{{identifier}}", api.delete_v3, methods=["DELETE"]),
        Route(f"{v3}/{{identifier}}/dictionaries", api.put_dictionary, methods=["PUT"]),
        Route(f"{v3}/{{identifier}}/dictionaries", api.delete_dictionary, methods=["DELETE"]),
    ]


class _Glossaries:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def _read(self, request: Request) -> tuple[dict[str, Any], Client]:
        fields = await read_fields(request)
        return fields, client_of(request)

    async def _glossary(self, request: Request) -> StoredGlossary:
        _, client = await self._read(request)
        return self._service.glossaries.get(client.name, _identifier(request))

    async def language_pairs(self, request: Request) -> Response:
        await self._read(request)

        def supported() -> dict[str, Any]:
            pairs = {(base_language(pair.source), base_language(pair.target)) for pair in self._service.pairs}
            return {"supported_languages": [_languages(*pair) for pair in sorted(pairs)]}

        return Response(await self._service.cached_list("DeepL", supported), media_type="application/json")

    # Version 2.

    async def create_v2(self, request: Request) -> Response:
        fields, client = await self._read(request)
        dictionary = await asyncio.to_thread(_dictionary, fields)
        return JSONResponse(_describe_v2(await self._create(client, fields, [dictionary])), 201)

    async def list_v2(self, request: Request) -> Response:
        _, client = await self._read(request)
        glossaries = [
            glossary for glossary in self._service.glossaries.owned_by(client.name) if len(glossary.dictionaries) == 1
        ]
        return JSONResponse({"glossaries": [_describe_v2(glossary) for glossary in glossaries]})

    async def show_v2(self, request: Request) -> Response:
        return JSONResponse(_describe_v2(await self._glossary_v2(request)))

    async def entries_v2(self, request: Request) -> Response:
        (dictionary,) = (await self._glossary_v2(request)).dictionaries
        return Response(_to_tsv(dictionary), media_type="text/tab-separated-values; charset=utf-8")

    async def delete_v2(self, request: Request) -> Response:
        _, client = await self._read(request)
        await self._service.glossary_editor.delete(client.name, (await self._glossary_v2(request)).id)
        return Response(status_code=204)

    async def _glossary_v2(self, request: Request) -> StoredGlossary:
        glossary = await self._glossary(request)
        if len(glossary.dictionaries) != 1:
            raise UnknownGlossaryError(glossary.id)
        return glossary

    # Version 3.

    async def create_v3(self, request: Request) -> Response:
        fields, client = await self._read(request)
        dictionaries = await asyncio.to_thread(_dictionaries, fields)
        if not dictionaries:
            raise BadRequestError("Glossary dictionaries must be provided")
        return JSONResponse(_describe_v3(await self._create(client, fields, dictionaries)), 201)

    async def list_v3(self, request: Request) -> Response:
        _, client = await self._read(request)
        glossaries = self._service.glossaries.owned_by(client.name)
        return JSONResponse({"glossaries": [_describe_v3(glossary) for glossary in glossaries]})

    async def show_v3(self, request: Request) -> Response:
        return JSONResponse(_describe_v3(await self._glossary(request)))

    async def entries_v3(self, request: Request) -> Response:
        fields, client = await self._read(request)
        glossary = self._service.glossaries.get(client.name, _identifier(request))
        dictionary = glossary.dictionary(*_pair(fields))
        lines = await self._service.read_glossary(client, partial(_to_tsv, dictionary))
        entries = {"entries": lines, "entries_format": "tsv"}
        return JSONResponse({"dictionaries": [_languages(dictionary.source, dictionary.target) | entries]})

    async def patch(self, request: Request) -> Response:
        """Change the name, and add entries to dictionaries. New entries replace those with the same source phrase."""
        fields, client = await self._read(request)
        name, dictionaries = optional_text(fields, "name"), await asyncio.to_thread(_dictionaries, fields)

        def edit(glossary: StoredGlossary) -> StoredGlossary:
            for dictionary in dictionaries:
                glossary = glossary.with_entries(dictionary)
            return glossary if name is None else glossary.with_name(name)

        return JSONResponse(_describe_v3(await self._edit(client, request, edit)))

    async def delete_v3(self, request: Request) -> Response:
        _, client = await self._read(request)
        await self._service.glossary_editor.delete(client.name, _identifier(request))
        return Response(status_code=204)

    async def put_dictionary(self, request: Request) -> Response:
        fields, client = await self._read(request)
        dictionary = await asyncio.to_thread(_dictionary, fields)
        await self._edit(client, request, lambda glossary: glossary.with_dictionary(dictionary))
        return JSONResponse(_describe_dictionary(dictionary))

    async def delete_dictionary(self, request: Request) -> Response:
        fields, client = await self._read(request)
        pair = _pair(fields)
        await self._edit(client, request, lambda glossary: glossary.without_dictionary(glossary.dictionary(*pair)))
        return Response(status_code=204)

    async def _create(
        self, client: Client, fields: dict[str, Any], dictionaries: Sequence[Dictionary]
    ) -> StoredGlossary:
        name = required_text(fields, "name")
        return await _checked(self._service.glossary_editor.create(client.name, name, dictionaries))

    async def _edit(
        self, client: Client, request: Request, edit: Callable[[StoredGlossary], StoredGlossary]
    ) -> StoredGlossary:
        return await _checked(self._service.glossary_editor.edit(client.name, _identifier(request), edit))


async def _checked(work: Awaitable[StoredGlossary]) -> StoredGlossary:
    try:
        return await work
    except UnknownLanguageError as error:
        raise BadRequestError(f"Unsupported glossary source and target language pair: {error}") from None
    except DataError as error:
        raise _invalid(str(error)) from None


def _identifier(request: Request) -> str:
    return str(request.path_params["identifier"])


def _pair(fields: dict[str, Any]) -> tuple[str, str]:
    return required_text(fields, "source_lang"), required_text(fields, "target_lang")


# Contents of replies.


def _languages(source: str, target: str) -> dict[str, Any]:
    return {"source_lang": source, "target_lang": target}


def _describe_dictionary(dictionary: Dictionary) -> dict[str, Any]:
    return _languages(dictionary.source, dictionary.target) | {"entry_count": dictionary.num_entries}


def _describe_v2(glossary: StoredGlossary) -> dict[str, Any]:
    (dictionary,) = glossary.dictionaries
    named = {"glossary_id": glossary.id, "name": glossary.name, "ready": True, "creation_time": glossary.created}
    return named | _describe_dictionary(dictionary)


def _describe_v3(glossary: StoredGlossary) -> dict[str, Any]:
    dictionaries = list(map(_describe_dictionary, glossary.dictionaries))
    named = {"glossary_id": glossary.id, "name": glossary.name, "creation_time": glossary.created}
    return named | {"dictionaries": dictionaries}


def _to_tsv(dictionary: Dictionary) -> str:
    return "\n".join(f"{row[0]}\t{_unescaped(row[1])}" for row in dictionary.rows)


# Parsing of requests.


def _dictionaries(fields: dict[str, Any]) -> list[Dictionary]:
    """Return the dictionaries in a request: a JSON list, or form fields such as dictionaries[0].entries."""
    listed = fields.get("dictionaries")
    if listed is None:
        numbered: dict[int, dict[str, Any]] = {}
        for name, value in fields.items():
            if match := _FORM_FIELD.fullmatch(name):
                numbered.setdefault(int(match[1]), {})[match[2]] = value
        listed = [numbered[number] for number in sorted(numbered)]
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise BadRequestError("Value for 'dictionaries' not supported.")
    return [_dictionary(item) for item in listed]


def _dictionary(fields: dict[str, Any]) -> Dictionary:
    source, target = _pair(fields)
    entries, form = required_text(fields, "entries"), required_text(fields, "entries_format")
    entries = entries.removeprefix(BYTE_ORDER_MARK)  # the CSV parser fails if a byte order mark precedes a quote
    if form == "tsv":
        rows = [line.rstrip("\r").split("\t") for line in entries.split("\n")]
    elif form == "csv":
        rows = _read_csv(entries)
    else:
        raise BadRequestError("Unsupported entry format specified")
    targets_by_source: dict[str, str] = {}
    for number, row in enumerate(rows, start=1):
        cells = list(map(str.strip, row))
        if not any(cells):
            continue
        if form == "csv" and len(cells) == 4:  # the last two cells are the languages
            if tuple(map(base_language, cells[2:])) != (base_language(source), base_language(target)):
                raise _invalid(f"line {number} is for the languages {cells[2]} and {cells[3]}")
            cells = cells[:2]
        if len(cells) != 2 or not all(cells):
            raise _invalid(f"line {number} does not have a source phrase and a target phrase")
        if cells[0] in targets_by_source:
            raise _invalid(f"line {number} repeats the source phrase {cells[0]!r}")
        targets_by_source[cells[0]] = _escaped(cells[1], number)
    if not targets_by_source:
        raise _invalid("there are no entries")
    try:
        return Dictionary.from_rows(source, target, targets_by_source.items())
    except DataError as error:
        raise _invalid(str(error)) from None


def _read_csv(entries: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(entries, newline=""), strict=True))
    except csv.Error as error:
        raise _invalid(f"not valid CSV ({error})") from None


def _escaped(target: str, number: int) -> str:
    """Return a target phrase in glossary syntax, escaped so that it matches only itself."""
    if "|" in target:
        raise _invalid(f"line {number} contains |, which separates alternatives on this server")
    if not target.strip("*"):
        return target
    if target.endswith("*"):
        target = target[:-1] + "\\*"
    return "\\" + target if target.startswith("*") else target


def _unescaped(target: str) -> str:
    return re.sub(r"^\\(?=\*)|\\(?=\*$)", "", target)


def _invalid(reason: str) -> BadRequestError:
    return BadRequestError(f"Invalid glossary entries provided: {reason}")
