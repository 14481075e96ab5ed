"""Determine how much of a job is finished, running and failed by listing its folders.

Listing all results takes about a second for a billion lines, and needs memory for only one folder at a time.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.jobs.files import LocalFiles
from headway.jobs.plan import Plan
from headway.jobs.protocol import (
    CHUNKS_PER_FOLDER,
    STOPPED_FILE,
    failures_name,
    finished_chunks,
    lease_name,
    newest_generations,
)

_MAX_FAILURES = 1000  # maximum number of failed lines to read
_MAX_RUNNING = 1000  # maximum number of leases to read
_ACTIVE_S = 600.0  # workers whose last report is older are not included in the rate
_SLOW = 3.0  # a chunk that takes longer than this many times the median is a straggler


@dataclass(frozen=True)
class FailedLine:
    """A line that could not be converted: its file, its number and the reason."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True)
class MachineStatus:
    """Progress of the workers on one machine."""

    host: str
    num_workers: int
    num_active: int
    num_lines: int
    lines_per_s: float


@dataclass(frozen=True)
class RunningChunk:
    """A chunk that a worker has taken and not finished."""

    chunk: int
    host: str
    pid: int
    generation: int
    taken_s: float
    is_straggler: bool


@dataclass(frozen=True)
class JobStatus:
    """The status of a job.

    Attributes:
        num_lines: Number of lines in the job.
        num_chunks: Number of chunks in the job.
        chunks_done: Number of chunks with a result.
        lines_done: Number of lines with a result, estimated from ``chunks_done``.
        chunks_running: Number of unfinished chunks with a lease, including those of workers that have died.
        chunks_repeated: Number of chunks that were taken more than once.
        failed_chunks: Number of chunks with failed lines.
        failures: The first failed lines.
        running: The running chunks, at most 1,000.
        machines: Progress of the workers on each machine.
        lines_per_s: Total rate of the workers that have finished a chunk in the last ten minutes.
        seconds_left: Estimated remaining time, or None if no worker is active.
        stopped: The reason why the job was stopped, or None.
    """

    num_lines: int
    num_chunks: int
    chunks_done: int
    lines_done: int
    chunks_running: int
    chunks_repeated: int
    failed_chunks: int
    failures: tuple[FailedLine, ...]
    running: tuple[RunningChunk, ...]
    machines: tuple[MachineStatus, ...]
    lines_per_s: float
    seconds_left: float | None
    stopped: str | None

    @property
    def is_done(self) -> bool:
        """Whether all chunks have a result."""
        return self.chunks_done == self.num_chunks


def read_status(plan: Plan) -> JobStatus:
    """Return the status of a job."""
    files, done, running, repeated = LocalFiles(plan.folder), 0, list[tuple[int, int]](), 0
    for number in range(-(-plan.num_chunks // CHUNKS_PER_FOLDER)):
        folder = f"{number:04d}"
        newest = newest_generations(files, folder)
        finished = finished_chunks(files, folder)
        done += len(finished)
        repeated += sum(generation > 0 for generation, _ in newest.values())
        running += [
            (chunk, generation)
            for chunk, (generation, is_released) in newest.items()
            if chunk not in finished and not is_released
        ]
    reports = _reports(plan.folder)
    rate = sum(report["rate"] for report in reports if report["is_active"])
    lines_done = plan.num_lines if done == plan.num_chunks else done * plan.num_lines // max(plan.num_chunks, 1)
    chunk_s = [report["seconds"] / report["chunks"] for report in reports if report["chunks"]]
    failed_chunks, failures = _failures(plan, files)
    stopped = files.read(STOPPED_FILE)
    return JobStatus(
        num_lines=plan.num_lines,
        num_chunks=plan.num_chunks,
        chunks_done=done,
        lines_done=lines_done,
        chunks_running=len(running),
        chunks_repeated=repeated,
        failed_chunks=failed_chunks,
        failures=failures,
        running=tuple(
            _running(plan, files, running[:_MAX_RUNNING], sorted(chunk_s)[len(chunk_s) // 2] if chunk_s else 0)
        ),
        machines=_machines(reports),
        lines_per_s=rate,
        seconds_left=(plan.num_lines - lines_done) / rate if rate else None,
        stopped=json.loads(stopped)["reason"] if stopped else None,
    )


def _reports(folder: Path) -> list[dict[str, Any]]:
    """Return the last report of each worker."""
    reports = []
    for path in (folder / "workers").glob("*.json"):
        with suppress(OSError, ValueError):
            report = json.loads(path.read_text(encoding="utf-8"))
            report["rate"] = report["lines"] / max(report["seconds"], 1e-3)
            report["is_active"] = time.time() - path.stat().st_mtime < _ACTIVE_S
            reports.append(report)
    return reports


def _machines(reports: list[dict[str, Any]]) -> tuple[MachineStatus, ...]:
    hosts = dict[str, list[dict[str, Any]]]()
    for report in reports:
        hosts.setdefault(report["host"], []).append(report)
    return tuple(
        MachineStatus(
            host=host,
            num_workers=len(of_host),
            num_active=sum(report["is_active"] for report in of_host),
            num_lines=sum(report["lines"] for report in of_host),
            lines_per_s=sum(report["rate"] for report in of_host if report["is_active"]),
        )
        for host, of_host in sorted(hosts.items())
    )


def _running(plan: Plan, files: LocalFiles, running: list[tuple[int, int]], usual_s: float) -> list[RunningChunk]:
    chunks = []
    for chunk, generation in running:
        with suppress(OSError, ValueError, KeyError):
            counter, _, description = (files.read(lease_name(chunk, generation)) or b"").partition(b" ")
            owner = json.loads(description)
            # The age is computed from the number of renewals, because the clocks of two machines may differ.
            age = int(counter) * plan.timing.renew_s
            is_straggler = usual_s > 0 and age > _SLOW * usual_s + plan.timing.renew_s
            chunks.append(RunningChunk(chunk, owner["host"], owner["pid"], generation, age, is_straggler))
    return chunks


def _failures(plan: Plan, files: LocalFiles) -> tuple[int, tuple[FailedLine, ...]]:
    """Return the number of chunks with failed lines, and the first of these lines."""
    count, failures = 0, list[FailedLine]()
    for folder in sorted(files.list("failed")):
        for name in sorted(files.list(f"failed/{folder}"), key=lambda name: int(name.partition(".")[0])):
            count += 1
            if len(failures) < _MAX_FAILURES:
                failures += failed_lines(plan, int(name.partition(".")[0]))
    return count, tuple(failures[:_MAX_FAILURES])


def failed_lines(plan: Plan, chunk: int) -> list[FailedLine]:
    """Return the failed lines of a chunk."""
    content = LocalFiles(plan.folder).read(failures_name(chunk))
    if content is None:
        return []
    location = plan.input_name(plan.chunk(chunk))
    lines = (json.loads(line) for line in content.decode("utf-8").split("\n")[:-1])
    return [FailedLine(location, line["line"], line["reason"]) for line in lines]
