"""The format of errors in this API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from headway.errors import HeadwayError

_STATUSES = (400, 403, 404, 405, 408, 409, 413, 421, 422, 429, 431, 503, 504)


class ErrorDetail(BaseModel):
    """Describes an error."""

    status: int = Field(description="The HTTP status of the reply.")
    message: str


class ErrorReply(BaseModel):
    """The reply to a request that was refused or has failed."""

    error: ErrorDetail


class ItemError(BaseModel):
    """An error in place of a text's result, while other texts in the request may have results."""

    model_config = ConfigDict(extra="forbid")

    error: str


ERRORS: dict[int | str, dict[str, Any]] = {status: {"model": ErrorReply} for status in _STATUSES}


def error_reply(message: str, status: int, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error reply in the format of this API."""
    return JSONResponse(error_value(message, status), status, headers)


def error_value(message: str, status: int) -> dict[str, Any]:
    """Return the JSON value of an error."""
    return {"error": {"status": status, "message": message}}


def convert_or_error(result: Any, convert: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Return the converted result, or the error, as JSON."""
    return {"error": str(result)} if isinstance(result, HeadwayError) else convert(result)
