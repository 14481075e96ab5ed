"""FastAPI routes that parse and validate large bodies in a thread, so that other requests can be answered meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headway.serve.apis.request_fields import call_in_thread_if_large

_Validate = Callable[[bytes], tuple[Any, list[Any]]]


class ThreadedRoute(APIRoute):
    """A route that validates bodies before it passes them to FastAPI."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        answer, field = super().get_route_handler(), self.body_field
        if field is None:
            return answer

        def validate(body: bytes) -> tuple[Any, list[Any]]:
            value, errors = field.validate(json.loads(body), {}, loc=("body",))
            return value, list(errors or ())

        async def answer_request(request: Request) -> Response:
            validated = _ValidatedRequest(request, validate)
            try:
                return await answer(validated)
            except HTTPException:
                if validated.errors:
                    raise RequestValidationError(validated.errors) from None
                raise

        return answer_request


class _ValidatedRequest(Request):
    """A request whose :meth:`json` returns an instance of the type that its route expects.

    Attributes:
        errors: The validation errors of the body.
    """

    def __init__(self, request: Request, validate: _Validate) -> None:
        super().__init__(request.scope, request.receive)
        self._validate = validate
        self.errors: list[Any] = []

    async def json(self) -> Any:
        """Return the validated object, which FastAPI does not validate again."""
        value, self.errors = await call_in_thread_if_large(self._validate, await self.body())
        if self.errors:
            raise HTTPException(422)
        return value
