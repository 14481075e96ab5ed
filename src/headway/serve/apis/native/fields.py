"""Fields that several request bodies have in common."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import HTTPConnection

from headway.serve.apis.keys import KeyLocation
from headway.serve.apis.request_fields import authorization, check_nesting

MAX_PHRASES = 200  # maximum number of phrases to include, ban or stop at
_MAX_FIELDS = 1000  # maximum total number of object fields in a body

# Validation of a list stops at the first invalid item, because a reply cannot list a million errors.
Strings = Annotated[list[str], Field(fail_fast=True)]
Phrases = Annotated[list[str], Field(max_length=MAX_PHRASES, fail_fast=True)]
Options = dict[str, bool | int | float | str | Phrases | dict[str, Any] | None]
Texts = Annotated[str | Strings, Field(description="A text, or a list of texts.")]

EVENT_STREAM_RESPONSE: dict[str, Any] = {"content": {"text/event-stream": {}}}


class Body(BaseModel):
    """The body of a request. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _is_flat(cls, data: Any) -> Any:
        check_nesting(data, _MAX_FIELDS)
        return data


def as_list(text: str | list[str]) -> list[str]:
    """Return a single text or a list of texts as a list."""
    return [text] if isinstance(text, str) else text


def _key(head: HTTPConnection) -> str | None:
    key = authorization(head, "bearer")
    return head.headers.get("x-api-key") if key is None else key


KEY_LOCATION = KeyLocation(_key, public_paths=re.compile(r"/ready|/metrics|/api/v1/openapi\.json"))
