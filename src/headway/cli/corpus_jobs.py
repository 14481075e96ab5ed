"""Shared by the commands ``headway corpus …``: their options, and functions that create and run a job."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from headway.cli.long_files import run_with_progress
from headway.errors import ConfigError, HeadwayError

if TYPE_CHECKING:
    from headway.corpus.records import RecordFormat
    from headway.corpus.work import OperationSettings
    from headway.jobs.plan import Plan
    from headway.jobs.protocol import Timing

FAILED_LINES_EXIT_CODE = 3  # exit code if all chunks are done but some lines have failed
_RENEWALS = 9  # number of renewals before a lease expires

CorpusFilesArgument = Annotated[
    list[Path],
    typer.Argument(
        help="Files with a text per line (.txt or any other name), a JSON object per line (.jsonl) or columns "
        "separated by tabs (.tsv), plain or compressed (.gz, .zst)."
    ),
]
JobFolderArgument = Annotated[Path, typer.Argument(help="The folder of a job.")]
JobFolderOption = Annotated[
    Path, typer.Option("-o", "--output", help="The folder of the job. If it exists, the job is resumed.")
]
FieldOption = Annotated[
    str | None,
    typer.Option("--field", help="The field with the text: a name in .jsonl files, a number from 1 in .tsv files."),
]
ResultFieldOption = Annotated[
    str | None,
    typer.Option(
        "--result-field",
        help="The new field for the result in .jsonl files. Default: translation, score, label or continuation. In "
        ".tsv files the result is a new last column.",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Number of processes, which share the model's memory. Default: all cores.",
    ),
]
ChunkLinesOption = Annotated[
    int | None,
    typer.Option(
        "--chunk-lines",
        min=1,
        help="Number of lines that a worker processes at a time. Default: up to 16,384, depending on the input's size.",
    ),
]
LeaseOption = Annotated[
    float,
    typer.Option(
        "--lease-seconds",
        min=1,
        help="Time after which a worker on another machine is replaced if it no longer reports that it is running.",
    ),
]
MixedProcessorsOption = Annotated[
    bool,
    typer.Option(
        "--mixed-processors",
        help="Allow machines whose processors compute different results. The result of a line may then depend on the "
        "machine that processes it.",
    ),
]
SlurmOption = Annotated[
    int | None,
    typer.Option(
        "--slurm", min=1, help="Submit an array of this many workers to SLURM instead of working on this machine."
    ),
]
SlurmOptionsOption = Annotated[
    str,
    typer.Option(
        "--slurm-options", help="Options for sbatch, such as '--partition cpu --time 4:00:00 --cpus-per-task 8'."
    ),
]
SlurmRoundsOption = Annotated[
    int,
    typer.Option(
        "--slurm-rounds",
        min=1,
        help="Number of arrays that run one after another, for jobs that take longer than the time limit. An array "
        "without work ends at once.",
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run the job on the Ray cluster at this address. auto: the cluster that runs on this machine.",
    ),
]


def group_inputs(files: Sequence[Path], partners: Sequence[Path] | None = None) -> list[list[Path]]:
    """Return the inputs: each file, together with its partner file if there are partners.

    Raises:
        ConfigError: A file is missing, or the numbers of files differ.
    """
    if partners is not None and len(partners) != len(files):
        raise ConfigError(f"{len(files)} files, but {len(partners)} files of --target; pass one for each, in order")
    for path in (*files, *(partners or ())):
        if not path.exists():
            raise ConfigError(f"{path}: no such file")
    return [[*group] for group in (zip(files, partners, strict=True) if partners else ((file,) for file in files))]


@dataclass(frozen=True)
class JobOptions:
    """The options for jobs, shared by all commands that create a job."""

    workers: WorkersOption = None
    chunk_lines: ChunkLinesOption = None
    lease_seconds: LeaseOption = 180
    mixed_processors: MixedProcessorsOption = False
    slurm: SlurmOption = None
    slurm_options: SlurmOptionsOption = ""
    slurm_rounds: SlurmRoundsOption = 3
    ray: RayOption = None

    def timing(self) -> Timing:
        """Return the timing of the worker protocol.

        Raises:
            ConfigError: The options select two kinds of clusters.
        """
        from headway.jobs.protocol import Timing

        if self.slurm is not None and self.ray is not None:
            raise ConfigError("--slurm and --ray cannot be combined; use one of them")
        renew_s = self.lease_seconds / _RENEWALS
        return Timing(renew_s, self.lease_seconds, min(5.0, renew_s))


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of :class:`JobOptions` to a command, which receives them as the argument ``job``."""
    signature, types = inspect.signature(command, eval_str=True), get_type_hints(JobOptions, include_extras=True)
    of_command = [parameter for name, parameter in signature.parameters.items() if name != "job"]
    added = [
        inspect.Parameter(option.name, of_command[0].kind, default=option.default, annotation=types[option.name])
        for option in fields(JobOptions)
    ]

    @wraps(command)
    def run(**arguments: Any) -> None:
        job = JobOptions(**{option.name: arguments.pop(option.name) for option in added})
        command(**arguments, job=job)

    run.__signature__ = signature.replace(parameters=[*of_command, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*of_command, *added)}
    return run


def run_job(
    operation: str,
    settings: OperationSettings,
    inputs: Sequence[Sequence[Path]],
    folder: Path,
    records: RecordFormat | None,
    job: JobOptions,
) -> None:
    """Create or resume the job in ``folder``. Then work on it on this machine, or submit workers to a cluster.

    Raises:
        Exit: With exit code 3 if lines have failed, or with 130 or 143 if the command was interrupted or terminated.
    """
    from headway.corpus.work import make_job_request
    from headway.jobs.plan import make_plan

    request = make_job_request(
        operation,
        settings,
        inputs,
        records=records,
        mixed_processors=job.mixed_processors,
        chunk_lines=job.chunk_lines,
        timing=job.timing(),
    )
    plan = make_plan(folder, request)
    print(f"headway: {folder}: {plan.num_lines:,} lines in {plan.num_chunks:,} chunks", file=sys.stderr)
    start_workers(plan, job, plan.operation)
    if job.slurm is None:
        report_job_results(plan)


def start_workers(plan: Plan, job: JobOptions, activity: str) -> None:
    """Work on a job on this machine or on a Ray cluster until it is complete, or submit workers to SLURM."""
    from headway.contention import num_cores

    if job.slurm is not None:
        from headway.corpus.slurm import submit_to_slurm

        for line in submit_to_slurm(plan, job.slurm, job.slurm_options, job.slurm_rounds):
            print(f"headway: {line}", file=sys.stderr)
    elif job.ray is not None:
        from headway.corpus.ray_workers import work_on_ray

        work_on_ray(plan, job.ray)
    else:
        run_with_progress(plan, job.workers or num_cores(), activity, one_thread=True)


def work_on_this_machine(plan: Plan, workers: int | None) -> None:
    """Work on a job with processes on this machine, and report the results at the end."""
    from headway.contention import num_cores

    run_with_progress(plan, workers or num_cores(), plan.operation, one_thread=True)
    report_job_results(plan)


def report_job_results(plan: Plan) -> None:
    """Report the results of a finished job on standard error.

    Raises:
        Exit: With exit code 3 if lines have failed.
    """
    from headway.jobs.status import read_status

    status = read_status(plan)
    for failure in status.failures[:5]:
        print(f"headway: {HeadwayError(failure.reason, where=f'{failure.file}, line {failure.line}')}", file=sys.stderr)
    end = f"headway: done; write the result with: headway corpus join {plan.folder} -o FILE"
    if plan.operation in ("clean", "clean-score"):
        end = "headway: done; to write the results, repeat the command headway corpus clean that created this job"
    if status.failed_chunks:
        num_failed = len(status.failures)
        more = " or more" if num_failed >= 1000 else ""
        print(f"headway: {num_failed:,}{more} lines have failed (headway corpus status {plan.folder})", file=sys.stderr)
        print(end, file=sys.stderr)
        raise typer.Exit(FAILED_LINES_EXIT_CODE)
    print(end, file=sys.stderr)
