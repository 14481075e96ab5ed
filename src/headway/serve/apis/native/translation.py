"""Translation models: translate, detect languages, score translations, and list alternatives at a position."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.decode.request import DecodingOptions
from headway.predict.markup.html import MarkupKind, MarkupOptions
from headway.predict.results import ScoredTarget, Source
from headway.predict.translation.options import TranslateOptions
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.event_stream import EventStream
from headway.serve.apis.keys import client_of
from headway.serve.apis.native.errors import ItemError, convert_or_error, error_value
from headway.serve.apis.native.fields import (
    EVENT_STREAM_RESPONSE,
    MAX_PHRASES,
    Body,
    Options,
    Phrases,
    Strings,
    Texts,
    as_list,
)
from headway.serve.apis.request_fields import call_in_thread_if_large
from headway.serve.clients import Client
from headway.serve.cost import Cost, cost_of_alternatives, cost_of_splitting
from headway.serve.dispatch import replay
from headway.serve.errors import BadRequestError
from headway.serve.glossaries import Dictionary, StoredGlossary
from headway.serve.languages import english_name
from headway.serve.service import Service
from headway.serve.translation_json import (
    Weights,
    sentences_to_json,
    to_json,
    translate_to_json,
    translation_to_value,
)

# The check of the request's cost allows far fewer entries, and its error message suggests creating a glossary.
_SOME_ENTRIES = Field(min_length=1, max_length=20_000, fail_fast=True)


class TranslationBody(Body):
    """Options of a translation request."""

    source: str = Field("auto", description="The language of the texts; auto detects the language of each text.")
    target: str = Field(description="The language to translate into.")
    model: str | None = Field(None, description="The name of a model. Default: the first model for the languages.")
    options: Options = Field(
        {}, description="Search options, such as beam_size, n_best or sampling; see docs/decoding.md."
    )
    alignment: bool | Literal["pairs", "all"] = Field(
        False,
        description="Whether to align each target token to a source token. With true, the best translation of each "
        "text also contains the attention weights. With 'all', its alternatives also contain them. With 'pairs', no "
        "translation contains them. A reply contains at most a million weights; they are omitted for texts that would "
        "exceed this limit.",
    )
    prefix: str = Field("", description="Text with which each translation must begin.")
    include: Annotated[list[str | Phrases], Field(fail_fast=True)] = Field(
        [],
        description="Phrases that each translation must contain as whole words. A list contains alternatives.",
        max_length=MAX_PHRASES,
    )
    ban: Phrases = Field([], description="Phrases that no translation may contain.")
    glossary: str | Annotated[list[Strings], _SOME_ENTRIES] | None = Field(
        None,
        description="The id of a glossary that has a dictionary for the languages or, if source is not auto, a list of "
        "at most 2,000 entries, as in a glossary's dictionaries.",
    )
    markup: MarkupKind | MarkupOptions | None = Field(
        None, description="The markup in the texts, whose tags are kept: html, xml or options. Default: plain text."
    )
    protect: bool = Field(
        True,
        description="Whether to keep placeholders, URLs, e-mail addresses, numbers with units, emoji, Markdown and "
        "line breaks.",
    )


class TranslateBody(TranslationBody):
    """Texts to translate, with options."""

    text: Texts
    stream: bool = Field(
        False,
        description="Whether to send each translation as a server-sent event as soon as it is available, in any order.",
    )


class ScoreBody(Body):
    """Source texts and translations to score."""

    source_texts: Strings
    target_texts: Strings
    source: str
    target: str
    model: str | None = None


class AlternativesBody(Body):
    """A source text, and the beginning of its translation."""

    text: str
    source: str
    target: str
    prefix: str = Field("", description="The translation so far. Trailing white space is ignored.")
    count: int = Field(10, ge=1, le=1000, description="Number of alternatives to return.")
    model: str | None = None


class DetectBody(Body):
    """Texts whose language to detect."""

    text: Texts


class SentencesBody(Body):
    """Texts to split into sentences."""

    text: Texts
    language: str = Field(description="The language of the texts.", pattern=r"^[A-Za-z0-9_-]{1,40}$")


class TranslationItem(BaseModel):
    """The best translation of a text, with further fields of :class:`headway.predict.results.Candidate`."""

    model_config = ConfigDict(extra="allow")

    source: str
    text: str
    score: float
    log_probability: float
    tokens: list[str]
    token_log_probabilities: list[float]
    alternatives: list[dict[str, Any]]
    unlikely: bool | None


class TranslateReply(BaseModel):
    """The translation of each text."""

    translations: list[TranslationItem | ItemError]


class ScoreReply(BaseModel):
    """The log-probability of each target."""

    scores: list[ScoredTarget | ItemError]


def make_translate_function(
    service: Service, client: Client, body: TranslationBody, all_texts: Sequence[str]
) -> tuple[Callable[[Sequence[str]], Awaitable[list[bytes]]], Cost]:
    """Return a function that translates some of a request's texts to JSON, and the cost of all its texts.

    The caller must first check the number of texts, because the time of this function is proportional to it.

    Raises:
        HeadwayError: The options are invalid.
        TooLargeError: The search would be too large.
        UnknownGlossaryError: No glossary has this id.
        BadRequestError: The request contains glossary entries, but no source language.
    """
    decoding = DecodingOptions.parse(body.options, "options")
    options = TranslateOptions(
        decoding=decoding, alignment=bool(body.alignment), markup=body.markup, protect=body.protect
    )
    include = tuple(phrase if isinstance(phrase, str) else tuple(phrase) for phrase in body.include)
    banned = tuple(body.ban)
    languages = body.source, body.target, body.model
    entries: Sequence[Sequence[str]] = body.glossary if isinstance(body.glossary, list) else ()
    weights = _WEIGHTS[body.alignment]

    def sources(texts: Sequence[str]) -> Sequence[Source]:
        return [Source(text, body.prefix, include, banned) for text in texts]

    has_glossary = body.glossary is not None
    shared: dict[str, Any] = {"entries": entries, "has_glossary": has_glossary}
    cost = service.cost_of_translation(sources(all_texts), [(body.source, body.target)], body.model, options, **shared)
    service.sizes.check_options(cost)
    glossary = _chosen_glossary(service, client, body)

    uncounted = entries  # empty after the first call, which counts the entries

    async def translate(texts: Sequence[str]) -> list[bytes]:
        nonlocal uncounted
        counted, uncounted = uncounted, ()
        results, detected = await service.translate(
            client,
            sources(texts),
            *languages,
            glossary,
            options,
            entries=counted,
            function=translate_to_json,
            has_errors_of_texts=len(all_texts) > 1,
            weights=weights,
        )
        answers = [
            result if isinstance(result, bytes) else to_json(translation_to_value(result)[0]) for result in results
        ]
        if detected is None:
            return answers
        return [
            answer[:-1] + b',"detected":' + to_json(asdict(language)) + b"}"
            for answer, language in zip(answers, detected, strict=True)
        ]

    return translate, cost


# Number of texts per request that are translated at a time: enough to fill the batches of two workers, and few enough
# to leave room for other requests.
_STREAMED_AT_A_TIME = 32
_WEIGHTS: dict[bool | str, Weights] = {False: "none", True: "best", "pairs": "none", "all": "all"}


def _chosen_glossary(service: Service, client: Client, body: TranslationBody) -> StoredGlossary | None:
    if not isinstance(body.glossary, list):
        return None if body.glossary is None else service.glossaries.get(client.name, body.glossary)
    if body.source == "auto":
        raise BadRequestError("glossary entries require a source language")
    direction = service.find_direction(body.source, body.target, body.model)
    entries = Dictionary.from_rows(direction.source, direction.target, body.glossary)
    return StoredGlossary.create(client.name, "entries of a request", [entries])


def add_routes(api: APIRouter, service: Service) -> None:
    """Add the routes for translation models."""

    def pairs() -> list[dict[str, Any]]:
        return [
            {"model": pair.model.name, "source": pair.source, "target": pair.target,
             "source_name": english_name(pair.source), "target_name": english_name(pair.target),
             "second_model": pair.second and pair.second.name, "pivot": pair.pivot_codes and pair.pivot_codes[0]}
            for pair in service.pairs
        ]  # fmt: skip

    @api.get("/languages", response_model=None, responses={200: {"model": list[dict[str, Any]]}})
    async def languages(request: Request) -> Response:
        """Return the pairs of languages that the service translates.

        If two models translate a pair through a third language, ``pivot`` is that language; otherwise it is null.
        """
        return Response(await service.cached_list("pairs", pairs), media_type="application/json")

    @api.post("/detect")
    async def detect(body: DetectBody, request: Request) -> list[dict[str, Any]]:
        """Return the most probable language of each text."""
        client = client_of(request)
        detected = await cancel_on_disconnect(request, service.detect(client, as_list(body.text)))
        return [asdict(language) for language in detected]

    @api.post("/sentences")
    async def sentences(body: SentencesBody, request: Request) -> Response:
        """Split each text into sentences, which keep the white space around them."""
        client, texts = client_of(request), as_list(body.text)
        service.sizes.check_num_texts(texts)
        cost = cost_of_splitting(texts)
        work = service.call(client, service.models[0], sentences_to_json, (), texts, body.language, cost=cost)
        return Response(await cancel_on_disconnect(request, work), media_type="application/json")

    @api.post("/translate", response_model=None, responses={200: {"model": TranslateReply, **EVENT_STREAM_RESPONSE}})
    async def translate(body: TranslateBody, request: Request) -> Response:
        """Translate texts. A translation does not depend on the other texts in the request."""
        return await _translate(service, body, request)

    @api.post("/score", responses={200: {"model": ScoreReply}})
    async def score(body: ScoreBody, request: Request) -> JSONResponse:
        """Return the log-probability of each target text as the translation of its source text."""
        client = client_of(request)
        if len(body.source_texts) != len(body.target_texts):
            raise BadRequestError("source_texts and target_texts have different lengths")
        direction = service.find_direction(body.source, body.target, body.model, direct=True)
        texts = [*body.source_texts, *body.target_texts]
        arguments = body.source_texts, body.target_texts
        work = service.call(client, direction.model, "score_each", texts, *arguments, **direction.language_arguments)
        results = await cancel_on_disconnect(request, work)
        return JSONResponse({"scores": [convert_or_error(result, asdict) for result in results]})

    @api.post("/alternatives")
    async def alternatives(body: AlternativesBody, request: Request) -> JSONResponse:
        """Return the most probable next tokens after the prefix of a translation, best first."""
        client = client_of(request)
        direction = service.find_direction(body.source, body.target, body.model, direct=True)
        keywords = {"count": body.count} | direction.language_arguments
        texts = [body.text, body.prefix]
        cost = cost_of_alternatives(*texts)
        work = service.call(client, direction.model, "alternatives", texts, *texts, cost=cost, **keywords)
        predicted = await cancel_on_disconnect(request, work)
        return JSONResponse({"alternatives": [asdict(token) for token in predicted]})


class DirectTranslation:
    """A translation route that bypasses FastAPI, whose request parsing takes as long as all other preparation.

    Bodies that cannot be parsed here are passed to the FastAPI application, which reports the errors.
    """

    def __init__(self, service: Service, fastapi: ASGIApp) -> None:
        self._service, self._fastapi = service, fastapi

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive, send)
        data = await request.body()
        try:
            if request.headers.get("content-type") != "application/json":
                raise ValueError
            body = await call_in_thread_if_large(TranslateBody.model_validate_json, data)
        except ValueError:  # includes pydantic's ValidationError
            await self._fastapi(scope, replay([{"type": "http.request", "body": data}], receive), send)
        else:
            response = await _translate(self._service, body, request)
            await response(scope, receive, send)


async def _translate(service: Service, body: TranslateBody, request: Request) -> Response:
    client, texts = client_of(request), as_list(body.text)
    service.sizes.check_num_texts(texts)
    answer, cost = make_translate_function(service, client, body, texts)
    if not body.stream:
        translations = await cancel_on_disconnect(request, answer(texts))
        return Response(b'{"translations":[' + b",".join(translations) + b"]}", media_type="application/json")
    client = service.checked_client(client, cost)
    if body.source != "auto":
        service.find_direction(body.source, body.target, body.model)  # raises errors before the reply begins
    answer, _ = make_translate_function(service, client, body, texts)
    return EventStream(_events(answer, texts, partial(service.reserve, client, cost), cost.work_tokens), error_value)


async def _events(
    answer: Callable[[Sequence[str]], Awaitable[list[bytes]]],
    texts: Sequence[str],
    reserve: Callable[[], AbstractContextManager[Callable[[int], None]]],
    tokens: int,
) -> AsyncGenerator[bytes]:
    """Translate each text separately, and yield each translation as soon as it is available.

    Args:
        answer: Translates texts to JSON.
        texts: Texts to translate.
        reserve: Reserves room in the queue for the texts that wait.
        tokens: Estimated size of all texts, in tokens.
    """
    free_places = asyncio.Semaphore(_STREAMED_AT_A_TIME)
    with reserve() as give_back:

        async def one(index: int) -> bytes:
            async with free_places:
                give_back(-(-tokens // len(texts)))
                return b'{"index":%d,"translation":%s}' % (index, (await answer([texts[index]]))[0])

        tasks = [asyncio.ensure_future(one(index)) for index in range(len(texts))]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
