"""``headway corpus work``."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.cli import corpus_jobs as jobs


def work(
    folder: jobs.JobFolderArgument,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Number of processes, which share the model's memory.")
    ] = 1,
) -> None:
    """Work on an existing job, on any machine that can access its folder, until all of its lines are done."""
    from headway.jobs.plan import Plan

    jobs.work_on_this_machine(Plan(folder), workers)
