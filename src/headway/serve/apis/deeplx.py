"""The DeepLX API (https://github.com/OwO-Network/DeepLX), which translates one text and returns alternatives.

It differs from the DeepL API, although its fields have the same names. It is used by programs such as Immersive
Translate and Zotero plugins.
"""

from __future__ import annotations

import random
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.decode.request import DecodingOptions
from headway.predict.translation.options import TranslateOptions
from headway.serve.apis.disconnect import cancel_on_disconnect
from headway.serve.apis.failed_texts import refuse_failed_texts
from headway.serve.apis.keys import KeyLocation, client_of
from headway.serve.apis.request_fields import authorization, optional_text, parse_json_object
from headway.serve.errors import BadRequestError, RefusedError
from headway.serve.service import Service
from headway.text.languages import base_language

_NUM_ALTERNATIVES = 3
_SCHEMES = ("bearer", "deepl-auth-key")
_MAX_ID = 10**10


def _key(head: HTTPConnection) -> str | None:
    key = authorization(head, *_SCHEMES)
    return head.query_params.get("token") if key is None else key


KEY_LOCATION = KeyLocation(_key)


def routes(service: Service) -> list[Route]:
    """Return the routes of the API."""
    return [Route("/translate", _DeepLX(service).translate, methods=["POST"])]


def error_reply(message: str, status: int, headers: dict[str, str] | None = None) -> Response:
    """Return an error reply in the format of this API."""
    return JSONResponse({"code": status, "message": message}, status, headers)


class _DeepLX:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def translate(self, request: Request) -> Response:
        client, fields = client_of(request), await parse_json_object(await request.body())
        text, target = _text(fields, "text"), _text(fields, "target_lang")
        source = _text(fields, "source_lang").lower() or "auto"
        if not text:
            raise RefusedError(error_reply("No text to translate", 404))  # the status that DeepLX uses
        if not target:
            raise BadRequestError("target_lang is missing")
        tags = _text(fields, "tag_handling")
        if tags not in ("", "html", "xml"):
            raise BadRequestError("Invalid tag_handling value. Allowed values are 'html' and 'xml'.")
        width = max(DecodingOptions().beam_size, _NUM_ALTERNATIVES + 1)
        decoding = DecodingOptions(beam_size=width, n_best=_NUM_ALTERNATIVES + 1)
        options = TranslateOptions(decoding=decoding, markup=tags or None)
        work = self._service.translate(client, [text], source, target, options=options)
        translations, detected = await cancel_on_disconnect(request, work)
        refuse_failed_texts(translations)
        best, *others = [candidate.text for candidate in translations[0].candidates]
        return JSONResponse(
            {
                "code": 200,
                "id": random.randrange(_MAX_ID),
                "data": best,
                "alternatives": others,
                "source_lang": base_language(source if detected is None else detected[0].code).upper(),
                "target_lang": target.upper(),
                "method": "Free",
            }
        )


def _text(fields: dict[str, Any], name: str) -> str:
    return optional_text(fields, name) or ""
