"""The service's own API: what the Python objects give, as JSON. /api/v1/openapi.json describes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from headway.decode.request import DecodingOptions
from headway.errors import HeadwayError
from headway.predict import Classification, Continuation, GenerationOptions
from headway.predict.markup import MarkupKind, MarkupOptions
from headway.predict.masked_language_model import Filling
from headway.predict.results import Candidate, ScoredTarget, Source, Translation
from headway.serve.apis.event_stream import EventStream
from headway.serve.apis.requests import BadRequestError, authorization, check_nesting, unless_disconnected
from headway.serve.bulk_jobs import BulkJob
from headway.serve.glossaries import Dictionary, StoredGlossary
from headway.serve.languages import english_name
from headway.serve.service import Client, Service, UnknownLanguageError

JOBS_PATH = "/api/v1/jobs"
_RESULTS_PER_PART = 256  # of a reply
_MAX_FIELDS = 1000  # of all objects in a body
_MAX_PHRASES = 200  # to include, to ban or to stop at
# A list ends at its first invalid item, because a reply cannot contain a million errors.
_Strings = Annotated[list[str], Field(fail_fast=True)]
_Phrases = Annotated[list[str], Field(max_length=_MAX_PHRASES, fail_fast=True)]
_Options = dict[str, bool | int | float | str | _Phrases | dict[str, Any] | None]
_Texts = Annotated[str | _Strings, Field(description="A text, or a list of texts.")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _is_flat(cls, data: Any) -> Any:
        check_nesting(data, _MAX_FIELDS)
        return data


class _TranslationBody(_Body):
    """How to translate texts."""

    source: str = Field("auto", description="The language of the texts; auto detects that of each text.")
    target: str = Field(description="The language to translate into.")
    model: str | None = Field(None, description="The name of a model. Default: the first one for the languages.")
    options: _Options = Field(
        {}, description="Options of the search, such as beam_size, n_best or sampling; see docs/decoding.md."
    )
    alignment: bool = Field(False, description="Whether to align each target token to a source token.")
    prefix: str = Field("", description="Text that each translation begins with.")
    include: Annotated[list[str | _Phrases], Field(fail_fast=True)] = Field(
        [],
        description="Phrases that each translation contains as whole words; a list gives alternatives.",
        max_length=_MAX_PHRASES,
    )
    ban: _Phrases = Field([], description="Phrases that no translation contains.")
    glossary: str | None = Field(None, description="The id of a glossary that has a dictionary for the languages.")
    markup: MarkupKind | MarkupOptions | None = Field(
        None, description="The syntax of the texts, whose tags are kept: html, xml or options. Default: plain text."
    )
    protect: bool = Field(
        True,
        description="Whether placeholders, URLs, e-mail addresses, numbers with units, emoji, Markdown and line breaks "
        "are kept.",
    )


class TranslateBody(_TranslationBody):
    """Texts to translate, and how."""

    text: _Texts
    stream: bool = Field(
        False,
        description="Whether to send each translation, in any order, as a server-sent event as soon as it is there.",
    )


class JobBody(_TranslationBody):
    """Many texts to translate, and how."""

    text: _Strings


class ClassifyBody(_Body):
    """Texts to classify."""

    text: _Texts
    model: str | None = None


class GenerateBody(_Body):
    """Prompts to continue, and how."""

    prompt: _Texts
    model: str | None = None
    options: _Options = Field({}, description="Fields of GenerationOptions, such as max_new_tokens.")
    stream: bool = Field(
        False, description="Whether to send the continuation of one prompt in parts, as server-sent events."
    )


class FillBody(_Body):
    """A text with masks to fill."""

    text: str
    model: str | None = None
    top: int = Field(5, ge=1, le=100, description="Number of fillings.")
    candidates: _Phrases | None = Field(None, description="The only fillings to consider.")


class ScoreBody(_Body):
    """Sources and targets, whose probabilities are wanted."""

    source_texts: _Strings
    target_texts: _Strings
    source: str
    target: str
    model: str | None = None


class AlternativesBody(_Body):
    """A source text, and the beginning of its translation."""

    text: str
    source: str
    target: str
    prefix: str = Field("", description="The translation so far. White space at its end is ignored.")
    count: int = Field(10, ge=1, le=1000, description="Number of tokens.")
    model: str | None = None


class ExplainBody(_Body):
    """A text whose label is to be explained."""

    text: str
    label: str | None = Field(None, description="The label to explain. Default: the most probable one.")
    model: str | None = None


class ScoreTextsBody(_Body):
    """Texts whose probabilities are wanted."""

    text: _Texts
    model: str | None = Field(None, description="A language model or a masked language model. Default: the first one.")


class PerplexityBody(_Body):
    """Texts that a language model is measured on."""

    text: _Texts
    model: str | None = None
    stride: int | None = Field(
        None, ge=1, description="Tokens between windows, for texts longer than the context. Default: half of it."
    )


class DictionaryBody(_Body):
    """The entries of a glossary for a pair of languages."""

    source: str
    target: str
    entries: Annotated[list[_Strings], Field(fail_fast=True)] = Field(
        description="Each has a source phrase, a target phrase (alternatives are separated by |) and optionally a case "
        "rule: ignore or exact.",
        min_length=1,
    )


class GlossaryBody(_Body):
    """A glossary to create."""

    name: str
    dictionaries: Annotated[list[DictionaryBody], Field(fail_fast=True)] = Field(min_length=1)


class DetectBody(_Body):
    """Texts whose language is wanted."""

    text: _Texts


class ErrorDetail(BaseModel):
    """What was wrong."""

    status: int = Field(description="The status of the reply.")
    message: str


class ErrorReply(BaseModel):
    """A request that is refused, or has failed."""

    error: ErrorDetail


class ItemError(BaseModel):
    """An error in the place of a result, if other texts of the request have results."""

    model_config = ConfigDict(extra="forbid")

    error: str


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


class ClassifyReply(BaseModel):
    """The label of each text."""

    classifications: list[Classification | ItemError]


class GenerateReply(BaseModel):
    """The continuations of each prompt."""

    continuations: list[list[Continuation]]


class FillReply(BaseModel):
    """The fillings, best first."""

    fillings: list[Filling]


_ERROR_STATUSES = (400, 403, 404, 405, 408, 409, 413, 421, 422, 429, 431, 503, 504)
_ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorReply} for status in _ERROR_STATUSES}
_EVENTS: dict[str, Any] = {"content": {"text/event-stream": {}}}


def router(service: Service) -> APIRouter:
    """Return the routes of the API."""
    api = APIRouter(prefix="/api/v1", responses=_ERRORS)

    def client_of(request: Request) -> Client:
        key = authorization(request, "bearer")
        return service.client(request.headers.get("x-api-key") if key is None else key)

    def translation(client: Client, body: _TranslationBody) -> Callable[[Sequence[str]], Awaitable[list[Any]]]:
        """Return a function that translates texts as a request says."""
        options = DecodingOptions.parse(body.options, "options")
        service.check_search(hypotheses=max(options.beam_size, options.n_best), length=options.max_length)
        include = tuple(each if isinstance(each, str) else tuple(each) for each in body.include)
        languages = body.source, body.target, body.model
        glossary = None if body.glossary is None else service.glossaries.get(client.name, body.glossary)

        async def translate(texts: Sequence[str]) -> list[dict[str, Any]]:
            sources = [Source(text, body.prefix, include, tuple(body.ban)) for text in texts]
            how: dict[str, Any] = {"alignment": body.alignment, "markup": body.markup, "protect": body.protect}
            results, detected = await service.translate(client, sources, *languages, glossary, options=options, **how)
            answers = [_translation(each) for each in results]
            for one, language in zip(answers, detected or (), strict=False):
                one["detected"] = asdict(language)
            return answers

        return translate

    @api.get("/models")
    async def models(request: Request) -> list[dict[str, Any]]:
        """Return the models: what each does, and for which languages."""
        client_of(request)
        return [asdict(model) for model in service.models]

    @api.get("/languages")
    async def languages(request: Request) -> list[dict[str, Any]]:
        """Return the pairs of languages."""
        client_of(request)
        return [
            {"model": model.name, "source": source, "target": target,
             "source_name": english_name(source), "target_name": english_name(target)}
            for model in service.models_of_kind("translation")
            for source in model.source_languages
            for target in model.target_languages
        ]  # fmt: skip

    @api.post("/detect")
    async def detect(body: DetectBody, request: Request) -> list[dict[str, Any]]:
        """Return the most probable language of each text."""
        client_of(request)
        return [asdict(each) for each in await service.detect(_listed(body.text))]

    @api.post("/translate", response_model=None, responses={200: {"model": TranslateReply, **_EVENTS}})
    async def translate(body: TranslateBody, request: Request) -> Response:
        """Translate texts. Each reply is what the text gets alone."""
        answer, texts = translation(client_of(request), body), _listed(body.text)
        service.check_size(texts)

        async def events() -> AsyncGenerator[dict[str, Any]]:
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

        if body.stream:
            return EventStream(events(), _error_value)
        return JSONResponse({"translations": await unless_disconnected(request, answer(texts))})

    @api.post("/jobs", status_code=201)
    async def create_job(body: JobBody, request: Request) -> dict[str, Any]:
        """Translate many texts later, while the service has little else to do.

        A text that cannot be translated has an error in its place. Only the key that created a job sees it.
        """
        client = client_of(request)
        if body.source != "auto":
            service.direction(body.source, body.target, body.model)
        answer = translation(replace(client, in_background=True), body)

        async def work(texts: Sequence[str]) -> list[bytes]:
            try:
                answers = await answer(texts)
            except UnknownLanguageError as error:  # of a text whose language was detected
                if len(texts) > 1:
                    raise
                answers = [{"error": f"{error} is not supported"}]
            return [json.dumps(each, ensure_ascii=False).encode() for each in answers]

        return _job(service.add_job(client, body.text, work))

    @api.get("/jobs/{identifier}")
    async def job(identifier: str, request: Request) -> dict[str, Any]:
        """Return the progress of a job."""
        return _job(service.jobs.get(client_of(request).name, identifier))

    @api.get("/jobs/{identifier}/result", response_model=None)
    async def job_result(identifier: str, request: Request) -> Response:
        """Return the translations of a job that is done, in the order of its texts."""
        results = service.jobs.get(client_of(request).name, identifier).results()

        async def parts() -> AsyncGenerator[bytes]:
            yield b'{"translations": ['
            for start in range(0, len(results), _RESULTS_PER_PART):
                part = b", ".join(results[start : start + _RESULTS_PER_PART])
                yield b", " + part if start else part
            yield b"]}"

        return StreamingResponse(parts(), media_type="application/json")

    @api.delete("/jobs/{identifier}", status_code=204)
    async def delete_job(identifier: str, request: Request) -> None:
        """Cancel a job and delete its result."""
        service.jobs.remove(service.jobs.get(client_of(request).name, identifier))

    @api.post("/glossaries", status_code=201)
    async def create_glossary(body: GlossaryBody, request: Request) -> dict[str, Any]:
        """Create a glossary: required translations of certain source phrases."""
        client = client_of(request)
        dictionaries = [Dictionary.of(each.source, each.target, each.entries) for each in body.dictionaries]
        return _glossary(await service.create_glossary(client, body.name, dictionaries))

    @api.get("/glossaries")
    async def glossaries(request: Request) -> list[dict[str, Any]]:
        """Return the glossaries of the key, without their entries."""
        return [_glossary(each) for each in service.glossaries.owned_by(client_of(request).name)]

    @api.get("/glossaries/{identifier}")
    async def glossary(identifier: str, request: Request) -> JSONResponse:
        """Return a glossary with its entries."""
        found = service.glossaries.get(client_of(request).name, identifier)
        dictionaries = [{"source": own.source, "target": own.target, "entries": own.rows} for own in found.dictionaries]
        return JSONResponse(_glossary(found) | {"dictionaries": dictionaries})

    @api.delete("/glossaries/{identifier}", status_code=204)
    async def delete_glossary(identifier: str, request: Request) -> None:
        """Delete a glossary."""
        await service.delete_glossary(client_of(request), identifier)

    @api.post("/score", responses={200: {"model": ScoreReply}})
    async def score(body: ScoreBody, request: Request) -> JSONResponse:
        """Return the log-probability of each target as the translation of its source."""
        client = client_of(request)
        if len(body.source_texts) != len(body.target_texts):
            raise BadRequestError("source_texts and target_texts have different lengths")
        direction = service.direction(body.source, body.target, body.model)
        texts = [*body.source_texts, *body.target_texts]
        arguments = body.source_texts, body.target_texts
        work = service.call(client, direction.model, "score_each", texts, *arguments, **direction.arguments)
        found = await unless_disconnected(request, work)
        return JSONResponse({"scores": [_or_error(each, asdict) for each in found]})

    @api.post("/alternatives")
    async def alternatives(body: AlternativesBody, request: Request) -> JSONResponse:
        """Return the most probable next tokens of a translation, best first."""
        client = client_of(request)
        direction = service.direction(body.source, body.target, body.model)
        keywords = {"count": body.count} | direction.arguments
        texts = [body.text, body.prefix]
        work = service.call(client, direction.model, "alternatives", texts, *texts, **keywords)
        found = await unless_disconnected(request, work)
        return JSONResponse({"alternatives": [asdict(each) for each in found]})

    @api.post("/score-texts")
    async def score_texts(body: ScoreTextsBody, request: Request) -> JSONResponse:
        """Return the log-probability of each token of texts, given the tokens before it or, by a masked language model,
        given all other tokens."""
        client = client_of(request)
        texts, model = _listed(body.text), service.model(body.model, "language_model", "masked_language_model")
        found = await unless_disconnected(request, service.call(client, model, "score", texts, texts))
        scores = [asdict(each) | {"log_probability": each.log_probability} for each in found]
        return JSONResponse({"scores": scores})

    @api.post("/perplexity")
    async def perplexity(body: PerplexityBody, request: Request) -> JSONResponse:
        """Return how well a language model predicts texts, as perplexity and in bits per byte."""
        client = client_of(request)
        texts, model = _listed(body.text), service.model(body.model, "language_model")
        work = service.call(client, model, "perplexity", texts, texts, stride=body.stride)
        return JSONResponse(asdict(await unless_disconnected(request, work)))

    @api.post("/classify", responses={200: {"model": ClassifyReply}})
    async def classify(body: ClassifyBody, request: Request) -> JSONResponse:
        """Return the label of each text, and the probability of every label."""
        client = client_of(request)
        texts, model = _listed(body.text), service.model(body.model, "classification")
        found = await unless_disconnected(request, service.call(client, model, "classify_each", texts, texts))
        return JSONResponse({"classifications": [_or_error(each, asdict) for each in found]})

    @api.post("/explain")
    async def explain(body: ExplainBody, request: Request) -> JSONResponse:
        """Return how much each token and word of a text contributes to its label."""
        client, model = client_of(request), service.model(body.model, "classification")
        work = service.call(client, model, "explain", [body.text], body.text, body.label)
        return JSONResponse(asdict(await unless_disconnected(request, work)))

    @api.post("/generate", response_model=None, responses={200: {"model": GenerateReply, **_EVENTS}})
    async def generate(body: GenerateBody, request: Request) -> Response:
        """Continue prompts."""
        client = client_of(request)
        prompts, model = _listed(body.prompt), service.model(body.model, "language_model")
        options = GenerationOptions.parse(body.options, "options")
        service.check_search(hypotheses=max(options.beam_size, options.n))
        new_tokens = len(prompts) * options.n * options.max_new_tokens
        if body.stream:
            if len(prompts) != 1:
                raise BadRequestError("stream needs one prompt")
            parts = service.stream(client, model, "stream", prompts, prompts[0], new_tokens=new_tokens, **body.options)

            async def events() -> AsyncGenerator[dict[str, Any]]:
                async with aclosing(parts):
                    async for part in parts:
                        yield {"text": part} if isinstance(part, str) else {"continuation": asdict(part)}

            return EventStream(events(), _error_value)
        work = service.call(client, model, "generate", prompts, prompts, new_tokens=new_tokens, **body.options)
        found = await unless_disconnected(request, work)
        return JSONResponse({"continuations": [[asdict(each) for each in own] for own in found]})

    @api.post("/fill", responses={200: {"model": FillReply}})
    async def fill(body: FillBody, request: Request) -> JSONResponse:
        """Return the best fillings of each mask of a text."""
        client = client_of(request)
        model = service.model(body.model, "masked_language_model")
        work = service.call(client, model, "fill", [body.text], body.text, body.top, body.candidates)
        found = await unless_disconnected(request, work)
        return JSONResponse({"fillings": [asdict(each) for each in found]})

    return api


def error(message: str, status: int, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error in the form of this API."""
    return JSONResponse(_error_value(message, status), status, headers)


def _error_value(message: str, status: int = 500) -> dict[str, Any]:
    return {"error": {"status": status, "message": message}}


def _listed(text: str | list[str]) -> list[str]:
    return [text] if isinstance(text, str) else text


def _or_error(result: Any, convert: Any) -> dict[str, Any]:
    return {"error": str(result)} if isinstance(result, HeadwayError) else convert(result)


def _job(job: BulkJob) -> dict[str, Any]:
    counts = {"num_texts": job.num_texts, "num_done": job.num_done}
    times = {"created": _time(job.created), "ended": _time(job.ended), "expires": _time(job.expires)}
    return {"id": job.id, "status": job.status, **counts, **times, "error": job.error}


def _time(seconds: float | None) -> str | None:
    """Return seconds since 1970 in the form of ISO 8601."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _glossary(glossary: StoredGlossary) -> dict[str, Any]:
    dictionaries = [
        {"source": each.source, "target": each.target, "num_entries": each.num_entries}
        for each in glossary.dictionaries
    ]
    return {"id": glossary.id, "name": glossary.name, "created": glossary.created, "dictionaries": dictionaries}


def _translation(result: Translation | HeadwayError) -> dict[str, Any]:
    if isinstance(result, HeadwayError):
        return {"error": str(result)}
    best, *others = [_candidate(each) for each in result.candidates]
    return {"source": result.source, **best, "alternatives": others, "unlikely": result.unlikely}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    whole = asdict(candidate)
    return {name: value for name, value in whole.items() if name != "ids" and value is not None}
