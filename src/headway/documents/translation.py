"""Translate a document: read the file, translate its texts, and write the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.decode.request import PAPER_OPTIONS, DecodingOptions
from headway.documents.content import (
    DEFAULT_LIMITS,
    DocumentError,
    DocumentLimits,
    DocumentText,
    ReadingOptions,
    TextSyntax,
    limit_processor_time,
)
from headway.documents.formats import FORMATS, DocumentFormat, document_format, read_document
from headway.documents.html_file import HTML_OPTIONS
from headway.errors import ConfigError, HeadwayError
from headway.predict.markup.html import MarkupOptions
from headway.predict.results import GlossaryTerm, Source
from headway.predict.translation.glossary import Glossary
from headway.predict.translation.options import TranslateOptions
from headway.predict.translation.text_translator import TextTranslator
from headway.storage import atomic_write

MARKUP_BY_SYNTAX: dict[TextSyntax, MarkupOptions | None] = {
    "plain": None,
    "html": HTML_OPTIONS,
    "tagged": MarkupOptions(kind="xml", ignore_tags=("keep",), outline_detection=False),
}
_BATCH_CHARACTERS = 100_000

TranslateTexts = Callable[[Sequence[DocumentText]], Sequence[str]]
ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True)
class DocumentReport:
    """Summary of a document's translation.

    Attributes:
        num_texts: Number of texts in the document.
        errors: The errors of texts that could not be translated.
        glossary: The glossary entries that were applied, listed once for each text.
    """

    num_texts: int
    errors: tuple[HeadwayError, ...] = ()
    glossary: tuple[GlossaryTerm, ...] = ()


def translate_document(
    translator: TextTranslator,
    source: Path | str,
    target: Path | str,
    options: DecodingOptions = PAPER_OPTIONS,
    *,
    target_language: str | None = None,
    source_language: str | None = None,
    glossary: Glossary | None = None,
    format_name: str | None = None,
    progress: ProgressCallback | None = None,
    limits: DocumentLimits = DEFAULT_LIMITS,
    encoding: str | None = None,
    text_syntax: Literal["plain", "html"] | None = None,
) -> DocumentReport:
    """Translate a document. The target is written completely or not at all.

    Sentences are translated separately. Formatting inside a paragraph encloses the translations of the words that it
    encloses in the source. A text that cannot be translated, for example because a word is too long for the model, is
    copied.

    Args:
        translator: The translator for the texts.
        source: Path of the document.
        target: The file to write, in the same format.
        options: The search options.
        target_language: The language to translate into, for models with several target languages.
        source_language: The language of the document, for imported models that need it.
        glossary: Required translations of certain source phrases.
        format_name: The document's format. None means that the extension of ``source`` determines it.
        progress: Called with the number of translated texts and the total number. If it raises an exception, the
            translation ends.
        limits: Larger documents are refused.
        encoding: The encoding of a text file that does not declare it. None means UTF-8.
        text_syntax: XLIFF: whether texts are escaped HTML. None means that this is declared in the file or detected.

    Raises:
        HeadwayError: The document is refused, or an argument is not compatible with the model.
    """
    errors: list[HeadwayError] = []
    terms: list[GlossaryTerm] = []
    shared = TranslateOptions(decoding=options, target_language=target_language, source_language=source_language)

    def translate(texts: Sequence[DocumentText]) -> list[str]:
        results: dict[int, str] = {}
        for syntax, markup in MARKUP_BY_SYNTAX.items():
            numbers = [number for number, text in enumerate(texts) if text.syntax == syntax]
            sources = [Source(texts[number].text, split_sentences=True) for number in numbers]
            outcomes = (
                translator.translate_each(sources, shared.model_copy(update={"markup": markup}), glossary)
                if sources
                else []
            )
            for number, outcome in zip(numbers, outcomes, strict=True):
                if isinstance(outcome, HeadwayError):
                    errors.append(outcome)
                else:
                    terms.extend(outcome.glossary or ())
                results[number] = texts[number].text if isinstance(outcome, HeadwayError) else outcome.text
        return [results[number] for number in range(len(texts))]

    num_texts = fill_document(
        translate,
        source,
        target,
        format_name=format_name,
        progress=progress,
        limits=limits,
        encoding=encoding,
        text_syntax=text_syntax,
    )
    return DocumentReport(num_texts, tuple(errors), tuple(terms))


def fill_document(
    translate: TranslateTexts,
    source: Path | str,
    target: Path | str,
    *,
    format_name: str | None = None,
    progress: ProgressCallback | None = None,
    limits: DocumentLimits = DEFAULT_LIMITS,
    encoding: str | None = None,
    text_syntax: Literal["plain", "html"] | None = None,
) -> int:
    """Like :func:`translate_document`, for any function that translates texts. Return the number of texts."""
    source, target = Path(source), Path(target)
    reading = ReadingOptions.parse({"limits": limits, "encoding": encoding, "text_syntax": text_syntax}, "documents")
    try:
        document_type = choose_format(source, format_name)
        if source.resolve() == target.resolve():
            raise ConfigError("the source and the target are the same file")
        if target.suffix.lower() not in ("", source.suffix.lower(), *document_type.extensions):
            raise ConfigError(
                f"{target}: the result has the same format as the source ({document_type.name}); documents are not "
                "converted",
                accepted=" or ".join(str(target.with_suffix(extension)) for extension in document_type.extensions),
            )
        with limit_processor_time(limits):
            content = read_document(source, document_type, reading)
        with atomic_write(target) as aside:
            aside.touch()  # fail early if the folder is not writable
            translations: list[str] = []
            for batch in batch_texts(content.texts):
                if progress is not None:
                    progress(len(translations), len(content.texts))
                translations += translate(batch)
            if progress is not None:
                progress(len(translations), len(content.texts))
            with limit_processor_time(limits):
                content.write(translations, aside)
    except DocumentError as error:
        raise error.with_location(str(source)) from None
    return len(content.texts)


def choose_format(source: Path, format_name: str | None) -> DocumentFormat:
    """Return the format named ``format_name``. None means the format of the document's extension.

    Raises:
        HeadwayError: The format or the extension is unknown.
    """
    if format_name is None:
        return document_format(source.name)
    if format_name not in FORMATS:
        raise ConfigError(f"document format {format_name!r} is unknown", accepted=", ".join(FORMATS))
    return FORMATS[format_name]


def batch_texts(texts: Sequence[DocumentText]) -> list[Sequence[DocumentText]]:
    """Split texts into groups of at most 100,000 characters. A longer text forms its own group."""
    batches: list[list[DocumentText]] = []
    size = 0
    for text in texts:
        if not batches or size + len(text.text) > _BATCH_CHARACTERS:
            batches.append([])
            size = 0
        batches[-1].append(text)
        size += len(text.text)
    return list(batches)
