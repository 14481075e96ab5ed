"""The API of OpenAI: models, completions and chat completions (https://platform.openai.com/docs/api-reference).

Language models complete prompts. Their chat is the continuation of the messages' contents, one a line, because they are
not trained on conversations. Translation models answer with the translation of the prompt, or of the last message of
the user; options that have no meaning for them, such as the temperature, are ignored.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.decode.generation_options import GenerationOptions
from headway.decode.request import DecodingOptions
from headway.errors import ContextLengthError, LengthError
from headway.kinds import Capability
from headway.predict import Candidate, Continuation, Prompt
from headway.predict.language_modeling.predicted_tokens import PredictedToken
from headway.predict.results import TokenAlternative
from headway.predict.translation.options import TranslateOptions
from headway.serve.apis.disconnect import unless_disconnected
from headway.serve.apis.event_stream import EventStream, begun
from headway.serve.apis.failed_texts import refuse_failed_texts
from headway.serve.apis.keys import KeyLocation, client_of
from headway.serve.apis.request_fields import authorization, languages_for, parse_body
from headway.serve.clients import Client
from headway.serve.cost import cost_of_generation
from headway.serve.errors import BadRequestError, RefusedError, UnknownModelError
from headway.serve.model_info import ModelInfo
from headway.serve.service import Service
from headway.text.base import BOS, EOS

_MAX_ALTERNATIVES = 20
_CAPABILITIES: tuple[Capability, ...] = ("continues", "translates")  # capabilities of the models that this API offers
_COMPLETION_TOKENS, _CHAT_TOKENS = 16, 256  # default numbers of new tokens
_NO_ALTERNATIVES = "{}: only 0 is supported for a translation model, whose search computes no alternatives"
_NOTHING = Continuation("", (), (), "length", ())

# A list ends at its first invalid item, because a reply cannot contain a million errors.
_Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
_Strings = Annotated[list[str], Field(fail_fast=True)]
_Count = Annotated[int, Field(ge=1, le=128)]
_Penalty = Annotated[float, Field(ge=0, le=0, description="Only 0: these penalties are not supported.")]


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _CommonFields(BaseModel):
    """The fields that completions and chat completions share. Unknown fields are ignored, as in the original."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    n: _Count | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    stop: str | Annotated[list[str], Field(max_length=100, fail_fast=True)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None
    # Fields of other servers with this API, which OpenAI does not have.
    top_k: Annotated[int, Field(ge=1)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1)] | None = None
    source_language: str | None = None
    target_language: str | None = None

    @property
    def count(self) -> int:
        """The number of answers to each prompt."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether the last part of a streamed reply counts the tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def generation_options(self, max_new_tokens: int, defaults: GenerationOptions) -> dict[str, Any]:
        """Return the options of :meth:`headway.predict.LanguageModel.generate`.

        Several answers without chance are the best of a beam, which the API cannot ask for.

        Args:
            max_new_tokens: The maximum length.
            defaults: The settings of the model.
        """
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        chosen = self.model_dump(
            include={"n", "temperature", "top_p", "seed", "top_k", "min_p", "repetition_penalty"}, exclude_none=True
        )
        if chosen.get("temperature", defaults.temperature) == 0 and self.count > 1:
            inherited = 1 if "temperature" in chosen else defaults.beam_size
            chosen["beam_size"] = max(self.count, inherited)
        stops = tuple(filter(None, stop))
        return {"seed": _random_seed(), "stop": stops, "max_new_tokens": max_new_tokens} | chosen


class _CompletionFields(_CommonFields):
    prompt: str | _Strings | _Ids | Annotated[list[_Ids], Field(fail_fast=True)] = ""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=_MAX_ALTERNATIVES)] | None = None
    best_of: int | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None

    @property
    def limit(self) -> int:
        """The maximum number of new tokens."""
        return _COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """The number of tokens to list at each position. None means that no log-probabilities are returned."""
        return self.logprobs

    def prompts(self) -> list[Prompt]:
        """Return the prompts as the Python objects take them."""
        prompts: Any = self.prompt
        is_one = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int))
        listed = [prompts] if is_one else prompts
        return [prompt if isinstance(prompt, str) else tuple(prompt) for prompt in listed]


class _TextPart(BaseModel):
    type: Literal["text"]
    text: str


class _Message(BaseModel):
    role: str
    content: str | Annotated[list[_TextPart], Field(fail_fast=True)] | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class _ChatFields(_CommonFields):
    messages: Annotated[list[_Message], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=_MAX_ALTERNATIVES)] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None

    @property
    def prompt(self) -> str:
        """The text that a language model continues."""
        return "\n".join(message.text for message in self.messages)

    @property
    def limit(self) -> int:
        """The maximum number of new tokens."""
        return self.max_completion_tokens or self.max_tokens or _CHAT_TOKENS

    @property
    def alternatives(self) -> int | None:
        """The number of tokens to list at each position. None means that no log-probabilities are returned."""
        return (self.top_logprobs or 0) if self.logprobs else None


KEYS = KeyLocation(lambda head: authorization(head, "bearer"))


def routes(service: Service) -> list[Route]:
    """Return the routes of the API."""
    api = _OpenAI(service)
    return [
        Route("/v1/models", api.models, methods=["GET"]),
        Route("/v1/models/{name:path}", api.model, methods=["GET"]),
        Route("/v1/completions", api.complete, methods=["POST"]),
        Route("/v1/chat/completions", api.chat, methods=["POST"]),
    ]


def _random_seed() -> int:
    """Return a seed for a request, or for one of its texts, if it does not specify one."""
    return random.getrandbits(31)


_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


def error(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return an error in the form of this API."""
    return JSONResponse(_error_value(message, status), status, headers)


def _error_value(message: str, status: int) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": _CODES.get(status)}}


@contextmanager
def _length_errors(field: str, num_texts: int = 1) -> Iterator[None]:
    """Refuse texts that are too long as OpenAI does: clients recognize the code, or the beginning of the message.

    Args:
        field: The field with the texts.
        num_texts: The number of texts.
    """
    try:
        yield
    except LengthError as error:
        message = str(error)
        if isinstance(error, ContextLengthError):
            which = f" (text {error.number})" if num_texts > 1 else ""
            message = (
                f"This model's maximum context length is {error.context_length} tokens. However, your {field} resulted "
                f"in {error.num_tokens} tokens{which}. Please reduce the length of the {field}."
            )
        value = _error_value(message, 400)
        value["error"] |= {"param": field, "code": "context_length_exceeded"}
        raise RefusedError(JSONResponse(value, 400)) from None


class _OpenAI:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_model(model) for model in self._models()]})

    async def model(self, request: Request) -> Response:
        return JSONResponse(_model(self._find_model(request.path_params["name"])))

    async def complete(self, request: Request) -> Response:
        client, body = client_of(request), await parse_body(request, _CompletionFields)
        model, prompts = self._find_model(body.model), body.prompts()
        if body.best_of not in (None, body.count):
            raise BadRequestError("best_of: only the value of n is supported")
        reply = _Reply("cmpl", "text_completion", "text_completion", model.name)
        usage = None
        if model.capability == "translates":
            texts = [prompt for prompt in prompts if isinstance(prompt, str)]
            if len(texts) < len(prompts):
                raise BadRequestError("prompt: a translation model takes texts, not token ids")
            if body.logprobs:
                raise BadRequestError(_NO_ALTERNATIVES.format("logprobs"))
            translations = await unless_disconnected(request, self._translate(client, model, texts, body, "prompt"))
            choices = [
                _completion_choice(
                    candidate.text, "stop", None if body.logprobs is None else _logprobs(_target_tokens(candidate), 0)
                )
                for candidates in translations
                for candidate in candidates
            ]
        elif body.stream and body.count == len(prompts) == 1 and body.logprobs is None:
            return _event_stream(self._stream_completion(client, model, prompts[0], body, reply))
        else:
            choices, usage = await unless_disconnected(request, self._complete(client, model, prompts, body))
        if body.stream:
            return _event_stream(reply.chunks(choices, usage if body.wants_usage else None))
        return reply.whole(choices, usage)

    async def chat(self, request: Request) -> Response:
        client, body = client_of(request), await parse_body(request, _ChatFields)
        model = self._find_model(body.model)
        reply = _Reply("chatcmpl", "chat.completion", "chat.completion.chunk", model.name)
        usage = None
        if model.capability == "translates":
            texts = [message.text for message in body.messages if message.role == "user"]
            if not texts:
                raise BadRequestError("messages: there is no user message to translate")
            if body.top_logprobs:
                raise BadRequestError(_NO_ALTERNATIVES.format("top_logprobs"))
            work = self._translate(client, model, texts[-1:], body, "messages")
            (candidates,) = await unless_disconnected(request, work)
            choices = [
                _chat_choice(
                    candidate.text, "stop", _chat_logprobs(_target_tokens(candidate), 0) if body.logprobs else None
                )
                for candidate in candidates
            ]
        elif body.stream and body.count == 1 and not body.logprobs:
            return _event_stream(self._stream_chat(client, model, body, reply))
        else:
            choices, usage = await unless_disconnected(request, self._continue_chat(client, model, body))
        if body.stream:
            deltas = [{**choice, "delta": choice["message"]} for choice in choices]
            for choice in deltas:
                del choice["message"]
            return _event_stream(reply.chunks(deltas, usage if body.wants_usage else None))
        return reply.whole(choices, usage)

    # Models.

    def _models(self) -> list[ModelInfo]:
        return [model for capability in _CAPABILITIES for model in self._service.models_that(capability)]

    def _find_model(self, name: str | None) -> ModelInfo:
        models = [model for model in self._models() if name in (None, model.name)]
        if not models:
            raise UnknownModelError(f"There is no model {name}" if name else "No model completes texts")
        return models[0]

    # Work.

    async def _translate(
        self, client: Client, model: ModelInfo, texts: Sequence[str], body: _CommonFields, field: str
    ) -> list[tuple[Candidate, ...]]:
        """Return ``n`` translations of each text in ``field`` of the body."""
        decoding = DecodingOptions()
        if body.count > 1:
            width = max(decoding.beam_size, body.count)
            decoding = decoding.model_copy(update={"beam_size": width, "n_best": body.count})
        source, target = languages_for(model, body.source_language, body.target_language)
        translations, _ = await self._service.translate(
            client, texts, source, target, model.name, options=TranslateOptions(decoding=decoding)
        )
        with _length_errors(field):
            refuse_failed_texts(translations)
        return [result.candidates[: body.count] for result in translations]

    async def _complete(
        self, client: Client, model: ModelInfo, prompts: Sequence[Prompt], body: _CompletionFields
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Return the choices for each prompt, and the usage."""
        self._service.sizes.check_number(prompts)
        continuations = [[_NOTHING] * body.count for _ in prompts]
        choices: list[dict[str, Any]] = []
        num_prompt = 0
        async with self._admitted(client, model, prompts, body, "prompt") as admitted:
            if body.limit:
                read = [_without_begin(prompt) for prompt in prompts]
                options = body.generation_options(body.limit, model.generation)
                if body.seed is None:  # equal prompts get different answers
                    options["seeds"] = [_random_seed() for _ in prompts]
                continuations = await self._service.call(admitted, model, "generate", (), read, **options)
            for prompt, prompt_continuations in zip(prompts, continuations, strict=True):
                text, length = await self._service.call(admitted, model, "decode_prompt", (), _without_begin(prompt))
                num_prompt += length
                for continuation in prompt_continuations:
                    logprobs = None
                    if body.logprobs is not None:
                        tokens = await self._predict(admitted, model, prompt, continuation, body.logprobs)
                        tokens = tokens if body.echo else tokens[len(tokens) - len(continuation.ids) :]
                        logprobs = _logprobs(tokens, body.logprobs)
                    whole = text + continuation.text if body.echo else continuation.text
                    choices.append(_completion_choice(whole, _finish_reason(continuation), logprobs))
        return choices, _usage(
            num_prompt,
            [continuation for prompt_continuations in continuations for continuation in prompt_continuations],
        )

    async def _continue_chat(
        self, client: Client, model: ModelInfo, body: _ChatFields
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Return the choices for a conversation, and the usage."""
        answers = []
        async with self._admitted(client, model, [body.prompt], body, "messages") as admitted:
            (continuations,) = await self._service.call(
                admitted, model, "generate", (), [body.prompt], **body.generation_options(body.limit, model.generation)
            )
            _, length = await self._service.call(admitted, model, "decode_prompt", (), body.prompt)
            for continuation in continuations:
                logprobs = None
                if body.logprobs:
                    tokens = await self._predict(admitted, model, body.prompt, continuation, body.top_logprobs or 0)
                    logprobs = _chat_logprobs(tokens[len(tokens) - len(continuation.ids) :], body.top_logprobs or 0)
                answers.append(_chat_choice(continuation.text, _finish_reason(continuation), logprobs))
        return answers, _usage(length, continuations)

    async def _stream_completion(
        self, client: Client, model: ModelInfo, prompt: Prompt, body: _CompletionFields, reply: _Reply
    ) -> AsyncGenerator[dict[str, Any]]:
        made, read = _NOTHING, _without_begin(prompt)
        async with self._admitted(client, model, [prompt], body, "prompt") as admitted:
            text, length = await self._service.call(admitted, model, "decode_prompt", (), read)
            echoed = [reply.chunk([_completion_choice(text, None)])] if body.echo else []
            if body.limit:
                options = body.generation_options(body.limit, model.generation)
                async with begun(self._service.stream(admitted, model, "stream", (), read, **options)) as parts:
                    for chunk in echoed:
                        yield chunk
                    async for part in parts:
                        if isinstance(part, Continuation):
                            made = part
                        else:
                            yield reply.chunk([_completion_choice(part, None)])
            else:
                for chunk in echoed:
                    yield chunk
        yield reply.chunk([_completion_choice("", _finish_reason(made))])
        if body.wants_usage:
            yield reply.chunk([], _usage(length, [made]))

    async def _stream_chat(
        self, client: Client, model: ModelInfo, body: _ChatFields, reply: _Reply
    ) -> AsyncGenerator[dict[str, Any]]:
        made = _NOTHING
        async with self._admitted(client, model, [body.prompt], body, "messages") as admitted:
            _, length = await self._service.call(admitted, model, "decode_prompt", (), body.prompt)
            async with begun(
                self._service.stream(
                    admitted, model, "stream", (), body.prompt, **body.generation_options(body.limit, model.generation)
                )
            ) as parts:
                yield reply.chunk([_chat_delta({"role": "assistant", "content": ""}, None)])
                async for part in parts:
                    if isinstance(part, Continuation):
                        made = part
                    else:
                        yield reply.chunk([_chat_delta({"content": part}, None)])
        yield reply.chunk([_chat_delta({}, _finish_reason(made))])
        if body.wants_usage:
            yield reply.chunk([], _usage(length, [made]))

    @asynccontextmanager
    async def _admitted(
        self,
        client: Client,
        model: ModelInfo,
        prompts: Sequence[Prompt],
        body: _CompletionFields | _ChatFields,
        field: str,
    ) -> AsyncIterator[Client]:
        """Admit all calls of a request together, and refuse prompts that are too long.

        Args:
            client: Who sends the request.
            model: The model.
            prompts: The prompts in ``field`` of the body.
            body: The body.
            field: The name of the field.
        """
        options = GenerationOptions.from_defaults(
            model.generation, body.generation_options(max(1, body.limit), model.generation)
        )
        cost = cost_of_generation(
            [_sized(prompt) for prompt in prompts],
            options,
            alternatives=body.alternatives,
            has_prompts=isinstance(body, _CompletionFields) and bool(body.echo),
        )
        with _length_errors(field, len(prompts)):
            async with self._service.admitted(client, model, cost) as admitted:
                yield admitted

    async def _predict(
        self, client: Client, model: ModelInfo, prompt: Prompt, continuation: Continuation, count: int
    ) -> list[PredictedToken | None]:
        """Return the probabilities of the tokens of a prompt and its continuation: None for BOS, which has none."""
        read = _without_begin(prompt)
        tokens = await self._service.call(
            client, model, "predict_tokens", (), read, continuation.ids, count=max(count, 1)
        )
        return tokens if read == prompt else [None, *tokens]


class _Reply:
    """The fields that all replies to a request have."""

    def __init__(self, prefix: str, kind: str, chunk_kind: str, model: str) -> None:
        self._kind, self._chunk_kind = kind, chunk_kind
        self._shared = {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, choices: Sequence[dict[str, Any]], usage: dict[str, int] | None) -> Response:
        """Return the reply with all choices."""
        numbered = [{"index": index} | choice for index, choice in enumerate(choices)]
        return JSONResponse({**self._shared, "object": self._kind, "choices": numbered, "usage": usage})

    def chunk(self, choices: Sequence[dict[str, Any]], usage: dict[str, int] | None = None) -> dict[str, Any]:
        """Return one part of a streamed reply."""
        numbered = [{"index": index} | choice for index, choice in enumerate(choices)]
        chunk = {**self._shared, "object": self._chunk_kind, "choices": numbered}
        return chunk if usage is None else chunk | {"usage": usage}

    async def chunks(
        self, choices: Sequence[dict[str, Any]], usage: dict[str, int] | None
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yield a chunk for each choice, for results that are not generated as a stream."""
        for index, choice in enumerate(choices):
            yield self.chunk([choice | {"index": index}])
        if usage is not None:
            yield self.chunk([], usage)


def _event_stream(values: AsyncGenerator[dict[str, Any]]) -> EventStream:
    return EventStream(values, _error_value, "[DONE]")


def _model(model: ModelInfo) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "headway"}


def _without_begin(prompt: Prompt) -> Prompt:
    """Return a prompt without the token that clients put before every text, which the model reads anyway."""
    return prompt[1:] if isinstance(prompt, tuple) and prompt[:1] in ((BOS,), (EOS,)) else prompt


def _sized(prompt: Prompt) -> str:
    """Return a text of about the same size as a prompt, to estimate and count its work."""
    return prompt if isinstance(prompt, str) else "1234" * len(prompt)


@dataclass(frozen=True)
class _TargetToken:
    """A token of a translation. The search computes no alternatives to it."""

    token: str
    log_probability: float
    alternatives: tuple[TokenAlternative, ...] = ()


def _target_tokens(candidate: Candidate) -> list[_TargetToken]:
    """Return the tokens of a translation with their log-probabilities, without the EOS of each part."""
    tokens, log_probs = iter(candidate.tokens), iter(candidate.token_log_probabilities)
    scored: list[_TargetToken] = []
    for length in candidate.part_lengths or (len(candidate.tokens),):
        pairs = zip(islice(tokens, length), islice(log_probs, length), strict=True)
        scored += [_TargetToken(token, log_prob) for token, log_prob in pairs]
        next(log_probs, None)
    return scored


def _finish_reason(continuation: Continuation) -> str:
    return "length" if continuation.finish_reason == "length" else "stop"


def _usage(num_prompt: int, continuations: Sequence[Continuation]) -> dict[str, int]:
    made = sum(len(continuation.ids) for continuation in continuations)
    return {"prompt_tokens": num_prompt, "completion_tokens": made, "total_tokens": num_prompt + made}


def _completion_choice(text: str, finish_reason: str | None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _chat_choice(text: str, finish_reason: str, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {"message": message, "logprobs": logprobs, "finish_reason": finish_reason}


def _chat_delta(delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _logprobs(tokens: Sequence[PredictedToken | _TargetToken | None], count: int) -> dict[str, Any]:
    """Return the log-probabilities of tokens in the form of completions."""
    names = ["" if token is None else token.token for token in tokens]
    return {
        "tokens": names,
        "token_logprobs": [None if token is None else token.log_probability for token in tokens],
        "top_logprobs": [
            None if token is None else {one.token: one.log_probability for one in token.alternatives[:count]}
            for token in tokens
        ],
        "text_offset": list(accumulate(map(len, names[:-1]), initial=0))[: len(names)],
    }


def _chat_logprobs(tokens: Sequence[PredictedToken | _TargetToken | None], count: int) -> dict[str, Any]:
    """Return the log-probabilities of tokens in the form of chat completions."""

    def entry(token: str, log_probability: float) -> dict[str, Any]:
        return {"token": token, "logprob": log_probability, "bytes": list(token.encode())}

    return {
        "content": [
            entry(token.token, token.log_probability)
            | {"top_logprobs": [entry(top.token, top.log_probability) for top in token.alternatives[:count]]}
            for token in tokens
            if token is not None
        ]
    }
