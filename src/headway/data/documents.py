"""Documents for language models: plain text and JSONL, read in pieces so that documents of any size fit in memory.

A plain text file is one document, or has one document per line, or documents between blank lines. A ``.jsonl`` file has
one document per line, in the field ``text``. Files may be compressed (``.gz``, ``.zst``). Text is UTF-8.

Long documents are read in pieces of some 64 Ki characters, which end at line ends or, in a line that is longer, before
a space. The last piece of a document ends in :data:`END`. Tokens never cross the border between two pieces.
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

END = "\0"  # ends a document; the readers refuse this character in text
_PIECE = 1 << 16  # characters
_WINDOW = 1 << 12  # number of characters to search for a place to divide a line
_SINGLE_SPACE, _SPACE = re.compile(r"(?<=\S) (?=\S)"), re.compile(r"(?<=\S)\s")
_GLOB = frozenset("*?[")
_OF_SYSTEMS = frozenset({"Thumbs.db", "desktop.ini", "__MACOSX"})  # hidden files whose names do not begin with a dot


class TextCorpus(Corpus):
    """The files of a corpus of documents."""

    files: tuple[str, ...] = Field(
        description="Files of plain text or .jsonl, also .gz and .zst; folders, which stand for all files inside; and "
        "patterns such as books/*.txt.",
    )
    fields: tuple[str, ...] | None = Field(
        None, description="Name of the field of .jsonl records that contains the text (default text)."
    )
    documents: Literal["file", "line", "blank_lines"] = Field(
        "file", description="What a document is in plain text: the file, each line, or the text between blank lines."
    )
    weight: float = Field(
        1.0, gt=0, description="How many times an epoch reads each text; 0.5 reads half of it, drawn anew each epoch."
    )

    @model_validator(mode="after")
    def _check(self) -> TextCorpus:
        if not self.files or not all(self.files):
            raise ValueError("files: expected at least one file, folder or pattern")
        if self.fields is not None and len(self.fields) != 1:
            raise ValueError("fields: expected the name of one field, such as ['text']")
        if self.source_language or self.target_language:
            raise ValueError("a text has no source_language or target_language; leave the key out")
        return self

    def size(self, folder: Path) -> TextSize:
        """Return the numbers of lines and bytes of the files in ``folder``.

        There are no more pieces than lines: a line counts once more for each piece that it is long enough for.
        """
        sizes = [text_size(folder / name) for name in self.files]
        num_bytes = sum(size.num_bytes for size in sizes)
        return TextSize(sum(size.lines for size in sizes) + num_bytes // _PIECE, num_bytes)

    def expanded(self, folder: Path, say: Callable[[str], None]) -> TextCorpus:
        """Return this corpus with folders and patterns replaced by the files that they match, in alphabetical order.

        A path that exists is taken literally, even if it contains wildcard characters. Hidden files are left out
        unless they are named; ``say`` is called with a message about them.

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
                    say(f"{path}: hidden files are left out: {len(hidden):,} ({shown}); to read one, name it in files")
            elif not path.exists() and _GLOB & set(name):
                matches = glob(name, root_dir=folder, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
                files = sorted(match for match in matches if (folder / match).is_file())
            else:
                names.append(name)
                continue
            if not files:
                raise DataError(f"{path}: no file; expected files of plain text or .jsonl")
            names += files
        return self.model_copy(update={"files": tuple(names)})


def _is_hidden(path: Path) -> bool:
    """Whether a path inside a folder is a file of a system or a program instead of a text."""
    return any(part.startswith(".") or part in _OF_SYSTEMS for part in path.parts)


def read_documents(corpus: TextCorpus, folder: Path, *, bad_lines: BadLines | None = None) -> Iterator[tuple[str, str]]:
    """Yield the pieces of all documents, each with an empty second text.

    Args:
        corpus: The corpus to read, with the names of files only (:meth:`TextCorpus.expanded`).
        folder: Base of relative file names.
        bad_lines: Collects the lines that are no text. By default they are refused.

    Raises:
        DataError: A file cannot be read or contains no text, or lines are no text and are refused.
    """
    bad_lines = bad_lines or BadLines()
    for name in corpus.files:
        pieces = 0
        for piece in _read(folder / name, corpus, bad_lines):
            yield piece, ""
            pieces += 1
        if not pieces and not bad_lines.are_refused:
            raise DataError(f"{folder / name}: contains only white space; expected text")
    bad_lines.refuse()


def read_whole_documents(corpus: TextCorpus, folder: Path) -> Iterator[str]:
    """Yield each document as one text."""
    pieces: list[str] = []
    for piece, _ in read_documents(corpus, folder):
        pieces.append(piece.removesuffix(END))
        if piece.endswith(END):
            yield "".join(pieces)
            pieces = []


def read_texts(corpus: TextCorpus, folder: Path, *, bad_lines: BadLines | None = None) -> Iterator[tuple[str, ...]]:
    """Yield the pieces of all documents without the marks of their ends, for training a tokenizer."""
    for piece, _ in read_documents(corpus, folder, bad_lines=bad_lines):
        yield (piece.removesuffix(END),)


def _read(path: Path, corpus: TextCorpus, bad_lines: BadLines) -> Iterator[str]:
    if uncompressed_name(path).suffix in (".jsonl", ".json"):
        for text in bad_lines.without_problems(_texts_of_records(path, corpus.fields or ("text",))):
            yield from _pieces(_parts_of(text))
        return
    parts = bad_lines.without_problems(read_parts(path))
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
        elif END in record[0]:
            yield LineProblem(f"{path}, line {number}", "the text contains the character U+0000", "remove it")
        else:
            yield record[0]


def _parts_of(text: str) -> Iterator[str]:
    """Yield the lines of a text with their line ends. Long ones come in several parts."""
    start = 0
    while start < len(text):
        end = text.find("\n", start, start + _PIECE) + 1 or min(start + _PIECE, len(text))
        yield text[start:end]
        start = end


def _line_from(part: str, parts: Iterator[str]) -> Iterator[str]:
    """Yield the parts of one line, which begins with ``part`` and ends in ``parts``."""
    yield part
    while not part.endswith("\n"):
        part = next(parts, "\n")
        yield part


class _HasText:
    """Whether the line of a part is not blank, for parts in their order. The first part of a long line decides."""

    def __init__(self) -> None:
        self._last, self._begins_line = False, True

    def __call__(self, part: str) -> bool:
        if self._begins_line:
            self._last = bool(part.strip())
        self._begins_line = part.endswith("\n")
        return self._last


def _pieces(parts: Iterable[str]) -> Iterator[str]:
    """Yield one document in pieces, without white space at its end; nothing if it is blank."""
    last = ""
    for piece in _divided(parts, _PIECE):
        if last and piece.strip():
            yield last
            last = piece
        else:
            last += piece
    if text := last.rstrip():
        yield text + END


def divided(text: str, size: int) -> Iterator[str]:
    """Yield a text in pieces of ``size`` to ``2 * size`` characters, which join to it: whole lines, or parts of long
    lines, which end before a space if possible.
    """
    return _divided(_parts_of(text), size)


def _divided(parts: Iterable[str], length: int) -> Iterator[str]:
    """Yield a text, given in parts, in pieces of ``length`` to ``2 * length`` characters; the last may be shorter.

    The pieces depend only on the text, and not on the borders between the parts of a long line.
    """
    piece: list[str] = []
    size = 0  # total size of the lines in the piece
    line = ""
    for part in parts:
        line += part
        is_whole = line.endswith("\n")
        if not is_whole and size + len(line) <= 2 * length:
            continue
        # A piece ends before a line with text, because white space at its end belongs to the text that follows.
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
    """Return the position, at or soon after ``start``, at which to divide a long line.

    The best position is before a single space between words, which does not change the tokens of a word. The next best
    is before white space, and the last before a character that is not a combining one.
    """
    for border in (_SINGLE_SPACE, _SPACE):
        if match := border.search(line, max(start, 1), start + _WINDOW):
            return match.start()
    end = max(start, 1)
    while end < len(line) - 1 and unicodedata.category(line[end])[0] in "MC":
        end += 1
    return end


class DocumentEncoder:
    """Tokenizes pieces of documents, and adds EOS after the last piece of each."""

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return self._encoder.vocab_size

    def encode(self, texts: Sequence[str]) -> PackedIds:
        """Return the ids of each piece."""
        packed = self._encoder.encode([text.removesuffix(END) for text in texts])
        is_last = np.fromiter((text.endswith(END) for text in texts), bool, len(texts))
        ends = np.cumsum(packed.lengths)[is_last]
        return PackedIds(np.insert(packed.ids, ends, EOS), packed.lengths + is_last)


class NoText:
    """Tokenizes every text to an empty row, for the unused side of a store of documents."""

    vocab_size = 0

    def encode(self, texts: Sequence[str]) -> PackedIds:
        """Return an empty row for each text."""
        return PackedIds(np.empty(0, np.uint32), np.zeros(len(texts), np.int64))
