"""Prometheus metrics of the service, and a log line for each request."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import prometheus_client
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.serve.apis.libretranslate import DOWNLOAD_PATH
from headway.serve.log_limit import ANONYMOUS_LOG
from headway.serve.loop_watch import LoopWatch
from headway.serve.service import Service

_log = logging.getLogger("headway.serve")
_anonymous_log = logging.getLogger(ANONYMOUS_LOG)
_MAX_PATH = 200  # maximum number of characters of a path in the log
_REPORT_DELAY_S = 0.002  # delay between the end of a request and its report
_MEASURE_S = 10.0  # time between two measurements of the workers' memory


@dataclass(frozen=True)
class EndedRequest:
    """A request that has ended.

    Attributes:
        request_id: Id of the request, which is also in a header of the reply.
        method: HTTP method.
        path: Path of the URL.
        api: Name of the API that the request was meant for.
        status: HTTP status of the reply, or 0 if there was none.
        seconds: Time to the end of the reply.
        first_seconds: Time to the beginning of the reply or, for a stream, to its first token. None if there was no
            reply.
        is_anonymous: Whether the request has no valid key, and was refused or needs no key, so that anyone can send
            such requests.
    """

    request_id: str
    method: str
    path: str
    api: str
    status: int
    seconds: float
    first_seconds: float | None
    is_anonymous: bool

    def log_line(self) -> str:
        """Return the log line of the request. Secrets and names of downloaded files are omitted."""
        before, marker, _ = self.path.partition(DOWNLOAD_PATH)
        path = f"{before}{marker}..." if marker else self.path
        if len(path) > _MAX_PATH:
            path = f"{path[:_MAX_PATH]}..."
        return json.dumps(
            {"id": self.request_id, "method": self.method, "path": path, "status": self.status,
             "seconds": round(self.seconds, 4)}
        )  # fmt: skip


class _ServiceCounters(Collector):
    """Counters for the models and the cache, which are reset when the models are reloaded."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterable[Metric]:
        """Return all counters."""
        pool, cache = self._service.pool, self._service.cache
        for name, text, value in (
            ("headway_worker_restarts", "Workers that were replaced.", pool.restarts),
            ("headway_model_loads", "Models that were loaded on demand.", pool.num_loads),
            ("headway_model_loads_failed", "Models that could not be loaded on demand.", pool.num_failed_loads),
            ("headway_model_load_seconds", "Time spent loading models on demand.", pool.load_seconds),
            ("headway_model_unloads", "Models that were unloaded.", pool.num_unloads),
            ("headway_cache_hits", "Translations served from the cache.", cache.num_hits),
        ):
            yield CounterMetricFamily(name, text, value)


class RequestReports:
    """The metrics and the request log of a service.

    Requests are counted and logged about 2 ms after they have ended, so that this work does not delay the client: the
    kernel often wakes a local client on the core of the process that has sent the reply, where the client must wait
    until that process is idle.
    """

    def __init__(self, service: Service) -> None:
        self.open_requests = 0
        self.loop_watch = LoopWatch()
        self._service = service
        self._ended: list[EndedRequest] = []  # requests that have not been counted and logged yet
        self._private_bytes, self._measured = 0, -math.inf
        self._registry = prometheus_client.CollectorRegistry()
        label = ["api", "status"]
        self._requests = prometheus_client.Counter(
            "headway_requests", "Requests by API and status.", label, registry=self._registry
        )
        self._seconds = prometheus_client.Histogram(
            "headway_request_seconds", "Time from a request to its reply.", ["api"], registry=self._registry
        )
        self._first_seconds = prometheus_client.Histogram(
            "headway_first_byte_seconds",
            "Time from a request to the beginning of its reply or, for a stream, to its first token.",
            ["api"],
            registry=self._registry,
        )
        admission = service.admission
        for name, text, value in (
            ("headway_open_requests", "Requests without a reply.", lambda: self.open_requests),
            (
                "headway_queue_tokens",
                "Estimated tokens of unfinished work in the queue.",
                lambda: admission.unfinished_tokens,
            ),
            (
                "headway_queue_seconds",
                "Estimated time for unfinished work in the queue.",
                lambda: admission.estimated_seconds,
            ),
            ("headway_tokens_per_second", "Estimated speed at full load.", lambda: admission.tokens_per_second),
            ("headway_workers_ready", "Workers that can take jobs.", lambda: service.pool.num_ready),
            (
                "headway_batch_sequences",
                "Sequences in the workers' batches.",
                lambda: sum(x.num_sequences for x in service.pool.states),
            ),
            ("headway_memory_bytes", "Memory that is not shared between workers.", lambda: self._private_bytes),
            ("headway_models_loaded", "Models that are loaded.", lambda: service.pool.num_loaded),
            ("headway_model_memory_bytes", "Memory of the loaded models.", lambda: service.pool.num_bytes),
            ("headway_jobs", "Bulk jobs that are not finished.", lambda: service.jobs.num_unfinished),
            ("headway_job_bytes", "Memory used by the texts and results of jobs.", lambda: service.jobs.num_bytes),
            ("headway_cache_bytes", "Size of the cache of translations.", lambda: service.cache.num_bytes),
            (
                "headway_loop_stop_seconds",
                "Longest time that the event loop was blocked in the last one or two minutes.",
                lambda: self.loop_watch.longest_block_s,
            ),
        ):
            prometheus_client.Gauge(name, text, registry=self._registry).set_function(value)
        self._registry.register(_ServiceCounters(service))

    def add(self, request: EndedRequest) -> None:
        """Schedule a request to be counted and logged."""
        if not self._ended:
            asyncio.get_running_loop().call_later(_REPORT_DELAY_S, self.flush)
        self._ended.append(request)

    def flush(self) -> None:
        """Count and log all requests that were added."""
        ended, self._ended = self._ended, []
        for request in ended:
            self._requests.labels(request.api, str(request.status)).inc()
            self._seconds.labels(request.api).observe(request.seconds)
            if request.first_seconds is not None:
                self._first_seconds.labels(request.api).observe(request.first_seconds)
            (_anonymous_log if request.is_anonymous else _log).info(request.log_line())

    async def metrics(self) -> bytes:
        """Return all metrics in the Prometheus text format.

        The workers' memory is measured at most every 10 seconds, because measuring it is slow.
        """
        now = time.monotonic()
        if now >= self._measured + _MEASURE_S:
            self._measured = now
            self._private_bytes = await asyncio.to_thread(self._service.pool.private_bytes)
        self.flush()
        return prometheus_client.generate_latest(self._registry)
