"""The addresses on which the service listens: both families, several hosts, and Unix sockets."""

from __future__ import annotations

import os
import signal
import socket
import stat
from pathlib import Path

import httpx
import pytest
from running_service import running, unpack_model, wait_until

from headway.errors import ConfigError
from headway.serve.config import ServeConfig
from headway.serve.listeners import ServerSocket, open_sockets

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


def connects(host: str, listener: ServerSocket) -> bool:
    """Return whether a client reaches a listener at a host."""
    try:
        socket.create_connection((host, listener.socket.getsockname()[1]), timeout=10).close()
    except OSError:
        return False
    return True


@needs_ipv6
@pytest.mark.parametrize("host", ["::", "*"])
def test_all_addresses_are_those_of_both_families(host: str) -> None:
    with open_sockets([host], 0, 0o600) as (listener,):
        assert connects("127.0.0.1", listener)
        assert connects("::1", listener)
        assert listener.address.endswith(" (the network, IPv4 and IPv6)")


@pytest.mark.parametrize("host", ["::", "*"])
def test_without_both_families_the_address_names_the_only_one(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with open_sockets([host], 0, 0o600) as (listener,):
        port = listener.socket.getsockname()[1]
        expected = {
            "::": f"http://[::]:{port} (the network, IPv6 only)",
            "*": f"http://0.0.0.0:{port} (the network)",
        }
        assert listener.address == expected[host]
        assert connects("::1" if host == "::" else "127.0.0.1", listener)


@needs_ipv6
@needs_ipv6
def test_an_address_may_be_in_brackets() -> None:
    with open_sockets(["[::1]"], 0, 0o600) as (listener,):
        assert listener.address.startswith("http://[::1]:")
    assert ServeConfig(host="[::1]").host_names == ServeConfig(host="::1").host_names


@pytest.mark.parametrize("host", ["", "unix:"])
def test_a_host_without_an_address_is_refused(host: str) -> None:
    with (
        pytest.raises(ConfigError, match=r"expected an address, a name, \*, or unix: and a path"),
        open_sockets([host], 0, 0o600),
    ):
        pass


def test_several_hosts_have_the_same_port() -> None:
    with open_sockets(["127.0.0.1", "::1", "127.0.0.1"], 0, 0o600) as listeners:
        first, second = listeners
        port = first.socket.getsockname()[1]
        assert (first.address, second.address) == (
            f"http://127.0.0.1:{port} (this machine only)",
            f"http://[::1]:{port} (this machine only)",
        )


def test_a_name_is_listened_on_at_all_addresses_that_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(socket.AF_INET, 1, 6, "", (address, 0)) for address in ("192.0.2.1", "127.0.0.1", "127.0.0.2")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
    with open_sockets(["name"], 0, 0o600) as listeners:  # 192.0.2.1 is for documentation; no machine has it
        assert [listener.socket.getsockname()[0] for listener in listeners] == ["127.0.0.1", "127.0.0.2"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows[:1])
    with pytest.raises(ConfigError, match=r"name:0: cannot listen \(Cannot assign"), open_sockets(["name"], 0, 0o600):
        pass


def test_a_port_in_use_is_refused_and_nothing_stays_open(tmp_path: Path) -> None:
    with open_sockets(["127.0.0.1"], 0, 0o600) as (listener,):
        port = listener.socket.getsockname()[1]
        hosts = [f"unix:{tmp_path / 'socket'}", "127.0.0.1"]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: cannot listen .Address already in use"):
            open_sockets(hosts, port, 0o600).__enter__()
    assert not (tmp_path / "socket").exists()


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_the_file_of_a_unix_socket(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "headway.sock"
    with open_sockets([f"unix:{path}"], 5000, mode) as (listener,):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert listener.address == f"unix:{path} (mode {mode:04o})"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        with pytest.raises(ConfigError, match=r"cannot listen \(Address already in use"):
            open_sockets([f"unix:{path}"], 5000, mode).__enter__()
    assert not path.exists()


def test_an_abandoned_unix_socket_is_replaced_but_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "headway.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with open_sockets([f"unix:{path}"], 0, 0o600):
        path.unlink()  # another service has taken the path
        path.write_text("theirs")
    assert path.read_text() == "theirs"
    with pytest.raises(ConfigError, match="a file that is not a socket"):
        open_sockets([f"unix:{path}"], 0, 0o600).__enter__()
    with pytest.raises(ConfigError, match=r"unix:.*too long"):
        open_sockets([f"unix:{tmp_path / ('long' * 50)}"], 0, 0o600).__enter__()


def test_names_of_hosts_accept_no_other_host_header() -> None:
    config = ServeConfig(host=("*", "unix:/run/x.sock", "::1", "example.org"))
    assert config.host_names == ("[::1]", "example.org")
    assert ServeConfig(host="0.0.0.0").host_names == ("0.0.0.0",)
    for wrong in ("", ()):
        with pytest.raises(ConfigError):
            ServeConfig.parse({"host": wrong}, "test")


@pytest.mark.slow
def test_a_service_on_several_hosts(tmp_path: Path) -> None:
    path = tmp_path / "headway.sock"
    hosts = ["--host", "127.0.0.1", "--host", "::1", "--host", f"unix:{path}", "--unix-mode", "660"]
    with running([str(unpack_model(tmp_path)), *hosts, "--workers", "1"]) as service:
        body = {"q": "Ein Hund läuft.", "source": "en", "target": "de"}
        expected = httpx.post(f"{service.url}/translate", json=body, timeout=60).json()
        assert httpx.post(service.url.replace("127.0.0.1", "[::1]") + "/translate", json=body).json() == expected
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
            assert client.post("/translate", json=body).json() == expected
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        os.kill(service.process.pid, signal.SIGTERM)
        wait_until(lambda: not path.exists())
        assert service.process.wait(60) == 0
