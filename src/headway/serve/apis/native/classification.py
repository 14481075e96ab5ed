"""Classifiers: classify texts, and explain labels by the words that support them."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from headway.predict import Classification
from headway.predict.classification.occlusion import MAX_CHARACTERS, MAX_PARTS, Occlusion, occlude
from headway.serve.admission import estimated_tokens
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.keys import client_of
from headway.serve.apis.native.errors import ItemError, convert_or_error
from headway.serve.apis.native.fields import Body, Texts, as_list
from headway.serve.cost import cost_of_texts
from headway.serve.service import Service


class ClassifyBody(Body):
    """Texts to classify."""

    text: Texts
    model: str | None = None


class ExplainBody(Body):
    """A text with a label to explain."""

    text: str
    label: str | None = Field(None, description="The label to explain. Default: the most probable label.")
    model: str | None = None


class ClassifyReply(BaseModel):
    """The label of each text."""

    classifications: list[Classification | ItemError]


def add_routes(api: APIRouter, service: Service) -> None:
    """Add the routes of classifiers."""

    @api.post("/classify", responses={200: {"model": ClassifyReply}})
    async def classify(body: ClassifyBody, request: Request) -> JSONResponse:
        """Return the label of each text, and the probability of every label."""
        client = client_of(request)
        texts, model = as_list(body.text), service.find_model(body.model, "labels")
        classifications = await cancel_on_disconnect(
            request, service.call(client, model, "classify_each", texts, texts)
        )
        return JSONResponse(
            {"classifications": [convert_or_error(classification, asdict) for classification in classifications]}
        )

    @api.post("/explain")
    async def explain(body: ExplainBody, request: Request) -> JSONResponse:
        """Return the contribution of each token and word of a text to its label."""
        client, model = client_of(request), service.find_model(body.model, "labels")
        work = service.call(client, model, "explain", [body.text], body.text, body.label)
        return JSONResponse(asdict(await cancel_on_disconnect(request, work)))

    @api.post("/occlude", responses={200: {"model": Occlusion}})
    async def occlude_words(body: ExplainBody, request: Request) -> JSONResponse:
        """Return the probability of a label after removing each word of a text in turn.

        In a long text, groups of words are removed. Only the first 10,000 characters are considered.
        """
        client, model = client_of(request), service.find_model(body.model, "labels")
        tokens = min(MAX_PARTS * estimated_tokens(body.text[:MAX_CHARACTERS]), service.config.limits.new_tokens)
        work = service.call(client, model, occlude, (), body.text, body.label, cost=cost_of_texts([body.text], tokens))
        return JSONResponse(asdict(await cancel_on_disconnect(request, work)))
