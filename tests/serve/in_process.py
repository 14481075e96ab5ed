"""The application in the process of the tests: its models are called directly, without workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from headway.serve.app import make_app
from headway.serve.config import ModelConfig, ServeConfig
from headway.serve.fleet import Fleet
from headway.serve.glossaries import GlossaryStore
from headway.serve.messages import Job, Method, ModelInfo
from headway.serve.service import Service
from headway.serve.usage import Usage
from headway.tasks import load


class InProcessFleet(Fleet):
    """Calls models as the workers call them."""

    def __init__(self, models: dict[str, Any]) -> None:
        super().__init__([], workers=0)
        self._objects = models
        self.models = {
            name: ModelInfo(name, model.bundle.task.kind, **model.describe()) for name, model in models.items()
        }

    async def call(
        self, model: str, method: Method, *arguments: Any, caller: str = "", priority: int = 0, **keywords: Any
    ) -> Any:
        return Job(0, model, method).bind(self._objects[model])(*arguments, **keywords)


def application(folder: Path, **settings: Any) -> TestClient:
    """Return a client of an application that serves the model in ``folder``."""
    config = ServeConfig(models=(ModelConfig(path=str(folder), name="model"),), **settings)
    fleet = InProcessFleet({"model": load(folder, precision="int8")})
    store = GlossaryStore(None, max_glossaries=10, max_characters=1_000_000)
    service = Service(config, fleet, 1, store, Usage(None))
    return TestClient(make_app(service), "http://localhost", raise_server_exceptions=False)
