"""Language models: continue prompts, score texts, and measure perplexity."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from headway.decode.generation_options import GenerationOptions
from headway.predict import Continuation, StreamPart
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.event_stream import EventStream
from headway.serve.apis.keys import client_of
from headway.serve.apis.native.errors import error_value
from headway.serve.apis.native.fields import EVENT_STREAM_RESPONSE, Body, Options, Texts, as_list
from headway.serve.cost import cost_of_generation, cost_of_perplexity, cost_of_scores
from headway.serve.errors import BadRequestError, TooLargeError
from headway.serve.service import Service

_DEFAULT_TIMES = 2  # with the default stride, each token of a long text is encoded this many times


class GenerateBody(Body):
    """Prompts to continue, with options."""

    prompt: Texts
    model: str | None = None
    options: Options = Field(
        {}, description="Fields of GenerationOptions, such as max_new_tokens. Default: the model's generation options."
    )
    stream: bool = Field(
        False, description="Whether to stream the continuation of a single prompt as server-sent events."
    )
    alternatives: int | None = Field(
        None,
        ge=0,
        le=50,
        description="With stream: number of most probable tokens to list at each position. Each event then contains "
        "the text and the tokens generated since the last event.",
    )


class ScoreTextsBody(Body):
    """Texts to score."""

    text: Texts
    model: str | None = Field(
        None, description="The name of a language model or a masked language model. Default: the first such model."
    )


class PerplexityBody(Body):
    """Texts on which to measure a language model."""

    text: Texts
    model: str | None = None
    stride: int | None = Field(
        None,
        ge=1,
        description="Number of tokens between the starts of two windows, for texts longer than the context. "
        "Default: half the context length.",
    )


class GenerateReply(BaseModel):
    """The continuations of each prompt."""

    continuations: list[list[Continuation]]


def add_routes(api: APIRouter, service: Service) -> None:
    """Add the routes for language models."""

    @api.post("/score-texts")
    async def score_texts(body: ScoreTextsBody, request: Request) -> JSONResponse:
        """Return the log-probability of each token of texts.

        A language model predicts a token from the tokens before it, a masked language model from all other tokens.
        """
        client = client_of(request)
        texts, model = as_list(body.text), service.find_model(body.model, "continues", "fills")
        service.sizes.check_num_texts(texts)
        work = service.call(client, model, "score", texts, texts, cost=cost_of_scores(texts, model))
        scored = await cancel_on_disconnect(request, work)
        scores = [asdict(text) | {"log_probability": text.log_probability} for text in scored]
        return JSONResponse({"scores": scores})

    @api.post("/perplexity")
    async def perplexity(body: PerplexityBody, request: Request) -> JSONResponse:
        """Return a language model's perplexity and bits per byte on texts."""
        client = client_of(request)
        texts, model = as_list(body.text), service.find_model(body.model, "continues")
        service.sizes.check_num_texts(texts)
        times = _DEFAULT_TIMES
        if body.stride is not None and model.context_length is not None:
            times, characters = -(-model.context_length // body.stride), sum(map(len, texts))
            if characters * times > _DEFAULT_TIMES * service.config.limits.characters:
                raise TooLargeError(
                    f"with a stride of {body.stride}, {characters:,} characters are encoded {times:,} times; use a "
                    "larger stride, or send less text"
                )
        cost = cost_of_perplexity(texts, times / _DEFAULT_TIMES)
        work = service.call(client, model, "perplexity", (), texts, cost=cost, stride=body.stride)
        return JSONResponse(asdict(await cancel_on_disconnect(request, work)))

    @api.post("/generate", response_model=None, responses={200: {"model": GenerateReply, **EVENT_STREAM_RESPONSE}})
    async def generate(body: GenerateBody, request: Request) -> Response:
        """Continue prompts."""
        client = client_of(request)
        prompts, model = as_list(body.prompt), service.find_model(body.model, "continues")
        service.sizes.check_num_texts(prompts)
        fields = dict[str, Any](body.options)
        options = GenerationOptions.from_defaults(model.generation, fields)
        cost = cost_of_generation(prompts, options, alternatives=body.alternatives)
        service.sizes.check_cost(cost)
        if body.stream:
            if len(prompts) != 1:
                raise BadRequestError("stream requires a single prompt")
            method, keywords = "stream", fields
            if body.alternatives is not None:
                method, keywords = "stream_tokens", {**fields, "alternatives": body.alternatives}
            parts = service.stream(client, model, method, prompts, prompts[0], cost=cost, **keywords)
            return EventStream(_events(parts), error_value)
        if body.alternatives is not None:
            raise BadRequestError("alternatives requires stream")
        work = service.call(client, model, "generate", prompts, prompts, cost=cost, **fields)
        continuations = await cancel_on_disconnect(request, work)
        return JSONResponse(
            {
                "continuations": [
                    [asdict(continuation) for continuation in text_continuations]
                    for text_continuations in continuations
                ]
            }
        )


async def _events(parts: AsyncGenerator[str | StreamPart | Continuation]) -> AsyncGenerator[dict[str, Any]]:
    async with aclosing(parts):
        async for part in parts:
            match part:
                case str():
                    yield {"text": part}
                case StreamPart():
                    yield asdict(part)
                case _:
                    yield {"continuation": asdict(part)}
