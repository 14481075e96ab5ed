"""Join the results of a finished job into one file, or into one file per input, in the order of the input."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from headway.errors import CheckpointError, DataError, OutputError
from headway.jobs.files import LocalFiles
from headway.jobs.plan import JobChunk, Plan
from headway.jobs.protocol import CHUNKS_PER_FOLDER, finished_chunks, result_name
from headway.jobs.results import DamagedResultError, decode_result
from headway.jobs.status import FailedLine, failed_lines
from headway.storage import atomic_write

_SHOWN = 5
_COMPRESSION_LEVEL = 3


@dataclass
class JoinStatistics:
    """Statistics of the results that :func:`join_results` has written.

    Attributes:
        num_lines: Number of lines in the inputs.
        num_failed: Number of failed lines.
        failures: The first failed lines, with reasons.
        counts: Sums of the operation's own counts, by name.
    """

    num_lines: int = 0
    num_failed: int = 0
    failures: list[FailedLine] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def count_missing_chunks(plan: Plan) -> int:
    """Return the number of chunks without a result."""
    files = LocalFiles(plan.folder)
    folders = range(-(-plan.num_chunks // CHUNKS_PER_FOLDER))
    return plan.num_chunks - sum(len(finished_chunks(files, f"{number:04d}")) for number in folders)


def join_results(
    plan: Plan,
    output: Path,
    *,
    verify: bool = False,
    failures: Path | None = None,
    on_lines: Callable[[int], None] = lambda lines: None,
) -> JoinStatistics:
    """Write the results of a finished job.

    Args:
        plan: The plan of the job.
        output: The output file, which is compressed if its name ends in .gz or .zst, or an existing folder. In a
            folder, one file is written for each input, with the name of the input's first file.
        verify: Whether to check each result against its checksum.
        failures: If given, a file to which each failed line is written as a JSON object with file, line and reason.
        on_lines: Called after each chunk is written, with its number of lines.

    Raises:
        CheckpointError: The job is not finished.
        DataError: A result is damaged.
        OutputError: A file cannot be written.
    """
    if missing := count_missing_chunks(plan):
        raise CheckpointError(
            f"{plan.folder}: {missing:,} of {plan.num_chunks:,} chunks have no result yet; continue with "
            f"headway corpus work {plan.folder}"
        )
    joined = JoinStatistics()
    chunks = plan.chunks()
    if output.is_dir():
        for item, path in zip(plan.inputs, _outputs_in(output, plan), strict=True):
            _write(plan, path, (next(chunks) for _ in range(item.num_chunks)), joined, verify, on_lines)
    else:
        _write(plan, output, chunks, joined, verify, on_lines)
    if failures is not None:
        with atomic_write(failures) as new, new.open("w", encoding="utf-8", newline="\n") as file:
            for line in _all_failures(plan):
                record = {"file": line.file, "line": line.line, "reason": line.reason}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return joined


def _outputs_in(folder: Path, plan: Plan) -> list[Path]:
    """Return an output file in the folder for each input, with the name of the input's first file."""
    names = [Path(item.files[0].path).name for item in plan.inputs]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise OutputError(f"{folder}: several inputs are named {twice[0]}; join them to one file")
    return [folder / name for name in names]


def _all_failures(plan: Plan) -> Iterator[FailedLine]:
    for number in range(-(-plan.num_chunks // CHUNKS_PER_FOLDER)):
        names = LocalFiles(plan.folder).list(f"failed/{number:04d}")
        for chunk in sorted(int(name.partition(".")[0]) for name in names):
            yield from failed_lines(plan, chunk)


def _write(
    plan: Plan,
    path: Path,
    chunks: Iterable[JobChunk],
    joined: JoinStatistics,
    verify: bool,
    on_lines: Callable[[int], None],
) -> None:
    with atomic_write(path) as new, open_output(new, path.suffix) as file:
        for chunk in chunks:
            header, output = _read_result(plan, chunk, verify)
            file.write(output)
            joined.num_lines += chunk.num_lines
            joined.num_failed += header["failed"]
            joined.counts.update(header["counts"])
            if header["failed"] and len(joined.failures) < _SHOWN:
                joined.failures = [*joined.failures, *failed_lines(plan, chunk.index)][:_SHOWN]
            on_lines(chunk.num_lines)


def read_chunk_output(plan: Plan, chunk: JobChunk) -> bytes:
    """Return the output of a finished chunk.

    Raises:
        DataError: The result is damaged.
    """
    return _read_result(plan, chunk, verify=False)[1]


def _read_result(plan: Plan, chunk: JobChunk, verify: bool) -> tuple[dict[str, Any], bytes]:
    path = plan.folder / result_name(chunk.index)
    try:
        header, output = decode_result(path.read_bytes(), verify=verify)
        if header["lines"] != chunk.num_lines:
            raise DamagedResultError(f"it has {header['lines']} lines instead of {chunk.num_lines}")
    except DamagedResultError as error:
        raise DataError(
            f"{path}: damaged: {error}; remove the file and the leases of the chunk "
            f"({plan.folder}/leases/*/{chunk.index}.*), and continue the job"
        ) from None
    return header, output


@contextmanager
def open_output(path: Path, suffix: str) -> Iterator[BinaryIO]:
    """Open a file for writing. It is compressed if ``suffix`` is .gz or .zst."""
    with path.open("wb") as raw:
        if suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as file:
                yield cast("BinaryIO", file)
        elif suffix == ".zst":
            with zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL).stream_writer(raw, closefd=False) as writer:
                yield cast("BinaryIO", writer)
        else:
            yield raw
