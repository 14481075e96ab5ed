"""The sockets on which the service accepts connections: IPv4, IPv6 and Unix sockets."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headway.errors import ConfigError
from headway.serve.config import ANY_HOST, UNIX_PREFIX

BACKLOG = 2048
# Error codes if the machine does not have an address, for example because it does not support IPv6.
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True)
class ServerSocket:
    """A listening socket, and a description of its address for the startup message."""

    socket: socket.socket
    address: str


@contextmanager
def open_sockets(hosts: Sequence[str], port: int, unix_mode: int) -> Iterator[list[ServerSocket]]:
    """Context manager that listens on all hosts until the end of the block.

    Args:
        hosts: Addresses and host names. "*" and "::" mean all IPv4 and IPv6 addresses. "unix:PATH" is a Unix socket.
        port: Port for all hosts except Unix sockets. 0 means any free port, the same for all hosts.
        unix_mode: Permissions of Unix sockets.

    Raises:
        ConfigError: A host cannot be used.
    """
    listeners: list[ServerSocket] = []
    with contextlib.ExitStack() as stack:
        for host in dict.fromkeys(hosts):
            if not host.removeprefix(UNIX_PREFIX):
                raise ConfigError(f"host {host!r}: expected an address, a name, *, or {UNIX_PREFIX} and a path")
            if host.startswith(UNIX_PREFIX):
                listeners.append(stack.enter_context(_unix_socket(Path(host.removeprefix(UNIX_PREFIX)), unix_mode)))
                continue
            for opened in _internet_sockets(host, port):
                listeners.append(_internet_listener(stack.enter_context(opened)))
                port = opened.getsockname()[1]
        yield listeners


def _internet_sockets(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a listening socket for each address of a host.

    A host name may have IPv4 and IPv6 addresses. Addresses of a family that the machine does not support are skipped.
    """
    num_opened, missing = 0, None
    try:
        for family, address in _addresses(host):
            both = address == "::" and socket.has_dualstack_ipv6()
            try:
                opened = socket.create_server((address, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
                continue
            # Connections inherit this option. Without it, the body of a reply is delayed by up to 40 ms, until the
            # client acknowledges the head.
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            num_opened += 1
            port = opened.getsockname()[1]
            yield opened
        if not num_opened and missing is not None:
            raise missing
    except OSError as error:
        raise ConfigError(f"{host}:{port}: cannot listen ({error.strerror}); choose another host or port") from None


def _addresses(host: str) -> list[tuple[int, str]]:
    """Return the families and addresses of a host. An IPv6 address may be in brackets, as in URLs."""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if host == ANY_HOST:
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _internet_listener(opened: socket.socket) -> ServerSocket:
    host, port = opened.getsockname()[:2]
    where = "this machine only" if host.startswith("127.") or host == "::1" else "the network"
    if host == "::":
        only = opened.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        where += ", IPv6 only" if only else ", IPv4 and IPv6"
    return ServerSocket(opened, f"http://{f'[{host}]' if ':' in host else host}:{port} ({where})")


@contextmanager
def _unix_socket(path: Path, mode: int) -> Iterator[ServerSocket]:
    """Listen on a Unix socket, and remove its file afterwards.

    A socket file that a killed service left behind is replaced.
    """
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_abandoned(path)
        umask = os.umask(0o777 & ~mode)  # so that nobody else can connect before the permissions are set
        try:
            opened.bind(str(path))
        finally:
            os.umask(umask)
        path.chmod(mode)
        opened.listen(BACKLOG)
        inode = path.stat().st_ino
    except OSError as error:
        opened.close()
        # If the path is too long, Python raises an OSError without an error number.
        raise ConfigError(f"unix:{path}: cannot listen ({error.strerror or error}); choose another path") from None
    try:
        yield ServerSocket(opened, f"unix:{path} (mode {mode:04o})")
    finally:
        opened.close()
        with contextlib.suppress(OSError):
            if path.stat().st_ino == inode:  # otherwise it belongs to another service
                path.unlink()


def _remove_abandoned(path: Path) -> None:
    """Remove the file of a Unix socket on which nobody listens.

    Raises:
        OSError: The path is not a socket, or a process listens on it.
    """
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise FileExistsError(errno.EEXIST, "a file that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
