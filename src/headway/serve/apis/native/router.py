"""All routes of the API, which are described in /api/v1/openapi.json."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request

from headway.serve.apis.native import (
    classification,
    documents,
    glossaries,
    inspection,
    jobs,
    language_model,
    masked_language_model,
    translation,
)
from headway.serve.apis.native.errors import ERRORS
from headway.serve.apis.native.threaded_route import ThreadedRoute
from headway.serve.documents import ServedDocuments
from headway.serve.service import Service


def router(service: Service, served_documents: ServedDocuments) -> APIRouter:
    """Return the routes of the API."""
    api = APIRouter(prefix="/api/v1", responses=ERRORS, route_class=ThreadedRoute)

    @api.get("/models")
    async def models(request: Request) -> list[dict[str, Any]]:
        """Return the models with their capabilities, languages and search settings, and whether they are loaded.

        ``load`` is "start" or "demand", depending on when the model is loaded. ``state`` is "warm", "loading" or
        "cold". ``memory_bytes`` is the memory of a warm model.
        """
        pool = service.pool
        return [
            asdict(model)
            | {
                "search": model.search.model_dump(exclude_unset=True),
                "generation": model.generation.model_dump(exclude_unset=True),
                "load": "demand" if pool.is_on_demand(model.name) else "start",
                "state": pool.state(model.name),
                "memory_bytes": pool.memory(model.name),
            }
            for model in service.models
        ]

    for part in (translation, inspection, jobs):
        part.add_routes(api, service)
    documents.add_routes(api, service, served_documents)
    for part in (glossaries, language_model, classification, masked_language_model):
        part.add_routes(api, service)
    return api
