"""The files for systemd, nginx and Caddy in docs/serving.md, tried with these programs where they are installed."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from running_service import RunningService, running, unpack_model, wait_until

_DOCS = Path(__file__).parents[2] / "docs" / "serving.md"
_HOST = "translate.example.org"


def example(language: str) -> str:
    """Return the only code block of the page in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", _DOCS.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return str(found)


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


def changed(text: str, pattern: str, new: str) -> str:
    """Replace every match of a pattern, which must occur."""
    found, count = re.subn(pattern, new, text, flags=re.MULTILINE)
    assert count, pattern
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@needs("systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "headway.service"
    unit.write_text(changed(example("ini"), "/opt/headway/bin/headway", sys.executable))  # a program that exists
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "headway" in line]) == (0, [])
    unit.write_text(changed(unit.read_text(), "^KillMode=mixed", "KilMode=mixed"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "KilMode" in done.stderr


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("served")
    config = folder / "serve.toml"
    config.write_text(
        f"workers = 1\nallowed_hosts = ['{_HOST}']\nlimits.body_bytes = 8388608\n"
        f"[[models]]\npath = '{unpack_model(folder)}'\n"
    )
    with running(["--config", str(config)]) as found:
        yield found


@contextlib.contextmanager
def proxy(command: list[str], port: int) -> Iterator[httpx.Client]:
    """Run a reverse proxy, and yield a client that asks it for the public name of the service."""

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until(answers)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"host": _HOST}, timeout=60) as client:
            yield client
    finally:
        process.terminate()
        process.wait(60)


def check(http: httpx.Client, service: RunningService) -> None:
    """Compare replies through a proxy with those of the service."""
    body = {"text": ["Hallo", "a b", "c"], "source": "en", "target": "de"}
    direct = httpx.post(f"{service.url}/api/v1/translate", json=body)
    assert http.post("/api/v1/translate", json=body).json() == direct.json()
    with http.stream("POST", "/api/v1/translate", json=body | {"stream": True}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line.removeprefix("data: ")) for line in reply.iter_lines() if line]
    events.sort(key=lambda event: event["index"])
    assert [each["translation"] for each in events] == direct.json()["translations"]
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/metrics").status_code == 403
    assert httpx.get(f"{service.url}/metrics").status_code == 200
    assert http.post("/api/v1/translate", json=body | {"text": "x" * (7 << 20)}).json()["error"]["status"] == 413
    assert http.post("/api/v1/translate", content=b"x" * (9 << 20)).status_code in (413, 502)
    # A client that disconnects from the proxy ends its work in the service.
    long = body | {"text": ["word " * 60] * 300, "options": {"max_length": 200}}
    with pytest.raises(httpx.ReadTimeout):
        http.post("/api/v1/translate", json=long, timeout=httpx.Timeout(60, read=0.5))
    wait_until(lambda: "headway_queue_tokens 0.0" in httpx.get(f"{service.url}/metrics").text, 30)
    assert 'headway_requests_total{api="native",status="499"}' in httpx.get(f"{service.url}/metrics").text


@needs("nginx")
@pytest.mark.slow
def test_nginx(service: RunningService, tmp_path: Path) -> None:
    port = free_port()
    site = changed(example("nginx"), r"listen 443 ssl;", f"listen 127.0.0.1:{port};")
    site = changed(changed(site, r"^ *ssl_.*\n", ""), r"127\.0\.0\.1:5000", service.url.removeprefix("http://"))
    paths = "".join(
        f"{each}_temp_path {tmp_path / each};\n" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = tmp_path / "nginx.conf"
    config.write_text(
        f"daemon off;\nmaster_process off;\npid {tmp_path}/pid;\nerror_log {tmp_path}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}{site}}}\n"
    )
    arguments = ["nginx", "-p", str(tmp_path), "-e", f"{tmp_path}/error.log", "-c", str(config)]
    subprocess.run([*arguments, "-t", "-q"], check=True)
    with proxy(arguments, port) as http:
        check(http, service)


@needs("caddy")
def test_caddy(service: RunningService, tmp_path: Path) -> None:
    port = free_port()
    site = changed(example("caddy"), rf"^{re.escape(_HOST)} ", f"http://{_HOST}:{port} ")
    site = changed(site, r"127\.0\.0\.1:5000", service.url.removeprefix("http://"))
    config = tmp_path / "Caddyfile"
    config.write_text(f"{{\n\tadmin off\n\tstorage file_system {tmp_path}\n}}\n{site}")
    with proxy(["caddy", "run", "--adapter", "caddyfile", "--config", str(config)], port) as http:
        check(http, service)
