"""The API of Hugging Face Inference Endpoints: translation, text classification, fill-mask and text generation.

See https://huggingface.co/docs/inference-providers and, for text generation with details and streaming,
https://huggingface.github.io/text-generation-inference. An endpoint has one model: requests to ``/`` use the first
model of the service, and requests to ``/models/NAME`` use the model NAME. The model determines the task. ``inputs`` may
also be a list. Options that Headway's models do not support are refused.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass
from itertools import starmap
from math import fsum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.decode.generation_options import GenerationOptions
from headway.decode.request import DecodingOptions
from headway.errors import ContextLengthError
from headway.kinds import Capability
from headway.predict import Continuation, StreamPart
from headway.predict.translation.options import TranslateOptions
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.event_stream import EventStream
from headway.serve.apis.failed_texts import add_text_number_to_errors, refuse_failed_texts
from headway.serve.apis.keys import KeyLocation, client_of
from headway.serve.apis.request_fields import authorization, parse_body, parse_fields
from headway.serve.clients import Client
from headway.serve.cost import Cost, cost_of_fillings, cost_of_generation
from headway.serve.errors import BadRequestError, text_number_prefix
from headway.serve.model_info import ModelInfo
from headway.serve.service import Service
from headway.text.base import EOS, MASK
from headway.text.languages import base_language
from headway.version import __version__

_DEFAULT_NEW_TOKENS = 100
_MAX_STOPS = 100
_ERROR_TYPES = {400: "validation", 413: "validation", 422: "validation", 429: "overloaded", 503: "overloaded"}
_FINISH_REASONS = {"length": "length", "end": "eos_token", "stop": "stop_sequence"}

KEY_LOCATION = KeyLocation(
    lambda head: authorization(head, "bearer"), public_paths=re.compile(r"(/models/.*)?/health", re.DOTALL)
)


def routes(service: Service) -> list[Route]:
    """Return the routes of the API."""
    api = _HuggingFace(service)
    return [
        route
        for path in ("", "/models/{name:path}")
        for route in (
            Route(f"{path}/info", api.info, methods=["GET"]),
            Route(f"{path}/health", api.health, methods=["GET"]),
            Route(path or "/", api.run, methods=["POST"]),
        )
    ]


def error_reply(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return an error reply in the format of this API."""
    return JSONResponse(_error_value(message, status), status, headers)


def _error_value(message: str, status: int) -> dict[str, Any]:
    return {"error": message, "error_type": _ERROR_TYPES.get(status, "generation")}


# Parameters.


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid")


_ParametersT = TypeVar("_ParametersT", bound=_Parameters)


class _GenerateParameters(_Parameters):
    """The search options for translation that Headway supports."""

    num_beams: int | None = Field(None, ge=1)
    length_penalty: float | None = Field(None, ge=0, le=10)
    repetition_penalty: float | None = Field(None, ge=1)
    no_repeat_ngram_size: int | None = Field(None, ge=0)
    min_new_tokens: int | None = Field(None, ge=0)
    max_new_tokens: int | None = Field(None, ge=1)

    def decoding(self) -> DecodingOptions:
        """Return the options for Headway's search."""
        names = {
            "num_beams": "beam_size",
            "no_repeat_ngram_size": "no_repeat_ngram",
            "min_new_tokens": "min_length",
            "max_new_tokens": "max_length",
        }
        given = self.model_dump(exclude_none=True)
        options = {names.get(name, name): value for name, value in given.items()}
        if self.length_penalty is not None:  # Hugging Face divides the score by a power of the length
            options["normalization"] = "average"
        return DecodingOptions.parse(options, "parameters")


class _TranslationTaskParameters(_Parameters):
    src_lang: str | None = None
    tgt_lang: str | None = None
    # These two have no effect: texts have no spaces to clean up, and are never truncated.
    clean_up_tokenization_spaces: bool | None = None
    truncation: Literal["do_not_truncate", "longest_first", "only_first", "only_second"] | None = None
    generate_parameters: _GenerateParameters = _GenerateParameters()


class _ClassificationParameters(_Parameters):
    function_to_apply: Literal["softmax"] | None = None
    top_k: int | None = Field(None, ge=1)


class _FillMaskParameters(_Parameters):
    targets: Annotated[list[str], Field(min_length=1, max_length=200, fail_fast=True)] | None = None
    top_k: int = Field(5, ge=1, le=100)


class _GenerationParameters(_Parameters):
    best_of: int = Field(1, ge=1)
    decoder_input_details: Literal[False] = False
    details: bool = False
    do_sample: bool = False
    frequency_penalty: Literal[0] = 0
    max_new_tokens: int = Field(_DEFAULT_NEW_TOKENS, ge=1)
    repetition_penalty: float | None = Field(None, ge=1)
    return_full_text: bool = False
    seed: int | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=_MAX_STOPS, fail_fast=True)] = []
    temperature: float | None = Field(None, gt=0)
    top_k: int | None = Field(None, ge=1)
    top_p: float | None = Field(None, gt=0, le=1)
    typical_p: Literal[1] = 1
    watermark: Literal[False] = False

    def generation(self, num_texts: int) -> tuple[dict[str, Any], Sequence[int | None]]:
        """Return the options for :meth:`headway.predict.LanguageModel.generate`, and the random seed for each text.

        If the request has no seed, each text gets a different one. Without sampling, the seeds are None.
        """
        options: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "stop": tuple(self.stop)}
        filters = self.model_dump(include={"temperature", "top_k", "top_p"}, exclude_none=True)
        if self.repetition_penalty is not None:
            options["repetition_penalty"] = self.repetition_penalty
        if not (self.do_sample or filters):
            if self.best_of > 1:
                raise BadRequestError("best_of requires do_sample")
            return options | {"temperature": 0.0, "beam_size": 1}, [None] * num_texts
        seeds = [random.getrandbits(31) if self.seed is None else self.seed for _ in range(num_texts)]
        return options | {"temperature": 1.0, **filters, "n": self.best_of}, seeds

    def cost(self, texts: Sequence[str], options: dict[str, Any], model: ModelInfo) -> Cost:
        """Return the cost of continuing texts with a model, given the options from :meth:`generation`."""
        read = GenerationOptions.from_defaults(model.generation, options, "parameters")
        return cost_of_generation(texts, read, alternatives=0 if self.details else None)


_PARAMETERS: dict[Capability, type[_Parameters]] = {
    "translates": _TranslationTaskParameters,
    "labels": _ClassificationParameters,
    "fills": _FillMaskParameters,
    "continues": _GenerationParameters,
}


class _HuggingFaceFields(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid")

    inputs: str | Annotated[list[str], Field(min_length=1, fail_fast=True)]
    parameters: dict[str, Any] | None = None
    options: dict[str, Any] | None = None  # use_cache and wait_for_model have no effect
    stream: bool | None = None

    @property
    def texts(self) -> list[str]:
        """The input texts as a list."""
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs

    @property
    def parameter_names(self) -> set[str]:
        """The names of the parameters in the request that are not null."""
        return {name for name, value in (self.parameters or {}).items() if value is not None}

    def parameters_of(self, kind: type[_ParametersT]) -> _ParametersT:
        """Parse the parameters for a task. Null values are ignored."""
        given = {name: value for name, value in (self.parameters or {}).items() if value is not None}
        return parse_fields(kind, given)


@dataclass(frozen=True)
class _TaskCall:
    """A parsed request, with its model and client."""

    client: Client
    model: ModelInfo
    fields: _HuggingFaceFields


class _HuggingFace:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: dict[Capability, tuple[str, Callable[[_TaskCall], Awaitable[Any]]]] = {
            "translates": ("translation", self._translate),
            "labels": ("text-classification", self._classify),
            "fills": ("fill-mask", self._fill),
            "continues": ("text-generation", self._generate),
        }

    async def run(self, request: Request) -> Response:
        """Run the task of the model in the request."""
        client, model = client_of(request), self._model(request)
        call = _TaskCall(client, model, await parse_body(request, _HuggingFaceFields))
        self._service.sizes.check_texts(call.fields.texts)
        task, run = self._tasks[model.capability]
        if call.fields.stream:
            if task != "text-generation" or not isinstance(call.fields.inputs, str):
                raise BadRequestError("stream requires a language model and a single text")
            return EventStream(self._stream(call, call.fields.inputs), _error_value)
        return JSONResponse(await cancel_on_disconnect(request, run(call)))

    async def info(self, request: Request) -> Response:
        """Describe an endpoint."""
        model = self._model(request)
        return JSONResponse(
            {
                "model_id": model.name,
                "model_pipeline_tag": self._tasks[model.capability][0],
                "max_total_tokens": model.context_length,
                "max_client_batch_size": self._service.config.limits.texts,
                "version": __version__,
            }
        )

    async def health(self, _: Request) -> Response:
        """Report whether an endpoint can answer requests."""
        reason = self._service.unavailable_reason
        return error_reply(reason, 503) if reason else Response()

    def _model(self, request: Request) -> ModelInfo:
        name: str | None = request.path_params.get("name")
        return self._service.find_model(name and name.removesuffix("/"), *self._tasks)

    def _parameters(self, call: _TaskCall, kind: type[_ParametersT]) -> _ParametersT:
        """Parse the parameters for a task. If they belong to another task, the error suggests another model."""
        names = call.fields.parameter_names
        if not names <= kind.model_fields.keys():
            others = [name for name, known in _PARAMETERS.items() if names <= known.model_fields.keys()]
            if others:
                tasks = " or ".join(self._tasks[name][0] for name in others)
                fitting = [model.name for name in others for model in self._service.models_that(name)]
                known = (
                    f"use the path /models/NAME for {', '.join(fitting)}"
                    if fitting
                    else f"no loaded model is for {tasks}"
                )
                raise BadRequestError(
                    f"{', '.join(sorted(names - kind.model_fields.keys()))}: a parameter for {tasks}, but the model "
                    f"{call.model.name} is for {self._tasks[call.model.capability][0]}; {known}"
                )
        return call.fields.parameters_of(kind)

    # Tasks.

    async def _translate(self, call: _TaskCall) -> list[dict[str, str]]:
        parameters = self._parameters(call, _TranslationTaskParameters)
        decoding = parameters.generate_parameters.decoding()
        source, target = _languages(call.model, parameters.src_lang, parameters.tgt_lang)
        translations, _ = await self._service.translate(
            call.client, call.fields.texts, source, target, call.model.name, options=TranslateOptions(decoding=decoding)
        )
        refuse_failed_texts(translations)
        return [{"translation_text": translation.text} for translation in translations]

    async def _classify(self, call: _TaskCall) -> list[list[dict[str, Any]]]:
        parameters, texts = self._parameters(call, _ClassificationParameters), call.fields.texts
        classifications = await self._service.call(call.client, call.model, "classify_each", texts, texts)
        refuse_failed_texts(classifications)
        return [
            [
                {"label": label, "score": score}
                for label, score in sorted(classification.probabilities.items(), key=lambda pair: -pair[1])[
                    : parameters.top_k
                ]
            ]
            for classification in classifications
        ]

    async def _fill(self, call: _TaskCall) -> list[Any]:
        parameters = self._parameters(call, _FillMaskParameters)
        texts, answers = call.fields.texts, []
        for index, text in enumerate(texts):
            if text.count(MASK) != 1:
                raise BadRequestError(
                    f"{text_number_prefix(index, len(texts))}inputs: expected one {MASK} in each text"
                )
        cost = cost_of_fillings(texts, parameters.top_k, parameters.targets or ())
        async with self._service.admit(call.client, call.model, cost) as admitted:
            for index, text in enumerate(texts):
                arguments = text, parameters.top_k, parameters.targets
                with add_text_number_to_errors(index, len(texts)):
                    fillings = await self._service.call(admitted, call.model, "fill", (), *arguments)
                answers.append(
                    [
                        {
                            "score": filling.probability,
                            "token": filling.ids[0],
                            "token_str": filling.words[0],
                            "sequence": filling.text,
                        }
                        for filling in fillings
                    ]
                )
        return answers[0] if isinstance(call.fields.inputs, str) else answers

    async def _generate(self, call: _TaskCall) -> list[Any]:
        parameters = self._parameters(call, _GenerationParameters)
        texts = call.fields.texts
        options, seeds = parameters.generation(len(texts))
        cost = parameters.cost(texts, options, call.model)
        if None not in seeds:
            options["seeds"] = seeds
        with _length_errors(len(texts)):
            continuations: list[list[Continuation]] = await self._service.call(
                call.client, call.model, "generate", (), texts, cost=cost, **options
            )
        answers = []
        for text, seed, several in zip(texts, seeds, continuations, strict=True):
            several.sort(key=_mean_log_probability, reverse=True)
            best, *others = several
            whole = text if parameters.return_full_text else ""
            answer: dict[str, Any] = {"generated_text": whole + best.text}
            if parameters.details:
                answer["details"] = _details(best, seed)
                if others:
                    more = [
                        {"generated_text": whole + continuation.text} | _details(continuation, seed)
                        for continuation in others
                    ]
                    answer["details"]["best_of_sequences"] = more
            answers.append(answer)
        return answers if isinstance(call.fields.inputs, str) else [[answer] for answer in answers]

    async def _stream(self, call: _TaskCall, text: str) -> AsyncGenerator[dict[str, Any]]:
        """Yield an event for each token of a continuation. The last event also contains the whole text."""
        parameters = self._parameters(call, _GenerationParameters)
        if parameters.best_of > 1:
            raise BadRequestError("stream requires best_of = 1")
        options, (seed,) = parameters.generation(1)
        if seed is not None:
            options["seed"] = seed
        num_prompt = num_tokens = 0
        events: list[dict[str, Any]] = []  # at most one event, kept until it is clear whether it is the last one
        async with AsyncExitStack() as stack:
            stack.enter_context(_length_errors())
            admitted = self._service.admit(call.client, call.model, parameters.cost([text], options, call.model))
            client = await stack.enter_async_context(admitted)
            if parameters.details:
                _, num_prompt = await self._service.call(client, call.model, "decode_prompt", (), text)
            stream = self._service.stream(client, call.model, "stream_tokens", (), text, alternatives=0, **options)
            async for part in await stack.enter_async_context(aclosing(stream)):
                if isinstance(part, StreamPart):
                    for token in _part_tokens(part):
                        num_tokens += 1
                        events.append({"index": num_tokens, "token": token, "generated_text": None, "details": None})
                    for event in events[:-1]:
                        yield event
                    events = events[-1:]
                    continue
                details = {
                    "finish_reason": _FINISH_REASONS[part.finish_reason],
                    "generated_tokens": len(part.ids),
                    "input_length": num_prompt,
                    "seed": seed,
                }
                end = {
                    "generated_text": (text if parameters.return_full_text else "") + part.text,
                    "details": details if parameters.details else None,
                }
                yield (events[0] if events else {"index": 1, "token": _token(EOS, "", 0.0)}) | end


@contextmanager
def _length_errors(num_texts: int = 1) -> Iterator[None]:
    """Context manager that reports that an input is too long, without mentioning options of other APIs."""
    try:
        yield
    except ContextLengthError as error:
        place = text_number_prefix(error.number - 1, num_texts)
        raise BadRequestError(
            f"{place}`inputs` must have less than {error.context_length} tokens, the model's context. Given: "
            f"{error.num_tokens}"
        ) from None


def _part_tokens(part: StreamPart) -> list[dict[str, Any]]:
    """Return the tokens in a part of a stream. The last token contains the part's text."""
    tokens = [_token(token.id, "", token.log_probability) for token in part.tokens]
    if part.text and not tokens:  # until EOS, this text was held back as a possible stop string
        tokens = [_token(EOS, "", 0.0)]
    if tokens:
        tokens[-1] |= {"text": part.text, "special": False}
    return tokens


def _languages(model: ModelInfo, source: str | None, target: str | None) -> tuple[str, str]:
    """Return the languages in a request, which default to the model's first pair of different languages."""
    if not (model.source_languages and model.target_languages):
        raise BadRequestError(f"the languages of {model.name} are unknown")
    source = source or model.source_languages[0]
    others = [code for code in model.target_languages if base_language(code) != base_language(source)]
    return source, target or (others or model.target_languages)[0]


def _mean_log_probability(continuation: Continuation) -> float:
    return fsum(continuation.token_log_probabilities) / max(len(continuation.ids), 1)


def _token(index: int, text: str, log_probability: float) -> dict[str, Any]:
    return {"id": index, "text": text, "logprob": log_probability, "special": index == EOS and not text}


def _details(continuation: Continuation, seed: int | None) -> dict[str, Any]:
    """Return the details of a continuation."""
    tokens = zip(continuation.ids, continuation.tokens, continuation.token_log_probabilities, strict=True)
    return {
        "finish_reason": _FINISH_REASONS[continuation.finish_reason],
        "generated_tokens": len(continuation.ids),
        "seed": seed,
        "prefill": [],
        "tokens": list(starmap(_token, tokens)),
    }
