"""``headway corpus score``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli import corpus_jobs as jobs
from headway.cli import options
from headway.errors import ConfigError


@jobs.with_job_options
def score(
    model: options.ModelArgument,
    files: jobs.CorpusFilesArgument,
    output: jobs.JobFolderOption,
    field: jobs.FieldOption = None,
    result_field: jobs.ResultFieldOption = None,
    target: Annotated[
        list[Path] | None,
        typer.Option(
            help="For a translation model: files with the translations, one for each file with texts, in the same "
            "order."
        ),
    ] = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    device: options.DeviceOption = "auto",
    precision: options.MeasuredPrecisionOption = "float32",
    format_: Annotated[
        options.OutputFormat,
        typer.Option("--format", help="text: log-probability and number of tokens; json: one object per line."),
    ] = "text",
    *,
    job: jobs.JobOptions,
) -> None:
    """Score the lines of files as a job: texts with a language model, or pairs with a translation model.

    Lines that cannot be scored are marked, and keep their positions. The exit code is then 3. Write the result with
    headway corpus join.
    """
    from headway.bundle import read_config
    from headway.corpus.model_maps import ModelSettings
    from headway.corpus.records import record_format

    is_pair = read_config(model).capability == "translates"
    records = record_format(files, field, result_field or "score", num_fields=2 if is_pair else 1)
    if is_pair and records is None and target is None:
        raise ConfigError(f"{model} is a translation model; pass the file with the translations with --target")
    if target is not None and (records is not None or not is_pair):
        raise ConfigError("--target applies to a translation model and files without fields; leave it out")
    settings = ModelSettings(
        model=str(model.resolve()),
        device=device,
        precision=precision,
        format=format_,
        target_language=to,
        source_language=from_,
    )
    jobs.run_job(
        "score",
        settings,
        jobs.group_inputs(files, target),
        output,
        records,
        job,
    )
