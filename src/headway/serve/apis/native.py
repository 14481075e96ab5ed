"""The service's own API: what the Python objects give, as JSON. /api/v1/openapi.json describes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from headway.decode.request import DecodingOptions
from headway.errors import HeadwayError
from headway.predict.results import Candidate, Source, Translation
from headway.serve.apis.requests import BadRequestError, unless_disconnected
from headway.serve.languages import english_name
from headway.serve.service import Client, Service

_Texts = Annotated[str | list[str], Field(description="A text, or a list of texts.")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TranslateBody(_Body):
    """Texts to translate, and how."""

    text: _Texts
    source: str = Field("auto", description="The language of the texts; auto detects that of each text.")
    target: str = Field(description="The language to translate into.")
    model: str | None = Field(None, description="The name of a model. Default: the first one for the languages.")
    options: dict[str, Any] = Field(
        {}, description="Options of the search, such as beam_size, n_best or sampling; see docs/decoding.md."
    )
    alignment: bool = Field(False, description="Whether to align each target token to a source token.")
    prefix: str = Field("", description="Text that each translation begins with.")
    include: list[str | list[str]] = Field(
        [], description="Phrases that each translation contains as whole words; a list gives alternatives."
    )
    ban: list[str] = Field([], description="Phrases that no translation contains.")


class ClassifyBody(_Body):
    """Texts to classify."""

    text: _Texts
    model: str | None = None


class GenerateBody(_Body):
    """Prompts to continue, and how."""

    prompt: _Texts
    model: str | None = None
    options: dict[str, Any] = Field({}, description="Fields of GenerationOptions, such as max_new_tokens.")


class FillBody(_Body):
    """A text with masks to fill."""

    text: str
    model: str | None = None
    top: int = Field(5, ge=1, le=100, description="Number of fillings.")
    candidates: list[str] | None = Field(None, description="The only fillings to consider.")


class ScoreBody(_Body):
    """Sources and targets, whose probabilities are wanted."""

    source_texts: list[str]
    target_texts: list[str]
    source: str
    target: str
    model: str | None = None


class DetectBody(_Body):
    """Texts whose language is wanted."""

    text: _Texts


def router(service: Service) -> APIRouter:
    """Return the routes of the API."""
    api = APIRouter(prefix="/api/v1")

    def client_of(request: Request) -> Client:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return service.client(key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key"))

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

    @api.post("/translate")
    async def translate(body: TranslateBody, request: Request) -> JSONResponse:
        """Translate texts. Each reply is what the text gets alone."""
        client = client_of(request)
        options = DecodingOptions.parse(body.options, "options")
        include = tuple(each if isinstance(each, str) else tuple(each) for each in body.include)
        sources = [Source(text, body.prefix, include, tuple(body.ban)) for text in _listed(body.text)]
        languages = body.source, body.target, body.model
        work = service.translate(client, sources, *languages, options=options, alignment=body.alignment)
        results, detected = await unless_disconnected(request, work)
        answers = [_translation(each) for each in results]
        for answer, language in zip(answers, detected or (), strict=False):
            answer["detected"] = asdict(language)
        return JSONResponse({"translations": answers})

    @api.post("/score")
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

    @api.post("/classify")
    async def classify(body: ClassifyBody, request: Request) -> JSONResponse:
        """Return the label of each text, and the probability of every label."""
        client = client_of(request)
        texts, model = _listed(body.text), service.model(body.model, "classification")
        found = await unless_disconnected(request, service.call(client, model, "classify_each", texts, texts))
        return JSONResponse({"classifications": [_or_error(each, asdict) for each in found]})

    @api.post("/generate")
    async def generate(body: GenerateBody, request: Request) -> JSONResponse:
        """Continue prompts."""
        client = client_of(request)
        prompts, model = _listed(body.prompt), service.model(body.model, "language_model")
        work = service.call(client, model, "generate", prompts, prompts, **body.options)
        found = await unless_disconnected(request, work)
        return JSONResponse({"continuations": [[asdict(each) for each in own] for own in found]})

    @api.post("/fill")
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
    return JSONResponse({"error": {"status": status, "message": message}}, status, headers)


def _listed(text: str | list[str]) -> list[str]:
    return [text] if isinstance(text, str) else text


def _or_error(result: Any, convert: Any) -> dict[str, Any]:
    return {"error": str(result)} if isinstance(result, HeadwayError) else convert(result)


def _translation(result: Translation | HeadwayError) -> dict[str, Any]:
    if isinstance(result, HeadwayError):
        return {"error": str(result)}
    best, *others = [_candidate(each) for each in result.candidates]
    return {"source": result.source, **best, "alternatives": others, "unlikely": result.unlikely}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    whole = asdict(candidate)
    return {name: value for name, value in whole.items() if name != "ids" and value is not None}
