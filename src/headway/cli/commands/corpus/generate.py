"""``headway corpus generate``."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.cli import corpus_jobs as jobs
from headway.cli import options
from headway.cli.decoding import GenerationCommand, generation_options

COMMAND_CLASS = GenerationCommand


@jobs.with_job_options
def generate(
    model: options.ModelArgument,
    files: jobs.CorpusFilesArgument,
    output: jobs.JobFolderOption,
    field: jobs.FieldOption = None,
    result_field: jobs.ResultFieldOption = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "auto",
    format_: Annotated[
        options.OutputFormat,
        typer.Option("--format", help="text: prompt and continuation; json: one object per prompt, with tokens."),
    ] = "text",
    *,
    job: jobs.JobOptions,
) -> None:
    """Continue the lines of files with a language model, as a job.

    Lines that cannot be continued are marked, and keep their positions. The exit code is then 3. Write the result with
    headway corpus join.
    """
    from headway.corpus.model_maps import ModelSettings
    from headway.corpus.records import record_format

    records = record_format(files, field, result_field or "continuation")
    settings = ModelSettings(
        model=str(model.resolve()),
        device=device,
        precision=precision,
        format=format_,
        generation=generation_options(model),
    )
    jobs.run_job(
        "generate",
        settings,
        jobs.group_inputs(files),
        output,
        records,
        job,
    )
