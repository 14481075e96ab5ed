"""The API of Azure AI Translator, versions 3.0 and 2026-06-06: translate, detect (3.0 only) and languages.

See https://learn.microsoft.com/azure/ai-services/translator/text-translation. The query parameter ``api-version``
selects the version. In version 3.0, the options are in the query, and the body is a list of texts. In version
2026-06-06, each text has its own language, options and targets.

Options that Headway's models do not support are refused if they would change the translation (scripts, tone, gender,
profanities, example translations). They are accepted if a general model may be used instead, as in the original API
(``category``, ``deploymentName`` unless ``allowFallback`` is false).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel, ValidationError
from pydantic.alias_generators import to_camel
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.errors import HeadwayError
from headway.predict.results import Translation
from headway.predict.translation.options import TranslateOptions
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.keys import KeyLocation, client_of
from headway.serve.apis.request_fields import authorization, call_in_thread_if_large, read_json
from headway.serve.clients import Client
from headway.serve.cost import Cost
from headway.serve.errors import BadRequestError, RefusedError, UnknownLanguageError, text_number_prefix
from headway.serve.languages import DetectedLanguage, english_name, find_language, is_right_to_left, native_name
from headway.serve.service import Service

_V3, _V2026 = "3.0", "2026-06-06"
_FLAGS = {"true": True, "false": False}
_SCOPES = ("translation", "transliteration", "dictionary", "models")
# Error codes, whose first three digits are the HTTP status.
_QUOTA, _TOO_LARGE, _BAD_VERSION, _BAD_BODY, _BAD_TEXT = 403001, 400077, 400021, 400074, 400005
_BAD_SOURCE, _BAD_TARGET, _BAD_TEXT_TYPE, _NO_CUSTOM_MODEL, _BAD_SCOPE = 400035, 400036, 400071, 400079, 400001
_BAD_ELEMENT, _BAD_PAIR = 400020, 400023  # one of several texts is invalid; the pair of languages is unsupported
_BAD_LANGUAGES = {
    "source": (_BAD_SOURCE, "source language"),
    "target": (_BAD_TARGET, "target language"),
    "pair": (_BAD_PAIR, "language pair"),
}
_DYNAMIC_DICTIONARY = "<mstrans:dictionary"  # markup that specifies the translation of a phrase
_BAD_REQUEST = 400000
_CODES = {403: _QUOTA, 413: _TOO_LARGE}
_ModelT = TypeVar("_ModelT", bound=BaseModel)


def _key(head: HTTPConnection) -> str | None:
    key = head.headers.get("ocp-apim-subscription-key") or head.query_params.get("Subscription-Key")
    return key or authorization(head, "bearer")


KEY_LOCATION = KeyLocation(_key, public_paths=re.compile("/languages"))


def routes(service: Service) -> list[Route]:
    """Return the routes of the API."""
    api = _Azure(service)
    return [
        Route("/translate", api.translate, methods=["POST"]),
        Route("/detect", api.detect, methods=["POST"]),
        Route("/languages", api.languages, methods=["GET"]),
    ]


def error_reply(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return an error reply in the format of this API."""
    return _error(_CODES.get(status, status * 1000), message, headers)


def _error(code: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, code // 1000, headers)


class _Item(BaseModel):
    """A text in a request of version 3.0."""

    text: str = Field(validation_alias=AliasChoices("Text", "text"))


class _Items(RootModel[Annotated[list[_Item], Field(fail_fast=True)]]):
    pass


class _CamelCase(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class _Target(_CamelCase):
    """A target language with options, in a request of version 2026-06-06."""

    language: str
    script: str | None = None
    profanity_action: str | None = None
    deployment_name: str | None = None
    allow_fallback: bool = True
    tone: str | None = None
    gender: str | None = None
    adaptive_dataset_id: str | None = None
    reference_text_pairs: Any = None

    def check(self) -> None:
        """Raise :class:`RefusedError` if an option is set that no model supports."""
        _check_profanity(self.profanity_action)
        _check_model(self.deployment_name, self.allow_fallback)
        for name, value in (
            ("script", self.script),
            ("tone", self.tone if self.tone != "neutral" else None),
            ("gender", self.gender if self.gender != "neutral" else None),
            ("adaptiveDatasetId", self.adaptive_dataset_id),
            ("referenceTextPairs", self.reference_text_pairs),
        ):
            if value:
                raise _refused(_BAD_REQUEST, f"{name} is not supported")


class _Input(_CamelCase):
    """A text in a request of version 2026-06-06."""

    text: str
    language: str | None = None
    script: str | None = None
    text_type: str | None = None
    targets: Annotated[list[_Target], Field(min_length=1, fail_fast=True)]


class _Inputs(BaseModel):
    inputs: Annotated[list[_Input], Field(fail_fast=True)]


@dataclass(frozen=True)
class _Job:
    """A text to translate into one language.

    Attributes:
        index: Index of the text in the request.
        text: The text to translate.
        source: Source language, or "auto" to detect it.
        target: Target language.
        is_html: Whether the text is HTML.
    """

    index: int
    text: str
    source: str
    target: str
    is_html: bool


@dataclass(frozen=True)
class _Done:
    """The translation of a job, and the detected language, if any."""

    translation: Translation
    detected: DetectedLanguage | None


class _Azure:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def translate(self, request: Request) -> Response:
        version, client = _version(request), client_of(request)
        body = await request.body()
        if version == _V3:
            return await self._translate_v3(request, client, (await _parsed(_Items, body)).root)
        return await self._translate_v2026(request, client, (await _parsed(_Inputs, body)).inputs)

    async def _translate_v3(self, request: Request, client: Client, items: Sequence[_Item]) -> Response:
        query = request.query_params
        targets, source = [code for code in query.getlist("to") if code], query.get("from") or "auto"
        if not targets:
            raise _refused(_BAD_TARGET, "The target language is missing")
        _check_profanity(query.get("profanityAction"))
        _check_model(query.get("category"), _flag(request, "allowFallback", True))
        is_html = _is_html(query.get("textType"))
        for name in ("fromScript", "toScript"):
            if query.get(name):
                raise _refused(_BAD_REQUEST, f"{name} is not supported")
        if _flag(request, "includeSentenceLength", False):
            raise _refused(_BAD_REQUEST, "includeSentenceLength is not supported")
        aligned = _flag(request, "includeAlignment", False)
        characters = sum(len(item.text) for item in items)
        self._service.sizes.check_counts(texts=len(items) * len(targets), characters=characters * len(targets))
        jobs = [
            _Job(index, item.text, source, target, is_html) for index, item in enumerate(items) for target in targets
        ]
        results = iter(await cancel_on_disconnect(request, self._run(client, jobs, alignment=aligned)))

        def answer(target: str, done: _Done) -> dict[str, Any]:
            fields: dict[str, Any] = {"text": done.translation.text, "to": target}
            if aligned:
                fields["alignment"] = {"proj": "" if is_html else _projection(done.translation)}
            return fields

        answers = []
        for _ in items:
            item_results = [next(results) for _ in targets]
            answers.append(
                _with_language([answer(*pair) for pair in zip(targets, item_results, strict=True)], item_results)
            )
        return JSONResponse(answers, headers=_usage(jobs))

    async def _translate_v2026(self, request: Request, client: Client, inputs: Sequence[_Input]) -> Response:
        for item in inputs:
            if item.script:
                raise _refused(_BAD_REQUEST, "script is not supported")
            for target in item.targets:
                target.check()
        jobs = [
            _Job(index, item.text, item.language or "auto", target.language, _is_html(item.text_type))
            for index, item in enumerate(inputs)
            for target in item.targets
        ]
        results = iter(await cancel_on_disconnect(request, self._run(client, jobs)))
        answers = []
        for item in inputs:
            item_results = [next(results) for _ in item.targets]
            translations = [
                {"language": target.language, "sourceCharacters": len(item.text), "text": done.translation.text}
                for target, done in zip(item.targets, item_results, strict=True)
            ]
            answers.append(_with_language(translations, item_results))
        return JSONResponse({"value": answers}, headers=_usage(jobs))

    def _cost(self, jobs: Sequence[_Job], options: TranslateOptions) -> Cost:
        """Return the cost of all jobs together, as if each job had the most expensive pair of languages."""
        languages = {(job.source, job.target) for job in jobs}
        return self._service.cost_of_translation([job.text for job in jobs], languages, options=options)

    async def _run(self, client: Client, jobs: Sequence[_Job], *, alignment: bool = False) -> list[_Done]:
        """Translate each job. Jobs with the same languages and type of text are translated together."""
        self._service.sizes.check_num_texts(jobs)
        if any(_DYNAMIC_DICTIONARY in job.text for job in jobs):
            raise _refused(_BAD_REQUEST, "mstrans:dictionary is not supported")
        client = self._service.checked_client(client, self._cost(jobs, TranslateOptions(alignment=alignment)))

        def place(job: _Job) -> str:
            return text_number_prefix(job.index, jobs[-1].index + 1)

        async def translate(source: str, target: str, is_html: bool, group: Sequence[_Job]) -> list[_Done]:
            texts = [job.text for job in group]
            options = TranslateOptions(alignment=alignment, markup="html" if is_html else None)
            try:
                translations, detected = await self._service.translate(client, texts, source, target, options=options)
            except UnknownLanguageError as error:
                if error.detected_index is not None:
                    message = f"The language pair is not valid: {error.source} (detected) and {target}"
                    raise _refused(_BAD_PAIR, place(group[error.detected_index]) + message) from None
                code, what = _BAD_LANGUAGES[error.side]
                raise _refused(code, f"The {what} is not valid") from None
            for job, translation in zip(group, translations, strict=True):
                if isinstance(translation, HeadwayError):
                    raise _refused(_BAD_ELEMENT if place(job) else _BAD_TEXT, f"{place(job)}{translation}")
            languages: Sequence[DetectedLanguage | None] = detected or [None] * len(texts)
            return [_Done(*pair) for pair in zip(translations, languages, strict=True)]

        groups: dict[tuple[str, str, bool], list[int]] = {}
        for number, job in enumerate(jobs):
            groups.setdefault((job.source, job.target, job.is_html), []).append(number)
        tasks = [
            asyncio.ensure_future(translate(*shared, [jobs[number] for number in numbers]))
            for shared, numbers in groups.items()
        ]
        try:
            group_results = await asyncio.gather(*tasks)
        finally:  # also if a translation fails or the client disconnects
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        numbers, results = chain.from_iterable(groups.values()), chain.from_iterable(group_results)
        return [result for _, result in sorted(zip(numbers, results, strict=True), key=lambda pair: pair[0])]

    async def detect(self, request: Request) -> Response:
        if _version(request) != _V3:
            return error_reply("This version has no detect operation; translate detects languages", 404)
        items = (await _parsed(_Items, await request.body())).root
        work = self._service.detect(client_of(request), [item.text for item in items])
        return JSONResponse(
            [
                {
                    "language": language.code,
                    "score": language.confidence,
                    "isTranslationSupported": find_language(language.code, self._service.languages) is not None,
                    "isTransliterationSupported": False,
                }
                for language in await cancel_on_disconnect(request, work)
            ]
        )

    async def languages(self, request: Request) -> Response:
        is_v3 = _version(request) == _V3
        scopes = request.query_params.get("scope", "").lower()
        wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()] or list(_SCOPES)
        if not set(wanted) <= set(_SCOPES):
            raise _refused(_BAD_SCOPE, f"scope is not valid; it may be {', '.join(_SCOPES)}")
        known: dict[str, Any] = {
            code: {
                "name": english_name(code),
                "nativeName": native_name(code),
                "dir": "rtl" if is_right_to_left(code) else "ltr",
            }
            | ({} if is_v3 else {"models": []})
            for code in self._service.languages
        }
        by_scope = {
            "translation": known,
            "transliteration": {},
            "dictionary" if is_v3 else "models": {} if is_v3 else [],
        }
        return JSONResponse({scope: value for scope, value in by_scope.items() if scope in wanted})


# Parsing of requests.


def _refused(code: int, message: str) -> RefusedError:
    return RefusedError(_error(code, message.encode("utf-8", "backslashreplace").decode()))


def _version(request: Request) -> str:
    version = request.query_params.get("api-version")
    if version not in (_V3, _V2026):
        raise _refused(_BAD_VERSION, f"The API version is missing or invalid; it may be {_V3} or {_V2026}")
    return version


async def _parsed(kind: type[_ModelT], body: bytes) -> _ModelT:
    try:
        return await call_in_thread_if_large(lambda body: kind.model_validate(read_json(body)), body)
    except BadRequestError as problem:
        raise _refused(_BAD_BODY, str(problem)) from None
    except ValidationError as problem:
        first = problem.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        raise _refused(_BAD_REQUEST, f"{place}: {first['msg']}") from None


def _flag(request: Request, name: str, default: bool) -> bool:
    value = request.query_params.get(name)
    flag = default if value is None else _FLAGS.get(value.lower())
    if flag is None:
        raise _refused(_BAD_REQUEST, f"{name} is neither true nor false")
    return flag


def _is_html(text_type: str | None) -> bool:
    if (text_type or "plain").lower() not in ("plain", "html"):
        raise _refused(_BAD_TEXT_TYPE, "textType is not valid; it may be plain or html")
    return text_type is not None and text_type.lower() == "html"


def _check_profanity(action: str | None) -> None:
    if action and action.lower() != "noaction":
        raise _refused(_BAD_REQUEST, "profanityAction is not supported")


def _check_model(name: str | None, allow_fallback: bool) -> None:
    """Raise :class:`RefusedError` for a custom model, unless the request allows a general model instead."""
    if name and name.lower() != "general" and not allow_fallback:
        raise _refused(_NO_CUSTOM_MODEL, f"There is no custom model {name}")


# Contents of replies.


def _usage(jobs: Sequence[_Job]) -> dict[str, str]:
    return {"X-Metered-Usage": str(sum(len(job.text) for job in jobs))}


def _with_language(translations: list[dict[str, Any]], done: Sequence[_Done]) -> dict[str, Any]:
    """Return the reply fields for a text, including its language if it was detected."""
    detected = done[0].detected
    answer: dict[str, Any] = {"translations": translations}
    if detected is not None:
        answer["detectedLanguage"] = {"language": detected.code, "score": detected.confidence}
    return answer


def _projection(translation: Translation) -> str:
    """Return the aligned words of source and target as ``FIRST:LAST-FIRST:LAST``, separated by spaces.

    The numbers are character indices. Tokens that do not occur in the text, such as parts of a character, are omitted.
    """
    best = translation.candidates[0]
    if best.alignment is None:
        return ""
    sources = _words(translation.source, best.alignment.source_tokens)
    targets = _words(best.text, best.tokens)
    pairs = {(sources[source], targets[target]) for source, target in best.alignment.pairs}
    linked = sorted((source, target) for source, target in pairs if source is not None and target is not None)
    return " ".join(f"{source[0]}:{source[1] - 1}-{target[0]}:{target[1] - 1}" for source, target in linked)


def _words(text: str, tokens: Sequence[str]) -> list[tuple[int, int] | None]:
    """Return, for each token, the span of the word in which it begins, or None if the token is not in the text."""
    spans = [word.span() for word in re.finditer(r"\S+", text)]
    word_at = {position: span for span in spans for position in range(*span)}
    spans_of_tokens: list[tuple[int, int] | None] = []
    position = 0
    for token in map(str.strip, tokens):
        start = text.find(token, position) if token else -1
        if start < 0 or text[position:start].strip():
            spans_of_tokens.append(None)
        else:
            spans_of_tokens.append(word_at[start])
            position = start + len(token)
    return spans_of_tokens
