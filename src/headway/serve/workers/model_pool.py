"""The models of a service. Some are permanently loaded, the others are loaded on demand within a memory budget.

The permanently loaded models share one :class:`~headway.serve.workers.process_fleet.ProcessFleet`, a loader with its
workers. A model that is loaded on demand has a separate fleet, whose loader is forked from the first loader, with all
modules imported and with the permanently loaded models. Unloading the model ends its processes, which always frees its
memory. Loading a model therefore does not delay other models, and a failure does not affect them. Work that needs two
models runs in processes that have both: if both are loaded on demand, another fleet loads the two models together.

- A model is loaded for the first request that needs it. Other requests that need the model wait for the same load. If
  all of them give up, the load continues, because the next request will probably also need the model.
- Only one load runs at a time, which bounds the memory for loading.
- Before a load, the least recently used models are unloaded until the new model fits into the budget. Models with
  running requests stay loaded; the load waits for them. Until a model is first loaded, its memory is estimated from the
  size of its weights on disk. After that, its loader measures the memory.
- A failed load is not retried for some seconds. If the loader of a model has ended, the next request loads the model
  again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from headway.errors import ConfigError, HeadwayError
from headway.serve.config import ServeConfig
from headway.serve.errors import ModelNotReadyError, UnavailableError
from headway.serve.model_info import ModelInfo, ModelSpec
from headway.serve.workers.fleet import Fleet
from headway.serve.workers.messages import WorkerStatus
from headway.serve.workers.process_fleet import ProcessFleet

_log = logging.getLogger("headway.serve")
_RETRY_S = 10.0  # minimum delay between a failed load and the next attempt
_DRAIN_CHECK_S = 0.05
_MEGABYTE = 1_000_000

ModelState = Literal["warm", "loading", "cold"]


class _TooLargeError(Exception):
    """A group of models does not fit into the memory budget, even if all other on-demand models are unloaded."""


@dataclass(eq=False)
class _Group:
    """Models that are loaded on demand together, usually a single model.

    Attributes:
        specs: Specifications of the models.
        num_bytes: Memory of the models in bytes, measured or estimated.
        loading: The task that loads the models, while it is running.
        fleet: The processes that have the models, if they are loaded.
        users: Number of requests that use the models or wait for them.
        last_used: Time at which the last request ended.
        failure: Error message of the last load, if it failed.
        failed_at: Time of the last failure.
    """

    specs: tuple[ModelSpec, ...]
    num_bytes: int
    loading: asyncio.Task[Fleet] | None = None
    fleet: Fleet | None = None
    users: int = 0
    last_used: float = 0.0
    failure: str = ""
    failed_at: float = -_RETRY_S

    @property
    def title(self) -> str:
        """The names of the models, for messages."""
        return " and ".join(spec.name for spec in self.specs)


class ModelPool:
    """The models of a service, and the processes that run them.

    Args:
        specs: Specifications of the models.
        workers: Number of worker processes per fleet.
        memory_mb: Memory budget for all models, in megabytes. None means no limit.
        wait_s: Time limit in seconds for loading a model, and for a request that waits for it.
        base: The fleet with the permanently loaded models. None means to start processes on this machine.

    Attributes:
        models: Description of each model, by name.
        has_gpu: Whether this machine has a GPU, which no model uses.
        is_lost: Whether the process that loads the models has ended unexpectedly. In this case, the service sends
            itself SIGTERM, because it cannot load models any more.
        num_loads: Number of successful loads on demand.
        num_failed_loads: Number of failed loads on demand.
        num_unloads: Number of times that models were unloaded.
        load_seconds: Total time of all successful loads, in seconds.
    """

    _fleet_type: type[ProcessFleet] = ProcessFleet

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        *,
        workers: int,
        memory_mb: float | None,
        wait_s: float,
        base: Fleet | None = None,
    ) -> None:
        self._specs, self._workers, self._wait_s = {spec.name: spec for spec in specs}, workers, wait_s
        self._budget = None if memory_mb is None else memory_mb * _MEGABYTE
        if base is None:
            stays = any(not spec.on_demand for spec in specs)
            base = self._fleet_type(specs, workers=workers if stays else 0, on_loss=self._on_base_loss)
        self._base = base
        self._base_users = 0
        self._is_draining = False
        self._groups: dict[frozenset[str], _Group] = {}
        self._one_at_a_time = asyncio.Lock()
        self._changed = asyncio.Condition()  # notified when models have become idle
        self._tasks: set[asyncio.Task[Any]] = set()
        self.models: dict[str, ModelInfo] = {}
        self.is_lost = self.has_gpu = False
        self.num_loads = self.num_failed_loads = self.num_unloads = 0
        self.load_seconds = 0.0

    @classmethod
    def from_config(cls, config: ServeConfig, workers: int) -> ModelPool:
        """Create a pool for the models in a configuration."""
        limits = config.limits
        return cls(config.specs(), workers=workers, memory_mb=limits.memory_mb, wait_s=limits.load_seconds)

    @classmethod
    def from_fleet(cls, fleet: Fleet) -> ModelPool:
        """Create a pool for the models of a fleet that was started elsewhere, which manages its models itself."""
        specs = [ModelSpec(name, "") for name in fleet.models]
        pool = cls(specs, workers=0, memory_mb=None, wait_s=0.0, base=fleet)
        pool.models = fleet.models
        return pool

    # Start and end.

    async def start_loading(self) -> None:
        """Start the process that loads the permanently loaded models."""
        await self._base.start_loading()

    async def start(self) -> None:
        """Wait until the permanently loaded models are loaded.

        Raises:
            HeadwayError: A model cannot be loaded, or the folder of a model that is loaded on demand is invalid.
            ConfigError: The models need more memory than the budget.
        """
        await self._base.start()
        self.models, self.has_gpu = self._base.models, self._base.has_gpu
        if self._budget is not None and self.num_bytes > self._budget:
            needed = self.num_bytes / _MEGABYTE
            await self.close()
            raise ConfigError(
                f"limits.memory_mb = {self._budget / _MEGABYTE:g}, but the models that are loaded at the start need "
                f'{needed:.0f} MB; raise the limit, or set load = "demand" for some models'
            )

    async def drain(self) -> None:
        """Wait until no request uses a model, then end all processes."""
        self._is_draining = True
        while self._base_users or any(group.users for group in self._groups.values()):
            await asyncio.sleep(_DRAIN_CHECK_S)
        await self.close()

    async def close(self) -> None:
        """End all processes immediately."""
        loads = [group.loading for group in self._groups.values() if group.loading is not None]
        for task in [*self._tasks, *loads]:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        base, *others = self._fleets()
        await asyncio.gather(*(fleet.close() for fleet in others))
        await base.close()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # States of models and workers.

    def _fleets(self) -> list[Fleet]:
        return [self._base, *(group.fleet for group in self._groups.values() if group.fleet is not None)]

    def is_on_demand(self, name: str) -> bool:
        """Return whether a model is loaded on demand."""
        return self._specs[name].on_demand

    def state(self, name: str) -> ModelState:
        """Return the state of a model: loaded ("warm"), being loaded, or not loaded ("cold")."""
        if not self.is_on_demand(name) or any(name in fleet.num_bytes for fleet in self._fleets()):
            return "warm"
        loading = (key for key, group in self._groups.items() if group.loading is not None)
        return "loading" if any(name in key for key in loading) else "cold"

    def memory(self, name: str) -> int | None:
        """Return the memory of a model in bytes, or None if it is not loaded."""
        sizes = [fleet.num_bytes[name] for fleet in self._fleets() if name in fleet.num_bytes]
        return sum(sizes) if sizes else None

    @property
    def num_bytes(self) -> int:
        """Memory of all loaded models, in bytes."""
        return sum(sum(fleet.num_bytes.values()) for fleet in self._fleets())

    @property
    def num_loaded(self) -> int:
        """The number of models that are loaded."""
        return sum(self.state(name) == "warm" for name in self.models)

    @property
    def is_available(self) -> bool:
        """Whether the service can answer requests: a worker is ready, or all models are loaded on demand."""
        return bool(self._base.num_ready) or not self._base.num_workers

    @property
    def num_ready(self) -> int:
        """The number of workers that can take jobs."""
        return sum(fleet.num_ready for fleet in self._fleets())

    @property
    def num_workers(self) -> int:
        """The configured number of workers."""
        return sum(fleet.num_workers for fleet in self._fleets())

    @property
    def restarts(self) -> int:
        """The number of workers that were replaced."""
        return sum(fleet.restarts for fleet in self._fleets())

    @property
    def states(self) -> list[WorkerStatus]:
        """The last status message of each worker."""
        return [state for fleet in self._fleets() for state in fleet.states]

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        return [pid for fleet in self._fleets() for pid in fleet.pids]

    def private_bytes(self) -> int:
        """Return the memory that is not shared between workers, in bytes."""
        return sum(fleet.private_bytes() for fleet in self._fleets())

    # Loading and unloading.

    @asynccontextmanager
    async def using(self, *names: str) -> AsyncIterator[Fleet]:
        """Context manager that yields the processes that have some models, and loads the models if necessary.

        The models stay loaded until the end of the block.

        Raises:
            ModelNotReadyError: The models cannot be loaded in time.
            UnavailableError: A model does not exist any more, because the models have just been replaced.
        """
        if not set(names) <= self.models.keys():
            raise UnavailableError
        needed = frozenset(name for name in names if self._specs[name].on_demand)
        if not needed:
            self._base_users += 1
            try:
                yield self._base
            finally:
                self._base_users -= 1
            return
        group = self._group(needed)
        group.users += 1
        try:
            yield group.fleet or await self._loaded(group)
        finally:
            group.users -= 1
            group.last_used = time.monotonic()
            if not group.users:
                self._spawn(self._on_idle())

    def _group(self, names: frozenset[str]) -> _Group:
        """Return a loaded group that includes the models, or the group of exactly these models."""
        loaded = (group for key, group in self._groups.items() if names <= key and group.fleet is not None)
        if (loaded_group := next(loaded, None)) is not None:
            return loaded_group
        if names not in self._groups:
            specs = tuple(replace(self._specs[name], on_demand=False) for name in sorted(names))
            self._groups[names] = _Group(specs, sum(spec.stored_bytes for spec in specs))
        return self._groups[names]

    async def _loaded(self, group: _Group) -> Fleet:
        """Load a group of models, or wait for the load that is already running."""
        if group.loading is None:
            wait = group.failed_at + _RETRY_S - time.monotonic()
            if wait > 0:
                raise ModelNotReadyError(group.failure, wait)
            group.loading = asyncio.ensure_future(self._load(group))
            group.loading.add_done_callback(_retrieve)
        try:
            async with asyncio.timeout(self._wait_s):
                return await asyncio.shield(group.loading)
        except TimeoutError:
            raise ModelNotReadyError(f"The model {group.title} is being loaded; try again later", _RETRY_S) from None

    async def _load(self, group: _Group) -> Fleet:
        try:
            async with self._one_at_a_time:
                async with asyncio.timeout(self._wait_s):
                    await self._make_room(group)
                    started = time.monotonic()
                    fleet = await self._started_fleet(group)
        except (HeadwayError, OSError, TimeoutError, _TooLargeError) as error:
            reason = f"it takes more than {self._wait_s:g} seconds" if isinstance(error, TimeoutError) else str(error)
            _log.error("cannot load the model %s: %s", group.title, reason)
            self.num_failed_loads += 1
            # Other errors may contain the path of a folder on the server.
            details = f": {error}" if isinstance(error, _TooLargeError) else ""
            group.failure, group.failed_at = f"The model {group.title} cannot be loaded{details}", time.monotonic()
            raise ModelNotReadyError(group.failure, _RETRY_S) from None
        finally:
            group.loading = None
        seconds = time.monotonic() - started
        self.num_loads, self.load_seconds = self.num_loads + 1, self.load_seconds + seconds
        _log.info("loaded the model %s in %.1f s: %.0f MB", group.title, seconds, group.num_bytes / _MEGABYTE)
        group.fleet, group.last_used = fleet, time.monotonic()
        self._spawn(self._on_idle())  # the model may need more memory than expected
        return fleet

    async def _started_fleet(self, group: _Group) -> Fleet:
        assert isinstance(self._base, ProcessFleet)
        fleet = self._fleet_type(
            group.specs, workers=self._workers, parent=self._base, on_loss=lambda: self._on_loss(group)
        )
        await fleet.start()
        group.num_bytes = sum(fleet.num_bytes.values())
        try:
            self._check_size(group)
        except _TooLargeError:
            await fleet.close()
            raise
        return fleet

    def _check_size(self, group: _Group) -> None:
        """Raise an error if a group does not fit into the budget, even if no other model is loaded on demand."""
        staying = sum(self._base.num_bytes.values())
        if self._budget is not None and staying + group.num_bytes > self._budget:
            raise _TooLargeError(
                f"it needs {group.num_bytes / _MEGABYTE:.0f} MB, but limits.memory_mb leaves "
                f"{(self._budget - staying) / _MEGABYTE:.0f} MB"
            )

    async def _make_room(self, group: _Group) -> None:
        """Unload the least recently used models until there is room for ``group``."""
        self._check_size(group)
        while self._budget is not None and self.num_bytes + group.num_bytes > self._budget:
            if self._idle():
                await self._unload(self._idle()[0])
            else:
                async with self._changed:
                    await self._changed.wait_for(self._idle)

    def _idle(self) -> list[_Group]:
        """Return the groups that can be unloaded, the least recently used first."""
        idle = [group for group in self._groups.values() if group.fleet is not None and not group.users]
        return sorted(idle, key=lambda group: group.last_used)

    async def _unload(self, group: _Group) -> None:
        fleet, group.fleet = group.fleet, None
        assert fleet is not None
        self.num_unloads += 1
        _log.info("unloading the model %s", group.title)
        await fleet.close()

    async def _on_idle(self) -> None:
        """Enforce the memory budget, and resume a load that waits for memory."""
        while self._budget is not None and self.num_bytes > self._budget and self._idle():
            await self._unload(self._idle()[0])
        async with self._changed:
            self._changed.notify_all()

    def _on_base_loss(self) -> None:
        if not self._is_draining:
            self.is_lost = True
            os.kill(os.getpid(), signal.SIGTERM)

    def _on_loss(self, group: _Group) -> None:
        """End the workers of a loader that has ended. The next request will load the models again."""
        if group.fleet is not None:
            self._spawn(self._unload(group))


def _retrieve(task: asyncio.Task[Fleet]) -> None:
    """Mark a task's exception as retrieved, in case every request that waited for the task has given up."""
    if not task.cancelled():
        task.exception()
