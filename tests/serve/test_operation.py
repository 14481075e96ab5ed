"""What operators see: /ready in every state of the service, and the figures of /metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from in_process import key_config, make_test_app
from prometheus_client.parser import text_string_to_metric_families
from running_service import running, unpack_model, wait_until

from headway.serve.config import LimitsConfig, ModelConfig, ServeConfig
from headway.serve.glossaries import GlossaryStore
from headway.serve.log_limit import ANONYMOUS_LOG
from headway.serve.model_info import ModelInfo
from headway.serve.reports import EndedRequest, RequestReports
from headway.serve.service import Service
from headway.serve.usage import Usage
from headway.serve.workers.fleet import Fleet
from headway.serve.workers.messages import Job, WorkerStatus
from headway.serve.workers.model_pool import ModelPool


class Workers(Fleet):
    """Worker processes that a test imagines."""

    def __init__(self) -> None:
        super().__init__(2)
        self.models = {"model": ModelInfo("model", "translation", "translates", ("en",), ("de",))}
        self.ready = 2

    @property
    def num_ready(self) -> int:
        return self.ready

    @property
    def states(self) -> list[WorkerStatus]:
        return [WorkerStatus(0.0, 3, 0, 1), WorkerStatus(0.0, 4, 0, 1)]

    def private_bytes(self) -> int:
        return 1000

    async def call(self, _: Job) -> Any:
        raise RuntimeError("a defect that the reply does not describe")

    def stream(self, _: Job) -> AsyncGenerator[Any]:
        raise NotImplementedError


def check(test: Callable[[httpx.AsyncClient, Service, Workers], Awaitable[None]], *, keys: Sequence[str] = ()) -> None:
    """Run a test with a client of an application that has no workers. Each of the ``keys`` is also its name."""

    async def run() -> None:
        models, limits = (ModelConfig(path="model"),), LimitsConfig()
        config = ServeConfig(models=models, limits=limits, keys=tuple(key_config(key, key) for key in keys))
        workers = Workers()
        glossaries = GlossaryStore(None, max_glossaries=0, max_characters=0)
        service = Service(config, ModelPool.from_fleet(workers), 2, glossaries, Usage(None))
        transport = httpx.ASGITransport(make_test_app(service), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            await test(http, service, workers)

    asyncio.run(run())


async def metrics(http: httpx.AsyncClient) -> dict[Any, float]:
    """Return the samples of /metrics by name, followed by the values of the labels."""
    return parsed((await http.get("/metrics")).text)


def parsed(text: str) -> dict[Any, float]:
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {(each.name, *each.labels.values()) if each.labels else each.name: each.value for each in samples}


def test_ready_says_why_not() -> None:
    async def test(http: httpx.AsyncClient, service: Service, workers: Workers) -> None:
        async def state() -> tuple[int, str, str | None]:
            reply = await http.get("/ready")
            return reply.status_code, reply.json()["status"], reply.json().get("reason")

        assert await state() == (200, "ready", None)
        workers.ready = 1
        assert await state() == (200, "degraded", "1 of 2 workers are ready")
        workers.ready = 0
        assert await state() == (503, "unavailable", "no worker is ready")
        assert (await metrics(http))["headway_workers_ready"] == 0
        workers.ready, service.is_draining = 2, True
        assert await state() == (503, "unavailable", "the service is shutting down")
        assert (await http.get("/health")).json() == {"status": "ok"}  # the process is alive
        refused = await http.get("/languages")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")

    check(test)


def test_a_key_that_fills_the_queue_is_refused_and_another_one_is_not() -> None:
    async def test(http: httpx.AsyncClient, service: Service, _: Workers) -> None:
        body = {"text": "Ein Hund", "source": "en", "target": "de"}

        async def status(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return (await http.post("/api/v1/translate", json=body, headers=headers)).status_code

        async with service.admission.enter(100_000, "many", 0):
            assert await status("many") == 429
            assert await status("few") == 500  # from the worker
            assert await status("none") == 403
        assert await status("many") == 500

    check(test, keys=["many", "few"])


def test_while_the_queue_is_full_requests_are_refused_unread() -> None:
    async def test(http: httpx.AsyncClient, service: Service, _: Workers) -> None:
        async with service.admission.enter(10**6, "someone", 0):
            for path, name in (("/api/v1/translate", "status"), ("/translate", None), ("/v1/completions", "message")):
                least_s = 10**6 / service.admission.tokens_per_second  # the estimated speed falls with time
                refused = await http.post(path, content=b"no JSON")
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= least_s - 2
                assert "busy" in (refused.json()["error"] if name is None else refused.json()["error"]["message"])
            assert (await http.post("/api/v1/glossaries", content=b"no JSON")).status_code == 422
            assert (await http.get("/languages")).status_code == 200
        assert (await http.post("/api/v1/translate", content=b"no JSON")).status_code == 422

    check(test)


def test_metrics_count_requests_by_api_and_status() -> None:
    async def test(http: httpx.AsyncClient, _: Service, __: Workers) -> None:
        for path in ("/languages", "/languages", "/nothing", "/api/v1/models", "/v2/usage", "/v1/models"):
            await http.get(path)
        failed = await http.post("/api/v1/translate", json={"text": "a", "source": "en", "target": "de"})
        assert (failed.status_code, failed.json()["error"]["message"]) == (500, "Internal error")
        found = await metrics(http)
        counted = {key[1:]: value for key, value in found.items() if key[0] == "headway_requests_total"}
        assert counted == {
            ("libretranslate", "200"): 2,
            ("libretranslate", "404"): 1,
            ("native", "200"): 1,
            ("native", "500"): 1,
            ("deepl", "403"): 1,
            ("openai", "200"): 1,
        }
        for name in ("headway_request_seconds_count", "headway_first_byte_seconds_count"):
            assert found[name, "libretranslate"] == 3
            assert found[name, "native"] == 2

    check(test)


def test_requests_are_counted_and_logged_after_their_replies(caplog: pytest.LogCaptureFixture) -> None:
    async def test(_: httpx.AsyncClient, service: Service, __: Workers) -> None:
        reports = RequestReports(service)
        for number in ("7", "8"):
            reports.add(
                EndedRequest(number, "GET", "/languages", "libretranslate", 200, 0.12345, None, is_anonymous=False)
            )
        assert not caplog.messages
        async with asyncio.timeout(60):
            while not caplog.messages:
                await asyncio.sleep(0.001)
        expected = {"method": "GET", "path": "/languages", "status": 200, "seconds": 0.1235}
        assert [json.loads(line) for line in caplog.messages] == [{"id": number} | expected for number in ("7", "8")]
        reports.add(EndedRequest("9", "GET", "/languages", "libretranslate", 200, 0.12345, None, is_anonymous=True))
        counted = 'headway_requests_total{api="libretranslate",status="200"} 3.0'
        assert counted in (await reports.metrics()).decode()
        assert len(caplog.messages) == 3

    with caplog.at_level(logging.INFO, "headway.serve"):
        check(test)


def test_metrics_show_the_queue_and_the_workers() -> None:
    async def test(http: httpx.AsyncClient, service: Service, workers: Workers) -> None:
        async with service.admission.enter(120, "someone", 0):
            workers.restarts = 7
            found = await metrics(http)
            assert found["headway_queue_tokens"] == 120
            assert found["headway_queue_seconds"] == pytest.approx(120 / service.admission.tokens_per_second, rel=0.1)
        expected = {
            "headway_open_requests": 1,  # the one that asks
            "headway_worker_restarts_total": 7,
            "headway_batch_sequences": 7,
            "headway_memory_bytes": 1000,
            "headway_workers_ready": 2,
            "headway_models_loaded": 1,
            "headway_model_loads_total": 0,
            "headway_jobs": 0,
        }
        assert {name: found[name] for name in expected} == expected
        assert (await metrics(http))["headway_queue_tokens"] == 0

    check(test)


@pytest.mark.slow
def test_a_service_without_a_worker_is_not_ready_until_it_has_another(tmp_path: Path) -> None:
    with (
        running([str(unpack_model(tmp_path)), "--workers", "1"]) as service,
        httpx.Client(base_url=service.url) as http,
    ):
        reply = http.post("/translate", json={"q": "a b", "source": "en", "target": "de"}, timeout=60)
        assert reply.status_code == 200
        before = parsed(http.get("/metrics").text)
        assert before["headway_requests_total", "libretranslate", "200"] == 1
        assert before["headway_memory_bytes"] > 0
        (loader,) = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
        (worker,) = Path(f"/proc/{loader}/task/{loader}/children").read_text().split()
        os.kill(int(loader), signal.SIGSTOP)  # so that the next worker comes later
        os.kill(int(worker), signal.SIGKILL)
        wait_until(lambda: http.get("/ready").status_code == 503)
        assert http.get("/ready").json() == {"status": "unavailable", "reason": "no worker is ready"}
        os.kill(int(loader), signal.SIGCONT)
        wait_until(lambda: http.get("/ready").json() == {"status": "ready"})
        assert parsed(http.get("/metrics").text)["headway_worker_restarts_total"] == 1
        os.kill(int(loader), signal.SIGKILL)
        assert service.process.wait(120) != 0  # so that a supervisor starts the service again
        assert any("the process that loads the models ended unexpectedly" in line for line in service.log)


@pytest.mark.parametrize("keys", [(), ("a key",)])
def test_requests_that_anyone_can_send_have_a_log_of_their_own(
    caplog: pytest.LogCaptureFixture, keys: Sequence[str]
) -> None:
    """Its lines are limited. With keys: all requests without one. Without: those that are refused or do no work."""
    key = {"authorization": "Bearer a key"}
    sent = [("/health", {}), ("/v1/models", {}), ("/v1/models", key), ("/v1/nothing", key), ("/" + "a" * 9999, key)]

    async def test(http: httpx.AsyncClient, _: Service, __: Workers) -> None:
        for path, headers in sent:
            await http.get(path, headers=headers)
        async with asyncio.timeout(60):
            while len(caplog.records) < len(sent):
                await asyncio.sleep(0.001)

    with caplog.at_level(logging.INFO, "headway.serve"):
        check(test, keys=keys)
    lines = [(json.loads(record.getMessage()), record.name == ANONYMOUS_LOG) for record in caplog.records]
    assert [(line["status"], is_anonymous) for line, is_anonymous in lines] == [
        (200, True), (401 if keys else 200, bool(keys)), (200, False), (404, True), (404, True),
    ]  # fmt: skip
    assert max(len(line["path"]) for line, _ in lines) < 250
