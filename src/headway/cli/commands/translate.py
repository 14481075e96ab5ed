"""``headway translate``."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.decoding import DecodingCommand, decoding_options
from headway.cli.document_io import LINES, document_format_name, refuse_line_options, translate_to_file
from headway.cli.line_io import LineReader, LineReport, one_line, process_lines, text_batches
from headway.cli.loading import device_for_workers, load_ensemble
from headway.cli.translations import count_terms, terms_summary
from headway.errors import ConfigError, HeadwayError

if TYPE_CHECKING:
    from headway.decode.request import DecodingOptions
    from headway.predict import Candidate, Source, TextTranslator, Translation, Translator
    from headway.predict.translation.options import TranslateKeywords

GROUP = CommandGroup.RUN
COMMAND_CLASS = DecodingCommand
# Files of GPU drivers: NVIDIA on Linux, in WSL and on Windows; AMD on Linux.
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", r"C:\Windows\System32\nvcuda.dll", "/dev/kfd")


def translate(
    model: options.ModelFolder,
    text: options.TextArgument = None,
    source: options.TextInputOption = None,
    output: options.OutputOption = None,
    to: options.TargetLanguageOption = None,
    from_: options.SourceLanguageOption = None,
    other_models: options.EnsembleOption = None,
    pivot: Annotated[
        Path | None,
        typer.Option(
            "--pivot",
            metavar="<path>",
            help="A second model, which translates what the first one has translated: with DE-EN and --pivot EN-FR "
            "from German into French. --from is an option of the first model, all others of the second.",
        ),
    ] = None,
    pivot_candidates: Annotated[
        int,
        typer.Option(
            min=1,
            help="With --pivot: translations of each text by the first model, which are ranked by the joint "
            "probability of both steps; at most the beam size. 1: only the best one.",
        ),
    ] = 1,
    pivot_language: Annotated[
        str | None,
        typer.Option(help="With --pivot: the language in between, if the models have several in common."),
    ] = None,
    prefix: Annotated[str, typer.Option(help="Text that every translation begins with.")] = "",
    include: Annotated[
        list[str] | None,
        typer.Option(
            help="A phrase that every translation must contain as whole words. 'a|b' requires at least one of the two; "
            "'Haus*', '*haus' and '*Haus*' also match part of a longer word. May be repeated."
        ),
    ] = None,
    ban: Annotated[
        list[str] | None, typer.Option(help="A phrase that no translation may contain; may be repeated.")
    ] = None,
    glossary: Annotated[
        Path | None,
        typer.Option(
            help="TSV or CSV file. Each line has a source phrase, a target phrase ('a|b': one of them) and optionally "
            "ignore or exact, for case. If a sentence contains the source, its translation must contain the target."
        ),
    ] = None,
    markup: Annotated[
        Literal["html", "xml"] | None,
        typer.Option(help="Each text is HTML or XML. Tags are kept, and inline tags enclose the translated words."),
    ] = None,
    protect: Annotated[
        bool,
        typer.Option(
            help="Keep placeholders, URLs, e-mail addresses, numbers with units, emoji, Markdown and line breaks."
        ),
    ] = True,
    mbr: Annotated[
        bool, typer.Option("--mbr", help="Choose the one of the --n-best candidates closest to the others by chrF.")
    ] = False,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Also write the word alignment, such as 0-0 1-2, source word first.")
    ] = False,
    alignment_layer: Annotated[
        int | None,
        typer.Option(
            help="The decoder block whose attention gives the alignment. Default: the last block, or the "
            "second-to-last in decoders of four or more."
        ),
    ] = None,
    guard: Annotated[
        bool,
        typer.Option(help="If the best hypothesis is repetitive, copied or truncated, use the next one that is not."),
    ] = True,
    max_source_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="Longer texts are split. Default: the number of learned positions, or 256 if there are none."
        ),
    ] = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "auto",
    shortlist: options.ShortlistOption = False,
    workers: options.WorkersOption = 1,
    input_format: Annotated[
        Literal["text", "jsonl"],
        typer.Option(help="jsonl: one JSON object per line, with text and optionally prefix, include, banned."),
    ] = "text",
    document_format: Annotated[
        str,
        typer.Option(
            help="lines: translate each line of the input. html, md, srt, vtt, po, xliff, json, docx, odt, pptx, txt: "
            "a document of this format. auto: by the extension of the input; .txt has lines."
        ),
    ] = "auto",
    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="<name>",
            help="Encoding of a document that does not declare it, such as windows-1252; it is kept. Default: UTF-8.",
        ),
    ] = None,
    text_syntax: Annotated[
        Literal["plain", "html"] | None,
        typer.Option(
            help="XLIFF: whether its texts are HTML as text (&lt;b&gt;). Default: what the datatype of the file says."
        ),
    ] = None,
    format_: Annotated[
        options.OutputFormat,
        typer.Option(
            "--format",
            help="text: one line per input line (with --n-best: line number, score, text); json: one object per line.",
        ),
    ] = "text",
    on_error: options.OnErrorOption = "stop",
) -> None:
    """Translate a text, a document, or a file line by line: one line in, one line out.

    A document such as report.docx keeps its formatting, and needs --output. A file of lines is read about two thousand
    lines at a time, so that sentences of similar length are translated together. Lines from a pipe are translated as
    they arrive.
    """
    with without_garbage_collection():
        from headway.kernels import start_compiling

        if precision in ("auto", "int8") and workers == 1 and not _may_use_gpu(device, precision):
            start_compiling()  # in the background, while PyTorch is imported
        from headway.hardware import keep_freed_memory
        from headway.predict import Glossary, TranslateOptions, TranslatorPool, load_translator
        from headway.predict.translation.pivot import DEFAULT_CANDIDATES
        from headway.predict.translation.quality import translation_flags

    search = decoding_options()
    is_marked = markup is not None or input_format != "text"
    if document_format != "auto" and (text is not None or is_marked):
        raise ConfigError("--document-format does not apply to TEXT, --markup or --input-format jsonl; leave it out")
    found_format = document_format_name(LINES if text is not None or is_marked else document_format, source, output)
    if found_format is not None:
        refuse_line_options(
            found_format,
            {
                "--n-best": search.n_best > 1,
                "--alignment": alignment,
                "--prefix": bool(prefix),
                "--include": bool(include),
                "--ban": bool(ban),
                "--format json": format_ == "json",
                "--no-protect": not protect,
                "--on-error": on_error != "stop",
            },
        )
    elif encoding is not None or text_syntax is not None:
        raise ConfigError(
            f"{'--encoding' if encoding is not None else '--text-syntax'} applies to documents only",
            hint="--document-format txt makes a text file a document",
        )
    name, batches = text_batches(text, None if found_format else source, workers=workers)
    if mbr and search.n_best == 1:
        raise ConfigError("--mbr chooses among several candidates; add --n-best, such as --n-best 4")
    if alignment_layer is not None and not alignment:
        raise ConfigError("--alignment-layer has no effect without --alignment; add --alignment, or leave it out")
    terms = None if glossary is None else Glossary.load(glossary)
    device = device_for_workers(device, workers)
    keep_freed_memory()
    first = partial(
        load_translator,
        model,
        device=device,
        max_source_tokens=max_source_tokens,
        avoid_flagged=guard,
        alignment_layer=alignment_layer,
        precision=precision,
        shortlist=shortlist,
    )
    load_first = partial(load_ensemble, first, other_models, device, precision)
    load: Callable[[], TextTranslator] = load_first
    if pivot is not None:
        second = partial(
            load_translator,
            pivot,
            device=device,
            max_source_tokens=max_source_tokens,
            avoid_flagged=guard,
            alignment_layer=alignment_layer,
            precision=precision,
            shortlist=shortlist,
        )
        load_second = partial(load_ensemble, second, None, device, precision)
        load = partial(_load_pivot, load_first, load_second, pivot_language, pivot_candidates)
    elif pivot_candidates != DEFAULT_CANDIDATES or pivot_language is not None:
        raise ConfigError("--pivot-candidates and --pivot-language need --pivot, a second model")
    reader = LineReader(name, input_format, prefix, include or (), ban or ())
    report = LineReport(name, on_error, translation_flags)
    used: Counter[tuple[str, bool]] = Counter()
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
            _report_terms(count_terms(document_report.glossary))
            return
        how = TranslateOptions.of(search, {**languages, "alignment": alignment, "markup": markup, "protect": protect})
        writer = _Writer(translator, format_, listed=search.n_best > 1 and not mbr)
        lines = process_lines(
            batches, reader.parse, report, writer.lines, job="translating", source=source, output=output
        )
        with closing(lines):
            for sources, results in lines:
                results += translator.translate_each(sources, how, terms)
                if mbr:
                    results[:] = [_by_agreement(result, search) for result in results]
                if terms is not None:
                    for result in results:
                        used += count_terms(() if isinstance(result, HeadwayError) else result.glossary or ())
    _report_terms(used)


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection while the block imports modules.

    After the first such block, all existing objects are frozen, so that later collections skip them. Imports create
    hundreds of thousands of objects that are never freed. Searching them for garbage would take a fifth of the time of
    translating one sentence.
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
    """Return whether the model may compute on a GPU, as far as it is known before PyTorch is imported."""
    if device == "auto" and precision != "int8":
        return any(Path(path).exists() for path in _GPU_DRIVERS)
    return device == "cuda"


def _load_pivot(
    first: Callable[[], Translator], second: Callable[[], Translator], language: str | None, candidates: int
) -> TextTranslator:
    from headway.predict import PivotTranslator

    return PivotTranslator(first(), second(), pivot_language=language, candidates=candidates)


def _report_terms(used: Counter[tuple[str, bool]]) -> None:
    """Report on standard error how many glossary terms were met and which were not, if any applied."""
    if used:
        print(f"headway: {terms_summary(used)}", file=sys.stderr)


def _by_agreement(translation: Translation | HeadwayError, search: DecodingOptions) -> Translation | HeadwayError:
    from headway.predict import Translation, minimum_bayes_risk

    sampled = search.sampling is not None
    return minimum_bayes_risk(translation, sampled=sampled) if isinstance(translation, Translation) else translation


class _Writer:
    """Formats translations as lines of output: the best text, all candidates (``listed``), or JSON."""

    def __init__(self, translator: TextTranslator, format_: options.OutputFormat, *, listed: bool) -> None:
        self._translator, self._format, self._listed = translator, format_, listed

    def lines(self, number: int, _: Source | HeadwayError, result: Translation | HeadwayError) -> str:
        """Return the output for line ``number`` of the input, with line ends. An error becomes a line without text."""
        if self._format == "json":
            whole = {"error": str(result)} if isinstance(result, HeadwayError) else self._as_dict(result)
            return json.dumps(whole, ensure_ascii=False) + "\n"
        if isinstance(result, HeadwayError):
            return f"{number}\t\t\n" if self._listed else "\n"
        if not self._listed:
            return self._as_text(result.candidates[0]) + "\n"
        return "".join(
            f"{number}\t{candidate.score:.4f}\t{self._as_text(candidate)}\n" for candidate in result.candidates
        )

    def _as_text(self, candidate: Candidate) -> str:
        line = one_line(candidate.text)
        if self._listed or candidate.alignment is not None:
            line = line.replace("\t", " ")  # tabs separate the columns
        if candidate.alignment is None:
            return line
        return line + "\t" + " ".join(f"{i}-{j}" for i, j in self._translator.word_alignment(candidate).pairs)

    def _as_dict(self, translation: Translation) -> dict[str, Any]:
        candidates = [self._candidate_dict(candidate) for candidate in translation.candidates]
        judged = {} if translation.unlikely is None else {"unlikely": translation.unlikely}
        return {"source": translation.source, **candidates[0], **judged, "candidates": candidates}

    def _candidate_dict(self, candidate: Candidate) -> dict[str, Any]:
        """Return every field that has a value, and the word alignment if there is an alignment."""
        whole = {name: value for name, value in asdict(candidate).items() if value is not None}
        if candidate.alignment is not None:
            whole["words"] = asdict(self._translator.word_alignment(candidate))
        return whole
