"""The DeepL API for texts, languages and usage (https://developers.deepl.com/api-reference).

Options that Headway's models do not support are refused if they would change the translation (formality, styles,
translation memories). They are accepted if they could only improve it (context, model_type) or are always satisfied
(preserve_formatting).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.predict import MarkupOptions, Source
from headway.predict.translation.options import TranslateOptions
from headway.serve.apis import deepl_glossaries
from headway.serve.apis.deepl_fields import (
    check_formality,
    check_unsupported_fields,
    optional_text,
    read_choice,
    read_flag,
    read_names,
    read_texts,
    required_text,
    unsupported_language_error,
)
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.failed_texts import refuse_failed_texts
from headway.serve.apis.keys import client_of
from headway.serve.apis.request_fields import read_fields
from headway.serve.errors import BadRequestError, UnknownDictionaryError, UnknownLanguageError
from headway.serve.languages import english_name
from headway.serve.service import Service
from headway.text.languages import base_language, normalize_language_code

_UNLIMITED = 1_000_000_000_000  # the character limit to report for accounts without a limit
_MODEL_TYPES = ("quality_optimized", "prefer_quality_optimized", "latency_optimized")
# Target languages that clients accept only with a region.
_REGIONS = {
    "en": {"EN-GB": "English (British)", "EN-US": "English (American)"},
    "pt": {"PT-BR": "Portuguese (Brazilian)", "PT-PT": "Portuguese (European)"},
}
_WHITE_SPACE = re.compile(r"\s+")


def routes(service: Service) -> list[Route]:
    """Return the routes of the API."""
    api = _DeepL(service)
    return [
        Route("/v2/translate", api.translate, methods=["GET", "POST"]),
        Route("/v2/languages", api.languages, methods=["GET", "POST"]),
        Route("/v2/usage", api.usage, methods=["GET", "POST"]),
        Route("/v2/write/rephrase", api.write, methods=["POST"]),
        Route("/v2/write/correct", api.write, methods=["POST"]),
        Route("/v3/style_rules", api.style_rules, methods=["GET"]),
        Route("/v3/style_rules", api.refuse_style_rule, methods=["POST"]),
        Route("/v3/style_rules/{rest:path}", api.find_style_rule, methods=["GET", "PUT", "PATCH", "POST", "DELETE"]),
        *deepl_glossaries.routes(service),
    ]


def error_reply(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return an error reply in the format of this API."""
    return JSONResponse({"message": message}, status, headers)


def _without_newlines(space: re.Match[str]) -> str:
    """Return a single space if the matched white space contains a line break, otherwise the white space itself."""
    return " " if "\n" in space[0] or "\r" in space[0] else space[0]


class _DeepL:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def translate(self, request: Request) -> Response:
        fields = await read_fields(request)
        client = client_of(request)
        given, source, target = (
            read_texts(fields),
            optional_text(fields, "source_lang"),
            required_text(fields, "target_lang"),
        )
        self._service.sizes.check_texts(given)
        splitting, markup = read_choice(fields, "split_sentences", ("0", "1", "nonewlines"), "1"), _markup(fields)
        model_type = read_choice(fields, "model_type", _MODEL_TYPES, None)
        read_flag(fields, "preserve_formatting")
        shows_billed = read_flag(fields, "show_billed_characters")
        check_formality(fields)
        check_unsupported_fields(fields)
        glossary = None
        if identifier := optional_text(fields, "glossary_id"):
            if source is None:
                raise BadRequestError("Use of a glossary requires the source_lang parameter to be specified")
            glossary = self._service.glossaries.get(client.name, identifier)
        if markup is None and splitting == "nonewlines":
            given = [_WHITE_SPACE.sub(_without_newlines, text) for text in given]
        sources = [Source(text, split_sentences=splitting != "0") for text in given]
        try:
            work = self._service.translate(
                client, sources, source or "auto", target, glossary=glossary, options=TranslateOptions(markup=markup)
            )
            translations, detected = await cancel_on_disconnect(request, work)
        except UnknownLanguageError as error:
            raise BadRequestError(unsupported_language_error(error)) from None
        except UnknownDictionaryError as error:
            raise BadRequestError(f"The glossary has no dictionary for {error}") from None
        refuse_failed_texts(translations)
        codes = [source or ""] * len(given) if detected is None else [language.code for language in detected]
        answers: list[dict[str, Any]] = [
            {"detected_source_language": base_language(code).upper(), "text": translation.text}
            for code, translation in zip(codes, translations, strict=True)
        ]
        for answer, text in zip(answers, given, strict=True):
            if shows_billed:
                answer["billed_characters"] = len(text)
            if model_type is not None:
                answer["model_type_used"] = model_type.removeprefix("prefer_")
        return JSONResponse({"translations": answers})

    async def write(self, request: Request) -> Response:
        """Reply in the same way as DeepL for an unsupported target language."""
        fields = await read_fields(request)
        read_texts(fields)
        raise BadRequestError("Value for 'target_lang' not supported: no model rephrases or corrects texts")

    async def style_rules(self, _: Request) -> Response:
        return JSONResponse({"style_rules": []})

    async def refuse_style_rule(self, _: Request) -> Response:
        raise BadRequestError("Style rules are not supported: no model follows them")

    async def find_style_rule(self, _: Request) -> Response:
        return error_reply("Style rule not found", 404)

    async def languages(self, request: Request) -> Response:
        fields = await read_fields(request)
        kind = optional_text(fields, "type") or "source"
        if kind not in ("source", "target"):
            raise BadRequestError("Parameter 'type' is invalid. 'source' and 'target' are valid values.")
        if kind == "source":
            bases = sorted({base_language(code) for code in self._service.source_languages})
            return JSONResponse([{"language": code.upper(), "name": english_name(code)} for code in bases])
        return JSONResponse(
            [
                {"language": code, "name": name, "supports_formality": False}
                for code, name in sorted(_target_languages(self._service.target_languages).items())
            ]
        )

    async def usage(self, request: Request) -> Response:
        client = client_of(request)
        quota = None if client.key is None else client.key.characters_per_month
        return JSONResponse(
            {
                "character_count": self._service.clients.characters_used(client),
                "character_limit": _UNLIMITED if quota is None else quota,
            }
        )


def _markup(fields: dict[str, Any]) -> MarkupOptions | None:
    """Return the options for handling tags, or None if the texts are plain."""
    kind = read_choice(fields, "tag_handling", ("html", "xml"), None)
    lists = {name: read_names(fields, name) for name in ("splitting_tags", "non_splitting_tags", "ignore_tags")}
    outline = read_flag(fields, "outline_detection", default=True)
    if kind is None:
        return None
    return MarkupOptions.parse({"kind": kind, "outline_detection": outline, **lists}, "tag_handling")


def _target_languages(known: Iterable[str]) -> dict[str, str]:
    """Map the codes of target languages, in the form that clients expect, to names."""
    codes = sorted(set(map(normalize_language_code, known)))
    count = Counter(map(base_language, codes))
    names_by_code: dict[str, str] = {}
    for code in codes:
        base = base_language(code)
        regions = _REGIONS.get(base, {})
        if count[base] > 1:  # the codes differ in region or script
            names_by_code[code.upper()] = regions.get(code.upper(), english_name(code))
        else:
            names_by_code |= regions or {base.upper(): english_name(code)}
    return names_by_code
