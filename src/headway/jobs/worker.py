"""A worker takes chunks, converts their lines, and commits the results until all chunks of the job have a result.

A thread renews the lease while the worker computes. The worker converts a chunk in batches of up to 4,096 lines,
starting at the chunk's first line, so that the batches, and therefore the results, depend only on the chunk.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from headway.errors import ConfigError, OutputError
from headway.jobs.files import Files, LocalFiles
from headway.jobs.isolation import convert_isolated, kill_children
from headway.jobs.line_map import Line, LineMap
from headway.jobs.owner import Owner
from headway.jobs.plan import JobChunk, Plan
from headway.jobs.protocol import ChunkProtocol, Lease
from headway.jobs.renewal import keep_renewed
from headway.jobs.results import ChunkResult

PROCESSOR_FILE = "processor.json"
EXIT_RELEASED = 75  # exit code of a worker that was stopped by a signal (EX_TEMPFAIL in sysexits.h)
_BATCH_LINES, _BATCH_BYTES = 4096, 1 << 20


class Worker:
    """Processes chunks of a job.

    Args:
        plan: The plan of the job.
        line_map: The operation to apply to the lines.
        files: The job folder. The default is the plan's folder on the local file system.
        on_chunk: Called with each finished chunk.
        in_order: Whether to take chunks in order instead of randomly, for jobs with one worker.
    """

    def __init__(
        self,
        plan: Plan,
        line_map: LineMap,
        *,
        files: Files | None = None,
        on_chunk: Callable[[JobChunk], None] = lambda chunk: None,
        in_order: bool = False,
    ) -> None:
        self._plan, self._line_map, self._on_chunk = plan, line_map, on_chunk
        self._files = files or LocalFiles(plan.folder)
        self._owner = Owner.this_process()
        self._protocol = ChunkProtocol(
            self._files,
            self._owner,
            plan.num_chunks,
            plan.timing,
            monotonic=time.monotonic,
            sleep=time.sleep,
            in_order=in_order,
        )
        self._lease: Lease | None = None
        self._num_lines = self._num_chunks = 0
        self._begin = time.monotonic()

    def run(self) -> None:
        """Work until all chunks have a result.

        Raises:
            HeadwayError: The job cannot continue: the disk is full, the processor or an input differs, or the operation
                has raised an error. The chunk is released.
        """
        with self._output_errors():
            self._check_processor()
            self._protocol.clear_finished_marks()
        while True:
            with self._output_errors():
                self._lease = lease = self._protocol.next_lease()
            if lease is None:
                return
            try:
                with keep_renewed(self._protocol, lease):
                    with self._output_errors():
                        chunk = self._plan.chunk(lease.chunk)
                        lines = self._plan.read_lines(chunk)
                    result = self._convert(chunk, lines, lease)
                    if result is None:  # another worker has taken the chunk over
                        continue
                    with self._output_errors():
                        self._protocol.commit(lease, result, {"processor": self._line_map.processor})
            except BaseException:
                self._release()
                raise
            self._lease = None
            self._count(chunk)
            self._on_chunk(chunk)

    def stop(self) -> NoReturn:
        """Release the chunk and exit immediately. This is called in a signal handler."""
        kill_children()
        self._release()
        os._exit(EXIT_RELEASED)

    def _release(self) -> None:
        if self._lease is not None:
            with suppress(OSError):  # if this fails, the lease expires later
                self._protocol.release(self._lease)

    def _convert(self, chunk: JobChunk, lines: Sequence[Line], lease: Lease) -> ChunkResult | None:
        """Return the result of a chunk, or None if the chunk was taken over."""
        location = self._plan.input_name(chunk)
        outputs, failures, counts, start = list[str](), list[tuple[int, str]](), Counter[str](), 0
        for batch in _batches(lines):
            if lease.is_lost:
                return None
            first = chunk.first_line + start
            if lease.needs_isolation:
                converted = convert_isolated(self._line_map, batch, first, location)
            else:
                converted = self._line_map.convert(batch, first, location)
            assert len(converted.lines) == len(batch)
            for number, line in enumerate(converted.lines, start=first):
                outputs.append(line.output)
                if line.failure is not None:
                    failures.append((number, line.failure))
            counts.update(converted.counts)
            start += len(batch)
        return ChunkResult("".join(outputs).encode("utf-8", "surrogatepass"), len(lines), tuple(failures), dict(counts))

    @contextmanager
    def _output_errors(self) -> Iterator[None]:
        """Convert system errors about files of the job to :class:`OutputError`, with a message of one line."""
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{error.filename or self._plan.folder}: {error.strerror or error}",
                hint="nothing is lost; remove the cause, and repeat the command to continue",
            ) from None

    def _check_processor(self) -> None:
        """Check that this machine computes the same results as the first machine of the job.

        Raises:
            ConfigError: Its processor or precision differs.
        """
        processor = self._line_map.processor
        content = json.dumps({**processor, "host": self._owner.host}, ensure_ascii=False).encode()
        if self._protocol.publish(PROCESSOR_FILE, content) or self._plan.options.get("mixed_processors"):
            return
        first = json.loads(self._files.read(PROCESSOR_FILE) or content)
        host = first.pop("host")
        if first != processor:
            names = sorted(name for name in first.keys() | processor.keys() if first.get(name) != processor.get(name))
            differences = "; ".join(
                f"{name}: {json.dumps(first.get(name))} there, {json.dumps(processor.get(name))} here" for name in names
            )
            raise ConfigError(
                f"{self._plan.folder}: {self._owner.host} computes different results from {host}, which began the job "
                f"({differences})",
                hint="set HEADWAY_CPU_FEATURES to features that all machines have, or allow different processors with "
                "--mixed-processors when you make the job",
            )

    def _count(self, chunk: JobChunk) -> None:
        """Update the progress report of this worker, which :func:`~headway.jobs.status.read_status` reads."""
        self._num_lines += chunk.num_lines
        self._num_chunks += 1
        report = {
            "host": self._owner.host,
            "pid": self._owner.pid,
            "lines": self._num_lines,
            "chunks": self._num_chunks,
            "seconds": round(time.monotonic() - self._begin, 1),
        }
        path = self._plan.folder / "workers" / f"{self._owner.id}.json"
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(report), encoding="utf-8")


def _batches(lines: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """Yield the lines in batches of at most 4,096 lines and about 1 MiB."""
    start = size = 0
    for index, texts in enumerate(lines):
        if index > start and (index - start == _BATCH_LINES or size >= _BATCH_BYTES):
            yield lines[start:index]
            start, size = index, 0
        size += sum(map(len, texts))
    if start < len(lines):
        yield lines[start:]
