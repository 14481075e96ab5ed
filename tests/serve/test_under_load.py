"""A service under load: it ends in order, loses workers, clients and the network, and no reply is wrong or lost.

HEADWAY_LOAD_ROUNDS sets how often each experiment is repeated.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_service import RunningService, running, unpack_model, wait_until

from headway.predict import Translator, load_translator

ROUNDS = int(os.environ.get("HEADWAY_LOAD_ROUNDS", "2"))
# The figure of docs/serving.md is for a machine without other work, as are experiments with more rounds.
BACK_S = 6.0 if "HEADWAY_LOAD_ROUNDS" in os.environ else 60.0
TEXTS = [f"{text} {number}" for number in range(8) for text in ("Ein Hund läuft.", "Zwei Männer", "Hallo!", "a b c")]
LONG = {"text": ["word " * 60] * 250, "source": "en", "target": "de", "options": {"beam_size": 50}}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def expected(model_folder: Path) -> dict[str, str]:
    """The translation of each text, given alone."""
    translator: Translator = load_translator(model_folder, precision="int8")
    return {text: translator.translate(text).text for text in TEXTS}


@pytest.fixture
def service(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    monkeypatch.setenv("HEADWAY_LIMITS__QUEUE_SECONDS", "1000")  # so that no request is refused
    with running([str(model_folder), "--workers", "2"]) as found:
        yield found


class Load:
    """Clients that translate texts, each over and over, until they are stopped."""

    def __init__(self, service: RunningService) -> None:
        self.replies: list[tuple[str, int, Any]] = []
        self._service, self._over = service, threading.Event()

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(8)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        with contextlib.suppress(httpx.TransportError):  # the service has ended
            for text in TEXTS[number::8] * 10_000:
                if self._over.is_set():
                    return
                body = {"q": text, "source": "en", "target": "de"}
                reply = httpx.post(f"{self._service.url}/translate", json=body, timeout=60)
                self.replies.append((text, reply.status_code, reply.json()))

    def wrong(self, expected: dict[str, str]) -> list[Any]:
        """Return the replies that are not the translations that the texts get alone."""
        return [each for each in self.replies if each[1:] != (200, {"translatedText": expected[each[0]]})]


@pytest.mark.parametrize("number", range(ROUNDS))
def test_accepted_requests_are_answered_before_the_end(
    service: RunningService, expected: dict[str, str], number: int
) -> None:
    with Load(service) as load:
        wait_until(lambda: len(load.replies) > 20 + number)
        assert service.stop() == 0
    assert {each[1] for each in load.wrong(expected)} <= {503}
    wait_until(lambda: not service.process.stderr or service.process.stderr.closed or bool(service.log))
    logged = [json.loads(line) for line in service.log if line.startswith('{"id"')]
    statuses = [each["status"] for each in logged if each["path"] == "/translate"]
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) == sum(status == 200 for _, status, _ in load.replies)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_second_signal_ends_it_at_once(service: RunningService, number: int) -> None:
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(httpx.post, f"{service.url}/api/v1/translate", json=LONG, timeout=60)
        wait_until(lambda: metric(service, "headway_queue_tokens") > 0)
        time.sleep(0.02 * number)
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{service.url}/ready").status_code == 503)  # it still works on the request
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(20) == 1  # sooner than the request ends
        assert isinstance(pending.exception(), httpx.TransportError)
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def metric(service: RunningService, name: str) -> float:
    lines = httpx.get(f"{service.url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


def test_clients_that_disconnect_do_not_disturb_others(service: RunningService, expected: dict[str, str]) -> None:
    def leave(number: int) -> None:
        body = json.dumps({**LONG, "text": ["word " * 30] * 4}).encode()
        path = "/api/v1/translate"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        whole = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        with socket.create_connection(("127.0.0.1", httpx.URL(service.url).port or 0)) as connection:
            connection.sendall(whole if number % 4 else whole[:-5])  # some leave before the body has ended
            time.sleep(0.02 * (number % 10))

    with Load(service) as load:
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(leave, range(100 * ROUNDS // 2)))
        wait_until(lambda: len(load.replies) > 50)
    assert not load.wrong(expected)
    # Less than half of the time limit of a request, which would end them, too.
    wait_until(lambda: metric(service, "headway_queue_tokens") == 0, 20)
    wait_until(lambda: metric(service, "headway_batch_sequences") == 0, 20)
    assert metric(service, "headway_worker_restarts_total") == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_workers_are_replaced(service: RunningService, expected: dict[str, str], number: signal.Signals) -> None:
    """With a healthy worker left, the service stays ready, and no reply is wrong or lost."""
    loader = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()[0]

    def workers() -> list[str]:
        return Path(f"/proc/{loader}/task/{loader}/children").read_text().split()

    seen = set()
    with Load(service) as load:
        for restarts in range(ROUNDS):
            time.sleep(5)  # a worker that ends sooner is taken for one that cannot start, and the next one waits
            before = len(load.replies)
            wait_until(lambda before=before: len(load.replies) > before + 5)  # type: ignore[misc]
            lost = workers()[-1]  # the youngest, so that a request does not lose two workers
            os.kill(int(lost), number)
            began = time.monotonic()

            def is_back(restarts: int = restarts) -> bool:
                ready = httpx.get(f"{service.url}/ready")
                assert ready.status_code == 200
                seen.add(ready.json()["status"])
                return ready.json()["status"] == "ready" and metric(service, "headway_worker_restarts_total") > restarts

            wait_until(is_back)
            assert time.monotonic() - began < BACK_S
    assert not load.wrong(expected)
    assert seen <= {"ready", "degraded"}


# Decoding fails one step after a source of more than 100 tokens has entered a batch.
_POISON = """
import sys

if "headway.serve.workers.loader" in sys.orig_argv:
    from headway.decode.beam import BeamSearch

    add_requests, step = BeamSearch.add_requests, BeamSearch.step

    def add(self, requests):
        requests = list(requests)
        self.is_poisoned = getattr(self, "is_poisoned", False) or any(len(one.source) > 100 for _, one in requests)
        add_requests(self, requests)

    def poisoned_step(self):
        found = step(self)
        if getattr(self, "is_poisoned", False):
            raise RuntimeError("poison")
        return found

    BeamSearch.add_requests, BeamSearch.step = add, poisoned_step
"""


def test_a_poisonous_input_fails_alone(
    model_folder: Path, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_POISON)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    poison = " ".join("abcdefghij" * 12)
    texts = [poison, *TEXTS[:31]]
    with running([str(model_folder), "--workers", "1"]) as service:

        def ask(text: str) -> Any:
            body = {"q": text, "source": "en", "target": "de"}
            reply = httpx.post(f"{service.url}/translate", json=body, timeout=60)
            return reply.status_code, reply.json()

        for _ in range(ROUNDS):
            with ThreadPoolExecutor(32) as pool:
                first, *others = pool.map(ask, texts)
            assert first == (500, {"error": "Internal error"})
            assert others == [(200, {"translatedText": expected[text]}) for text in texts[1:]]
        assert metric(service, "headway_worker_restarts_total") == 0


_GUARD = """
import ipaddress, os, sys

def check(event, arguments):
    if event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            report(event, host)
    elif event == "socket.getaddrinfo" and arguments[0] not in (None, "localhost", "127.0.0.1", "::1"):
        report(event, arguments[0])

def report(*what):
    with open(os.environ["HEADWAY_TEST_REPORT"], "a") as file:
        print(*what, file=file)

sys.addaudithook(check)
"""

_LOOPBACK_ONLY = """
import fcntl, socket, struct, subprocess, sys

with socket.socket() as one:  # ip link set lo up
    fcntl.ioctl(one, 0x8914, struct.pack("16sh", b"lo", 1))
subprocess.run(sys.argv[1:], check=True)
"""


def test_it_works_without_a_network(
    model_folder: Path, expected: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In a network namespace with nothing but loopback, and nothing tries to connect to anything else."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-n", "true"], check=False).returncode:
        pytest.skip("a network namespace cannot be made here")
    (tmp_path / "sitecustomize.py").write_text(_GUARD)
    report = tmp_path / "report"
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "HEADWAY_TEST_REPORT": str(report)}
    tests = [str(request.path.with_name(name)) for name in ("test_service.py", "test_openai.py", "test_deepl.py")]
    pytest_run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    command = ["unshare", "-n", sys.executable, "-c", _LOOPBACK_ONLY, *pytest_run]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert not report.exists(), report.read_text()
