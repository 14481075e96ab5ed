"""Reuse the results of earlier jobs for chunks with the same lines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress

from headway.jobs.files import LocalFiles
from headway.jobs.plan import JobChunk, Plan
from headway.jobs.protocol import finished_chunks, folder_name, result_name
from headway.jobs.results import ChunkResult, DamagedResultError, decode_result
from headway.storage import atomic_write


def iter_finished_chunks(plan: Plan, *, have_result: bool = True) -> Iterator[JobChunk]:
    """Yield the chunks that have a result or, if ``have_result`` is False, the chunks that do not."""
    files, folder, done = LocalFiles(plan.folder), "", set[int]()
    for chunk in plan.chunks():
        if folder_name(chunk.index) != folder:
            folder = folder_name(chunk.index)
            done = finished_chunks(files, folder)
        if (chunk.index in done) == have_result:
            yield chunk


def iter_unfinished_chunks(plan: Plan) -> Iterator[JobChunk]:
    """Yield the chunks that have no result."""
    return iter_finished_chunks(plan, have_result=False)


def reuse_results(plan: Plan, earlier: Plan) -> None:
    """Copy results from an earlier job for chunks with the same lines.

    Use this only for operations whose results do not depend on line numbers. Nothing is copied if the operation, its
    options or its models differ.
    """
    if (plan.operation, plan.options, plan.content_hashes) != (
        earlier.operation,
        earlier.options,
        earlier.content_hashes,
    ):
        return
    done = {(chunk.digest, chunk.num_lines): chunk.index for chunk in iter_finished_chunks(earlier)}
    for chunk in iter_unfinished_chunks(plan):
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


def remove_damaged_results(plan: Plan) -> None:
    """Remove damaged results and the leases of their chunks. No worker may be running."""
    for chunk in iter_finished_chunks(plan):
        path = plan.folder / result_name(chunk.index)
        with suppress(FileNotFoundError):
            try:
                decode_result(path.read_bytes(), verify=True)
            except DamagedResultError:
                path.unlink()
                for lease in (plan.folder / "leases" / folder_name(chunk.index)).glob(f"{chunk.index}.*"):
                    lease.unlink()
