"""Run the service in this process, until a signal ends it."""

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
from headway.serve.hub_models import is_missing
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
_OTHER_FILES = 200  # number of files to keep open besides connections
_GC_THRESHOLD = 50_000
_WATCH_S = 1.0  # how often to check whether the configuration file has changed
_SAVE_S = 5.0  # how often to save character counts; a killed service loses the counts since the last save


def run(config: ServeConfig, path: Path | None, reread: Callable[[], ServeConfig]) -> None:
    """Serve until SIGTERM or SIGINT.

    After the first signal, accepted requests are still answered; a second signal ends the service immediately.

    SIGHUP loads the models again, as the configuration names them then. Keys and limits for single requests take effect
    as soon as the file changes. The number of workers, the address and the queue's limits do not change. Models that
    are loaded on demand are cold after it.

    Args:
        config: The configuration.
        path: Path of the configuration file.
        reread: Returns the current configuration.

    Raises:
        HeadwayError: A model cannot be loaded, or the process that loads the models has ended unexpectedly.
        ConfigError: The address cannot be used.
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
    pool = ModelPool.of_config(config, workers)
    await pool.launch()
    # These imports take about as long as loading a model, which another process does meanwhile.
    from headway.hardware import move_to_huge_pages
    from headway.serve.api_table import error_for_url
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
        error=error_for_url,
    )
    settings = uvicorn.Config(
        make_app(service, documents),
        http=connection,  # type: ignore[arg-type]  # uvicorn calls it as it would call the class
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        backlog=_ACCEPTED_AT_ONCE,
    )
    _raise_file_limit(config.limits.connections)
    # Large requests make many objects, among which the garbage collector would search again and again.
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
    """Write the counted characters every few seconds."""
    while True:
        await asyncio.sleep(_SAVE_S)
        try:
            await asyncio.to_thread(usage.save)
        except OutputError as error:
            _log.error("%s", error)


class _Server(uvicorn.Server):
    """uvicorn's server, which answers new requests with 503 while it ends."""

    def __init__(self, config: uvicorn.Config, service: Service, documents: ServedDocuments, usage: Usage) -> None:
        super().__init__(config)
        self._service, self._documents, self._usage = service, documents, usage
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections. Many more may wait than asyncio accepts in one iteration."""
        await super().startup(sockets)
        for opened in sockets or ():
            opened.listen(BACKLOG)

    def handle_exit(self, sig: int, frame: object) -> None:
        """Begin to end the service; the second time, end it immediately."""
        if self._service.is_draining:
            for pid in self._service.pool.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OutputError, OSError):
                self._documents.delete_files()
                self._usage.save()
            logging.shutdown()  # writes the lines that wait for the event loop
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
    """Replaces the models at SIGHUP, and the keys when the file of the configuration changes.

    Signals that arrive while the service starts or loads models are not lost: the models are loaded once more then.
    """

    def __init__(self, workers: int, path: Path | None, reread: Callable[[], ServeConfig]) -> None:
        self._workers, self._path, self._reread = workers, path, reread
        self._requested = asyncio.Event()
        self._ending: set[asyncio.Task[None]] = set()

    def request(self) -> None:
        """Load the models again, after the current load if there is one."""
        self._requested.set()

    async def serve_requests(self, service: Service) -> None:
        """Load the models whenever this is requested."""
        while True:
            await self._requested.wait()
            self._requested.clear()  # before the configuration is read, so that a later change of it is not missed
            await self._load(service)

    async def _load(self, service: Service) -> None:
        """Load the models, and use them when they are ready. If loading fails, the service keeps the old models."""
        _log.info("loading the models again")
        try:
            config = self._reread()
            if any(is_missing(model.path) for model in config.models):
                await asyncio.to_thread(config.specs)  # fetches new models of the Hub; requests do not wait
            pool = ModelPool.of_config(config, self._workers)
            await pool.start()
        except HeadwayError as error:
            _log.error("the models are unchanged: %s", error)
            return
        except Exception:  # a bug must not prevent the handling of later signals
            _log.exception("the models stay as they are")
            return
        old = service.pool
        service.replace_models(config, pool)
        _log.info("serving %s now", ", ".join(pool.models))
        ending = asyncio.ensure_future(old.drain())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def watch(self, service: Service) -> None:
        """Apply the file's keys and limits whenever the file changes, also while the service was starting."""
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
                _log.error("the keys are unchanged: %s", error)
                continue
            config = service.config
            if (changed.keys, changed.limits, changed.models) == (config.keys, config.limits, config.models):
                continue
            service.config = config.model_copy(update={"keys": changed.keys, "limits": changed.limits})
            _log.info("the keys and limits have changed; SIGHUP loads the models again")

    def _file_time(self) -> int:
        try:
            return 0 if self._path is None else self._path.stat().st_mtime_ns
        except OSError:  # being replaced
            return 0


def _raise_file_limit(connections: int) -> None:
    """Allow as many open files as the connections need, as far as the operating system lets this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if resource.RLIM_INFINITY != soft < wanted:
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
