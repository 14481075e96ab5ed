"""The service on several machines: a Ray Serve application. Requires the extra ``ray``.

    serve run headway.serve.ray:app config=serve.toml replicas=2

The application has two deployments. ``Frontend`` has one replica, which runs the HTTP application with its queue, keys,
glossaries and jobs. Each replica of ``Models`` loads the models and runs worker processes, like ``headway serve`` on
one machine. Canceled requests and lost replicas are handled in the same way as for workers on one machine: jobs of a
lost replica are sent to another replica. Each replica loads models on demand independently.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from headway.config import Config
from headway.errors import HeadwayError
from headway.serve.app import make_app
from headway.serve.config import ServeConfig, read_config
from headway.serve.documents import ServedDocuments
from headway.serve.errors import ModelNotReadyError, UnavailableError, WorkerError
from headway.serve.log_limit import limit_log_lines
from headway.serve.model_info import ModelInfo
from headway.serve.run import save_regularly
from headway.serve.service import Service, open_stores
from headway.serve.workers.fleet import MAX_JOBS_PER_WORKER, Fleet
from headway.serve.workers.messages import Job, WorkerStatus
from headway.serve.workers.model_pool import ModelPool

_POLL_S = 0.25  # time between two polls of the replicas' states
_POLL_TIMEOUT_S = 2.0
_MEASURE_S = 10.0  # time between two measurements of memory, each of which takes some milliseconds
_HEALTH_CHECK_S = 1.0
_HEALTH_TIMEOUT_S = 5.0  # a replica that does not answer for this time is replaced
_SPARE_S = 15.0  # added to the time limit of a request, so that its reply can be sent
_ERRORS = (HeadwayError, WorkerError, UnavailableError, ModelNotReadyError)
_LOST = (RayActorError, ReplicaUnavailableError, DeploymentUnavailableError)


class RayArguments(Config):
    """The arguments of :func:`app`."""

    config: str = Field(description="Path of serve.toml, which must be the same on all machines.")
    replicas: int = Field(
        2, ge=1, description="Number of replicas of the models. Each replica has `workers` processes, by default 1."
    )


@dataclass(frozen=True)
class _ReplicaState:
    """The state that a replica of :class:`Models` reports.

    Attributes:
        replica: Id of the replica.
        num_ready: Number of workers that can take jobs.
        workers: The last status message of each worker.
        restarts: Number of workers that have been replaced.
        private_bytes: Memory that is not shared between the workers, in bytes.
    """

    replica: str
    num_ready: int
    workers: list[WorkerStatus]
    restarts: int
    private_bytes: int


@dataclass(frozen=True)
class _Outcome:
    """A reply from a replica: the result of a job, a part of the result, or the job's error."""

    value: Any = None
    error: Exception | None = None

    def get(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class Models:
    """A deployment that runs models in worker processes.

    Args:
        config: The configuration of the service.
        workers: Number of worker processes in each replica.
    """

    async def __init__(self, config: ServeConfig, workers: int) -> None:  # type: ignore[misc]  # Ray awaits it
        self._pool = ModelPool.from_config(config, workers)
        self._private_bytes, self._measured_at = 0, 0.0
        await self._pool.start()

    def describe(self) -> dict[str, ModelInfo]:
        """Return the descriptions of the models, by name."""
        return self._pool.models

    def state(self) -> _ReplicaState:
        """Return the state of the replica."""
        pool, now = self._pool, time.monotonic()
        if now - self._measured_at > _MEASURE_S:
            self._private_bytes, self._measured_at = pool.private_bytes(), now
        replica = serve.get_replica_context().replica_id.unique_id
        return _ReplicaState(replica, pool.num_ready, pool.states, pool.restarts, self._private_bytes)

    async def call(self, job: Job) -> _Outcome:
        """Run a job, and return its result or error."""
        try:
            async with self._pool.using(*job.models) as fleet:
                return _Outcome(await fleet.call(job))
        except _ERRORS as error:
            return _Outcome(error=error)

    async def stream(self, job: Job) -> AsyncGenerator[_Outcome]:
        """Run a job, and yield the parts of its result, then the result, or its error."""
        try:
            async with (
                self._pool.using(*job.models) as fleet,
                aclosing(fleet.stream(job)) as parts,
            ):
                async for part in parts:
                    yield _Outcome(part)
        except _ERRORS as error:
            yield _Outcome(error=error)


class RayFleet(Fleet):
    """Calls models in replicas of :class:`Models`. A job whose replica is lost is sent to another replica once.

    Args:
        handle: Handle of the deployment.
        replicas: Number of replicas.
        workers: Number of worker processes in each replica.
    """

    def __init__(self, handle: DeploymentHandle, replicas: int, workers: int) -> None:
        super().__init__(replicas * workers)
        self._handle, self._num_replicas = handle, replicas
        self._current: list[_ReplicaState] = []
        self._last: dict[str, _ReplicaState] = {}  # the last state of every replica, including ended ones
        self._polling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Wait for the first replica."""
        self.models = await self._handle.describe.remote()
        self._polling = asyncio.ensure_future(self._poll())

    async def close(self) -> None:
        """Stop polling the replicas. Ray shuts them down."""
        if self._polling is not None:
            self._polling.cancel()

    async def _poll(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_POLL_TIMEOUT_S):
                    states = await self._handle.broadcast("state").results_async(return_exceptions=True)
                self._current = [state for state in states if isinstance(state, _ReplicaState)]
            except DeploymentUnavailableError:
                self._current = []
            except TimeoutError:  # a replica hangs; the other replicas do its work until Ray ends it
                pass
            self._last |= {state.replica: state for state in self._current}
            self.restarts = sum(state.restarts for state in self._last.values())
            self.restarts += max(0, len(self._last) - self._num_replicas)
            await asyncio.sleep(_POLL_S)

    @property
    def num_ready(self) -> int:
        """The number of workers in all replicas that can take jobs."""
        return sum(state.num_ready for state in self._current)

    @property
    def states(self) -> list[WorkerStatus]:
        """The last status message of each worker."""
        return [worker for state in self._current for worker in state.workers]

    def private_bytes(self) -> int:
        """Return the memory that is not shared between workers, in bytes."""
        return sum(state.private_bytes for state in self._current)

    async def call(self, job: Job) -> Any:
        """See :meth:`Fleet.call`. Raises UnavailableError if the job loses two replicas or two workers of a replica."""
        for _ in range(2):
            response = self._handle.call.remote(job)
            with contextlib.suppress(*_LOST):
                try:
                    return (await response).get()
                except asyncio.CancelledError:
                    response.cancel()
                    raise
        raise UnavailableError

    async def stream(self, job: Job) -> AsyncGenerator[Any]:
        """Yield the parts of a job's result, and then the result.

        Raises the same exceptions as :meth:`call`. A stream that loses its replica after the first part is not
        restarted.
        """
        has_sent = False
        for _ in range(2):
            response = self._handle.options(stream=True).stream.remote(job)
            try:
                async for outcome in response:
                    has_sent = True
                    yield outcome.get()
                return
            except (asyncio.CancelledError, GeneratorExit):
                response.cancel()
                raise
            except _LOST:
                if has_sent:
                    break
        raise UnavailableError


class Frontend:
    """A deployment that answers HTTP requests.

    Args:
        config: The configuration of the service.
        models: Handle of the deployment of :class:`Models`.
        replicas: Number of replicas of ``models``.
        workers: Number of worker processes in each of these replicas.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, config: ServeConfig, models: DeploymentHandle, replicas: int, workers: int
    ) -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
        limit_log_lines()
        glossaries, usage = open_stores(config)
        fleet = RayFleet(models, replicas, workers)
        await fleet.start()
        service = Service(config, ModelPool.from_fleet(fleet), replicas * workers, glossaries, usage)
        self._app = make_app(service, ServedDocuments(service))
        self._saving = asyncio.ensure_future(save_regularly(usage))

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._app


def app(arguments: Mapping[str, Any]) -> serve.Application:
    """Return the Ray Serve application. ``serve run`` passes its arguments (:class:`RayArguments`) as a mapping.

    Raises:
        ConfigError: An argument or the configuration is invalid.
    """
    ray_arguments = RayArguments.parse(dict(arguments), "the arguments of headway.serve.ray")
    config = read_config(Path(ray_arguments.config).absolute(), {})
    workers = config.workers or 1
    settings: dict[str, Any] = {
        "health_check_period_s": _HEALTH_CHECK_S,
        "health_check_timeout_s": _HEALTH_TIMEOUT_S,
        "graceful_shutdown_timeout_s": config.limits.request_seconds + _SPARE_S,
        "logging_config": {"enable_access_log": False},  # the application logs its own requests
    }
    models = serve.deployment(Models).options(
        num_replicas=ray_arguments.replicas,
        max_ongoing_requests=2 * workers * MAX_JOBS_PER_WORKER,
        ray_actor_options={"num_cpus": workers},
        **settings,
    )
    frontend = serve.deployment(serve.ingress()(Frontend)).options(
        max_ongoing_requests=config.limits.connections, ray_actor_options={"num_cpus": 0}, **settings
    )
    application: serve.Application = frontend.bind(
        config, models.bind(config, workers), ray_arguments.replicas, workers
    )
    return application
