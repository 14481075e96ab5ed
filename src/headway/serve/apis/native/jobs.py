"""Jobs: submit many texts for translation, and fetch the results later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from headway.serve.apis.keys import client_of
from headway.serve.apis.native.fields import Strings
from headway.serve.apis.native.translation import TranslationBody, make_translate_function
from headway.serve.bulk_jobs import BulkJob
from headway.serve.errors import UnknownLanguageError
from headway.serve.service import Service
from headway.serve.translation_json import to_json

JOBS_PATH = "/api/v1/jobs"
_RESULTS_PER_PART = 256  # number of results in each part of a streamed reply


class JobBody(TranslationBody):
    """Many texts to translate, with options."""

    text: Strings


def add_routes(api: APIRouter, service: Service) -> None:
    """Add the routes for jobs."""

    @api.post("/jobs", status_code=201)
    async def create_job(body: JobBody, request: Request) -> dict[str, Any]:
        """Submit many texts, which are translated while the service has little other work.

        The result of a text that cannot be translated is an error. Only the key that created a job can access it.
        """
        client = client_of(request)
        if body.source != "auto":
            service.find_direction(body.source, body.target, body.model)
        service.sizes.check_job_size(len(body.text))
        background = client.for_background_job()
        answer, cost = await asyncio.to_thread(make_translate_function, service, background, body, body.text)

        async def work(texts: Sequence[str]) -> list[bytes]:
            try:
                answers = await answer(texts)
            except UnknownLanguageError as error:  # the detected language of a text is not supported
                if len(texts) > 1:
                    raise
                answers = [to_json({"error": str(error)})]
            return answers

        return _job(service.add_job(client, body.text, work, characters=cost.num_characters, cost=cost))

    @api.get("/jobs/{identifier}")
    async def job(identifier: str, request: Request) -> dict[str, Any]:
        """Return the progress of a job."""
        return _job(service.jobs.get(client_of(request).name, identifier))

    @api.get("/jobs/{identifier}/result", response_model=None)
    async def job_result(identifier: str, request: Request) -> Response:
        """Return the translations of a finished job, in the order of its texts."""
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


def _job(job: BulkJob) -> dict[str, Any]:
    counts = {"num_texts": job.num_texts, "num_done": job.num_done}
    times = {
        "created": format_iso_time(job.created),
        "ended": format_iso_time(job.ended),
        "expires": format_iso_time(job.expires),
    }
    return {"id": job.id, "status": job.status, **counts, **times, "error": job.error}


def format_iso_time(seconds: float | None) -> str | None:
    """Format a time in seconds since 1970 according to ISO 8601."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
