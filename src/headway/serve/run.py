"""Run the service in this process, until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from headway.data.store_builder import num_cores
from headway.errors import ConfigError
from headway.serve.app import make_app
from headway.serve.config import ServeConfig
from headway.serve.fleet import Fleet
from headway.serve.glossaries import GlossaryStore
from headway.serve.service import Service

_DRAIN_CHECK_S = 0.02


def run(config: ServeConfig) -> None:
    """Serve until SIGTERM or SIGINT. The first signal lets accepted requests end, and a second one ends at once.

    Raises:
        HeadwayError: A model cannot be loaded.
        ConfigError: The address cannot be used.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    asyncio.run(_run(config))


async def _run(config: ServeConfig) -> None:
    listener = _listen(config.host, config.port)
    workers = config.workers or num_cores()
    fleet = Fleet(config.specs(), workers=workers)
    glossaries = GlossaryStore(
        Path(config.glossary_folder) if config.glossary_folder is not None else None,
        max_glossaries=config.limits.glossaries,
        max_characters=config.limits.glossary_characters,
    )
    await fleet.start()
    service = Service(config, fleet, workers, glossaries)
    settings = uvicorn.Config(
        make_app(service), log_config=None, access_log=False, server_header=False, timeout_keep_alive=30
    )
    server = _Server(settings, service)
    host, port = listener.getsockname()[:2]
    where = "this machine only" if host.startswith("127.") or host == "::1" else "the network"
    print(f"headway: serving {', '.join(fleet.models)} on http://{host}:{port} ({where})", file=sys.stderr, flush=True)
    await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn's server, which answers new requests with 503 while it ends."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: object) -> None:
        """Begin to end the service; the second time, end it at once."""
        if self._service.is_draining:
            for pid in self._service.fleet.pids:
                os.kill(pid, signal.SIGKILL)
            os._exit(1)
        self._service.is_draining = True
        asyncio.get_running_loop().call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._draining = asyncio.ensure_future(self._end_when_idle())

    async def _end_when_idle(self) -> None:
        while self._service.admission.num_jobs or self.server_state.tasks:
            await asyncio.sleep(_DRAIN_CHECK_S)
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048, reuse_port=False)
    except OSError as error:
        raise ConfigError(f"{host}:{port}: cannot listen ({error.strerror}); choose another host or port") from None
