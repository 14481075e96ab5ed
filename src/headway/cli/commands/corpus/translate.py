"""``headway corpus translate``."""

from __future__ import annotations

from headway.cli import corpus_jobs as jobs
from headway.cli import options
from headway.cli import translation_options as shared
from headway.cli.decoding import DecodingCommand, decoding_options

COMMAND_CLASS = DecodingCommand


@jobs.with_job_options
def translate(
    model: options.ModelArgument,
    files: jobs.CorpusFilesArgument,
    output: jobs.JobFolderOption,
    field: jobs.FieldOption = None,
    result_field: jobs.ResultFieldOption = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    other_models: options.EnsembleOption = None,
    pivot: shared.PivotOption = None,
    pivot_candidates: shared.PivotCandidatesOption = 1,
    pivot_language: shared.PivotLanguageOption = None,
    prefix: shared.PrefixOption = "",
    include: shared.IncludeOption = None,
    ban: shared.BanOption = None,
    glossary: shared.GlossaryOption = None,
    markup: shared.MarkupOption = None,
    protect: shared.ProtectOption = True,
    mbr: shared.MbrOption = False,
    alignment: shared.AlignmentOption = False,
    alignment_layer: shared.AlignmentLayerOption = None,
    guard: shared.GuardOption = True,
    max_source_tokens: shared.MaxSourceTokensOption = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "auto",
    shortlist: options.ShortlistOption = False,
    input_format: shared.InputFormatOption = "text",
    format_: shared.TranslationFormatOption = "text",
    *,
    job: jobs.JobOptions,
) -> None:
    """Translate the lines of files as a job. After an interruption, the same command resumes it.

    Lines that cannot be translated are marked, and keep their positions. The exit code is then 3. Write the result with
    headway corpus join.
    """
    from headway.cli.long_files import with_absolute_paths
    from headway.corpus.records import record_format
    from headway.corpus.translation import TranslationSettings

    records = None if input_format == "jsonl" else record_format(files, field, result_field or "translation")
    settings = TranslationSettings(
        model=str(model),
        other_models=tuple(map(str, other_models or ())),
        pivot=None if pivot is None else str(pivot),
        pivot_candidates=pivot_candidates,
        pivot_language=pivot_language,
        target_language=to,
        source_language=from_,
        prefix=prefix,
        include=tuple(include or ()),
        ban=tuple(ban or ()),
        glossary=None if glossary is None else str(glossary),
        markup=markup,
        protect=protect,
        mbr=mbr,
        alignment=alignment,
        alignment_layer=alignment_layer,
        avoid_flagged=guard,
        max_source_tokens=max_source_tokens,
        device=device,
        precision=precision,
        shortlist=shortlist,
        input_format=input_format,
        format=format_,
        search=decoding_options(),
    )
    jobs.run_job(
        "translate",
        with_absolute_paths(settings),
        jobs.group_inputs(files),
        output,
        records,
        job,
    )
