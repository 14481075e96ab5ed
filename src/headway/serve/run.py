"""Run the service in this process until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from headway.contention import num_cores
from headway.errors import HeadwayError, OutputError
from headway.serve.config import ServeConfig
from headway.serve.hub_models import needs_conversion
from headway.serve.listeners import BACKLOG, ServerSocket, open_sockets
from headway.serve.log_handler import LoopLogHandler
from headway.serve.log_limit import limit_log_lines
from headway.serve.usage import Usage
from headway.serve.workers.model_pool import ModelPool

if TYPE_CHECKING:
    from headway.serve.documents import ServedDocuments
    from headway.serve.service import Service

_log = logging.getLogger("headway.serve")
_DRAIN_CHECK_S = 0.02
_ACCEPTED_AT_ONCE = 64  # maximum number of connections to accept per iteration of the event loop
_OTHER_FILES = 200  # number of file descriptors to allow in addition to connections
_GC_THRESHOLD = 50_000
_WATCH_S = 1.0  # time between two checks of the configuration file for changes
_SAVE_S = 5.0  # time between two saves of character counts; a killed service loses the counts since the last save


def run(config: ServeConfig, path: Path | None, reread: Callable[[], ServeConfig]) -> None:
    """Serve until SIGTERM or SIGINT.

    After the first signal, requests that were already accepted are still answered. A second signal ends the service
    immediately.

    SIGHUP reloads the models that the configuration then specifies; models with ``load = "demand"`` are unloaded. Keys
    and limits on single requests take effect as soon as the file changes. The number of workers, the addresses and the
    limits on the queue do not change.

    Args:
        config: The configuration.
        path: Path of the configuration file, or None.
        reread: Reads the configuration again.

    Raises:
        HeadwayError: A model cannot be loaded, or the process that loads the models has ended unexpectedly.
        ConfigError: The service cannot listen on an address.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[LoopLogHandler()])
    limit_log_lines()
    with open_sockets(config.hosts, config.port, int(config.unix_mode, base=8)) as listeners:
        asyncio.run(_run(config, listeners, path, reread))


async def _run(
    config: ServeConfig, listeners: list[ServerSocket], path: Path | None, reread: Callable[[], ServeConfig]
) -> None:
    workers = config.workers or num_cores()
    reloader = _Reloader(workers, path, reread)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.request)
    pool = ModelPool.from_config(config, workers)
    await pool.start_loading()
    # These imports take about as long as loading a model, which another process does at the same time.
    from headway.hardware import move_to_huge_pages
    from headway.serve.api_table import error_reply_for_url
    from headway.serve.app import make_app
    from headway.serve.documents import ServedDocuments
    from headway.serve.http_connection import BoundedHttpConnection
    from headway.serve.languages import prepare_detection
    from headway.serve.service import Service, open_stores

    glossaries, usage = open_stores(config)
    preparing = asyncio.ensure_future(asyncio.to_thread(prepare_detection))
    await pool.start()
    service = Service(config, pool, workers, glossaries, usage)
    documents = ServedDocuments(service)
    connection = partial(
        BoundedHttpConnection,
        limits=lambda: service.config.limits,
        received=service.received,
        error=error_reply_for_url,
    )
    settings = uvicorn.Config(
        make_app(service, documents),
        http=connection,  # type: ignore[arg-type]  # uvicorn calls it like a class
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        backlog=_ACCEPTED_AT_ONCE,
    )
    _raise_file_limit(config.limits.connections)
    # Large requests create many objects, which the garbage collector would traverse again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    move_to_huge_pages()
    server = _Server(settings, service, documents, usage)
    watching = asyncio.gather(reloader.serve_requests(service), reloader.watch(service), save_regularly(usage))
    names, addresses = ", ".join(pool.models), " and ".join(listener.address for listener in listeners)
    print(f"headway: serving {names} on {addresses}", file=sys.stderr, flush=True)
    if pool.has_gpu:
        print("headway: the service computes on the CPU; the GPU of this machine is not used", file=sys.stderr)
    await server.serve(sockets=[listener.socket for listener in listeners])
    for task in (watching, preparing):
        task.cancel()
    await asyncio.gather(watching, preparing, return_exceptions=True)
    usage.save()
    if service.pool.is_lost:  # fail, so that a supervisor restarts the service
        raise HeadwayError("the process that loads the models ended unexpectedly; see its messages above")


async def save_regularly(usage: Usage) -> None:
    """Save the character counts every few seconds."""
    while True:
        await asyncio.sleep(_SAVE_S)
        try:
            await asyncio.to_thread(usage.save)
        except OutputError as error:
            _log.error("%s", error)


class _Server(uvicorn.Server):
    """A uvicorn server that answers accepted requests before it shuts down."""

    def __init__(self, config: uvicorn.Config, service: Service, documents: ServedDocuments, usage: Usage) -> None:
        super().__init__(config)
        self._service, self._documents, self._usage = service, documents, usage
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections. More connections may wait than asyncio accepts per iteration."""
        await super().startup(sockets)
        for opened in sockets or ():
            opened.listen(BACKLOG)

    def handle_exit(self, sig: int, frame: object) -> None:
        """Start shutting down, or exit immediately if the service is already shutting down."""
        if self._service.is_draining:
            for pid in self._service.pool.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OutputError, OSError):
                self._documents.delete_files()
                self._usage.save()
            logging.shutdown()  # writes the buffered log lines
            os._exit(1)
        self._service.is_draining = True
        asyncio.get_running_loop().call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._draining = asyncio.ensure_future(self._end_when_idle())

    async def _end_when_idle(self) -> None:
        while self._service.admission.num_jobs or self.server_state.tasks:
            await asyncio.sleep(_DRAIN_CHECK_S)
        self.should_exit = True


class _Reloader:
    """Reloads the models on SIGHUP, and the keys and limits when the configuration file changes.

    Signals that arrive while the service starts or loads models are not lost: the models are reloaded afterwards.
    """

    def __init__(self, workers: int, path: Path | None, reread: Callable[[], ServeConfig]) -> None:
        self._workers, self._path, self._reread = workers, path, reread
        self._requested = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()

    def request(self) -> None:
        """Request that the models are reloaded, after the current reload if there is one."""
        self._requested.set()

    async def serve_requests(self, service: Service) -> None:
        """Reload the models whenever this is requested."""
        while True:
            await self._requested.wait()
            self._requested.clear()  # before reading the configuration, so that a later change is not missed
            await self._load(service)

    async def _load(self, service: Service) -> None:
        """Load the models, and switch to them when they are ready. If loading fails, the service keeps the old ones."""
        _log.info("reloading the models")
        try:
            config = self._reread()
            if any(needs_conversion(model.path) for model in config.models):
                await asyncio.to_thread(config.specs)  # downloads new models from the Hub; requests do not wait
            pool = ModelPool.from_config(config, self._workers)
            await pool.start()
        except HeadwayError as error:
            _log.error("the models were not reloaded: %s", error)
            return
        except Exception:  # a bug must not prevent the handling of later signals
            _log.exception("the models were not reloaded")
            return
        old = service.pool
        service.replace_models(config, pool)
        _log.info("serving %s now", ", ".join(pool.models))
        ending = asyncio.ensure_future(old.drain())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def watch(self, service: Service) -> None:
        """Apply the keys and limits in the file whenever it changes, including changes during startup."""
        read_ns = 0
        while True:
            await asyncio.sleep(_WATCH_S)
            changed_ns = self._file_time()
            if changed_ns == read_ns:
                continue
            read_ns = changed_ns
            try:
                changed = self._reread()
            except HeadwayError as error:
                _log.error("the keys and limits were not reloaded: %s", error)
                continue
            config = service.config
            if (changed.keys, changed.limits, changed.models) == (config.keys, config.limits, config.models):
                continue
            service.config = config.model_copy(update={"keys": changed.keys, "limits": changed.limits})
            _log.info("the keys and limits were reloaded; send SIGHUP to reload the models")

    def _file_time(self) -> int:
        try:
            return 0 if self._path is None else self._path.stat().st_mtime_ns
        except OSError:  # the file is being replaced
            return 0


def _raise_file_limit(connections: int) -> None:
    """Raise this process's limit on open files to what the connections need, or to the system's maximum if lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if resource.RLIM_INFINITY != soft < wanted:
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
