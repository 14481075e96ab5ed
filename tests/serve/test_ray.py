"""Two replicas of Ray on this machine: the same replies as those of Python, also while one of them is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_service import unpack_model, wait_until

from headway.decode import DecodingOptions
from headway.predict import Translator, load_translator

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parents[2] / "benchmarks" / "ray_service.py"
LOADER = "headway.serve.workers.loader"
PAIR = {"source": "en", "target": "de"}
TEXTS = ["Ein Hund läuft.", "Zwei Männer", "a b c d e", "Hallo!", "", "Grüße aus dem Süden 🙂"]
LONG = {"text": ["word " * 60] * 250, **PAIR, "options": {"beam_size": 50}}


@dataclass(frozen=True)
class RayService:
    """The program that has started Ray, and the address of the service."""

    process: subprocess.Popen[str]
    url: str

    def replicas(self) -> list[int]:
        """The processes of the replicas of the models: those that have started a loader."""
        found, waiting = [], [self.process.pid]
        while waiting:
            own = [child for task in Path(f"/proc/{waiting[-1]}/task").glob("*") for child in children(task)]
            if any(LOADER in command(child) for child in own) and LOADER not in command(waiting[-1]):
                found.append(waiting[-1])
            waiting = [*waiting[:-1], *own]
        return found

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


def children(task: Path) -> list[int]:
    try:
        return [int(child) for child in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return []


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def translator(model_folder: Path) -> Translator:
    return load_translator(model_folder, precision="int8")


@pytest.fixture(scope="module")
def service(model_folder: Path) -> Iterator[RayService]:
    config = model_folder.parent / "serve.toml"
    limits = "limits = { queue_seconds = 1000, queue_tokens = 3000 }"
    config.write_text(f"workers = 1\n{limits}\n[[models]]\npath = '{model_folder}'\n")
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    # Ray's sockets are in this folder, and the path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        arguments = [sys.executable, str(PROGRAM), str(config), str(port), folder]
        environment = os.environ | {"HOME": folder, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        environment |= {"RAY_raylet_start_wait_time_s": "120"}  # on a busy machine
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                found = RayService(process, f"http://127.0.0.1:{port}")
                wait_until(lambda: httpx.get(f"{found.url}/ready").json() == {"status": "ready"}, 60)
                yield found
            finally:
                process.terminate()
                process.wait(60)


@pytest.fixture
def http(service: RayService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=60) as client:
        yield client


def test_replies_equal_those_of_python(http: httpx.Client, translator: Translator) -> None:
    texts = [f"{text} {number}" for number in range(8) for text in TEXTS]

    def ask(text: str) -> Any:
        reply = http.post("/translate", json={"q": text, **PAIR})
        return reply.status_code, reply.json()

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(ask, texts))
    assert found == [(200, {"translatedText": each.text}) for each in translator.translate(texts)]
    body = {"text": TEXTS, **PAIR, "options": {"n_best": 2}, "alignment": True}
    expected = translator.translate(TEXTS, DecodingOptions(n_best=2), alignment=True)
    for ours, theirs in zip(http.post("/api/v1/translate", json=body).json()["translations"], expected, strict=True):
        assert (ours["text"], ours["score"], ours["tokens"]) == (theirs.text, theirs.score, list(theirs.tokens))


def test_streams(http: httpx.Client, translator: Translator) -> None:
    reply = http.post("/api/v1/translate", json={"text": TEXTS, **PAIR, "stream": True})
    events = [json.loads(line.removeprefix("data: ")) for line in reply.text.split("\n\n") if line]
    found = {each["index"]: each["translation"]["text"] for each in events}
    assert [found[at] for at in range(len(TEXTS))] == [each.text for each in translator.translate(TEXTS)]


def test_glossaries_and_jobs_are_those_of_all_replicas(http: httpx.Client) -> None:
    body = {"name": "terms", "dictionaries": [{**PAIR, "entries": [["Hund", "cat"]]}]}
    glossary = http.post("/api/v1/glossaries", json=body).json()["id"]
    fields = {"text": "Ein Hund läuft.", **PAIR, "glossary": glossary}
    for _ in range(10):
        (found,) = http.post("/api/v1/translate", json=fields).json()["translations"]
        assert "cat" in found["text"].lower()
    job = http.post("/api/v1/jobs", json={"text": TEXTS, **PAIR}).json()["id"]
    wait_until(lambda: http.get(f"/api/v1/jobs/{job}").json()["status"] == "done")
    assert len(http.get(f"/api/v1/jobs/{job}/result").json()["translations"]) == len(TEXTS)


def test_errors_have_the_form_of_their_api(http: httpx.Client) -> None:
    reply = http.post("/translate", json={"q": "a", "source": "en", "target": "zz"})
    assert (reply.status_code, reply.json()) == (400, {"error": "zz is not supported"})
    reply = http.post("/api/v1/translate", json={"text": "a", **PAIR, "options": {"beam_size": -1}})
    assert (reply.status_code, reply.json()["error"]["status"]) == (400, 400)
    assert http.get("/v2/nothing").json() == {"message": "Not Found"}


def test_a_client_that_disconnects_ends_its_work_and_the_queue_is_bounded(
    service: RayService, http: httpx.Client
) -> None:
    body = json.dumps(LONG).encode()
    head = "POST /api/v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(service.url).port or 0)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: service.metric("headway_batch_sequences") > 0)
        refused = http.post("/translate", json={"q": "word " * 3000, **PAIR})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
    wait_until(lambda: service.metric("headway_queue_tokens") == 0, 30)
    wait_until(lambda: service.metric("headway_batch_sequences") == 0, 30)


def test_a_lost_replica_is_replaced_and_no_reply_is_wrong_or_lost(service: RayService, translator: Translator) -> None:
    texts = [f"{text} {number}" for number in range(8) for text in TEXTS if text]
    expected = {text: translator.translate(text).text for text in texts}
    replies, seen, is_over = [], set(), False

    def ask(number: int) -> None:
        with httpx.Client(base_url=service.url, timeout=60) as http:
            while not is_over:
                for text in texts[number::8]:
                    reply = http.post("/translate", json={"q": text, **PAIR})
                    replies.append((text, reply.status_code, reply.text))

    def is_back() -> bool:
        ready = httpx.get(f"{service.url}/ready")
        assert ready.status_code == 200
        seen.add(ready.json()["status"])
        return ready.json()["status"] == "ready" and service.metric("headway_worker_restarts_total") == 1

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, number) for number in range(8)]
        try:
            wait_until(lambda: len(replies) > 50)
            lost, _ = service.replicas()
            os.kill(lost, signal.SIGKILL)
            wait_until(is_back, 120)
            after = len(replies)
            wait_until(lambda: len(replies) > after + 50)
        finally:
            is_over = True
        for each in asking:
            each.result()
    wrong = [each for each in replies if each[1:] != (200, json.dumps({"translatedText": expected[each[0]]}))]
    assert [(status, text) for _, status, text in wrong if status != 200 or not text] == []
    for text, _, body in replies:
        assert json.loads(body) == {"translatedText": expected[text]}
    assert seen == {"ready", "degraded"}
