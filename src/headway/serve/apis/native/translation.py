"""Translation models: translate, detect languages, score, and list the alternatives at a position."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.decode.request import DecodingOptions
from headway.predict.markup.html import MarkupKind, MarkupOptions
from headway.predict.results import Candidate, ScoredTarget, Source, Translation
from headway.predict.translation.options import TranslateOptions
from headway.serve.apis.disconnect import unless_disconnected
from headway.serve.apis.event_stream import EventStream
from headway.serve.apis.keys import client_of
from headway.serve.apis.native.errors import ItemError, error_value, or_error
from headway.serve.apis.native.fields import (
    EVENTS,
    MAX_PHRASES,
    Body,
    Options,
    Phrases,
    Strings,
    Texts,
    listed,
)
from headway.serve.clients import Client
from headway.serve.dispatch import replay
from headway.serve.errors import BadRequestError
from headway.serve.glossaries import Dictionary, StoredGlossary
from headway.serve.languages import english_name
from headway.serve.service import Service
from headway.text.sentences import split_sentences


class TranslationBody(Body):
    """Options of a translation request."""

    source: str = Field("auto", description="The language of the texts; auto detects that of each text.")
    target: str = Field(description="The language to translate into.")
    model: str | None = Field(None, description="The name of a model. Default: the first one for the languages.")
    options: Options = Field(
        {}, description="Options of the search, such as beam_size, n_best or sampling; see docs/decoding.md."
    )
    alignment: bool | Literal["pairs"] = Field(
        False,
        description="Whether to align each target token to a source token; pairs leaves out the attention weights. "
        "They are also left out of texts of several parts with more than a million pairs of tokens.",
    )
    prefix: str = Field("", description="Text that each translation begins with.")
    include: Annotated[list[str | Phrases], Field(fail_fast=True)] = Field(
        [],
        description="Phrases that each translation contains as whole words; a list gives alternatives.",
        max_length=MAX_PHRASES,
    )
    ban: Phrases = Field([], description="Phrases that no translation contains.")
    glossary: str | Annotated[list[Strings], Field(min_length=1, fail_fast=True)] | None = Field(
        None,
        description="The id of a glossary that has a dictionary for the languages; or the entries themselves, as in "
        "the dictionaries of a glossary, if source is not auto.",
    )
    markup: MarkupKind | MarkupOptions | None = Field(
        None, description="The syntax of the texts, whose tags are kept: html, xml or options. Default: plain text."
    )
    protect: bool = Field(
        True,
        description="Whether placeholders, URLs, e-mail addresses, numbers with units, emoji, Markdown and line breaks "
        "are kept.",
    )


class TranslateBody(TranslationBody):
    """Texts to translate, and how."""

    text: Texts
    stream: bool = Field(
        False,
        description="Whether to send each translation, in any order, as a server-sent event as soon as it is there.",
    )


class ScoreBody(Body):
    """Sources and targets, whose probabilities are wanted."""

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
    prefix: str = Field("", description="The translation so far. White space at its end is ignored.")
    count: int = Field(10, ge=1, le=1000, description="Number of tokens.")
    model: str | None = None


class DetectBody(Body):
    """Texts whose language is wanted."""

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
    service: Service, client: Client, body: TranslationBody, num_texts: int
) -> Callable[[Sequence[str]], Awaitable[list[dict[str, Any]]]]:
    """Return a function that translates texts as a request with ``num_texts`` of them says.

    Raises:
        HeadwayError: The options are invalid.
        TooLargeError: The search would be too large.
        UnknownGlossaryError: There is no such glossary.
        BadRequestError: There are entries of a glossary, but no source language.
    """
    decoding = DecodingOptions.parse(body.options, "options")
    service.sizes.check_search(
        hypotheses=max(decoding.beam_size, decoding.n_best),
        length=decoding.max_length,
        least_tokens=num_texts * decoding.min_length,
    )
    options = TranslateOptions(
        decoding=decoding, alignment=bool(body.alignment), markup=body.markup, protect=body.protect
    )
    include = tuple(phrase if isinstance(phrase, str) else tuple(phrase) for phrase in body.include)
    languages = body.source, body.target, body.model
    glossary = _chosen_glossary(service, client, body)

    async def translate(texts: Sequence[str]) -> list[dict[str, Any]]:
        sources = [Source(text, body.prefix, include, tuple(body.ban)) for text in texts]
        results, detected = await service.translate(client, sources, *languages, glossary, options)
        answers = [or_error(result, _translation) for result in results]
        for answer, language in zip(answers, detected or (), strict=False):
            answer["detected"] = asdict(language)
        if body.alignment == "pairs":
            for answer in answers:
                for candidate in (answer, *answer.get("alternatives", ())):
                    candidate.get("alignment", {}).pop("attention", None)
        return answers

    return translate


def _chosen_glossary(service: Service, client: Client, body: TranslationBody) -> StoredGlossary | None:
    if not isinstance(body.glossary, list):
        return None if body.glossary is None else service.glossaries.get(client.name, body.glossary)
    if body.source == "auto":
        raise BadRequestError("entries of a glossary need a source language")
    direction = service.direction(body.source, body.target, body.model)
    entries = Dictionary.of(direction.source, direction.target, body.glossary)
    return StoredGlossary.new(client.name, "entries of a request", [entries])


def add_routes(api: APIRouter, service: Service) -> None:
    """Add the routes of translation models."""

    @api.get("/languages")
    async def languages(request: Request) -> list[dict[str, Any]]:
        """Return the pairs of languages.

        ``pivot`` is the language through which two models translate a pair, and null if one model translates it.
        """
        return [
            {"model": pair.model.name, "source": pair.source, "target": pair.target,
             "source_name": english_name(pair.source), "target_name": english_name(pair.target),
             "second_model": pair.second and pair.second.name, "pivot": pair.pivots and pair.pivots[0]}
            for pair in service.pairs
        ]  # fmt: skip

    @api.post("/detect")
    async def detect(body: DetectBody, request: Request) -> list[dict[str, Any]]:
        """Return the most probable language of each text."""
        return [asdict(language) for language in await service.detect(listed(body.text))]

    @api.post("/sentences")
    async def sentences(body: SentencesBody, request: Request) -> dict[str, list[list[str]]]:
        """Split each text into sentences, with the white space around them."""
        texts = listed(body.text)
        service.sizes.check_texts(texts)
        return {"sentences": await asyncio.to_thread(lambda: [split_sentences(text, body.language) for text in texts])}

    @api.post("/translate", response_model=None, responses={200: {"model": TranslateReply, **EVENTS}})
    async def translate(body: TranslateBody, request: Request) -> Response:
        """Translate texts. Each reply is what the text gets alone."""
        return await _translate(service, body, request)

    @api.post("/score", responses={200: {"model": ScoreReply}})
    async def score(body: ScoreBody, request: Request) -> JSONResponse:
        """Return the log-probability of each target as the translation of its source."""
        client = client_of(request)
        if len(body.source_texts) != len(body.target_texts):
            raise BadRequestError("source_texts and target_texts have different lengths")
        direction = service.direction(body.source, body.target, body.model, direct=True)
        texts = [*body.source_texts, *body.target_texts]
        arguments = body.source_texts, body.target_texts
        work = service.call(client, direction.model, "score_each", texts, *arguments, **direction.arguments)
        results = await unless_disconnected(request, work)
        return JSONResponse({"scores": [or_error(result, asdict) for result in results]})

    @api.post("/alternatives")
    async def alternatives(body: AlternativesBody, request: Request) -> JSONResponse:
        """Return the most probable next tokens of a translation, best first."""
        client = client_of(request)
        direction = service.direction(body.source, body.target, body.model, direct=True)
        keywords = {"count": body.count} | direction.arguments
        texts = [body.text, body.prefix]
        work = service.call(client, direction.model, "alternatives", texts, *texts, **keywords)
        predicted = await unless_disconnected(request, work)
        return JSONResponse({"alternatives": [asdict(token) for token in predicted]})


class DirectTranslation:
    """The route for translation without FastAPI, whose parsing takes as long as everything else before the work.

    It leaves the bodies that it cannot read to FastAPI's application, which says what is wrong.
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
            body = TranslateBody.model_validate_json(data)
        except ValueError:  # includes pydantic's ValidationError
            await self._fastapi(scope, replay([{"type": "http.request", "body": data}], receive), send)
        else:
            response = await _translate(self._service, body, request)
            await response(scope, receive, send)


async def _translate(service: Service, body: TranslateBody, request: Request) -> Response:
    client, texts = client_of(request), listed(body.text)
    if body.stream:
        client = service.checked_client(client, texts)
        if body.source != "auto":
            service.direction(body.source, body.target, body.model)  # raises an error before the reply begins
    answer = make_translate_function(service, client, body, len(texts))
    if body.stream:
        return EventStream(_events(answer, texts), error_value)
    return JSONResponse({"translations": await unless_disconnected(request, answer(texts))})


async def _events(
    answer: Callable[[Sequence[str]], Awaitable[list[dict[str, Any]]]], texts: Sequence[str]
) -> AsyncGenerator[dict[str, Any]]:
    """Translate each text on its own, and yield each translation as soon as it is there."""

    async def one(index: int) -> dict[str, Any]:
        return {"index": index, "translation": (await answer([texts[index]]))[0]}

    tasks = [asyncio.ensure_future(one(index)) for index in range(len(texts))]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _translation(result: Translation) -> dict[str, Any]:
    best, *others = [_candidate(candidate) for candidate in result.candidates]
    return {"source": result.source, **best, "alternatives": others, "unlikely": result.unlikely}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    fields = {name: value for name, value in vars(candidate).items() if name != "ids" and value is not None}
    if candidate.glossary is not None:
        fields["glossary"] = [asdict(term) for term in candidate.glossary]
    if candidate.alignment is not None:
        fields["alignment"] = asdict(candidate.alignment)
    return fields
