"""Simulate many workers on a job with a billion lines, and measure file operations, memory, and the time to show the
status.

    python benchmarks/corpus_scale.py --lines 1000000000 --workers 500 --folder /dev/shm/job

The plan, the leases and the results are real files. The workers are objects in this process, with a virtual clock, and
the operation only counts lines. One worker in twenty dies with a chunk, whose lease expires, and is replaced.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headway.jobs.files import LocalFiles
from headway.jobs.owner import Owner
from headway.jobs.plan import make_plan_without_files
from headway.jobs.protocol import ChunkProtocol, Timing
from headway.jobs.results import ChunkResult, decode_result
from headway.jobs.status import read_status

_CHUNK_S = 60.0  # virtual time that a chunk takes


class Idle(Exception):  # noqa: N818  # not an error
    """A worker has to wait."""


@dataclass(frozen=True)
class Scale:
    """The measurements."""

    num_chunks: int
    lines_done: int
    chunks_again: int
    deaths: int
    operations_per_chunk: float
    status_s: float
    memory_mb: float
    seconds: float


class CountedFiles(LocalFiles):
    """Counts the operations that change or look up names."""

    def __init__(self, folder: Path, counts: Counter[str]) -> None:
        super().__init__(folder)
        self._counts = counts

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            object.__getattribute__(self, "_counts")[name] += 1
        return super().__getattribute__(name)


def simulate(folder: Path, num_lines: int, num_workers: int, chunk_lines: int = 4096, seed: int = 1) -> Scale:
    """Run the workers until all chunks are done."""
    begin, draws, counts = time.monotonic(), random.Random(seed), Counter[str]()
    plan = make_plan_without_files(folder, num_lines, chunk_lines)
    now, deaths, number = 0.0, 0, 0
    queue: list[tuple[float, int, Callable[[], None]]] = []

    def wait(_: float) -> None:
        raise Idle

    def push(delay: float, step: Callable[[], None]) -> None:
        nonlocal number
        number += 1
        heapq.heappush(queue, (now + delay, number, step))

    chunks_each = max(plan.num_chunks // num_workers, 1)

    def start_worker(*, is_mortal: bool) -> None:
        nonlocal number
        number += 1
        last = draws.randrange(chunks_each) if is_mortal else -1  # the chunk with which it dies
        num_taken = 0
        owner = Owner(f"w{number}", f"host{number % 100}", "", number, "")
        protocol = ChunkProtocol(
            CountedFiles(folder, counts), owner, plan.num_chunks, Timing(), monotonic=lambda: now, sleep=wait
        )

        def take() -> None:
            nonlocal deaths, num_taken
            try:
                lease = protocol.next_lease()
            except Idle:
                push(60.0, take)
                return
            if lease is None:
                return
            num_taken += 1
            if num_taken > last >= 0:
                deaths += 1
                push(_CHUNK_S, partial(start_worker, is_mortal=False))
                return

            def commit() -> None:
                chunk = plan.chunk(lease.chunk)
                output = f"{chunk.first_line} {chunk.num_lines}\n".encode()
                protocol.commit(lease, ChunkResult(output, chunk.num_lines), {})
                take()

            push(draws.uniform(0.5, 1.5) * _CHUNK_S, commit)

        take()

    for index in range(num_workers):
        start_worker(is_mortal=index % 20 == 0)
    while queue:
        now, _, step = heapq.heappop(queue)
        step()
    status_begin = time.monotonic()
    status = read_status(plan)
    status_s = time.monotonic() - status_begin
    assert status.is_done
    lines = 0
    for chunk in plan.chunks():
        header, output = decode_result(
            (folder / "results" / f"{chunk.index // 1000:04d}" / str(chunk.index)).read_bytes()
        )
        assert output == f"{lines + 1} {chunk.num_lines}\n".encode()
        lines += header["lines"]
    return Scale(
        num_chunks=plan.num_chunks,
        lines_done=lines,
        chunks_again=status.chunks_repeated,
        deaths=deaths,
        operations_per_chunk=counts.total() / plan.num_chunks,
        status_s=status_s,
        memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        seconds=time.monotonic() - begin,
    )


def main() -> None:
    """Run the simulation described by the command line, and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000_000)
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    print(json.dumps(asdict(simulate(given.folder, given.lines, given.workers)), indent=1))


if __name__ == "__main__":
    main()
