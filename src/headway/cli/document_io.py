"""Translate whole documents in ``headway translate``: detect documents, show the progress, and report errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.documents import DocumentReport
    from headway.predict import TextTranslator

LINES = "lines"
_AUTO = "auto"
_ERRORS_SHOWN = 5


def document_format_name(choice: str, source: Path | None, output: Path | None) -> str | None:
    """Return the format of the input if it is a document, or None if its lines are translated one by one.

    Args:
        choice: The option ``--document-format``, except "lines". With "auto", the extension of the input decides. Text
            files (.txt) and standard input are not documents.
        source: The input file. None means standard input.
        output: The output file. None means standard output.

    Raises:
        ConfigError: The format is unknown, or the input or the output is not a file.
    """
    if choice == _AUTO and source is None:  # avoids importing the formats
        return None
    from headway.documents import FORMATS

    format_name: str | None = choice
    if choice == _AUTO:
        assert source is not None
        extension = source.suffix.lower()
        format_name = next(
            (
                name
                for name, document_format in FORMATS.items()
                if name != "txt" and extension in document_format.extensions
            ),
            None,
        )
    if format_name is None:
        return None
    if format_name not in FORMATS:
        accepted = ", ".join([_AUTO, LINES, *FORMATS])
        raise ConfigError(f"--document-format {format_name!r} is unknown", accepted=accepted)
    if source is None or output in (None, Path("-")):
        lines = (
            "; --document-format lines translates each line of the input" if FORMATS[format_name].is_text_file else ""
        )
        example = "-i report.docx -o report.en.docx" if source is None else f"-o {source.stem}.out{source.suffix}"
        raise ConfigError("a document needs --input and --output", hint=f"add {example}{lines}")
    return format_name


def refuse_line_options(format_name: str, given: Mapping[str, bool]) -> None:
    """Reject options that only make sense for lines.

    Args:
        format_name: The format of the document.
        given: The options, and whether the user has set each of them.
    """
    from headway.documents import FORMATS

    names = [name for name, is_given in given.items() if is_given]
    if names:
        lines = ", or add --document-format lines" if FORMATS[format_name].is_text_file else ""
        raise ConfigError(f"{names[0]} does not apply to a document; leave it out{lines}")


def translate_to_file(
    translator: TextTranslator, source: Path, output: Path, format_name: str, **keywords: Any
) -> DocumentReport:
    """Translate a document with :func:`headway.documents.translate_document`, and show the progress and the errors."""
    from headway.documents import translate_document
    from headway.documents.content import UnknownEncodingError

    try:
        with _progress() as progress:
            report = translate_document(
                translator, source, output, format_name=format_name, progress=progress, **keywords
            )
    except UnknownEncodingError as refusal:
        refusal.hint = (
            f"{refusal.hint}, or name its encoding: --encoding {(*refusal.likely_encodings, 'windows-1252')[0]}"
        )
        raise
    if report.errors:
        counts = f"{len(report.errors):,} of {report.num_texts:,}"
        print(f"headway: {counts} texts could not be translated and were left unchanged", file=sys.stderr)
        for message in report.errors[:_ERRORS_SHOWN]:
            print(f"headway: {message}", file=sys.stderr)
    return report


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that shows the number of translated texts; None if standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from headway.calls.progress import progress_bar

    with progress_bar(redirect_stdout=False, transient=True) as bar:
        task = bar.add_task("translating", total=None, numbers="")
        yield lambda done, total: bar.update(task, completed=done, total=total, numbers=f"{done:,} of {total:,} texts")
