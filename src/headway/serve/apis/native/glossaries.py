"""Glossaries: required translations of source phrases."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from headway.serve.apis.keys import client_of
from headway.serve.apis.native.fields import Body, Strings
from headway.serve.glossaries import Dictionary, StoredGlossary
from headway.serve.service import Service


class DictionaryBody(Body):
    """The entries of a glossary for a pair of languages."""

    source: str
    target: str
    entries: Annotated[list[Strings], Field(fail_fast=True)] = Field(
        description="Each entry consists of a source phrase, a target phrase (with alternatives separated by |) and "
        "optionally a case rule: ignore or exact.",
        min_length=1,
    )


class GlossaryBody(Body):
    """A glossary to create."""

    name: str
    dictionaries: Annotated[list[DictionaryBody], Field(fail_fast=True)] = Field(min_length=1)

    def to_dictionaries(self) -> list[Dictionary]:
        """Convert to the service's dictionaries. Raises :class:`DataError` for an invalid phrase."""
        return [
            Dictionary.from_rows(dictionary.source, dictionary.target, dictionary.entries)
            for dictionary in self.dictionaries
        ]


def add_routes(api: APIRouter, service: Service) -> None:
    """Add the routes for glossaries."""

    @api.post("/glossaries", status_code=201)
    async def create_glossary(body: GlossaryBody, request: Request) -> dict[str, Any]:
        """Create a glossary, which contains required translations of source phrases."""
        client = client_of(request)
        dictionaries = await asyncio.to_thread(body.to_dictionaries)
        return _glossary(await service.glossary_editor.create(client.name, body.name, dictionaries))

    @api.get("/glossaries")
    async def glossaries(request: Request) -> list[dict[str, Any]]:
        """Return the key's glossaries, without their entries."""
        return [_glossary(stored) for stored in service.glossaries.owned_by(client_of(request).name)]

    @api.get("/glossaries/{identifier}")
    async def glossary(identifier: str, request: Request) -> JSONResponse:
        """Return a glossary with its entries."""
        client = client_of(request)
        stored = service.glossaries.get(client.name, identifier)

        def whole() -> JSONResponse:
            dictionaries = [
                {"source": dictionary.source, "target": dictionary.target, "entries": dictionary.rows}
                for dictionary in stored.dictionaries
            ]
            return JSONResponse(_glossary(stored) | {"dictionaries": dictionaries})

        return await service.read_glossary(client, whole)

    @api.delete("/glossaries/{identifier}", status_code=204)
    async def delete_glossary(identifier: str, request: Request) -> None:
        """Delete a glossary."""
        await service.glossary_editor.delete(client_of(request).name, identifier)


def _glossary(glossary: StoredGlossary) -> dict[str, Any]:
    dictionaries = [
        {"source": dictionary.source, "target": dictionary.target, "num_entries": dictionary.num_entries}
        for dictionary in glossary.dictionaries
    ]
    return {"id": glossary.id, "name": glossary.name, "created": glossary.created, "dictionaries": dictionaries}
