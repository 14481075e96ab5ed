"""``headway corpus classify``."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.cli import corpus_jobs as jobs
from headway.cli import options


@jobs.with_job_options
def classify(
    model: options.ModelArgument,
    files: jobs.CorpusFilesArgument,
    output: jobs.JobFolderOption,
    field: jobs.FieldOption = None,
    result_field: jobs.ResultFieldOption = None,
    device: options.DeviceOption = "auto",
    format_: Annotated[
        options.OutputFormat,
        typer.Option("--format", help="text: label and probability, separated by a tab; json: one object per line."),
    ] = "text",
    *,
    job: jobs.JobOptions,
) -> None:
    """Classify the lines of files as a job.

    Lines that cannot be classified are marked, and keep their positions. The exit code is then 3. Write the result with
    headway corpus join.
    """
    from headway.corpus.model_maps import ModelSettings
    from headway.corpus.records import record_format

    records = record_format(files, field, result_field or "label")
    settings = ModelSettings(
        model=str(model.resolve()),
        device=device,
        format=format_,
    )
    jobs.run_job(
        "classify",
        settings,
        jobs.group_inputs(files),
        output,
        records,
        job,
    )
