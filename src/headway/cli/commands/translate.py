"""``headway translate``."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from headway.cli import options
from headway.cli import translation_options as shared
from headway.cli.command_groups import CommandGroup
from headway.cli.decoding import DecodingCommand, decoding_options
from headway.cli.document_io import LINES, document_format_name, refuse_line_options, translate_to_file
from headway.cli.line_io import LineReport, process_lines, read_text_batches
from headway.cli.loading import device_for_workers, print_in_main_process
from headway.cli.long_files import LONG_FILE_LINES, batches_of_shard, is_long_translation, translate_in_job
from headway.cli.traces import TraceOption, refuse_options_with_trace
from headway.cli.translations import count_terms, report_terms
from headway.errors import ConfigError, HeadwayError

if TYPE_CHECKING:
    from headway.corpus.translation import TranslationSettings
    from headway.predict import Glossary, Translation, Translator
    from headway.predict.translation.options import TranslateKeywords
    from headway.predict.translation.text_translator import TextTranslator

GROUP = CommandGroup.RUN
COMMAND_CLASS = DecodingCommand
# Files of GPU drivers: NVIDIA on Linux, in WSL and on Windows; AMD on Linux.
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", r"C:\Windows\System32\nvcuda.dll", "/dev/kfd")


def translate(
    model: options.ModelArgument,
    text: options.TextArgument = None,
    source: options.TextInputOption = None,
    output: options.OutputOption = None,
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
    trace: TraceOption = False,
    max_source_tokens: shared.MaxSourceTokensOption = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "auto",
    shortlist: options.ShortlistOption = False,
    workers: options.WorkersOption = 1,
    input_format: shared.InputFormatOption = "text",
    document_format: Annotated[
        str,
        typer.Option(
            help="lines: translate each line of the input. html, md, srt, vtt, po, xliff, json, docx, odt, pptx, txt: "
            "translate a document of this format. auto: choose by the extension of the input; .txt means lines."
        ),
    ] = "auto",
    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="<name>",
            help="Encoding of a document that does not declare its own, such as windows-1252. The output has the same "
            "encoding. Default: UTF-8.",
        ),
    ] = None,
    text_syntax: Annotated[
        Literal["plain", "html"] | None,
        typer.Option(
            help="XLIFF: whether its texts are escaped HTML (&lt;b&gt;). Default: determined by the file's datatype "
            "attribute."
        ),
    ] = None,
    format_: shared.TranslationFormatOption = "text",
    on_error: options.OnErrorOption = "stop",
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Translate only part I of N equal parts of the lines of --input, such as 3/10. Concatenated, the "
            "outputs of all parts are the output of the whole file.",
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Start over. Translations of an interrupted command for the same output are discarded."
        ),
    ] = False,
) -> None:
    """Translate a text, a document, or a file line by line: one line in, one line out.

    A document such as report.docx keeps its formatting; it requires --output. A file of lines is read about two
    thousand lines at a time, so that sentences of similar length are translated together. Lines from a pipe are
    translated as they arrive. If a file of more than 50,000 lines is interrupted, the same command resumes.
    """
    search = decoding_options()
    is_marked = markup is not None or input_format != "text"
    if document_format != "auto" and (text is not None or is_marked):
        raise ConfigError("--document-format does not apply to TEXT, --markup or --input-format jsonl; leave it out")
    line_options = {
        "--n-best": search.n_best > 1, "--alignment": alignment, "--prefix": bool(prefix), "--include": bool(include),
        "--ban": bool(ban), "--format json": format_ == "json", "--no-protect": not protect,
        "--on-error": on_error != "stop", "--shard": shard is not None,
    }  # fmt: skip
    document_options = {"--encoding": encoding is not None, "--text-syntax": text_syntax is not None}
    is_lines = text is not None or is_marked
    found_format = _checked_format(
        LINES if is_lines else document_format, source, output, line_options, document_options
    )
    if trace:
        given = {"--pivot": pivot is not None, "--workers": workers > 1, "--mbr": mbr, "--alignment": alignment}
        refuse_options_with_trace({"a document": found_format is not None, **given})
    from headway.corpus.translation import TranslationSettings

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
        search=search,
    )
    if text is None and found_format is None and shard is None and not trace and is_long_translation(source, output):
        assert source is not None
        assert output is not None
        device_for_workers(device, workers)
        translate_in_job(settings, source, output, workers, on_error, fresh=fresh)
        return
    if fresh:
        raise ConfigError(f"--fresh applies to a file of more than {LONG_FILE_LINES:,} lines; leave it out")
    with without_garbage_collection():
        from headway.kernels import start_compiling

        if precision in ("auto", "int8") and workers == 1 and not _may_use_gpu(device, precision):
            start_compiling()  # runs in the background while PyTorch is imported
        from headway.hardware import keep_freed_memory
        from headway.predict.translation.glossary import Glossary
        from headway.predict.translation.pool import TranslatorPool
        from headway.predict.translation.quality import translation_flags

    if shard is not None and text is not None:
        raise ConfigError("--shard applies to the lines of --input; leave it out")
    name, batches = read_text_batches(text, None if found_format else source, workers=workers)
    first_line = 1
    if shard is not None:
        batches, first_line = batches_of_shard(source, shard, workers)
    settings.check()
    terms = None if glossary is None else Glossary.load(glossary)
    settings = settings.model_copy(update={"device": device_for_workers(device, workers)})
    keep_freed_memory()
    load = partial(settings.load, print_in_main_process)
    report = LineReport(name, on_error, translation_flags, first_line=first_line)
    languages: TranslateKeywords = {"target_language": to, "source_language": from_}
    with TranslatorPool(load, workers) if workers > 1 else nullcontext(load()) as translator:
        if found_format is not None:
            assert source is not None
            assert output is not None
            document_report = translate_to_file(
                translator,
                source,
                output,
                found_format,
                options=search,
                glossary=terms,
                encoding=encoding,
                text_syntax=text_syntax,
                **languages,
            )
            report_terms(count_terms(document_report.glossary))
            return
        _translate_lines(translator, settings, batches, report, terms, name, trace=trace, source=source, output=output)


def _checked_format(
    chosen: str,
    source: Path | None,
    output: Path | None,
    line_options: Mapping[str, bool],
    document_options: Mapping[str, bool],
) -> str | None:
    """Return the format of a document, or None for lines. Reject options that apply only to the other kind of input."""
    found_format = None if chosen == LINES else document_format_name(chosen, source, output)
    if found_format is not None:
        refuse_line_options(found_format, line_options)
    elif given := [name for name, is_given in document_options.items() if is_given]:
        raise ConfigError(
            f"{given[0]} applies to documents only", hint="--document-format txt makes a text file a document"
        )
    return found_format


def _translate_lines(
    translator: TextTranslator,
    settings: TranslationSettings,
    batches: Iterable[Sequence[bytes | str]],
    report: LineReport,
    terms: Glossary | None,
    name: str,
    *,
    trace: bool,
    source: Path | None,
    output: Path | None,
) -> None:
    """Translate lines, write the results, and report which glossary terms were met. ``name`` is the input's name."""
    from headway.corpus.translation import TranslationWriter

    how, writer = settings.options(), TranslationWriter(translator, settings)
    translate_each: Callable[..., list[Translation | HeadwayError]] = translator.translate_each
    if trace:
        from headway.cli.traced_translations import TracedTranslations

        writer = tracer = TracedTranslations(cast("Translator", translator), settings)
        translate_each = tracer.translate_each
    used: Counter[tuple[str, bool]] = Counter()
    lines = process_lines(
        batches,
        settings.line_reader(name).parse,
        report,
        writer.format_lines,
        job="translating",
        source=source,
        output=output,
    )
    with closing(lines):
        for sources, results in lines:
            results += map(settings.rerank, translate_each(sources, how, terms))
            if terms is not None:
                for result in results:
                    used += count_terms(() if isinstance(result, HeadwayError) else result.glossary or ())
    if terms is not None:
        report_terms(used)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection while the block imports modules.

    After the first such block, all existing objects are frozen, so that later collections skip them. Imports create
    hundreds of thousands of objects that are never freed. Searching these objects for garbage would take a fifth of the
    time that it takes to translate one sentence.
    """
    is_first = gc.get_freeze_count() == 0
    gc.disable()
    try:
        yield
    finally:
        if is_first:
            gc.freeze()
        gc.enable()


def _may_use_gpu(device: options.Device, precision: options.Precision) -> bool:
    """Return whether the model may run on a GPU, without importing PyTorch."""
    if device == "auto" and precision != "int8":
        return any(Path(path).exists() for path in _GPU_DRIVERS)
    return device == "cuda"
