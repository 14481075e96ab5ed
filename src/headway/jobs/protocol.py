"""The protocol by which workers share the chunks of a job: plain files in one folder, and no server.

A result depends only on the job and the chunk. Computing a chunk twice is therefore a waste of time, but never an
error, and no worker has to be prevented from writing. The protocol only makes such waste rare and results complete.

Files (``0012`` is the folder of chunks 12,000 to 12,999)::

    leases/0012/12345.0            lease of chunk 12345: its owner, and a counter
    leases/0012/12345.1            lease of generation 1, after the chunk was taken over
    leases/0012/12345.1.released   the owner of generation 1 has stopped before finishing the chunk
    results/0012/12345             the final result of the chunk
    finished/0012                  all chunks of the folder have results, so that workers need not list it again
    failed/0012/12345.jsonl        lines of the chunk that could not be converted, with the reasons
    temporary/…                    results that are being written
    stopped.json                   an error that stops the job; all workers report it

**Take.** Create ``N.0`` exclusively (``O_EXCL``), with the owner's random id and the number of this attempt. The
creation fails if the file exists. If the existing file contains the owner's id and the number of this attempt, a
network file system has repeated the request after losing the reply, and the chunk belongs to the owner. (The number
distinguishes this attempt from an earlier lease of the same owner whose result is missing in an outdated listing.)

**Renew.** Every ``renew_s`` seconds the owner rewrites its lease with an incremented counter. If there is a lease of a
higher generation, the owner has lost the chunk, and stops working on it.

**Expire.** A lease has expired if its content has not changed between two reads that are at least ``expire_s`` seconds
apart on the observer's monotonic clock. Each read opens the file again. Neither file times nor the clocks of other
machines are used. On the machine of an owner that has died, the lease expires immediately.

**Take over.** Create the lease of the next generation exclusively. Leases are never removed while the job runs: if
workers removed an expired lease and created it again, one worker could remove another worker's new lease, and both
would work on the chunk.

**Commit.** Write a file with a unique temporary name, flush it, and close it, checking for errors each time. Then
create a hard link with the final name, which fails if the name exists, and flush the folder. A result with the final
name is thus always complete. If the chunk already has a result, its checksum must be equal. A different checksum stops
the job: the operation is not deterministic, or two machines compute differently.

**Release.** A worker that has to stop creates ``N.G.released``. The next owner can create generation G+1 at once.

Workers prefer free chunks. They read the leases of other workers only when no free chunks are left. They choose
randomly among the free chunks of one folder at a time, which they list again after a collision. A worker that leaves a
folder skips finished folders. A chunk thus takes six to eight file operations, however many workers and chunks there
are, and a worker keeps only one folder in memory.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from headway.errors import HeadwayError
from headway.jobs.files import Files
from headway.jobs.owner import Owner
from headway.jobs.results import ChunkResult, DamagedResultError, read_header

CHUNKS_PER_FOLDER = 1000  # number of chunks per folder
STOPPED_FILE = "stopped.json"
_FINISHED = "finished"
_COUNTER_DIGITS = 12  # fixed width, so that renewing a lease does not change its size
_MAX_WATCHED = 12  # maximum number of leases that an idle worker watches
# Maximum number of folders that an idle worker lists at a time. Near the end of a job, hundreds of workers may be idle.
_MAX_SURVEYED = 2
_FIRST_POLL_S = 0.1  # first delay while other workers finish their chunks; the delay doubles each time
_CAREFUL_AFTER = 2  # number of unreleased leases in a row after which a chunk is converted in a forked process


@dataclass(frozen=True)
class Timing:
    """Intervals of the protocol, in seconds.

    Attributes:
        renew_s: Time between two renewals of a lease.
        expire_s: Time without a renewal after which a lease expires.
        poll_s: Maximum time between two checks of other workers' leases. An idle worker begins with shorter intervals.
    """

    renew_s: float = 20.0
    expire_s: float = 180.0
    poll_s: float = 5.0


@dataclass
class Lease:
    """The right to work on a chunk.

    Attributes:
        chunk: Index of the chunk.
        generation: Number of earlier leases of the chunk.
        attempt: Number of the owner's attempt to take a chunk, counted over all chunks.
        counter: Number of renewals.
        is_lost: Whether another worker has taken over the chunk.
        needs_isolation: Whether the last two owners ended without releasing the chunk, so that one of its lines may
            crash the process.
    """

    chunk: int
    generation: int
    attempt: int = 0
    counter: int = 0
    is_lost: bool = False
    needs_isolation: bool = False


def folder_name(chunk: int) -> str:
    """Return the name of the folder that contains a chunk."""
    return f"{chunk // CHUNKS_PER_FOLDER:04d}"


def result_name(chunk: int) -> str:
    """Return the name of the file with the result of a chunk."""
    return f"results/{folder_name(chunk)}/{chunk}"


def failures_name(chunk: int) -> str:
    """Return the name of the file with the failed lines of a chunk."""
    return f"failed/{folder_name(chunk)}/{chunk}.jsonl"


def lease_name(chunk: int, generation: int) -> str:
    """Return the file name of a lease."""
    return f"leases/{folder_name(chunk)}/{chunk}.{generation}"


def newest_generations(files: Files, folder: str) -> dict[int, tuple[int, bool]]:
    """Return, for each chunk in a folder that was ever taken, its newest generation and whether it was released."""
    newest: dict[int, tuple[int, bool]] = {}
    released = set[tuple[int, int]]()
    for name in files.list(f"leases/{folder}"):
        chunk, generation, *mark = name.split(".")
        if mark:
            released.add((int(chunk), int(generation)))
        elif int(generation) >= newest.get(int(chunk), (0, False))[0]:
            newest[int(chunk)] = (int(generation), False)
    return {chunk: (last, (chunk, last) in released) for chunk, (last, _) in newest.items()}


def finished_chunks(files: Files, folder: str) -> set[int]:
    """Return the chunks in a folder that have a result."""
    return set(map(int, files.list(f"results/{folder}")))


class JobStoppedError(HeadwayError):
    """The job was stopped for all workers because of an error that no worker can work around."""


class ChunkProtocol:
    """One worker's side of the protocol: acquires chunks, and makes their results final.

    Args:
        files: The job folder.
        owner: The identity of this worker.
        num_chunks: Number of chunks in the job.
        timing: Intervals of the protocol.
        monotonic: Returns the time of a monotonic clock, in seconds.
        sleep: Waits for a number of seconds.
        has_died: Returns whether another worker is known to have died.
        seed: Seed of the random order in which the worker takes chunks. The default is the owner's id.
        in_order: Whether to take chunks in order instead of randomly.
    """

    def __init__(
        self,
        files: Files,
        owner: Owner,
        num_chunks: int,
        timing: Timing,
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None],
        has_died: Callable[[Owner], bool] = Owner.has_died,
        seed: object = None,
        in_order: bool = False,
    ) -> None:
        self.files, self.timing = files, timing
        self._in_order = in_order
        self._owner, self._num_chunks = owner, num_chunks
        self._monotonic, self._sleep, self._has_died = monotonic, sleep, has_died
        self._random = random.Random(str(owner.id if seed is None else seed))
        folders = [f"{number:04d}" for number in range(-(-num_chunks // CHUNKS_PER_FOLDER))]
        start = self._random.randrange(len(folders)) if folders and not in_order else 0
        # _open: folders that may have free chunks. _pending: for each folder, the generations of its taken chunks
        # without a result.
        self._open = deque(folders[start:] + folders[:start])
        self._pending: dict[str, dict[int, int]] = {}
        self._candidates: list[tuple[int, int]] = []  # (chunk, generation) of leases to create in the folder _open[0]
        # Chunk -> generation of leases in that folder that are known to exist, even if a listing does not show them.
        self._collisions: dict[int, int] = {}
        self._watched: dict[str, tuple[bytes, float]] = {}  # the content of each lease, and when it was first read
        self._num_temporary = self._num_attempts = 0

    def next_lease(self) -> Lease | None:
        """Return the lease of a chunk to work on, or None if all chunks have a result.

        Waits while other workers have all the remaining chunks.

        Raises:
            JobStoppedError: A worker has stopped the job.
        """
        pause = _FIRST_POLL_S
        while True:
            self.check_not_stopped()
            lease = self._take_free() or self._take_expired()
            if lease is not None:
                return lease
            if not self._pending and not self._open:
                return None
            self._sleep(min(pause, self.timing.poll_s))
            pause *= 2

    def renew(self, lease: Lease) -> bool:
        """Show other workers that this worker is alive. Return False if the chunk has been taken over."""
        if not lease.is_lost:
            if self.files.exists(lease_name(lease.chunk, lease.generation + 1)):
                lease.is_lost = True
            else:
                lease.counter += 1
                with suppress(OSError):  # the disk is full or the network fails: the next renewal may succeed
                    self.files.overwrite(lease_name(lease.chunk, lease.generation), self._content(lease))
        return not lease.is_lost

    def release(self, lease: Lease) -> None:
        """Release a chunk that is not finished."""
        self.files.create(f"{lease_name(lease.chunk, lease.generation)}.released", b"")

    def commit(self, lease: Lease, result: ChunkResult, about: dict[str, Any]) -> None:
        """Make a result final, unless the chunk already has an equal result. ``about`` describes the worker.

        Raises:
            JobStoppedError: The chunk has a different result.
            OSError: The result cannot be written.
        """
        if result.failures:
            lines = [{"line": number, "reason": reason} for number, reason in result.failures]
            content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
            self.publish(failures_name(lease.chunk), content)
        name = result_name(lease.chunk)
        if not self.publish(name, result.encode({**about, "host": self._owner.host})):
            self._check_equal(lease.chunk, result, self.files.read(name))
        self.files.flush_folder(f"results/{folder_name(lease.chunk)}")

    def publish(self, name: str, content: bytes) -> bool:
        """Create a file, complete and flushed to disk. Return False if a file of this name exists."""
        self._num_temporary += 1
        temporary = f"temporary/{self._owner.id}.{self._num_temporary}"
        try:
            self.files.write_durably(temporary, content)
            return self.files.link(temporary, name)
        finally:
            with suppress(OSError):
                self.files.remove(temporary)

    def _check_equal(self, chunk: int, result: ChunkResult, existing: bytes | None) -> None:
        try:
            header = read_header(existing or b"")
        except DamagedResultError as error:
            self.stop(f"{result_name(chunk)}: {error}; remove this file, and continue the job")
        if header["blake2b"] != result.checksum:
            self.stop(
                f"chunk {chunk}: the machines {header['host']} and {self._owner.host} have computed different results; "
                "use machines whose processors have the same features, or set HEADWAY_CPU_FEATURES to features that "
                f"all of them have, and remove {STOPPED_FILE} and the results of one of the machines "
                f"({result_name(chunk)} is one of them) to continue"
            )

    def stop(self, reason: str) -> NoReturn:
        """Stop the job for all workers.

        Raises:
            JobStoppedError: Always.
        """
        self.files.create(STOPPED_FILE, json.dumps({"reason": reason}, ensure_ascii=False).encode())
        raise JobStoppedError(reason)

    def check_not_stopped(self) -> None:
        """Raise :class:`JobStoppedError` if a worker has stopped the job."""
        if content := self.files.read(STOPPED_FILE):
            raise JobStoppedError(json.loads(content)["reason"])

    def _take_free(self) -> Lease | None:
        """Take a free chunk, or return None if there is none."""
        while self._open:
            while self._candidates:
                chunk, generation = self._candidates.pop()
                if lease := self.take(chunk, generation):
                    return lease
                self._collisions[chunk] = generation
                self._candidates.clear()  # other workers are taking chunks of this folder, so the list is outdated
            self._candidates = self._survey(self._open[0])
            if not self._candidates:
                self._open.popleft()
                self._collisions.clear()
                if len(self._open) > 1:
                    self._skip_finished()
        return None

    def _skip_finished(self) -> None:
        """Skip the folders that other workers have marked as finished."""
        finished = set(self.files.list(_FINISHED))
        self._open = deque(folder for folder in self._open if folder not in finished)
        self._pending = {folder: chunks for folder, chunks in self._pending.items() if folder not in finished}

    def clear_finished_marks(self) -> None:
        """Remove the marks of finished folders, so that workers find chunks whose results were removed by hand."""
        for folder in self.files.list(_FINISHED):
            self.files.remove(f"{_FINISHED}/{folder}")

    def _survey(self, folder: str) -> list[tuple[int, int]]:
        """Return the free chunks of a folder in random order, with their generations, and record the taken chunks."""
        first = int(folder) * CHUNKS_PER_FOLDER
        newest = newest_generations(self.files, folder)
        # Results are listed after the leases, so that a chunk that is finished in between counts as done.
        done = finished_chunks(self.files, folder)
        free, taken = list[tuple[int, int]](), dict[int, int]()
        for chunk in range(first, min(first + CHUNKS_PER_FOLDER, self._num_chunks)):
            if chunk not in done:
                generation, is_released = newest.get(chunk, (-1, True))
                if self._collisions.get(chunk, -1) > generation:
                    generation, is_released = self._collisions[chunk], False
                if is_released:
                    free.append((chunk, generation + 1))
                else:
                    taken[chunk] = generation
        free.reverse()  # the last one is taken first
        if not self._in_order:
            self._random.shuffle(free)
        self._pending.pop(folder, None)
        if taken:
            self._pending[folder] = taken
        elif not free and self._num_chunks > CHUNKS_PER_FOLDER:
            self.files.create(f"{_FINISHED}/{folder}", b"")
        return free

    def take(self, chunk: int, generation: int) -> Lease | None:
        """Take a chunk by creating its lease of ``generation``. Return None if another worker has created it."""
        self._num_attempts += 1
        lease = Lease(chunk, generation, self._num_attempts)
        name, content = lease_name(chunk, generation), self._content(lease)
        return lease if self.files.create(name, content) or self.files.read(name) == content else None

    def _content(self, lease: Lease) -> bytes:
        description = json.dumps({**self._owner.as_dict(), "attempt": lease.attempt}, ensure_ascii=False)
        return f"{lease.counter:0{_COUNTER_DIGITS}d} {description}\n".encode()

    def _take_expired(self) -> Lease | None:
        """Take over a chunk whose lease has expired, or return None if no lease has expired yet."""
        for folder in self._random.sample(list(self._pending), min(len(self._pending), _MAX_SURVEYED)):
            if self._survey(folder):  # a chunk was released
                self._open.append(folder)
        if self._open:
            return self._take_free()
        for chunk, generation in self._chunks_to_watch():
            name = lease_name(chunk, generation)
            content = self.files.read(name)
            if content is not None and self.has_expired(name, content):
                if self.files.exists(result_name(chunk)):
                    continue
                lease = self.take(chunk, generation + 1)
                if lease is not None:
                    lease.needs_isolation = self._needs_care(chunk, generation + 1)
                    self._watched.pop(name, None)
                    return lease
        return None

    def _chunks_to_watch(self) -> Iterator[tuple[int, int]]:
        """Yield the chunk and generation of some other workers' leases. Leases already being watched come first."""
        pending = [(chunk, number) for chunks in self._pending.values() for chunk, number in chunks.items()]
        names = {lease_name(chunk, number): (chunk, number) for chunk, number in pending}
        self._watched = {name: seen for name, seen in self._watched.items() if name in names}
        others = [name for name in names if name not in self._watched]
        self._random.shuffle(others)
        for name in [*self._watched, *others][:_MAX_WATCHED]:
            yield names[name]

    def has_expired(self, name: str, content: bytes) -> bool:
        """Return whether a lease has expired, given its content, which was just read."""
        now = self._monotonic()
        before, since = self._watched.get(name, (None, now))
        if content != before:
            since = now
        self._watched[name] = (content, since)
        return now - since >= self.timing.expire_s or self._owner_has_died(content)

    def _owner_has_died(self, content: bytes) -> bool:
        try:
            owner = Owner.from_dict(json.loads(content.partition(b" ")[2]))
        except (ValueError, KeyError, TypeError):  # the lease is being written
            return False
        return owner.id != self._owner.id and self._has_died(owner)

    def _needs_care(self, chunk: int, generation: int) -> bool:
        earlier = range(generation - _CAREFUL_AFTER, generation)
        return generation >= _CAREFUL_AFTER and not any(
            self.files.exists(f"{lease_name(chunk, number)}.released") for number in earlier
        )
