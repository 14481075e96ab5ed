"""Masked language models: fill in masked words."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from headway.predict.language_modeling.masked_language_model import Filling
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.keys import client_of
from headway.serve.apis.native.fields import Body, Phrases
from headway.serve.cost import cost_of_fillings
from headway.serve.service import Service


class FillBody(Body):
    """A text with masks to fill."""

    text: str
    model: str | None = None
    top: int = Field(5, ge=1, le=100, description="Number of fillings to return.")
    candidates: Phrases | None = Field(None, description="Words or phrases to choose from. Default: all tokens.")


class FillReply(BaseModel):
    """The fillings of a text, best first."""

    fillings: list[Filling]


def add_routes(api: APIRouter, service: Service) -> None:
    """Add the routes for masked language models."""

    @api.post("/fill", responses={200: {"model": FillReply}})
    async def fill(body: FillBody, request: Request) -> JSONResponse:
        """Return the best ways to fill the masks in a text."""
        client = client_of(request)
        model = service.find_model(body.model, "fills")
        cost = cost_of_fillings([body.text], body.top, body.candidates or ())
        work = service.call(client, model, "fill", (), body.text, body.top, body.candidates, cost=cost)
        fillings = await cancel_on_disconnect(request, work)
        return JSONResponse({"fillings": [asdict(filling) for filling in fillings]})
