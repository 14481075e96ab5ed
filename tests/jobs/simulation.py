"""A deterministic simulation of workers on a network file system, which runs the protocol's own code.

Each process is a greenlet that waits for its operations. The simulation decides, by its seed, how long an operation
takes, which replies are lost, and which processes die, stop for a while, or are told to end. Clients cache lists of
folders and the existence of files for up to a minute, as NFS does; opening a file anew shows its current content.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from headway.jobs.owner import Owner
from headway.jobs.protocol import ChunkProtocol, Lease, Timing, result_name
from headway.jobs.results import ChunkResult, DamagedResultError, decode_result

TIMING = Timing(renew_s=20, expire_s=180, poll_s=20)
_CACHED_S = 60.0
_LONG_STOP_S = 130.0  # a shorter stop never lets a lease expire, even if all operations are slow
_MAX_LATENCY_S = 2.0


@dataclass
class Server:
    """The files, and when each was modified."""

    content: dict[str, bytes] = field(default_factory=dict)
    modified: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class Process:
    """A worker process."""

    owner: Owner
    host: int
    is_dead: bool = False
    stopped_until: float = 0.0
    lease: Lease | None = None
    is_ending: bool = False


class Simulation:
    """A schedule: processes on hosts, which share chunks, and what happens to them.

    Attributes:
        computed: The chunks in the order in which processes have begun to work on them.
        disturbances: Number of deaths, ends and long stops.
    """

    def __init__(self, seed: int, protocol: type[ChunkProtocol] = ChunkProtocol) -> None:
        self.random = random.Random(seed)
        self.now, self.server = 0.0, Server()
        self.computed: list[int] = []
        self.disturbances = 0
        self._protocol = protocol
        self._processes: list[Process] = []
        self._queue: list[tuple[float, int, Process, greenlet]] = []
        self._number = 0
        self._scheduler = getcurrent()
        self.num_chunks = self.random.randint(1, 4)
        self.skew = [self.random.uniform(-400, 400) for _ in range(3)]  # of the clocks of the hosts
        self.may_disturb = self.random.randint(0, 4)
        for _ in range(self.random.randint(2, 4)):
            self._start_process()

    def run(self) -> None:
        """Run until all processes have ended."""
        while self._queue:
            time, _, process, waiting = heapq.heappop(self._queue)
            if process.is_dead:
                waiting.throw()  # ends it, which frees its memory
                continue
            if time < process.stopped_until:
                self._push(process.stopped_until, process, waiting)
                continue
            self.now = max(self.now, time)
            assert self.now < 1e5, "the job does not end"
            waiting.switch()
            if self.may_disturb and self.random.random() < 0.03:
                self._disturb(process)

    def problems(self) -> list[str]:
        """Return what is wrong in the end."""
        problems = []
        for chunk in range(self.num_chunks):
            content = self.server.content.get(result_name(chunk))
            try:
                if content is None or decode_result(content, verify=True)[1] != expected(chunk):
                    problems.append(f"chunk {chunk} is lost or changed")
            except DamagedResultError:
                problems.append(f"chunk {chunk} is damaged")
        if len(self.computed) > self.num_chunks + self.disturbances:
            problems.append(f"{self.computed} were computed, with {self.disturbances} disturbances")
        return problems

    def wait(self, process: Process, seconds: float) -> None:
        """Let a process wait."""
        self._push(self.now + seconds, process, getcurrent())
        self._scheduler.switch()

    def _push(self, time: float, process: Process, waiting: greenlet) -> None:
        self._number += 1
        heapq.heappush(self._queue, (time, self._number, process, waiting))

    def _start_process(self, delay: float = 0.0) -> None:
        self._number += 1
        host = self.random.randrange(3)
        owner = Owner(f"p{self._number}", f"host{host}", f"machine{host}", self._number, "")
        process = Process(owner, host)
        self._processes.append(process)
        self._push(self.now + delay, process, greenlet(lambda: self._work(process), self._scheduler))

    def _disturb(self, process: Process) -> None:
        self.may_disturb -= 1
        match self.random.randrange(4):
            case 0 | 1:
                process.is_dead = True
                self.disturbances += 1
                self._start_process(self.random.uniform(0, 300))
            case 2:
                seconds = self.random.choice((30.0, 100.0, 300.0, 1000.0))
                was_stopped = process.stopped_until > 0  # two short stops may be a long one
                self.disturbances += seconds > _LONG_STOP_S or was_stopped
                process.stopped_until = self.now + seconds
            case _:
                process.is_ending = True
                self.disturbances += 1
                self._start_process(self.random.uniform(0, 300))

    def _has_died(self, process: Process, owner: Owner) -> bool:
        return owner.machine == process.owner.machine and any(
            other.owner.id == owner.id and other.is_dead for other in self._processes
        )

    def _work(self, process: Process) -> None:
        files = SimulatedFiles(self, process)
        protocol = self._protocol(
            files,
            process.owner,
            self.num_chunks,
            TIMING,
            monotonic=lambda: self.now + 1000 * process.host,
            sleep=lambda seconds: self.wait(process, seconds),
            has_died=lambda owner: self._has_died(process, owner),
            seed=self.random.random(),
        )
        while not process.is_ending and (lease := protocol.next_lease()):
            process.lease = lease
            self.computed.append(lease.chunk)
            self._push(
                self.now + TIMING.renew_s, process, greenlet(lambda: self._renew(process, protocol), self._scheduler)
            )
            remaining = self.random.choice((5.0, 50.0, 400.0))
            while remaining > 0 and not lease.is_lost and not process.is_ending:
                self.wait(process, min(remaining, 30.0))
                remaining -= 30.0
            if process.is_ending:
                protocol.release(lease)
            elif not lease.is_lost:
                protocol.commit(lease, ChunkResult(expected(lease.chunk), 1), {})
            process.lease = None

    def _renew(self, process: Process, protocol: ChunkProtocol) -> None:
        lease = process.lease
        while lease is not None and process.lease is lease and protocol.renew(lease):
            self.wait(process, TIMING.renew_s)


def expected(chunk: int) -> bytes:
    """Return the output of a chunk."""
    return f"line {chunk}\n".encode() * 3


class SimulatedFiles:
    """The files as a process sees them. The processes of a host do not share their caches, which is the harder case."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self._simulation, self._process = simulation, process
        self._random, self._server = simulation.random, simulation.server
        self._cache: dict[tuple[str, str], tuple[Any, float]] = {}

    def create(self, name: str, content: bytes) -> bool:
        self._travel()
        if name in self._server.content:
            self._travel()
            return False
        self._set(name, b"")
        lost = self._random.random()
        if lost < 0.05:  # the request is repeated, so that the file exists, with or without its content
            if lost < 0.02:
                self._set(name, content)
            self._travel()
            return False
        self._travel()
        self._set(name, content)
        return True

    def overwrite(self, name: str, content: bytes) -> None:
        self._travel()
        if name not in self._server.content:
            raise FileNotFoundError(name)
        self._set(name, content)
        self._travel()

    def read(self, name: str) -> bytes | None:
        self._travel()
        content = self._server.content.get(name)
        self._travel()
        return content

    def exists(self, name: str) -> bool:
        return bool(self._cached("exists", name, lambda: name in self._server.content))

    def list(self, folder: str) -> list[str]:
        prefix = folder + "/"
        names = self._cached(
            "list", folder, lambda: [name[len(prefix) :] for name in self._server.content if name.startswith(prefix)]
        )
        return list(names)

    def write_durably(self, name: str, content: bytes) -> None:
        self._travel()
        self._set(name, content[: len(content) // 2])
        self._travel()
        self._set(name, content)

    def link(self, source: str, name: str) -> bool:
        self._travel()
        if name in self._server.content:
            return False
        self._set(name, self._server.content[source])
        self._travel()
        return self._random.random() >= 0.05  # otherwise the reply was lost, and the repeated request fails

    def remove(self, name: str) -> None:
        self._travel()
        self._server.content.pop(name, None)

    def flush_folder(self, folder: str) -> None:
        self._travel()

    def age_by_clock(self, name: str) -> float:
        """The time since a file was modified, by the clock of this host: what the protocol does not use."""
        return self._simulation.now + self._simulation.skew[self._process.host] - self._server.modified[name]

    def _set(self, name: str, content: bytes) -> None:
        self._server.content[name] = content
        self._server.modified[name] = self._simulation.now

    def _cached(self, kind: str, name: str, look: Callable[[], Any]) -> Any:
        value, until = self._cache.get((kind, name), (None, -1.0))
        if self._simulation.now >= until:
            self._travel()
            value = look()
            self._cache[kind, name] = (value, self._simulation.now + self._random.uniform(0, _CACHED_S))
            self._travel()
        return value

    def _travel(self) -> None:
        if self._process.is_dead:
            raise GreenletExit
        self._simulation.wait(self._process, self._random.random() ** 3 * _MAX_LATENCY_S)
        if self._process.is_dead:
            raise GreenletExit
