"""Documents for language models: plain text and JSONL, read in chunks so that documents of any size fit in memory.

A plain text file is a single document, or has one document per line, or documents separated by blank lines. A
``.jsonl`` file has one document per line, in the field ``text``. Files may be compressed (``.gz``, ``.zst``). Text is
UTF-8.

Long documents are read in chunks of about 64 Ki characters, which end at line ends or, within a longer line, before a
space. The last chunk of a document ends with :data:`END_OF_DOCUMENT`. Tokens never cross the border between two chunks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import glob
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from headway.data.bad_lines import BadLines, LineProblem
from headway.data.encoding import TextEncoder
from headway.data.readers import Corpus, TextSize, read_parts, read_records, text_size, uncompressed_name
from headway.errors import DataError
from headway.text.base import EOS
from headway.text.corpus_encoder import PackedIds

END_OF_DOCUMENT = "\0"  # ends a document; the readers reject this character in text
_PIECE = 1 << 16  # characters
_WINDOW = 1 << 12  # number of characters in which to search for a position to split a line
_SINGLE_SPACE, _SPACE = re.compile(r"(?<=\S) (?=\S)"), re.compile(r"(?<=\S)\s")
_GLOB = frozenset("*?[")
# files of operating systems that are hidden although their names do not begin with a dot
_OF_SYSTEMS = frozenset({"Thumbs.db", "desktop.ini", "__MACOSX"})


class TextCorpus(Corpus):
    """Configuration of a corpus of documents."""

    files: tuple[str, ...] = Field(
        description="Plain text or .jsonl files, optionally compressed (.gz, .zst); folders, which include all files "
        "inside; and patterns such as books/*.txt.",
    )
    fields: tuple[str, ...] | None = Field(
        None, description="Name of the field in .jsonl records that contains the text. Default: text."
    )
    documents: Literal["file", "line", "blank_lines"] = Field(
        "file",
        description="How plain text is divided into documents: a document is the whole file, a line, or the "
        "text between blank lines.",
    )
    weight: float = Field(
        1.0,
        gt=0,
        description="Number of times that an epoch contains each text. With 0.5, each epoch contains a "
        "different random half.",
    )

    @model_validator(mode="after")
    def _check(self) -> TextCorpus:
        if not self.files or not all(self.files):
            raise ValueError("files: expected at least one file, folder or pattern")
        if self.fields is not None and len(self.fields) != 1:
            raise ValueError("fields: expected the name of one field, such as ['text']")
        if self.source_language or self.target_language:
            raise ValueError("a text has no source_language or target_language; remove the key")
        return self

    def size(self, folder: Path) -> TextSize:
        """Return the numbers of lines and bytes of the files in ``folder``.

        The number of lines is an upper bound on the number of chunks: a long line is counted once more for each chunk
        that it can fill.
        """
        sizes = [text_size(folder / name) for name in self.files]
        num_bytes = sum(size.num_bytes for size in sizes)
        return TextSize(sum(size.lines for size in sizes) + num_bytes // _PIECE, num_bytes)

    def with_expanded_files(self, folder: Path, say: Callable[[str], None]) -> TextCorpus:
        """Return this corpus with folders and patterns replaced by the matching files, in alphabetical order.

        An existing path is taken literally, even if it contains wildcard characters. Hidden files are skipped unless
        they are named explicitly; ``say`` is called with a message about them.

        Raises:
            DataError: A folder is empty, or a pattern matches no file.
        """
        names: list[str] = []
        for name in self.files:
            path = folder / name
            if path.is_dir():
                inside = sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file())
                hidden = [file for file in inside if _is_hidden(file)]
                files = sorted(str(Path(name, file)) for file in inside if not _is_hidden(file))
                if hidden:
                    shown = ", ".join(map(str, hidden[:3])) + (", …" if len(hidden) > 3 else "")
                    say(f"{path}: hidden files are skipped: {len(hidden):,} ({shown}); to read one, name it in files")
            elif not path.exists() and _GLOB & set(name):
                matches = glob(name, root_dir=folder, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
                files = sorted(match for match in matches if (folder / match).is_file())
            else:
                names.append(name)
                continue
            if not files:
                raise DataError(f"{path}: no files; expected plain text or .jsonl files")
            names += files
        return self.model_copy(update={"files": tuple(names)})


def _is_hidden(path: Path) -> bool:
    """Return whether a path inside a folder is a file of the operating system or a program instead of a text."""
    return any(part.startswith(".") or part in _OF_SYSTEMS for part in path.parts)


def read_documents(corpus: TextCorpus, folder: Path, *, bad_lines: BadLines | None = None) -> Iterator[tuple[str, str]]:
    """Yield the chunks of all documents, each with an empty target text.

    Args:
        corpus: The corpus to read, without folders and patterns (:meth:`TextCorpus.with_expanded_files`).
        folder: Base of relative file names.
        bad_lines: Handler for invalid lines. By default, they raise an error.

    Raises:
        DataError: A file cannot be read or contains no text, or lines are invalid and not skipped.
    """
    bad_lines = bad_lines or BadLines()
    for name in corpus.files:
        pieces = 0
        for piece in _read(folder / name, corpus, bad_lines):
            yield piece, ""
            pieces += 1
        if not pieces and not bad_lines.has_failed:
            raise DataError(f"{folder / name}: contains only white space; expected text")
    bad_lines.raise_if_failed()


def read_whole_documents(corpus: TextCorpus, folder: Path) -> Iterator[str]:
    """Yield each document as a single string."""
    pieces: list[str] = []
    for piece, _ in read_documents(corpus, folder):
        pieces.append(piece.removesuffix(END_OF_DOCUMENT))
        if piece.endswith(END_OF_DOCUMENT):
            yield "".join(pieces)
            pieces = []


def read_texts(corpus: TextCorpus, folder: Path, *, bad_lines: BadLines | None = None) -> Iterator[tuple[str, ...]]:
    """Yield the chunks of all documents without :data:`END_OF_DOCUMENT`, for training a tokenizer."""
    for piece, _ in read_documents(corpus, folder, bad_lines=bad_lines):
        yield (piece.removesuffix(END_OF_DOCUMENT),)


def _read(path: Path, corpus: TextCorpus, bad_lines: BadLines) -> Iterator[str]:
    if uncompressed_name(path).suffix in (".jsonl", ".json"):
        for text in bad_lines.drop_problems(_texts_of_records(path, corpus.fields or ("text",))):
            yield from _pieces(_parts_of(text))
        return
    parts = bad_lines.drop_problems(read_parts(path))
    match corpus.documents:
        case "file":
            yield from _pieces(parts)
        case "line":
            for part in parts:
                yield from _pieces(_line_from(part, parts))
        case "blank_lines":
            for is_text, paragraph in groupby(parts, _HasText()):
                yield from _pieces(paragraph) if is_text else ()


def _texts_of_records(path: Path, fields: tuple[str, ...]) -> Iterator[str | LineProblem]:
    for number, record in enumerate(read_records(path, fields), start=1):
        if isinstance(record, LineProblem):
            yield record
        elif END_OF_DOCUMENT in record[0]:
            yield LineProblem(f"{path}, line {number}", "the text contains the character U+0000", "remove it")
        else:
            yield record[0]


def _parts_of(text: str) -> Iterator[str]:
    """Yield the lines of a text with their line ends. Long lines are yielded in several parts."""
    start = 0
    while start < len(text):
        end = text.find("\n", start, start + _PIECE) + 1 or min(start + _PIECE, len(text))
        yield text[start:end]
        start = end


def _line_from(part: str, parts: Iterator[str]) -> Iterator[str]:
    """Yield the parts of one line: ``part``, and parts from ``parts`` up to the line end."""
    yield part
    while not part.endswith("\n"):
        part = next(parts, "\n")
        yield part


class _HasText:
    """Tells for each part in order whether its line is not blank. The first part of a long line decides."""

    def __init__(self) -> None:
        self._last, self._begins_line = False, True

    def __call__(self, part: str) -> bool:
        if self._begins_line:
            self._last = bool(part.strip())
        self._begins_line = part.endswith("\n")
        return self._last


def _pieces(parts: Iterable[str]) -> Iterator[str]:
    """Yield a document in chunks, without white space at its end. Yield nothing for a blank document."""
    last = ""
    for piece in _divided(parts, _PIECE):
        if last and piece.strip():
            yield last
            last = piece
        else:
            last += piece
    if text := last.rstrip():
        yield text + END_OF_DOCUMENT


def split_into_chunks(text: str, size: int) -> Iterator[str]:
    """Split a text into chunks of ``size`` to ``2 * size`` characters: whole lines, or parts of long lines, which end
    before a space if possible. The concatenated chunks equal the text.
    """
    return _divided(_parts_of(text), size)


def _divided(parts: Iterable[str], length: int) -> Iterator[str]:
    """Regroup the parts of a text into chunks of ``length`` to ``2 * length`` characters; the last may be shorter.

    The chunks depend only on the text, not on how long lines are divided into parts.
    """
    piece: list[str] = []
    size = 0  # total size of the lines in the chunk
    line = ""
    for part in parts:
        line += part
        is_whole = line.endswith("\n")
        if not is_whole and size + len(line) <= 2 * length:
            continue
        # A chunk ends only before a line with text, so that blank lines are never at the start of a chunk.
        if size >= length and line.strip():
            yield "".join(piece)
            piece, size = [], 0
        while size + len(line) > 2 * length:
            end = _place_to_divide(line, length - size)
            yield "".join([*piece, line[:end]])
            piece, size, line = [], 0, line[end:]
        if is_whole:
            piece.append(line)
            size += len(line)
            line = ""
    if piece or line:
        yield "".join([*piece, line])


def _place_to_divide(line: str, start: int) -> int:
    """Return a position at or soon after ``start`` at which to split a long line.

    The best position is before a single space between words, which does not change the tokens of any word. The second
    best is before other white space, and the last resort is before a character that is not a combining character.
    """
    for border in (_SINGLE_SPACE, _SPACE):
        if match := border.search(line, max(start, 1), start + _WINDOW):
            return match.start()
    end = max(start, 1)
    while end < len(line) - 1 and unicodedata.category(line[end])[0] in "MC":
        end += 1
    return end


class DocumentEncoder:
    """Tokenizes chunks of documents, and adds EOS after the last chunk of each document."""

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return self._encoder.vocab_size

    def encode(self, texts: Sequence[str]) -> PackedIds:
        """Return the token ids of each chunk."""
        packed = self._encoder.encode([text.removesuffix(END_OF_DOCUMENT) for text in texts])
        is_last = np.fromiter((text.endswith(END_OF_DOCUMENT) for text in texts), bool, len(texts))
        ends = np.cumsum(packed.lengths)[is_last]
        return PackedIds(np.insert(packed.ids, ends, EOS), packed.lengths + is_last)


class EmptyTextEncoder:
    """Converts every text to an empty row, for the unused target side of a document store."""

    vocab_size = 0

    def encode(self, texts: Sequence[str]) -> PackedIds:
        """Return an empty row for each text."""
        return PackedIds(np.empty(0, np.uint32), np.zeros(len(texts), np.int64))
