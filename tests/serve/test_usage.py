"""The characters that keys have used: counted by month, and kept when the service ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_service import running, unpack_model

from headway.errors import ConfigError, OutputError
from headway.serve.admission import Admission
from headway.serve.clients import Client
from headway.serve.config import KeyConfig, ModelConfig, ServeConfig
from headway.serve.errors import OverloadedError, QuotaExceededError
from headway.serve.glossaries import GlossaryStore
from headway.serve.model_info import ModelInfo
from headway.serve.service import Service
from headway.serve.usage import Usage
from headway.serve.workers.fleet import Fleet
from headway.serve.workers.messages import Job
from headway.serve.workers.model_pool import ModelPool


class Calendar:
    def __init__(self) -> None:
        self.month = "2026-11"

    def __call__(self) -> str:
        return self.month


def test_each_month_begins_with_zero(tmp_path: Path) -> None:
    calendar = Calendar()
    usage = Usage(tmp_path / "usage.json", calendar)
    usage.add("one", 5)
    usage.add("one", 2)
    usage.add("two", 1)
    assert [usage.characters(key) for key in ("one", "two", "three")] == [7, 1, 0]
    usage.save()
    calendar.month = "2026-12"
    assert usage.characters("one") == Usage(tmp_path / "usage.json", calendar).characters("one") == 0
    usage.add("one", 3)
    assert [usage.characters(key) for key in ("one", "two")] == [3, 0]


def test_counts_are_read_again_and_written_only_when_they_change(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "usage.json"
    usage = Usage(path, Calendar())
    usage.add("one", 5)
    usage.save()
    assert Usage(path, Calendar()).characters("one") == 5
    path.unlink()
    usage.save()
    assert not path.exists()
    usage.add("one", 1)
    usage.save()
    assert Usage(path, Calendar()).characters("one") == 6


def test_counts_that_could_not_be_written_are_written_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "usage.json"
    usage = Usage(path, Calendar())
    usage.add("one", 5)
    path.mkdir()
    with pytest.raises(OutputError):
        usage.save()
    path.rmdir()
    usage.save()
    assert Usage(path, Calendar()).characters("one") == 5


@pytest.mark.parametrize("content", ["{", "[1]", '{"month": "2026-11"}', '{"month": "a", "characters": {"one": -1}}'])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "usage.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"usage\.json"):
        Usage(path)
    assert path.read_text() == content


class Workers(Fleet):
    """Worker processes that a test imagines."""

    def __init__(self) -> None:
        super().__init__(1)
        self.models = {"model": ModelInfo("model", "translation", "translates", ("en",), ("de",))}

    async def call(self, _: Job) -> Any:
        await asyncio.sleep(0.01)

    def stream(self, _: Job) -> AsyncGenerator[Any]:
        raise NotImplementedError


def test_requests_at_the_same_time_do_not_exceed_a_quota() -> None:
    async def check() -> None:
        key = KeyConfig(name="shop", sha256="0" * 64, characters_per_month=10)
        config = ServeConfig(models=(ModelConfig(path="model"),), keys=(key,))
        glossaries = GlossaryStore(None, max_glossaries=0, max_characters=0)
        service = Service(config, ModelPool.from_fleet(Workers()), 1, glossaries, Usage(None))
        service.admission = Admission(slots=1, max_tokens=30, max_seconds=4.0)  # the others wait
        client = Client("shop", key)

        async def ask(text: str) -> Any:
            return await service.call(client, service.models[0], "translate_each", [text])

        found = await asyncio.gather(*(ask("1234") for _ in range(5)), return_exceptions=True)
        assert [type(each) for each in found] == [type(None)] * 2 + [QuotaExceededError] * 3
        assert service.clients.characters_used(client) == 8
        # What the queue refuses does not count.
        client = Client("other")
        first = asyncio.create_task(ask("x" * 80))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await ask("x" * 80)
        await first
        assert service.clients.characters_used(client) == 80

    asyncio.run(check())


@pytest.mark.slow
def test_a_quota_survives_a_restart(tmp_path: Path) -> None:
    key = f'{{ name = "shop", sha256 = "{sha256(b"k").hexdigest()}", characters_per_month = 10 }}'
    model = unpack_model(tmp_path)
    path = tmp_path / "serve.toml"
    path.write_text(f"models = [{{ path = '{model}' }}]\nworkers = 1\nkeys = [{key}]\nusage_file = 'usage.json'\n")

    def statuses(*texts: str) -> list[int]:
        with running(["--config", str(path)]) as service:
            body = {"source": "en", "target": "de", "api_key": "k"}
            found = [httpx.post(f"{service.url}/translate", json=body | {"q": each}).status_code for each in texts]
            assert service.stop() == 0
        return found

    assert statuses("1234567") == [200]
    assert json.loads((tmp_path / "usage.json").read_text()) == {
        "month": time.strftime("%Y-%m"),
        "characters": {"shop": 7},
    }
    assert statuses("1234", "123", "1") == [429, 200, 429]


def test_other_users_cannot_read_what_a_service_keeps(tmp_path: Path) -> None:
    usage = Usage(tmp_path / "usage.json")
    usage.add("key", 1)
    usage.save()
    GlossaryStore(tmp_path / "glossaries", max_glossaries=1, max_characters=100)
    assert (tmp_path / "usage.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "glossaries").stat().st_mode & 0o777 == 0o700
