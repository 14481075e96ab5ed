"""Reuse the results of earlier jobs for chunks with the same lines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress

from headway.jobs.files import LocalFiles
from headway.jobs.plan import JobChunk, Plan
from headway.jobs.protocol import finished_chunks, folder_name, result_name
from headway.jobs.results import ChunkResult, DamagedResultError, decode
from headway.storage import atomic_write


def finished(plan: Plan, *, are: bool = True) -> Iterator[JobChunk]:
    """Yield the chunks that have a result or, if ``are`` is False, the chunks that do not."""
    files, folder, done = LocalFiles(plan.folder), "", set[int]()
    for chunk in plan.chunks():
        if folder_name(chunk.index) != folder:
            folder = folder_name(chunk.index)
            done = finished_chunks(files, folder)
        if (chunk.index in done) == are:
            yield chunk


def unfinished(plan: Plan) -> Iterator[JobChunk]:
    """Yield the chunks that have no result."""
    return finished(plan, are=False)


def take_over_results(plan: Plan, earlier: Plan) -> None:
    """Copy results from an earlier job for chunks with the same lines.

    Use this only for operations whose results do not depend on line numbers. Nothing is copied if the operation, its
    options or its models differ.
    """
    if (plan.operation, plan.options, plan.contents) != (earlier.operation, earlier.options, earlier.contents):
        return
    done = {(chunk.digest, chunk.num_lines): chunk.index for chunk in finished(earlier)}
    for chunk in unfinished(plan):
        if (index := done.get((chunk.digest, chunk.num_lines))) is not None:
            old, new = earlier.folder / result_name(index), plan.folder / result_name(chunk.index)
            new.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(old, new)
            except OSError:  # the file system does not support hard links
                shutil.copyfile(old, new)


def store_result(plan: Plan, chunk: JobChunk, result: ChunkResult) -> None:
    """Store a result of a chunk that was not computed by a worker."""
    path = plan.folder / result_name(chunk.index)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as new:
        new.write_bytes(result.encode({}))


def remove_damaged(plan: Plan) -> None:
    """Remove damaged results and the leases of their chunks. No worker may be running."""
    for chunk in finished(plan):
        path = plan.folder / result_name(chunk.index)
        with suppress(FileNotFoundError):
            try:
                decode(path.read_bytes(), verify=True)
            except DamagedResultError:
                path.unlink()
                for lease in (plan.folder / "leases" / folder_name(chunk.index)).glob(f"{chunk.index}.*"):
                    lease.unlink()
