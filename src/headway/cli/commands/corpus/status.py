"""``headway corpus status``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import corpus_jobs as jobs
from headway.cli import options
from headway.errors import escape_unprintable

if TYPE_CHECKING:
    from headway.jobs.status import JobStatus

_SHOWN = 10
_WATCH_S = 5.0


def status(
    folder: jobs.JobFolderArgument,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the status again every five seconds until the job is done.")
    ] = False,
    format_: options.FormatOption = "text",
) -> None:
    """Show how much of a job is done, running and failed, its speed and time left, and what each machine has done."""
    from headway.jobs.plan import Plan
    from headway.jobs.status import read_status

    plan = Plan(folder)
    while True:
        current = read_status(plan)
        if format_ == "json":
            print(json.dumps({**asdict(current), "is_done": current.is_done}, ensure_ascii=False), flush=True)
        else:
            print(_text(current), flush=True)
        if not watch or current.is_done or current.stopped:
            return
        time.sleep(_WATCH_S)


def _text(status: JobStatus) -> str:
    percent = 100 * status.chunks_done / max(status.num_chunks, 1)
    left = "" if status.seconds_left is None else f", {timedelta(seconds=round(status.seconds_left))} left"
    lines = [
        f"lines     {status.lines_done:,} of {status.num_lines:,} done ({percent:.1f} %), "
        f"{status.lines_per_s:,.0f} lines/s{left}",
        f"chunks    {status.chunks_done:,} of {status.num_chunks:,} done, {status.chunks_running:,} running, "
        f"{status.chunks_repeated:,} taken more than once",
    ]
    if status.stopped:
        lines.append(f"stopped   {status.stopped}")
    lines += [
        f"machine   {machine.host}: {machine.num_lines:,} lines by {machine.num_workers} workers, of which "
        f"{machine.num_active} were active in the last ten minutes; {machine.lines_per_s:,.0f} lines/s"
        for machine in status.machines
    ]
    stragglers = [chunk for chunk in status.running if chunk.is_straggler]
    lines += [
        f"straggler chunk {chunk.chunk}: process {chunk.pid} on {chunk.host} has had it for {chunk.taken_s:,.0f} s"
        for chunk in stragglers[:_SHOWN]
    ]
    if status.failed_chunks:
        lines.append(f"failed    lines in {status.failed_chunks:,} chunks; the first ones:")
        lines += [f"          {line.file}, line {line.line}: {line.reason}" for line in status.failures[:_SHOWN]]
    return "\n".join(map(escape_unprintable, lines))
