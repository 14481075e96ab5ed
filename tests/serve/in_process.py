"""The application in the process of the tests: its models are called directly, without workers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import uvicorn
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from headway.serve.api_table import error_reply_for_url
from headway.serve.app import make_app
from headway.serve.clients import Client
from headway.serve.config import KeyConfig, LimitsConfig, ModelConfig, ServeConfig
from headway.serve.documents import ServedDocuments
from headway.serve.errors import OverloadedError
from headway.serve.glossaries import GlossaryLines, GlossaryStore
from headway.serve.http_connection import BoundedHttpConnection
from headway.serve.received_bytes import ReceivedBytes
from headway.serve.service import Service
from headway.serve.usage import Usage
from headway.serve.workers.fleet import Fleet
from headway.serve.workers.loader import describe_model
from headway.serve.workers.messages import Job
from headway.serve.workers.model_pool import ModelPool
from headway.tasks import load


class InProcessFleet(Fleet):
    """Calls models as the workers call them."""

    def __init__(self, models: Mapping[str, Any]) -> None:
        super().__init__(0)
        self._objects = models
        self.models = {name: describe_model(name, model.bundle) for name, model in models.items()}

    @property
    def num_ready(self) -> int:
        return 1

    async def call(self, job: Job) -> Any:
        assert isinstance(job.model, str)
        await asyncio.sleep(0)  # so that calls overlap
        keywords = {
            name: value.build() if isinstance(value, GlossaryLines) else value for name, value in job.keywords.items()
        }
        return job.bind(self._objects[job.model])(*job.arguments, **keywords)

    async def stream(self, job: Job) -> AsyncGenerator[Any]:
        assert isinstance(job.model, str)
        parts = job.bind(self._objects[job.model])(*job.arguments, **job.keywords)
        for part in parts:
            yield part
        yield parts.continuation


def make_service(models: Mapping[str, Any], **settings: Any) -> Service:
    """Return a service with these models, by name."""
    config = ServeConfig(models=tuple(ModelConfig(path=name, name=name) for name in models), **settings)
    store = GlossaryStore(None, max_glossaries=10, max_characters=1_000_000)
    return Service(config, ModelPool.from_fleet(InProcessFleet(models)), 1, store, Usage(None))


def make_test_app(service: Service) -> ASGIApp:
    """Return the application of a service."""
    return make_app(service, ServedDocuments(service))


def application(models: Mapping[str, Any] | Path, **settings: Any) -> TestClient:
    """Return a client of an application that serves these models, by name, or the one in a folder as "model"."""
    if isinstance(models, Path):
        models = {"model": load(models, precision="int8")}
    app = make_test_app(make_service(models, **settings))
    return TestClient(app, "http://localhost", raise_server_exceptions=False)


@contextlib.contextmanager
def listening(app: ASGIApp) -> Iterator[str]:
    """Serve an application on a free port, in a thread, and yield its URL."""
    connection = partial(
        BoundedHttpConnection, limits=LimitsConfig, received=ReceivedBytes(LimitsConfig), error=error_reply_for_url
    )
    settings = uvicorn.Config(
        app,
        port=0,
        http=connection,  # type: ignore[arg-type]  # uvicorn calls it as it would call the class
        loop="asyncio",  # as the service itself
        lifespan="off",
        log_config=None,
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def key_config(name: str, key: str, **limits: int) -> KeyConfig:
    """Return the configuration of a key."""
    return KeyConfig(name=name, sha256=sha256(key.encode()).hexdigest(), **limits)


class RefusingOnce:
    """A context in which a service answers the first request as if the queue were full."""

    def __init__(self, service: Service) -> None:
        self._clients, self._authenticate, self.num_refused = service.clients, service.clients.authenticate, 0

    def __enter__(self) -> Self:
        self._clients.authenticate = self._refuse  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.authenticate = self._authenticate  # type: ignore[method-assign]

    def _refuse(self, key: str | None) -> Client:
        if not self.num_refused:
            self.num_refused += 1
            raise OverloadedError(1)
        return self._authenticate(key)
