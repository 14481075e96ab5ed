"""Inspect a translation: its attention, the search tree, and the cost of another word."""

from __future__ import annotations

from typing import Any, Literal, get_args

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from headway.decode.request import DecodingOptions
from headway.kinds import Capability
from headway.predict import SearchEnd, SearchNode
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.keys import client_of
from headway.serve.apis.native.fields import Body
from headway.serve.cost import cost_of_inspection
from headway.serve.inspections import draw_architecture, force_word_in_translation, inspect_sentence, search_tree
from headway.serve.service import Service
from headway.serve.workers.messages import ModelFunction

_MAX_BEAM_SIZE = 10  # a larger tree would not be legible


class SentenceBody(Body):
    """A sentence of at most 200 tokens, with its source and target language."""

    text: str
    source: str
    target: str
    model: str | None = Field(None, description="The name of a model. Default: the first model for the languages.")


class InspectBody(SentenceBody):
    """A sentence, and optionally its translation, to inspect."""

    translation: str | None = Field(None, description="The translation to inspect. Default: the model's translation.")


class SearchTreeBody(SentenceBody):
    """A sentence whose search tree to return."""

    beam_size: int = Field(4, ge=1, le=_MAX_BEAM_SIZE, description="Number of hypotheses to keep at each step.")


class ForceWordBody(InspectBody):
    """A word to force at a position in a translation."""

    prefix: str = Field(
        "", description="The translation up to the position, including the white space before the word."
    )
    word: str = Field(description="A word, several words, or the beginning of a word.")


class PredictedTokenItem(BaseModel):
    """A token of a translation, and the model's predictions at its position."""

    token: str
    probability: float
    rank: int = Field(description="Rank by probability; 1 is the most probable.")
    forced: bool = Field(description="Whether the token was given instead of predicted, such as a language code.")
    choices: float | None = Field(
        description="Perplexity of the prediction: it is as uncertain as a choice among this many equally probable "
        "tokens."
    )
    alternatives: list[tuple[str, float]] = Field(description="The most probable tokens, with their probabilities.")


class AttentionMapItem(BaseModel):
    """The attention weights of one layer."""

    layer: int
    heads: list[int]
    weights: str = Field(
        description="The weights in Base64: for each head and row, one byte per column. 255 represents a weight of 1."
    )


class AttentionKindItem(BaseModel):
    """The attention weights of one kind of attention."""

    id: Literal["cross", "encoder", "decoder", "pooling"]
    rows: str = Field(description="The side whose tokens are the queries (rows).")
    columns: str = Field(description="The side whose tokens are the keys (columns).")
    maps: list[AttentionMapItem]


class InspectReply(BaseModel):
    """The attention weights and the predictions for a translation."""

    model: str
    architecture: str
    source: str
    target: str
    target_given: bool
    log_probability: float
    sides: dict[str, list[str]] = Field(
        description="The tokens of source, target, input and text, in displayable form."
    )
    right_to_left: dict[str, bool]
    steps: list[PredictedTokenItem]
    alignment: list[tuple[int, int]] = Field(description="Pairs of a source token index and a target token index.")
    alignment_layer: int | None
    max_weight: int
    kinds: list[AttentionKindItem]


class SearchTreeReply(BaseModel):
    """The search tree of a beam search."""

    beam_size: int
    nodes: list[SearchNode] = Field(description="The tokens of the kept hypotheses, each after its parent.")
    ends: list[SearchEnd] = Field(description="The finished hypotheses, best first.")


class TargetItem(BaseModel):
    """A translation with its log-probability and predictions."""

    text: str
    log_probability: float
    steps: list[PredictedTokenItem]


class ForceWordReply(BaseModel):
    """The cost of forcing a word in a translation."""

    cost: float = Field(description="The difference between the log-probabilities, in nats.")
    chosen: TargetItem
    forced: TargetItem


def add_routes(api: APIRouter, service: Service) -> None:
    """Add the routes for inspections."""

    async def answer(
        request: Request, body: SentenceBody, function: ModelFunction, texts: list[str], *given: Any
    ) -> Response:
        client = client_of(request)
        direction = service.find_direction(body.source, body.target, body.model, direct=True)
        cost = cost_of_inspection(texts)
        work = service.call(client, direction.model, function, texts, *given, cost=cost, **direction.language_arguments)
        return Response(await cancel_on_disconnect(request, work), media_type="application/json")

    @api.post("/inspect", response_model=None, responses={200: {"model": InspectReply}})
    async def inspect(body: InspectBody, request: Request) -> Response:
        """Return the attention for a translation by layer and head, and the predictions at each position."""
        name = service.find_direction(body.source, body.target, body.model, direct=True).name
        texts = [body.text, body.translation or ""]
        return await answer(request, body, inspect_sentence, texts, body.text, body.translation, name)

    @api.get("/diagram", response_model=None, responses={200: {"content": {"image/svg+xml": {}}}})
    async def diagram(request: Request, model: str) -> Response:
        """Return a drawing of a model's architecture as an SVG file."""
        chosen, cost = service.find_model(model, *get_args(Capability)), cost_of_inspection([""])
        work = service.call(client_of(request), chosen, draw_architecture, [], cost=cost)
        return Response(await cancel_on_disconnect(request, work), media_type="image/svg+xml")

    @api.post("/search-tree", response_model=None, responses={200: {"model": SearchTreeReply}})
    async def tree(body: SearchTreeBody, request: Request) -> Response:
        """Return the hypotheses that beam search keeps at each step."""
        options = DecodingOptions(beam_size=body.beam_size, n_best=body.beam_size)
        return await answer(request, body, search_tree, [body.text], body.text, options)

    @api.post("/force-word", response_model=None, responses={200: {"model": ForceWordReply}})
    async def force_word(body: ForceWordBody, request: Request) -> Response:
        """Return the translation that results from forcing a word at a position, and the cost of the word."""
        given = body.text, body.prefix, body.word, body.translation
        texts = [body.text, body.prefix, body.word, body.translation or ""]
        return await answer(request, body, force_word_in_translation, texts, *given)
