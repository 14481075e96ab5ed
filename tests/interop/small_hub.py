"""A small hub on the loopback interface, which speaks the protocol of the Hugging Face Hub to its real client.

As the real hub does, it answers requests of small files after a redirect within the hub, and those of files in Git LFS
with a redirect to another host, the CDN. Faults of a repository are switched on by its attributes.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_LFS_SUFFIXES = (".safetensors", ".bin", ".h5", ".spm")


@dataclass
class Repository:
    """A model on the hub.

    Attributes:
        files: The content of each file.
        commit: The commit of the revision "main".
        gated, disabled, limited, broken: What the hub answers to every request of a file.
        token: The token that may read the repository. None: everyone.
        served: What the CDN sends in place of a file.
        drops: How many times the CDN closes the connection in the middle of a file.
    """

    files: dict[str, bytes]
    commit: str = "1" * 40
    gated: bool = False
    disabled: bool = False
    limited: bool = False
    broken: bool = False
    token: str | None = None
    served: dict[str, bytes] = field(default_factory=dict)
    drops: int = 0

    @classmethod
    def of_folder(cls, folder: Path, **settings: Any) -> Repository:
        """Return a repository with the files of a folder."""
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return cls(files, **settings)


@dataclass
class SmallHub:
    """The hub.

    Attributes:
        url: Its address, for HF_ENDPOINT.
        repositories: The models by name.
        requests: Method and path of each request, in order.
        ranges: The Range header of each request that had one.
    """

    url: str = ""
    cdn: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)

    def downloads(self) -> list[str]:
        """Return the names of the files that were sent, in order."""
        return [path.rpartition("/")[2] for method, _, path in (line.partition(" ") for line in self.requests)
                if method == "GET" and "/api/models/" not in path and "/resolve/" not in path]  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    hub: SmallHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if match := re.fullmatch(r"/api/models/(.+?)/revision/(.+)", path):
            self._info(match[1], match[2])
        elif match := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            self._file(match[1], match[2], match[3], cached=False)
        elif match := re.fullmatch(r"/api/resolve-cache/models/(.+?)/([0-9a-f]{40})/(.+)", path):
            self._file(match[1], match[2], match[3], cached=True)
        else:
            self._send(404, b"")

    def _repository(self, name: str, revision: str) -> Repository | None:
        """Return a repository, or answer with an error."""
        repository = self.hub.repositories.get(name)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        if token == "invalid":
            self._send(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repository is None or (repository.token is not None and token != repository.token):
            self._send(401 if token is None else 404, b"", {"X-Error-Code": "RepoNotFound"})
        elif repository.disabled:
            self._send(403, b"", {"X-Error-Message": "Access to this resource is disabled."})
        elif repository.limited:
            self._send(429, b"", {"RateLimit": '"resolvers";r=0;t=0'})
        elif repository.broken:
            self._send(503, b"<html>")
        elif revision not in ("main", repository.commit):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return repository
        return None

    def _info(self, name: str, revision: str) -> None:
        repository = self._repository(name, revision)
        if repository is None:
            return
        siblings: list[dict[str, object]] = []
        for file, content in repository.files.items():
            about: dict[str, object] = {"rfilename": file, "size": len(content), "blobId": _git_hash(content)}
            if file.endswith(_LFS_SUFFIXES):
                about["lfs"] = {"sha256": _sha256(content), "size": len(content), "pointerSize": 130}
            siblings.append(about)
        body = {"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings, "tags": [], "downloads": 0}
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str, revision: str, file: str, *, cached: bool) -> None:
        repository = self._repository(name, revision)
        if repository is None:
            return
        commit = {"X-Repo-Commit": repository.commit}
        if repository.gated:
            self._send(403, b"", {"X-Error-Code": "GatedRepo", **commit})
        elif file not in repository.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", **commit})
        elif file.endswith(_LFS_SUFFIXES):
            content = repository.files[file]
            link = {"X-Linked-ETag": f'"{_sha256(content)}"', "X-Linked-Size": str(len(content))}
            self._send(302, b"", {"Location": f"{self.hub.cdn}/{name}/cdn/{file}", **link, **commit})
        elif not cached:
            target = f"/api/resolve-cache/models/{name}/{repository.commit}/{file}"
            self._send(307, b"", {"Location": target, **commit})
        else:
            content = repository.files[file]
            self._send(200, repository.served.get(file, content), {"ETag": f'"{_git_hash(content)}"', **commit})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _CdnHandler(_Handler):
    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        name, _, file = path.strip("/").partition("/cdn/")
        repository = self.hub.repositories[name]
        content = repository.served.get(file, repository.files[file])
        assert "Authorization" not in self.headers, "the client must not give its token to another host"
        start, status = 0, 200
        if (wanted := self.headers.get("Range")) is not None:
            self.hub.ranges.append(wanted)
            start, status = int(wanted.removeprefix("bytes=").partition("-")[0]), 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if repository.drops:
            repository.drops -= 1
            self.wfile.write(content[start : (start + len(content)) // 2])
            self.close_connection = True
            return
        self.wfile.write(content[start:])


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


@contextmanager
def running_hub() -> Iterator[SmallHub]:
    """Run a hub and its CDN until the block ends."""
    hub = SmallHub()
    handlers = [type("Handler", (base,), {"hub": hub}) for base in (_Handler, _CdnHandler)]
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in handlers]
    hub.url = f"http://127.0.0.1:{servers[0].server_port}"
    hub.cdn = f"http://localhost:{servers[1].server_port}"
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
