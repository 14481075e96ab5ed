"""``headway corpus join``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli import corpus_jobs as jobs


def join(
    folder: jobs.JobFolderArgument,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="The file to write, compressed if its name ends in .gz or .zst; or a folder, to write one file for "
            "each input.",
        ),
    ],
    failed: Annotated[
        Path | None,
        typer.Option("--failed", help="Also write the lines that failed, as JSON objects with file, line and reason."),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Verify the checksums of all results.")] = False,
) -> None:
    """Write the results of a finished job in the order of the input, to a single file or to one file for each input.

    The job's folder is not deleted. The exit code is 3 if any lines have failed.
    """
    from headway.jobs.join import join_results
    from headway.jobs.plan import Plan

    joined = join_results(Plan(folder), output, verify=verify, failures=failed)
    print(f"headway: {output}: {joined.num_lines:,} lines, of which {joined.num_failed:,} failed", file=sys.stderr)
    if joined.num_failed:
        raise typer.Exit(jobs.FAILED_LINES_EXIT_CODE)
